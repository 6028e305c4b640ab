"""One operation of Google's storage library for Python, with the credentials of its environment."""

import importlib.metadata
import os
import sys

from google.api_core.exceptions import PreconditionFailed
from google.cloud import storage
from google.cloud.storage import transfer_manager

CHUNK = 5 << 20

operation, *arguments = sys.argv[1:]
client = storage.Client(project="p", client_options={"api_endpoint": os.environ["WIDE_GCS"]})
bucket = client.bucket(os.environ["WIDE_BUCKET"])
threads = {"worker_type": transfer_manager.THREAD, "max_workers": 4, "chunk_size": CHUNK}


def put(file, key):
    bucket.blob(key).upload_from_filename(file)


def upload(file, key):
    # Writes of less than a chunk are resumable sessions too.
    with open(file, "rb") as source, bucket.blob(key, chunk_size=4 << 20).open("wb") as target:
        while piece := source.read(1 << 20):
            target.write(piece)


def parts(file, key):
    transfer_manager.upload_chunks_concurrently(file, bucket.blob(key), **threads)


def get(key, file):
    bucket.blob(key).download_to_filename(file)


def pieces(key, file):
    # A store that computes no CRC32C of objects of parts, as moto, has none, and the client takes an absent one for a wrong one.
    blob = bucket.get_blob(key)
    transfer_manager.download_chunks_concurrently(blob, file, crc32c_checksum=blob.crc32c is not None, **threads)


def range_(key, first, count, file):
    first, count = int(first), int(count)
    with open(file, "wb") as output:
        output.write(bucket.blob(key).download_as_bytes(start=first, end=first + count - 1))


def list_(prefix):
    print("\n".join(blob.name for blob in client.list_blobs(bucket, prefix=prefix)))


def copy(key, to):
    bucket.copy_blob(bucket.blob(key), bucket, to)


def delete(key):
    bucket.delete_blob(key)


def generation(key):
    print(bucket.get_blob(key).generation)


def write(file, key, generation):
    """Writes if the object has the generation, 0 if there is none; prints whether it was written."""
    try:
        bucket.blob(key).upload_from_filename(file, if_generation_match=int(generation))
    except PreconditionFailed:
        print("refused")
    else:
        print("written")


def version():
    print(importlib.metadata.version("google-cloud-storage"))


operations = {"range": range_, "list": list_}
(operations.get(operation) or globals()[operation])(*arguments)
