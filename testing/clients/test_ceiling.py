"""Memory stays below its ceiling while clients stop reading, and other clients are served."""

import contextlib
import threading
import time
import urllib.parse

import pytest
from harness import MIB, payload, until

STALLED = 64
LIMIT = 64 * MIB
# A body whose client reads nothing is closed after 30 s; the next client waits little longer, with a margin for a slow machine.
WITHIN_SECONDS = 60


class Sampler(threading.Thread):
    """Polls /stats; records the maximum of `budget.used` and all values above the limit."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.samples, self.highest, self.above = server, 0, 0, []
        self._done = threading.Event()

    def run(self):
        while not self._done.wait(0.02):
            budget = self.server.stats()["budget"]
            self.samples += 1
            self.highest = max(self.highest, budget["used"])
            if budget["used"] > budget["limit"]:
                self.above.append(budget)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self.join()


@pytest.fixture
def small(start, tmp_path):
    """A server with 64 MiB of memory over a folder of large files; those of the stalled clients are sparse."""
    origin = tmp_path / "origin"
    origin.mkdir()
    for number in range(STALLED):
        with open(origin / f"{number}", "wb") as file:
            file.truncate(32 * MIB)
    (origin / "wanted").write_bytes(payload(5 * MIB, 65))
    return start(f"data=file://{origin}", "--memory", "64MiB")


def resident_bytes(server):
    """Returns the anonymous memory of the process, from the kernel."""
    with open(f"/proc/{server.process.child.pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


def test_64_stalled_clients_do_not_starve_the_65th(small):
    assert small.stats()["budget"]["limit"] == LIMIT
    with contextlib.ExitStack() as open_sockets, Sampler(small) as sampler:
        for number in range(STALLED):
            url = urllib.parse.urlsplit(small.presigned("get_object", "data", f"{number}"))
            stalled = open_sockets.enter_context(small.connect(receive_buffer=4096))
            stalled.sendall(f"GET {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n".encode())
        until("all stalled requests have begun", lambda: small.bucket_stats("data")["requests"] >= STALLED, 30)
        began = time.monotonic()
        # Uploads have a share of their own.
        small.s3.put_object(Bucket="data", Key="put-meanwhile", Body=payload(MIB))
        put_took = time.monotonic() - began
        got = small.s3.get_object(Bucket="data", Key="wanted")["Body"].read()
        took = time.monotonic() - began
        assert got == payload(5 * MIB, 65)
        assert took < WITHIN_SECONDS
        # Checked before the first of them is closed.
        assert put_took < 25
        assert resident_bytes(small) < LIMIT + 64 * MIB
        until("the ceiling was looked at often", lambda: sampler.samples > 10, 60)
    assert not sampler.above
    print(f"the 65th took {took:.1f} s, the put {put_took:.2f} s; highest used {sampler.highest / MIB:.1f} MiB")


def test_memory_is_released_when_stalled_clients_disconnect(small):
    for number in range(STALLED):
        url = urllib.parse.urlsplit(small.presigned("get_object", "data", f"{number}"))
        with small.connect(receive_buffer=4096) as stalled:
            stalled.sendall(f"GET {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n".encode())
            stalled.recv(100)
    until("no request waits and no block loads", lambda: idle(small.stats()), 30)
    for number in range(3):
        assert len(small.s3.get_object(Bucket="data", Key=f"{number}")["Body"].read()) == 32 * MIB


def idle(stats):
    return stats["budget"]["waiting"] == 0 and stats["pool"]["flights"] == 0


def test_memory_stays_below_its_ceiling_under_larger_data(small):
    """Working sets and uploads larger than the ceiling are evicted."""
    with Sampler(small) as sampler:
        for number in range(8):
            assert len(small.s3.get_object(Bucket="data", Key=f"{number}")["Body"].read()) == 32 * MIB
        small.s3.put_object(Bucket="data", Key="larger", Body=payload(100 * MIB))
        assert small.s3.get_object(Bucket="data", Key="larger")["Body"].read() == payload(100 * MIB)
    assert not sampler.above
    assert small.stats()["pool"]["evictions"] > 0
