"""Uploads objects of the sizes in a line of its input, and answers a line of figures: see `Figures` of the harness."""

import io
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

CHUNK_BYTES = 16 << 20


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


def main():
    endpoint, at_once = sys.argv[1], int(sys.argv[2])
    client = storage.Client(
        project="bench", credentials=AnonymousCredentials(), client_options={"api_endpoint": endpoint}
    )
    bucket = client.bucket("bench")
    content = memoryview(bytes(64 << 20))
    pool = ThreadPoolExecutor(at_once)
    print("ready", flush=True)
    for turn, line in enumerate(sys.stdin):
        begun, cpu = time.monotonic(), cpu_seconds()

        def upload(at_size):
            at, size = at_size
            blob = bucket.blob(f"python-{turn}-{at}", chunk_size=CHUNK_BYTES)
            blob.upload_from_file(Slice(content, size), size=size, checksum=None)

        list(pool.map(upload, enumerate(map(int, line.split()))))
        # Its interpreter does not count what it allocates.
        print(time.monotonic() - begun, cpu_seconds() - cpu, "nan", flush=True)


main()
