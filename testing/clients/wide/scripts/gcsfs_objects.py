"""One operation of gcsfs, with the key file of its environment."""

import importlib.metadata
import os
import sys

# As `bywash env --gcs` prints it; gcsfs reads it when it is imported.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
from gcsfs import GCSFileSystem  # noqa: E402

operation, *arguments = sys.argv[1:]
fs = GCSFileSystem(token=os.environ["GOOGLE_APPLICATION_CREDENTIALS"], endpoint_url=os.environ["WIDE_GCS"], project="p")


def at(key):
    return f"{os.environ['WIDE_BUCKET']}/{key}"


def put(file, key):
    fs.put_file(file, at(key), chunksize=1 << 30)


def upload(file, key):
    with open(file, "rb") as source, fs.open(at(key), "wb", block_size=4 << 20) as target:
        while piece := source.read(1 << 20):
            target.write(piece)


def get(key, file):
    fs.get_file(at(key), file)


def range_(key, first, count, file):
    with open(file, "wb") as output:
        output.write(fs.cat_file(at(key), start=int(first), end=int(first) + int(count)))


def list_(prefix):
    print("\n".join(path.split("/", 1)[1] for path in fs.find(at(prefix))))


def copy(key, to):
    fs.cp_file(at(key), at(to))


def delete(key):
    fs.rm_file(at(key))


def version():
    print(importlib.metadata.version("gcsfs"))


operations = {"range": range_, "list": list_}
(operations.get(operation) or globals()[operation])(*arguments)
