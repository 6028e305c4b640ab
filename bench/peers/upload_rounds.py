"""Shared by the Python peers of uploads: reads lines of sizes, prints lines of figures (see `Figures` of the harness)."""

import io
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor


class Slice(io.RawIOBase):
    """A file of the first `size` bytes of `content`."""

    def __init__(self, content, size):
        self.content, self.size, self.at = content, size, 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self.at

    def seek(self, offset, whence=io.SEEK_SET):
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        return self.at

    def read(self, length=-1):
        end = self.size if length is None or length < 0 else min(self.size, self.at + length)
        piece = bytes(self.content[self.at : end])
        self.at = end
        return piece


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def serve_rounds(at_once, upload):
    """Calls `upload(turn, at, file, size)` for each size of a line, `at_once` at a time."""
    content = memoryview(bytes(range(256)) * (64 << 12))
    pool = ThreadPoolExecutor(at_once)
    print("ready", flush=True)
    for turn, line in enumerate(sys.stdin):
        begun, cpu = time.monotonic(), cpu_seconds()
        sizes = enumerate(map(int, line.split()))
        tasks = [pool.submit(upload, turn, at, Slice(content, size), size) for at, size in sizes]
        for task in tasks:
            task.result()
        # The interpreter does not count its allocations.
        print(time.monotonic() - begun, cpu_seconds() - cpu, "nan", flush=True)
