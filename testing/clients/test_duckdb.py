"""Unmodified DuckDB with httpfs: the results equal those of the local file, and a second run fetches nothing from the origin."""

import urllib.parse

import duckdb
import pytest
from duckdb_extensions import import_extension
from harness import ACCESS_KEY, REGION, SECRET_KEY

QUERIES = [
    "SELECT count(*), min(date), max(date), sum(delay), avg(distance) FROM {file}",
    "SELECT origin, count(*) AS flights, round(avg(delay), 6) FROM {file} GROUP BY origin ORDER BY flights DESC, origin LIMIT 20",
    "SELECT destination, max(distance) FROM {file} WHERE delay > 120 GROUP BY destination ORDER BY destination",
    "SELECT count(DISTINCT origin || destination) FROM {file}",
    "SELECT * FROM {file} WHERE origin = 'SFO' AND delay > 600 ORDER BY ALL",
]


def connection(server):
    """Creates a DuckDB instance with an empty cache."""
    import_extension("httpfs")
    db = duckdb.connect()
    db.load_extension("httpfs")
    db.execute(
        f"""CREATE SECRET (TYPE s3, KEY_ID '{ACCESS_KEY}', SECRET '{SECRET_KEY}', REGION '{REGION}',
        ENDPOINT '{urllib.parse.urlsplit(server.url).netloc}', URL_STYLE 'path', USE_SSL false)"""
    )
    return db


def results(db, file):
    return [db.sql(query.format(file=f"'{file}'")).fetchall() for query in QUERIES]


@pytest.fixture(scope="module")
def uploaded(served, flights):
    served.s3.upload_file(flights, served.bucket, "flights/flights-3m.parquet")
    return f"s3://{served.bucket}/flights/flights-3m.parquet"


def test_results_equal_the_local_file_and_the_second_run_reads_memory(served, uploaded, flights):
    local = results(duckdb.connect(), flights)
    assert local[0][0][0] == 3_000_000
    before = served.stats()
    assert results(connection(served.server), uploaded) == local
    first = served.stats()
    assert first["requests"] > before["requests"]
    assert results(connection(served.server), uploaded) == local
    second = served.stats()
    assert second["requests"] > first["requests"], "DuckDB used its own cache"
    assert second["hits"] > first["hits"]
    assert second["origin_data_requests"] == first["origin_data_requests"]
    assert second["origin_bytes"] == first["origin_bytes"]


def test_globs_list_the_bucket(served, uploaded):
    found = connection(served.server).sql(f"SELECT file FROM glob('s3://{served.bucket}/flights/*.parquet')").fetchall()
    assert found == [(uploaded,)]


def test_objects_written_by_duckdb_read_back(served, uploaded, flights):
    db = connection(served.server)
    target = f"s3://{served.bucket}/written/late.parquet"
    db.execute(f"COPY (SELECT * FROM '{uploaded}' WHERE delay > 60) TO '{target}' (FORMAT parquet)")
    query = "SELECT count(*), sum(delay), sum(distance) FROM {} WHERE delay > 60"
    assert db.sql(query.format(f"'{target}'")).fetchall() == duckdb.sql(query.format(f"'{flights}'")).fetchall()


def test_partitioned_writes(served, uploaded):
    db = connection(served.server)
    where = f"s3://{served.bucket}/partitioned"
    db.execute(
        f"COPY (SELECT * FROM '{uploaded}' WHERE origin IN ('SFO', 'JFK', 'ORD')) TO '{where}' "
        "(FORMAT parquet, PARTITION_BY (origin))"
    )
    query = "SELECT origin, count(*) FROM {} WHERE origin IN ('SFO', 'JFK', 'ORD') GROUP BY origin ORDER BY origin"
    written = f"read_parquet('{where}/*/*.parquet', hive_partitioning = true)"
    assert db.sql(query.format(written)).fetchall() == db.sql(query.format(f"'{uploaded}'")).fetchall()
