"""One operation of MinIO's library for Python."""

import importlib.metadata
import os
import sys

from minio import Minio
from minio.commonconfig import CopySource

operation, *arguments = sys.argv[1:]
bucket = os.environ["WIDE_BUCKET"]
client = Minio(
    endpoint=os.environ["WIDE_URL"].removeprefix("http://"),
    access_key=os.environ["AWS_ACCESS_KEY_ID"],
    secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
    region=os.environ["AWS_REGION"],
    secure=False,
)


def put(file, key):
    client.fput_object(bucket, key, file)


def upload(file, key):
    client.fput_object(bucket, key, file, part_size=5 << 20)


def get(key, file):
    client.fget_object(bucket, key, file)


def range_(key, first, count, file):
    response = client.get_object(bucket, key, offset=int(first), length=int(count))
    with open(file, "wb") as output:
        output.write(response.read())


def list_(prefix):
    print("\n".join(entry.object_name for entry in client.list_objects(bucket, prefix=prefix, recursive=True)))


def copy(key, to):
    client.copy_object(bucket, to, CopySource(bucket, key))


def delete(key):
    client.remove_object(bucket, key)


def version():
    print(importlib.metadata.version("minio"))


operations = {"range": range_, "list": list_}
(operations.get(operation) or globals()[operation])(*arguments)
