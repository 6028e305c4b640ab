"""Icechunk: one operation on a repository of Zarr arrays."""

import datetime
import importlib.metadata
import os
import sys

import icechunk
import numpy as np
import zarr
from arrays import WIDTH, check, draw


def storage(prefix):
    return icechunk.s3_storage(
        bucket=os.environ["WIDE_BUCKET"],
        prefix=prefix,
        region=os.environ["AWS_REGION"],
        endpoint_url=os.environ["WIDE_URL"],
        allow_http=True,
        force_path_style=True,
        from_env=True,
    )


def array(session):
    return zarr.open_group(session.store, mode="r" if session.read_only else "r+")["rows"]


def write(prefix, count):
    rows = draw(int(count))
    session = icechunk.Repository.create(storage(prefix)).writable_session("main")
    group = zarr.group(session.store)
    group.create_array("rows", shape=rows.shape, chunks=(256, WIDTH), dtype=rows.dtype, compressors=None)
    array(session)[:] = rows
    session.commit("rows")


def read(prefix, count):
    rows = draw(int(count))
    found = array(icechunk.Repository.open(storage(prefix)).readonly_session("main"))
    check(found[:], rows)
    check(found[5:700, 3], rows[5:700, 3])


def change(prefix, count):
    rows, more = draw(int(count)), draw(int(count), 2)
    repository = icechunk.Repository.open(storage(prefix))
    first = repository.lookup_branch("main")
    sessions = [repository.writable_session("main") for _ in range(2)]
    array(sessions[0]).append(more)
    array(sessions[1])[:256] = more[:256]
    second = sessions[0].commit("more")
    # The branch has moved, which a conditional write of the store finds out.
    try:
        sessions[1].commit("late")
        raise AssertionError("a commit over another was accepted")
    except icechunk.ConflictError:
        pass
    both = np.concatenate([rows, more])
    check(array(repository.readonly_session("main"))[:], both)
    check(array(repository.readonly_session(snapshot_id=first))[:], rows)
    repository.create_tag("first", first)
    try:
        repository.create_tag("first", second)
        raise AssertionError("a tag was made twice")
    except icechunk.IcechunkError:
        pass
    repository.reset_branch("main", first)
    session = repository.writable_session("main")
    array(session)[:256] = more[:256]
    session.commit("other")
    now = icechunk.Repository.open(storage(prefix))
    check(array(now.readonly_session("main"))[:], np.concatenate([more[:256], rows[256:]]))
    check(array(now.readonly_session(tag="first"))[:], rows)
    # Chunks of the commit that no branch has any more leave, those of the others stay.
    removed = now.garbage_collect(datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1))
    assert removed.chunks_deleted or removed.bytes_deleted, removed
    check(array(now.readonly_session("main"))[256:], rows[256:])


def version():
    print(importlib.metadata.version("icechunk"))


operation, *arguments = sys.argv[1:]
globals()[operation](*arguments)
