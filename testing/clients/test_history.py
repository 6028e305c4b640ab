"""The server's own history: a read-only bucket that DuckDB queries."""

import os

import pytest
from botocore.exceptions import ClientError
from harness import MIB
from test_duckdb import connection

COUNTERS = ["requests", "bytes", "hits", "misses", "absences", "origin_requests", "origin_data_requests", "origin_bytes"]
FILES = "s3://bywash-history/files/*.parquet"


def traffic(server):
    """Sends some reads, half of them repeated. Returns the counters of the bucket."""
    for number in [0, 0, 0, 1, 2, 0, 1, 3]:
        server.s3.get_object(Bucket="shop", Key=f"orders/{number}.parquet")["Body"].read()
    with pytest.raises(ClientError):
        server.s3.get_object(Bucket="shop", Key="orders/none")
    return server.bucket_stats("shop")


def by_metric(server, source):
    query = f"SELECT metric, sum(value)::UBIGINT FROM '{FILES}' WHERE source = '{source}' GROUP BY metric"
    return dict(connection(server).sql(query).fetchall())


@pytest.fixture
def server(start):
    server = start()
    server.s3.create_bucket(Bucket="shop")
    for number in range(4):
        server.s3.put_object(Bucket="shop", Key=f"orders/{number}.parquet", Body=os.urandom(MIB))
    return server


def test_duckdb_queries_the_savings_of_the_cache(server):
    first = traffic(server)
    assert (first["hits"], first["misses"]) == (4, 4)
    assert server.stop() == 0
    server.start()
    # The bucket has all counts of the previous process, to the byte.
    assert {name: by_metric(server, "bywash,bucket=shop")[name] for name in COUNTERS} == {name: first[name] for name in COUNTERS}

    second = traffic(server)
    assert server.stop() == 0
    server.start()
    both = {name: first[name] + second[name] for name in COUNTERS}
    assert {name: by_metric(server, "bywash,bucket=shop")[name] for name in COUNTERS} == both
    saved = f"""SELECT sum(value) FILTER (metric = 'bytes') - sum(value) FILTER (metric = 'origin_bytes')
        FROM '{FILES}' WHERE source = 'bywash,bucket=shop' AND timestamp > now() - INTERVAL 7 DAYS"""
    assert connection(server).sql(saved).fetchall() == [(both["bytes"] - both["origin_bytes"],)]
    assert both["bytes"] - both["origin_bytes"] == 8 * MIB, "half of sixteen reads"


def test_history_bucket_is_read_only_with_a_reason(server):
    assert server.stop() == 0
    server.start()
    s3 = server.s3
    (name, *_) = [entry["Key"] for entry in s3.list_objects_v2(Bucket="bywash-history", Prefix="files/")["Contents"]]
    body = s3.get_object(Bucket="bywash-history", Key=name)["Body"].read()
    for write in [
        lambda: s3.put_object(Bucket="bywash-history", Key="mine", Body=b"x"),
        lambda: s3.put_object(Bucket="bywash-history", Key=name, Body=b"x"),
        lambda: s3.delete_object(Bucket="bywash-history", Key=name),
        lambda: s3.create_multipart_upload(Bucket="bywash-history", Key="mine"),
        lambda: s3.copy_object(Bucket="bywash-history", Key="mine", CopySource="shop/orders/0.parquet"),
    ]:
        with pytest.raises(ClientError) as refused:
            write()
        error = refused.value.response["Error"]
        assert error["Code"] == "AccessDenied"
        assert "it is the server's own history, which the server alone writes" in error["Message"]
    assert s3.get_object(Bucket="bywash-history", Key=name)["Body"].read() == body
