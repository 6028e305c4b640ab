"""One operation of Amazon's common runtime (CRT), as its connectors for PyTorch bring it."""

import importlib.metadata
import os
import sys

from s3torchconnectorclient._mountpoint_s3_client import MountpointS3Client

operation, *arguments = sys.argv[1:]
bucket = os.environ["WIDE_BUCKET"]
client = MountpointS3Client(
    region=os.environ["AWS_REGION"],
    endpoint=os.environ["WIDE_URL"],
    force_path_style=True,
    part_size=5 << 20,
    # A failure is to be seen, not repeated.
    max_attempts=1,
)


def put(file, key):
    # It sends each object in parts, an empty one in one.
    stream = client.put_object(bucket, key)
    with open(file, "rb") as source:
        while piece := source.read(1 << 20):
            stream.write(piece)
    stream.close()


upload = put


def write(stream, file):
    with open(file, "wb") as output:
        for piece in stream:
            output.write(piece)


def get(key, file):
    write(client.get_object(bucket, key), file)


def range_(key, first, count, file):
    write(client.get_object(bucket, key, int(first), int(first) + int(count)), file)


def list_(prefix):
    for page in client.list_objects(bucket, prefix):
        for entry in page.object_info:
            print(entry.key)


def copy(key, to):
    client.copy_object(bucket, key, bucket, to)


def delete(key):
    client.delete_object(bucket, key)


def version():
    print(importlib.metadata.version("s3torchconnectorclient"))


operations = {"range": range_, "list": list_}
(operations.get(operation) or globals()[operation])(*arguments)
