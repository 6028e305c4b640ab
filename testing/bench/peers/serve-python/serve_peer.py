"""Runs the job in a line of its input, a JSON object, and answers a line: its seconds and processor seconds, or an error."""

import asyncio
import json
import os
import random
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import duckdb
import obstore
import polars
import pyarrow.dataset
import pyarrow.fs
from boto3.s3.transfer import TransferConfig
from botocore import UNSIGNED
from botocore.config import Config
from duckdb_extensions import import_extension
from obstore.store import S3Store

ROWS, IDS, SMALL, SHARDS = 95_000, 1_000, 10_000, 200
SHARD_BYTES = 8 << 20
QUERIES = 2
"""Queries of each connection."""


def make(job):
    """The files: a wide table, samples of it, small objects, a long table, shards."""
    folder = Path(job["folder"])
    for part in ("samples", "small", "shards"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    db = duckdb.connect()
    integers = ", ".join(f"(hash(i + {c}) % 100000)::INTEGER AS n{c}" for c in range(65))
    doubles = ", ".join(f"(hash(i * 31 + {c}) % 1000000) / 7.0 AS d{c}" for c in range(64))
    strings = ", ".join(f"'s' || (hash(i * 17 + {c}) % 1000) AS s{c}" for c in range(64))
    columns = f"i::INTEGER AS itemId, {integers}, {doubles}, {strings}"
    db.execute(f"COPY (SELECT {columns} FROM range({ROWS}) t(i)) TO '{folder}/items.parquet' (ROW_GROUP_SIZE 8192)")
    for n in range(40):
        db.execute(
            f"COPY (SELECT {columns} FROM range({n * 10_000}, {n * 10_000 + 10_000}) t(i)) TO '{folder}/samples/{n:02}.parquet'"
        )
    db.execute(
        f"COPY (SELECT i AS id, hash(i) % 300 AS origin, (hash(i * 7) % 1000) / 10.0 AS delay FROM range(3_000_000) t(i)) "
        f"TO '{folder}/long.parquet'"
    )
    for n in range(SMALL):
        (folder / "small" / f"{n:05}.csv").write_text(f"{n},{n * n}\n" * 10)
    block = os.urandom(SHARD_BYTES)
    for n in range(SHARDS):
        (folder / "shards" / f"{n:03}").write_bytes(block)


def database(job, threads=2):
    import_extension("httpfs")
    db = duckdb.connect()
    db.execute(f"SET threads={threads}; SET enable_external_file_cache=false")
    if job["endpoint"]:
        db.execute(f"CREATE SECRET (TYPE s3, ENDPOINT '{job['endpoint']}', URL_STYLE 'path', USE_SSL false)")
    return db


def side_by_side(job, query):
    """Each connection asks its queries one after the other."""
    db = database(job)

    def connection(n):
        cursor = db.cursor()
        for turn in range(QUERIES):
            assert cursor.execute(query(random.Random(n * QUERIES + turn))).to_arrow_table().num_rows > 0

    with ThreadPoolExecutor(job["connections"]) as pool:
        list(pool.map(connection, range(job["connections"])))


def items(job):
    def query(dice):
        ids = ",".join(map(str, dice.sample(range(ROWS), IDS)))
        return f"SELECT * FROM read_parquet('{job['root']}/items.parquet') WHERE itemId IN ({ids})"

    side_by_side(job, query)


def samples(job):
    def query(dice):
        name = f"{dice.randrange(job['files']):02}"
        return f"SELECT * FROM read_parquet('{job['root']}/samples/{name}.parquet') USING SAMPLE 1000 ROWS"

    side_by_side(job, query)


def polars_scan(job):
    options = job["endpoint"] and {
        "aws_endpoint_url": f"http://{job['endpoint']}",
        "aws_allow_http": "true",
        "aws_skip_signature": "true",
        "aws_region": "us-east-1",
    }
    scan = polars.scan_parquet(f"{job['root']}/long.parquet", storage_options=options or None)
    assert scan.group_by("origin").agg(polars.col("delay").mean()).collect().height == 300


def pyarrow_scan(job):
    path, system = f"{job['root']}/long.parquet", None
    if job["endpoint"]:
        system = pyarrow.fs.S3FileSystem(anonymous=True, endpoint_override=job["endpoint"], scheme="http")
        path = path.removeprefix("s3://")
    table = pyarrow.dataset.dataset(path, filesystem=system).to_table(columns=["origin", "delay"])
    assert table.num_rows == 3_000_000


def glob(job):
    count = database(job, threads=64).execute(f"SELECT count(*) FROM read_csv('{job['root']}/small/*.csv', header=false)")
    assert count.fetchone() == (SMALL * 10,)


def epoch(job):
    order = list(range(SHARDS))
    random.Random(1).shuffle(order)
    if job["endpoint"]:
        bucket, name = job["root"].removeprefix("s3://").split("/")
        store = anonymous(job["endpoint"], bucket)

        def read(n):
            return len(obstore.get(store, f"{name}/shards/{n:03}").bytes())
    else:

        def read(n):
            return len((Path(job["root"]) / "shards" / f"{n:03}").read_bytes())

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(read, order)) == {SHARD_BYTES}


def anonymous(endpoint, bucket):
    return S3Store(
        bucket,
        endpoint=f"http://{endpoint}",
        region="us-east-1",
        skip_signature=True,
        client_options={"allow_http": True},
    )


class Memory:
    """A file of one buffer that is there already, as long as the object."""

    def __init__(self, size):
        self.view, self.at = memoryview(bytearray(size)), 0

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
        return len(piece)


def download(job):
    size, shard, key = job["bytes"], job["shard"], job["key"]
    if job["how"] == "boto3":
        client = boto3.client(
            "s3",
            endpoint_url=f"http://{job['endpoint']}",
            region_name="us-east-1",
            config=Config(signature_version=UNSIGNED, s3={"addressing_style": "path"}),
        )
        config = TransferConfig(multipart_threshold=shard, multipart_chunksize=shard, max_concurrency=job["parallel"])
        into = Memory(size)
        client.download_fileobj("bench", key, into, Config=config)
        return
    starts = range(0, size, shard)
    store = anonymous(job["endpoint"], "bench")

    async def run():
        gate = asyncio.Semaphore(job["parallel"])

        async def one(start):
            async with gate:
                return await obstore.get_range_async(store, key, start=start, length=min(shard, size - start))

        return await asyncio.gather(*map(one, starts))

    assert sum(map(len, asyncio.run(run()))) == size


JOBS = {
    "make": make,
    "items": items,
    "samples": samples,
    "polars": polars_scan,
    "pyarrow": pyarrow_scan,
    "glob": glob,
    "epoch": epoch,
    "download": download,
}


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main():
    print("ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        begun, cpu = time.monotonic(), cpu_seconds()
        try:
            JOBS[job["job"]](job)
            answer = {"seconds": time.monotonic() - begun, "cpu": cpu_seconds() - cpu}
        except Exception as error:  # the other side decides what a failure means
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


main()
