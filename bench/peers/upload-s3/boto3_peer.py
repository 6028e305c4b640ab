"""Uploads objects by boto3's transfer manager."""

import sys

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from upload_rounds import serve_rounds

PART_BYTES = 16 << 20
PARTS_AT_ONCE = 4


def main():
    endpoint, at_once = sys.argv[1], int(sys.argv[2])
    config = Config(max_pool_connections=at_once * PARTS_AT_ONCE)
    s3 = boto3.client("s3", endpoint_url=endpoint, config=config)
    transfer = TransferConfig(
        multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=PARTS_AT_ONCE
    )

    def upload(_turn, at, file, _size):
        # The same keys in each round, because the store keeps its objects in memory.
        s3.upload_fileobj(file, "bench", f"boto3/{at}", Config=transfer)

    serve_rounds(at_once, upload)


main()
