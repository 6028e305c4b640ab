"""Measures Bywash's local door beside clients of its S3 endpoint, memory and files: `cargo xtask peers local`.

Each row alternates its contenders in rounds, in one run, on one warm server. A row is the median of the ratios of a round, with their quartiles and
the two-sided p of a sign test. Every byte that is read is summed. `--quick` is a hundredth of the work, to see that it runs.
"""

import argparse
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

import boto3
import bywash
import bywash.testing
import obstore
import pyarrow
import pyarrow.compute
from obstore.store import S3Store

MIB = 1 << 20
BUCKET = "measured"


def summed(buffer):
    """Sums a buffer: a long one, whose length is a multiple of eight, at the speed of memory; a short one with less overhead."""
    if len(buffer) < MIB:
        return zlib.adler32(buffer)
    buffer = pyarrow.py_buffer(buffer)
    words = pyarrow.Array.from_buffers(pyarrow.uint64(), buffer.size // 8, [None, buffer])
    return pyarrow.compute.sum(words, min_count=0).as_py()


class Stopwatch:
    """Times contenders in alternating order."""

    def __init__(self, rounds):
        self.rounds = rounds

    def seconds(self, contenders, repeats):
        """Returns the seconds of each contender's call, a list for each."""
        times = {name: [] for name in contenders}
        for call in contenders.values():
            call()
        for number in range(self.rounds):
            order = list(contenders) if number % 2 == 0 else list(reversed(contenders))
            for name in order:
                start = time.perf_counter()
                for _ in range(repeats):
                    contenders[name]()
                times[name].append((time.perf_counter() - start) / repeats)
        return times

    def row(self, what, goal, contenders, repeats=1):
        """Prints the time of the first contender as a ratio to each other one."""
        times = self.seconds(contenders, repeats)
        first, *others = times
        for other in others:
            ratios = sorted(own / beside for own, beside in zip(times[first], times[other], strict=True))
            show(what, other, ratios, goal.get(other))


def show(what, beside, ratios, goal):
    low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    wins = sum(ratio < 1 for ratio in ratios)
    tail = min(wins, len(ratios) - wins)
    p = min(1.0, 2 * sum(math.comb(len(ratios), k) for k in range(tail + 1)) / 2 ** len(ratios))
    verdict = "" if goal is None else f"goal {goal}: {'met' if median <= goal else 'MISSED'}"
    print(f"| {what} | {beside} | {median:.3f} | {low:.3f} to {high:.3f} | {p:.3f} | {verdict} |", flush=True)


def reads(watch, bucket, s3, store, quick):
    """Warm reads of whole objects and of many ranges."""
    for size, goal in [(MIB, 0.33), (8 * MIB, 0.2)]:
        key = f"object-{size}"
        body = os.urandom(size)
        bucket.put(key, body)
        path = Path(tempfile.gettempdir(), f"bywash-measured-{os.getpid()}")
        path.write_bytes(body)
        expected = summed(body)
        calls = {
            "bywash": lambda key=key: summed(bucket.get(key)),
            "boto3": lambda key=key: summed(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()),
            "obstore": lambda key=key: summed(obstore.get(store, key).bytes()),
            "a local file": lambda: summed(path.read_bytes()),
        }
        assert {call() for call in calls.values()} == {expected}
        name = f"warm read of {size // MIB} MiB"
        watch.row(name, {"boto3": goal, "obstore": goal}, calls, 2 if quick else 20)
        path.unlink()

    length, number = 10_240, 1_000
    bucket.put("ranges", os.urandom(64 * MIB))
    starts = [(at * 65_543) % (64 * MIB - length) // 8 * 8 for at in range(number)]
    pairs = [(start, start + length) for start in starts]
    ends = [end for _, end in pairs]
    calls = {
        "bywash": lambda: sum(summed(part) for part in bucket.get_ranges("ranges", pairs)),
        "obstore": lambda: sum(summed(part) for part in obstore.get_ranges(store, "ranges", starts=starts, ends=ends)),
    }
    assert len({call() for call in calls.values()}) == 1
    watch.row("1,000 warm ranges of 10 KiB", {"obstore": 0.1}, calls)


def rust(watch, server):
    """One thread of the Rust client beside a copy of the same bytes, both timed by the example."""
    program = os.environ["BYWASH_WARM_READ"]
    environment = {**os.environ, "BYWASH_LOCAL": str(server.socket)}
    command = [program, BUCKET, f"object-{MIB}", str(watch.rounds)]
    lines = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    show("warm read of 1 MiB, Rust, one thread", "memcpy of 1 MiB", sorted(map(float, lines)), 1.25)


def hold(socket, keys, ready, leave):
    """A process that holds views of all objects."""
    bucket = bywash.connect(socket).bucket(BUCKET)
    views = [bucket.get(key) for key in keys]
    total = sum(summed(view) for view in views)
    ready.put((total, all(view.leased for view in views)))
    leave.wait()


def pss(pid, names=("Pss_Anon", "Pss_Shmem")):
    """Proportional set size of a process in bytes, without its program's files."""
    fields = dict(line.split(":") for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return sum(int(fields[name].split()[0]) for name in names) << 10


def processes(server, bucket, quick):
    """Eight processes over one warm set: memory of all, beside one copy."""
    size, number = 64 * MIB, 2 if quick else 8
    keys = [f"set-{at}" for at in range(number)]
    for key in keys:
        bucket.put(key, os.urandom(size))
        summed(bucket.get(key))
    context = multiprocessing.get_context("spawn")
    ready, leave = context.Queue(), context.Event()

    def memory(count):
        arguments = (server.socket, keys, ready, leave)
        children = [context.Process(target=hold, args=arguments, daemon=True) for _ in range(count)]
        for child in children:
            child.start()
        found = {ready.get() for _ in children}
        # Objects that the server does not lend are copied.
        assert len(found) == 1 and found.pop()[1], found
        all_of_them = pss(server.pid) + sum(pss(child.pid) for child in children)
        own = sum(pss(child.pid, ["Pss_Anon"]) for child in children)
        leave.set()
        for child in children:
            child.join()
        leave.clear()
        return all_of_them, own

    one, _ = memory(1)
    eight, interpreters = memory(8)
    ratio = (eight - interpreters) / (number * size)
    print(f"| 8 processes over {number * size // MIB} MiB, PSS of all and the server | one copy of the set | {ratio:.3f} | | | goal 1.05 |")
    print(f"\nOne process {one // MIB} MiB, eight {eight // MIB} MiB, of which {interpreters // MIB} MiB are the interpreters' own.")


def writes(watch, server, bucket, quick):
    """A large object written in pieces, beside the command line."""
    size = (16 if quick else 512) * MIB
    piece = os.urandom(MIB)
    path = Path(tempfile.gettempdir(), f"bywash-measured-{os.getpid()}")
    path.write_bytes(piece * (size // MIB))

    def by_python():
        with bucket.open("written", "wb") as file:
            for _ in range(size // MIB):
                file.write(piece)

    command = [os.environ["BYWASH_BIN"], "cp", str(path), f"s3://{BUCKET}/copied"]
    environment = {**os.environ, **server.environment, "AWS_ENDPOINT_URL": server.direct_s3}

    def by_command():
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)

    watch.row(f"open(.., 'wb') of {size // MIB} MiB", {"bywash cp": 1.25}, {"bywash": by_python, "bywash cp": by_command})
    path.unlink()


def imports(watch):
    """Seconds of `import bywash` beyond those of an empty interpreter."""

    def run(code):
        return lambda: subprocess.run([sys.executable, "-c", code], check=True)

    times = watch.seconds({"with": run("import bywash"), "without": run("")}, 1)
    own = statistics.median(a - b for a, b in zip(times["with"], times["without"], strict=True))
    print(f"| import bywash | 30 ms | {own * 1e3 / 30:.3f} | | | {own * 1e3:.1f} ms |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    watch = Stopwatch(3 if arguments.quick else arguments.rounds)
    with bywash.testing.server("--memory", "1536MiB", buckets=(BUCKET,)) as server:
        # Without the proxy that injects faults.
        s3 = boto3.client("s3", **{**server.boto3, "endpoint_url": server.direct_s3})
        options = {**server.storage_options, "aws_endpoint_url": server.direct_s3}
        allow_http = options.pop("aws_allow_http") == "true"
        store = S3Store.from_url(f"s3://{BUCKET}", config=options, client_options={"allow_http": allow_http})
        bucket = server.store().bucket(BUCKET)
        print("| what | beside | ratio of time | quartiles | p | |\n|---|---|---|---|---|---|")
        reads(watch, bucket, s3, store, arguments.quick)
        rust(watch, server)
        writes(watch, server, bucket, arguments.quick)
        imports(watch)
        processes(server, bucket, arguments.quick)
    print(json.dumps({"rounds": watch.rounds, "bywash": bywash.__version__, "boto3": boto3.__version__, "obstore": obstore.__version__}))


if __name__ == "__main__":
    main()
