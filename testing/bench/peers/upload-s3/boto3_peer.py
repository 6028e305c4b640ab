"""Uploads objects of the sizes in a line of its input by boto3's transfer manager, and answers a line of figures: see `Figures`
of the harness."""

import io
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

PART_BYTES = 16 << 20
PARTS_AT_ONCE = 4


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
    config = Config(max_pool_connections=at_once * PARTS_AT_ONCE)
    s3 = boto3.client("s3", endpoint_url=endpoint, config=config)
    transfer = TransferConfig(
        multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=PARTS_AT_ONCE
    )
    content = memoryview(bytes(range(256)) * (64 << 12))
    pool = ThreadPoolExecutor(at_once)
    print("ready", flush=True)
    for line in sys.stdin:
        begun, cpu = time.monotonic(), cpu_seconds()

        def upload(at_size):
            at, size = at_size
            # The same keys in each round: the store keeps what it has in memory.
            s3.upload_fileobj(Slice(content, size), "bench", f"boto3/{at}", Config=transfer)

        list(pool.map(upload, enumerate(map(int, line.split()))))
        # Its interpreter does not count what it allocates.
        print(time.monotonic() - begun, cpu_seconds() - cpu, "nan", flush=True)


main()
