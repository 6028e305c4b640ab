"""Measures the cost of memory that other processes can map for the S3 endpoint: a server with the local door next to one with `--local off`, whose
blocks are in anonymous memory. `cargo xtask peers local` runs it.

A row has the processor time of the server a request, from the scheduler, and the time of its client. The servers alternate in rounds; a ratio is
the median of the rounds', with its quartiles.
"""

import argparse
import http.client
import os
import statistics
import subprocess
import tempfile
import time
import urllib.parse
from pathlib import Path

import boto3

KIB, MIB = 1 << 10, 1 << 20
KEY, SECRET = "measured", "a-secret-of-measurements"
COLD = [f"cold-{number}" for number in range(48)]


class Server:
    """A server in a process, and a connection of a client."""

    def __init__(self, folder, local):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BYWASH_")}
        addresses = [word for name in ("s3", "admin") for word in (f"--{name}-addr", "127.0.0.1:0")]
        command = [
            os.environ["BYWASH_BIN"], "serve", "--data-dir", folder, "--bucket", "data", *addresses, "--gcs-addr", "off",
            "--memory", "192MiB", "--no-history", "--local", local, "--access-key", KEY, "--secret-key", SECRET,
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True)
        ready = next(line for line in self.process.stdout if line.startswith("ready "))
        url = dict(word.split("=") for word in ready.split()[1:])["s3"]
        self.s3 = boto3.client("s3", endpoint_url=url, aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="us-east-1")
        self.connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc)
        self.targets = {}

    def target(self, method, key):
        """Returns the signed path of a request."""
        if (method, key) not in self.targets:
            url = self.s3.generate_presigned_url(f"{method.lower()}_object", Params={"Bucket": "data", "Key": key}, ExpiresIn=36_000)
            parts = urllib.parse.urlsplit(url)
            self.targets[method, key] = f"{parts.path}?{parts.query}"
        return self.targets[method, key]

    def send(self, method, key, body=None):
        self.connection.request(method, self.target(method, key), body)
        response = self.connection.getresponse()
        while response.read(MIB):
            pass
        assert response.status == 200, response.status

    def processor_seconds(self):
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def close(self):
        self.process.terminate()
        self.process.wait()


def measured(server, call, count):
    """Returns processor seconds of the server and seconds of the client, a request."""
    processor, start = server.processor_seconds(), time.perf_counter()
    for number in range(count):
        call(server, number)
    return (server.processor_seconds() - processor) / count, (time.perf_counter() - start) / count


def row(what, servers, rounds, call, count):
    found = {name: [] for name in servers}
    for number in range(rounds + 1):
        for name in list(servers) if number % 2 else reversed(servers):
            figures = measured(servers[name], call, count)
            # The first round warms.
            found[name] += [figures] if number else []
    cells = []
    for kind in range(2):
        mapped, anonymous = ([figures[kind] for figures in found[name]] for name in ("mapped", "anonymous"))
        ratios = [own / other for own, other in zip(mapped, anonymous, strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4)
        micros = [statistics.median(figures) * 1e6 for figures in (mapped, anonymous)]
        cells.append(f"{micros[0]:.1f} | {micros[1]:.1f} | {median:.3f} | {low:.3f} to {high:.3f}")
    print(f"| {what} | {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    rounds, share = (3, 20) if arguments.quick else (arguments.rounds, 1)
    folder = tempfile.TemporaryDirectory(prefix="bywash-measured-")
    servers = {
        "mapped": Server(f"{folder.name}/mapped", f"{folder.name}/local.sock"),
        "anonymous": Server(f"{folder.name}/anonymous", "off"),
    }
    print("| request | processor, us: mapped | anonymous | ratio | quartiles | time, us: mapped | anonymous | ratio | quartiles |")
    print("|---|--:|--:|--:|---|--:|--:|--:|---|")
    for name, size, count in [("4 KiB", 4 * KIB, 2000), ("64 KiB", 64 * KIB, 1000), ("1 MiB", MIB, 200), ("16 MiB", 16 * MIB, 20)]:
        body = os.urandom(size)
        for server in servers.values():
            server.send("PUT", "warm", body)
        row(f"warm GET of {name}", servers, rounds, lambda server, _: server.send("GET", "warm"), max(2, count // share))
    body = os.urandom(8 * MIB)
    row("PUT of 8 MiB", servers, rounds, lambda server, number: server.send("PUT", COLD[number], body), 4 if arguments.quick else len(COLD))
    for server in servers.values():
        for key in COLD:
            server.send("PUT", key, body)
    # Twice as much as the memory: the object read next is the one read longest ago.
    row("cold GET of 8 MiB", servers, rounds, lambda server, number: server.send("GET", COLD[number]), len(COLD))
    for server in servers.values():
        server.close()
    folder.cleanup()


if __name__ == "__main__":
    main()
