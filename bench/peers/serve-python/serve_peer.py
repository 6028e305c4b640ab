"""Runs the job in a line of its input, a JSON object, and prints a line.

The line is a JSON object with seconds, processor seconds, waits and the result, or an error.
"""

import asyncio
import json
import os
import random
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from inspect import getsource
from pathlib import Path

import boto3
import duckdb
import numpy
import obstore
import polars
import pyarrow.dataset
import pyarrow.fs
from boto3.s3.transfer import TransferConfig
from botocore import UNSIGNED
from botocore.config import Config
from duckdb_extensions import import_extension
from obstore.store import S3Store

ROWS, SAMPLED_ROWS, SMALL, SHARDS = 95_000, 10_000, 10_000, 200
QUERY_ROWS = 1_000
"""Rows of a query, by their ids or as a sample."""
SHARD_BYTES = 8 << 20
CONNECTIONS_OF_EPOCH = 8

# A job is a generator: up to its first yield it prepares, up to its second it is timed, and its third yields the result.


def make(job):
    """The files: a wide table, samples of it, small objects, a long table, shards. Files of an earlier run are kept."""
    yield
    folder = Path(job["folder"])
    made, recipe = folder / "made", getsource(make)
    if made.exists() and made.read_text() == recipe:
        yield
        yield None
    for part in ("samples", "small", "shards"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    db = duckdb.connect()
    integers = ", ".join(f"(hash(i + {c}) % 100000)::INTEGER AS n{c}" for c in range(65))
    doubles = ", ".join(f"(hash(i * 31 + {c}) % 1000000) / 7.0 AS d{c}" for c in range(64))
    strings = ", ".join(f"'s' || (hash(i * 17 + {c}) % 1000) AS s{c}" for c in range(64))
    columns = f"i::INTEGER AS itemId, {integers}, {doubles}, {strings}"

    def table(path, first, rows):
        db.execute(f"COPY (SELECT {columns} FROM range({first}, {first + rows}) t(i)) TO '{path}' (ROW_GROUP_SIZE 8192)")

    table(folder / "items.parquet", 0, ROWS)
    for n in range(40):
        table(folder / "samples" / f"{n:02}.parquet", n * SAMPLED_ROWS, SAMPLED_ROWS)
    db.execute(
        f"COPY (SELECT i AS id, hash(i) % 300 AS origin, (hash(i * 7) % 1000) / 10.0 AS delay FROM range(3_000_000) t(i)) "
        f"TO '{folder}/long.parquet'"
    )
    for n in range(SMALL):
        (folder / "small" / f"{n:05}.csv").write_text(f"{n},{n * n}\n" * 10)
    for n in range(SHARDS):
        (folder / "shards" / f"{n:03}").write_bytes(random.Random(n).randbytes(SHARD_BYTES))
    made.write_text(recipe)
    yield
    yield None


def database(job, threads=2):
    import_extension("httpfs")
    db = duckdb.connect()
    db.execute(f"SET threads={threads}; SET enable_external_file_cache=false; SET enable_progress_bar=false; LOAD httpfs")
    if job["endpoint"]:
        db.execute(f"CREATE SECRET (TYPE s3, ENDPOINT '{job['endpoint']}', URL_STYLE 'path', USE_SSL false)")
    return db


@cache
def local(path):
    return duckdb.connect().execute(f"SELECT * FROM read_parquet('{path}')").to_arrow_table().combine_chunks()


def side_by_side(job, query_of):
    """Each connection queries rows of one file. The result has the numbers of tables, and of rows that equal those of the local file."""
    db = database(job)

    def connection(n):
        name, query = query_of(random.Random(n))
        return name, db.cursor().execute(query(f"read_parquet('{job['root']}/{name}')")).to_arrow_table()

    with ThreadPoolExecutor(job["connections"]) as pool:
        yield
        results = list(pool.map(connection, range(job["connections"])))
        yield
    tables = rows = 0
    for name, table in results:
        made = local(f"{job['folder']}/{name}")
        ids = table["itemId"].to_numpy()
        wanted = made.take(ids - made["itemId"][0].as_py())
        tables += 1
        rows += len(set(ids)) if wanted.equals(table.combine_chunks()) else 0
    yield {"tables": tables, "rows as made": rows}


def items(job):
    def query_of(dice):
        ids = ",".join(map(str, dice.sample(range(ROWS), QUERY_ROWS)))
        return "items.parquet", lambda table: f"SELECT * FROM {table} WHERE itemId IN ({ids})"

    return side_by_side(job, query_of)


def samples(job):
    def query_of(dice):
        name = f"samples/{dice.randrange(job['files']):02}.parquet"
        return name, lambda table: f"SELECT * FROM {table} USING SAMPLE {QUERY_ROWS} ROWS"

    return side_by_side(job, query_of)


def polars_scan(job):
    options = job["endpoint"] and {
        "aws_endpoint_url": f"http://{job['endpoint']}",
        "aws_allow_http": "true",
        "aws_skip_signature": "true",
        "aws_region": "us-east-1",
    }
    yield
    scan = polars.scan_parquet(f"{job['root']}/long.parquet", storage_options=options or None)
    # Whole numbers, because a sum of floats depends on the order of the threads.
    tenths = (polars.col("delay") * 10).round().cast(polars.Int64).sum()
    groups = scan.group_by("origin").agg(tenths, polars.len()).sort("origin").collect()
    yield
    yield digest(groups.to_arrow())


def pyarrow_scan(job):
    path, system = f"{job['root']}/long.parquet", None
    if job["endpoint"]:
        system = pyarrow.fs.S3FileSystem(anonymous=True, endpoint_override=job["endpoint"], scheme="http")
        path = path.removeprefix("s3://")
    yield
    table = pyarrow.dataset.dataset(path, filesystem=system).to_table(columns=["origin", "delay"])
    yield
    yield digest(table)


def glob(job):
    db = database(job, threads=64)
    yield
    rows = db.execute(
        f"SELECT count(*), sum(column0), sum(column1)::BIGINT FROM read_csv('{job['root']}/small/*.csv', header=false)"
    ).fetchone()
    yield
    yield list(map(int, rows))


def epoch(job):
    order = list(range(SHARDS))
    random.Random(1).shuffle(order)
    if job["endpoint"]:
        bucket, name = job["root"].removeprefix("s3://").split("/")
        store = anonymous(job["endpoint"], bucket)

        def read(n):
            return obstore.get(store, f"{name}/shards/{n:03}").bytes()
    else:

        def read(n):
            return (Path(job["root"]) / "shards" / f"{n:03}").read_bytes()

    def look(n):
        """Reads every byte, like a program that trains."""
        return n, int(numpy.frombuffer(read(n), dtype="<u8").sum())

    with ThreadPoolExecutor(CONNECTIONS_OF_EPOCH) as pool:
        yield
        sums = list(pool.map(look, order))
        yield
    yield sha256(repr(sorted(sums)).encode()).hexdigest()


def digest(table):
    sink = pyarrow.BufferOutputStream()
    table = table.combine_chunks()
    with pyarrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sha256(sink.getvalue()).hexdigest()


def anonymous(endpoint, bucket):
    return S3Store(
        bucket,
        endpoint=f"http://{endpoint}",
        region="us-east-1",
        skip_signature=True,
        client_options={"allow_http": True},
    )


class Memory:
    """A file over one preallocated buffer of the object's length."""

    def __init__(self, size):
        self.view, self.at, self.written = memoryview(bytearray(size)), 0, 0

    def seekable(self):
        return True

    def tell(self):
        return self.at

    def seek(self, offset, whence=os.SEEK_SET):
        assert whence == os.SEEK_SET
        self.at = offset
        return offset

    def write(self, piece):
        self.view[self.at : self.at + len(piece)] = piece
        self.at += len(piece)
        self.written += len(piece)
        return len(piece)


def boto3_download(job):
    yield
    client = boto3.client(
        "s3",
        endpoint_url=f"http://{job['endpoint']}",
        region_name="us-east-1",
        config=Config(signature_version=UNSIGNED, s3={"addressing_style": "path"}),
    )
    shard = job["shard"]
    config = TransferConfig(multipart_threshold=shard, multipart_chunksize=shard, max_concurrency=job["parallel"])
    into = Memory(job["bytes"])
    client.download_fileobj("bench", job["key"], into, Config=config)
    yield
    # The end of the last write is meaningless: shards are written in the order of their arrival.
    yield into.written


def obstore_download(job):
    size, shard, key = job["bytes"], job["shard"], job["key"]
    yield
    store = anonymous(job["endpoint"], "bench")

    async def run():
        gate = asyncio.Semaphore(job["parallel"])

        async def one(start):
            async with gate:
                return await obstore.get_range_async(store, key, start=start, length=min(shard, size - start))

        return await asyncio.gather(*map(one, range(0, size, shard)))

    parts = asyncio.run(run())
    yield
    yield sum(map(len, parts))


JOBS = {
    "make": make,
    "items": items,
    "samples": samples,
    "polars": polars_scan,
    "pyarrow": pyarrow_scan,
    "glob": glob,
    "epoch": epoch,
    "boto3": boto3_download,
    "obstore": obstore_download,
}


def usage():
    """Returns processor seconds, and the number of times that threads slept."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, used.ru_nvcsw


def run(job):
    steps = JOBS[job["job"]](job)
    next(steps)
    begun, (cpu, sleeps) = time.monotonic(), usage()
    next(steps)
    seconds, (cpu_then, sleeps_then) = time.monotonic() - begun, usage()
    figures = {"seconds": seconds, "cpu": cpu_then - cpu, "sleeps": sleeps_then - sleeps}
    return figures | {"result": next(steps)}


def main():
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            printed = run(json.loads(line))
        except Exception as error:  # the caller decides what a failure means
            printed = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(printed), flush=True)


main()
