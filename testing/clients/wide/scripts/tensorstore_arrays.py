"""TensorStore: one operation on a Zarr array, by its own S3 client."""

import importlib.metadata
import os
import sys

import tensorstore as ts
from arrays import WIDTH, check, draw


def place(prefix):
    return {
        "driver": "s3",
        "bucket": os.environ["WIDE_BUCKET"],
        "endpoint": os.environ["WIDE_URL"],
        "aws_region": os.environ["AWS_REGION"],
        "path": f"{prefix}/",
    }


def array(prefix, **more):
    spec = {"driver": "zarr3", "kvstore": place(prefix)}
    # Nothing is kept, so that each read asks the server.
    return ts.open(spec, context=ts.Context({"cache_pool": {"total_bytes_limit": 0}}), **more).result()


def write(prefix, count):
    rows = draw(int(count))
    layout = ts.ChunkLayout(chunk_shape=[256, WIDTH])
    array(prefix, create=True, dtype=ts.uint8, shape=rows.shape, chunk_layout=layout).write(rows).result()


def read(prefix, count):
    rows, found = draw(int(count)), array(prefix)
    check(found.read().result(), rows)
    check(found[5:700, 3].read().result(), rows[5:700, 3])


def change(prefix, count):
    """Writers at the same time change parts of the same chunks, so that each but the first has to write again."""
    rows = draw(int(count))
    more = draw(int(count), 2)
    writers = [array(prefix) for _ in range(4)]
    for writes in [writer[number::4].write(more[number::4]) for number, writer in enumerate(writers)]:
        writes.result()
    check(array(prefix).read().result(), more)
    array(prefix).resize(exclusive_max=[500, WIDTH]).result()
    check(array(prefix).read().result(), more[:500])
    kept = keys(prefix)
    store = ts.KvStore.open(place(prefix)).result()
    name = "a b+c=ü"
    first = store.write(name, rows[0].tobytes(), if_equal=b"").result()
    assert store.write(name, rows[1].tobytes(), if_equal=first.generation).result().generation
    # The version has been replaced.
    refused = store.write(name, b"other", if_equal=first.generation).result()
    assert not refused.generation, refused
    assert store.read(name, if_not_equal=first.generation).result().value == rows[1].tobytes()
    assert keys(prefix) == sorted([*kept, name.encode()])
    store.delete_range(ts.KvStore.KeyRange("a", "b")).result()
    assert keys(prefix) == kept


def keys(prefix):
    return sorted(ts.KvStore.open(place(prefix)).result().list().result())


def version():
    print(importlib.metadata.version("tensorstore"))


operation, *arguments = sys.argv[1:]
globals()[operation](*arguments)
