"""One operation of obstore at the XML API of Google's storage, with the key file of its environment."""

import importlib.metadata
import os
import sys

from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import GCSStore

operation, *arguments = sys.argv[1:]
config = {"service_account": os.environ["GOOGLE_APPLICATION_CREDENTIALS"]}
store = GCSStore(os.environ["WIDE_BUCKET"], config=config, client_options={"allow_http": True, "timeout": "120s"})


def put(file, key):
    with open(file, "rb") as source:
        store.put(key, source.read(), use_multipart=False)


def upload(file, key):
    with open(file, "rb") as source:
        store.put(key, source, use_multipart=True, chunk_size=5 << 20, max_concurrency=4)


def get(key, file):
    with open(file, "wb") as output:
        for piece in store.get(key).stream(min_chunk_size=1 << 20):
            output.write(piece)


def range_(key, first, count, file):
    with open(file, "wb") as output:
        output.write(store.get_range(key, start=int(first), length=int(count)))


def list_(prefix):
    print("\n".join(meta["path"] for page in store.list(prefix) for meta in page))


def copy(key, to):
    store.copy(key, to)


def delete(key):
    store.delete(key)


def generation(key):
    print(store.head(key)["version"])


def write(file, key, generation):
    """Writes if the object has the generation, 0 if there is none; prints whether it was written."""
    mode = "create" if generation == "0" else {"version": generation}
    try:
        with open(file, "rb") as source:
            store.put(key, source.read(), mode=mode)
    except (AlreadyExistsError, PreconditionError):
        print("refused")
    else:
        print("written")


def version():
    print(importlib.metadata.version("obstore"))


operations = {"range": range_, "list": list_}
(operations.get(operation) or globals()[operation])(*arguments)
