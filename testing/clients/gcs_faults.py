"""Uploads by Google's Python client under seeded faults, each judged: the object is exact, or the client has an error.

`test_gcs_faults.py` runs some of them in the gate, and `cargo xtask soak gcs` many more. What an upload does and which faults its
connections have depends on its seed alone, so a failure is repeated by one.
"""

import argparse
import base64
import collections
import io
import random
import tempfile
import time
import urllib.parse

import google_crc32c
import requests
from fault_proxy import Fault, FaultProxy, FaultsInOrder
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY
from harness import MIB, Bywash

BUCKET = "faults"
CHUNK = 256 * 1024
# Statuses that the client repeats.
BUSY = [429, 500, 502, 503]
# How long the client repeats a request: long enough for a server that starts again, short, or not at all.
PATIENT = DEFAULT_RETRY.with_deadline(60).with_delay(initial=0.01, multiplier=1.5, maximum=0.2)
IMPATIENT = DEFAULT_RETRY.with_deadline(0.1).with_delay(initial=0.01, multiplier=1.5, maximum=0.05)
# Seconds to connect, and without a byte of a response.
TIMEOUT = (5, 30)
HEAD_BYTES = 600


class Plan:
    """What one upload does, and the faults of its connections, drawn from its seed."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.key = f"upload {seed}"
        self.way = draw.choice(["string", "chunks", "chunks", "stream"])
        # Small ones, those of a few chunks, and now and then one that is long enough for a session without being asked for one.
        size = draw.choice([draw.randrange(2), draw.randrange(CHUNK), draw.randrange(4 * CHUNK), 2 * CHUNK, draw.randrange(3 * MIB)])
        if draw.random() < 0.01:
            size = 8 * MIB + draw.randrange(MIB)
        self.content = draw.randbytes(size)
        self.chunk = CHUNK * draw.choice([1, 1, 2, 4])
        self.old = draw.randbytes(draw.randrange(1000)) if draw.random() < 0.25 else None
        # Whether the upload is for the version that it finds alone.
        self.conditional = draw.random() < 0.4
        self.retry = draw.choice([PATIENT, PATIENT, PATIENT, PATIENT, IMPATIENT, None])
        self.faults = [self.fault(draw) for _ in range(draw.choice([0, 1, 1, 2, 3, 5]))]
        if draw.random() < 0.06:
            at = draw.randrange(HEAD_BYTES + min(size, self.chunk))
            self.faults.insert(0, Fault("kill", draw.choice([0, 0, 1]), at))

    def fault(self, draw):
        kind = draw.choice(["cut request", "cut request", "cut response", "cut response", "respond", "replace", "delay"])
        request = draw.choice([0, 0, 0, 1, 1, 2, 3])
        if kind == "cut request":
            at = draw.choice([1, draw.randrange(HEAD_BYTES), draw.randrange(HEAD_BYTES + len(self.content)), draw.randrange(2 * CHUNK)])
            return Fault(kind, request, at)
        if kind == "cut response":
            return Fault(kind, request, draw.choice([0, 0, draw.randrange(1200)]))
        status, seconds = draw.choice(BUSY), draw.choice([0.001, 0.005, 0.02])
        return Fault(kind, request, seconds=seconds) if kind == "delay" else Fault(kind, request, status=status)


class FalseSuccess(AssertionError):
    """An upload that the client takes for stored while the object is another; or an object that no upload sent."""


class Soak:
    """A server, a client that reaches it through the proxy, and one that reaches it directly."""

    def __init__(self, folder):
        self.server = Bywash(folder, "--anonymous", credentials=False)
        self.proxy = FaultProxy(self.server.gcs, FaultsInOrder(), self.restart)
        options = {"api_endpoint": self.proxy.url}
        self.client = storage.Client(project="p", credentials=AnonymousCredentials(), client_options=options)
        self.direct = requests.Session()
        self.kills = 0
        self.counts = collections.Counter()
        self.ask("POST", "/storage/v1/b?project=p", json={"name": BUCKET}).raise_for_status()

    def restart(self):
        self.server.kill()
        self.server.start()
        self.kills += 1
        return self.server.gcs

    def ask(self, method, target, **options):
        return self.direct.request(method, self.server.gcs + target, timeout=60, **options)

    def stop(self):
        self.proxy.stop()
        self.direct.close()
        return self.server.stop()

    def upload(self, plan):
        """Uploads as planned. Returns what the client knows of the object, or its error."""
        bucket = self.client.bucket(BUCKET)
        options = {"retry": plan.retry, "timeout": TIMEOUT}
        if plan.conditional:
            found = self.stored(plan.key)
            options["if_generation_match"] = int(found["generation"]) if found else 0
        # The client begins without a connection, whatever the upload before left.
        self.client._http.close()
        self.proxy.begin(FaultsInOrder(plan.faults))
        blob = bucket.blob(plan.key, chunk_size=None if plan.way == "string" else plan.chunk)
        try:
            if plan.way == "string":
                blob.upload_from_string(plan.content, **options)
            elif plan.way == "chunks":
                # Of a known size the client would send these in one request.
                blob.upload_from_file(io.BytesIO(plan.content), **options)
            else:
                self.stream(blob.open("wb", **options), plan.content)
        except Exception as failure:
            return None, failure
        finally:
            # What the judge asks is not disturbed.
            self.proxy.begin(FaultsInOrder())
        return blob, None

    def stream(self, writer, content):
        try:
            with writer:
                for at in range(0, len(content), 100_000):
                    writer.write(content[at : at + 100_000])
        finally:
            # The finalizer of a failed writer would continue the upload, in whichever thread collects it.
            writer._buffer.close()

    def stored(self, key):
        """Returns the object's metadata as the server has them, or `None`."""
        response = self.ask("GET", f"/storage/v1/b/{BUCKET}/o/{urllib.parse.quote(key, safe='')}")
        if response.status_code == 404:
            return None
        response.raise_for_status()
        return response.json()

    def judge(self, plan, blob, failure):
        """Raises `FalseSuccess` unless the object is exact, or the client has an error and the object is the old or the new one."""
        found = self.stored(plan.key)
        read = found and self.ask("GET", f"/storage/v1/b/{BUCKET}/o/{urllib.parse.quote(plan.key, safe='')}?alt=media").content
        if failure:
            if read not in (plan.old, plan.content):
                raise FalseSuccess(f"after {failure!r} the object has {read and len(read)} bytes that no upload sent")
            return "error, stored" if read == plan.content else "error, not stored"
        if read != plan.content:
            raise FalseSuccess(f"{len(plan.content)} bytes were acknowledged, and the object has {read and len(read)} others")
        crc32c = base64.b64encode(google_crc32c.Checksum(plan.content).digest()).decode()
        expected = {"size": str(len(plan.content)), "crc32c": crc32c}
        # A writer of a stream knows no more than that it was stored.
        if blob.generation is not None:
            known = {"size": str(blob.size), "crc32c": blob.crc32c}
            if known != expected:
                raise FalseSuccess(f"the client has {known}, and not {expected}")
            expected["generation"] = str(blob.generation)
        if any(found[name] != value for name, value in expected.items()):
            raise FalseSuccess(f"the object has {({name: found[name] for name in expected})}, and not {expected}")
        return "exact"

    def run(self, seed):
        """Does the upload of a seed, and counts how it ended."""
        plan = Plan(seed)
        target = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={urllib.parse.quote(plan.key, safe='')}"
        if plan.old is not None:
            self.ask("POST", target, data=plan.old).raise_for_status()
        blob, failure = self.upload(plan)
        try:
            verdict = self.judge(plan, blob, failure)
        except FalseSuccess as wrong:
            raise FalseSuccess(
                f"upload of {len(plan.content)} bytes by {plan.way}, seed {seed}, faults {plan.faults}: {wrong}\n"
                f"repeat it by: cargo xtask soak gcs --ops 1 --seed {seed}"
            ) from failure
        self.counts[verdict] += 1
        if failure:
            self.counts[f"error {type(failure).__name__}"] += 1
        self.ask("DELETE", f"/storage/v1/b/{BUCKET}/o/{urllib.parse.quote(plan.key, safe='')}")
        return verdict

    def report(self):
        """Returns lines of figures."""
        verdicts = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.proxy.seen.items()))
        return f"ends: {verdicts}\nfaults that happened: {faults}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="of the first upload; the next ones have the next seeds")
    parser.add_argument("--uploads", type=int, required=True)
    args = parser.parse_args()
    print(f"seeds {args.seed}..{args.seed + args.uploads}: {args.uploads} uploads by Google's Python client", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(folder)
        begun = time.monotonic()
        for number in range(args.uploads):
            soak.run(args.seed + number)
            if number % 1000 == 999:
                print(f"{number + 1} uploads in {time.monotonic() - begun:.0f} s", flush=True)
        assert soak.stop() == 0, "the server did not end as asked"
    print(soak.report())
    print(f"{args.uploads} uploads in {time.monotonic() - begun:.0f} s: no false success")


if __name__ == "__main__":
    main()
