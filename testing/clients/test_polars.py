"""Unmodified Polars, which reads several files ahead concurrently and writes in parts."""

import polars as pl
import pytest
from harness import ACCESS_KEY, ODD_KEYS, REGION, SECRET_KEY, keys, payload
from polars.testing import assert_frame_equal


@pytest.fixture(scope="module")
def options(served):
    """`storage_options` as documented by Polars, without retries, which would hide a fault."""
    return {
        "aws_endpoint_url": served.server.url,
        "aws_access_key_id": ACCESS_KEY,
        "aws_secret_access_key": SECRET_KEY,
        "aws_region": REGION,
        "aws_allow_http": "true",
    }


@pytest.fixture(scope="module")
def frame():
    return pl.DataFrame({"number": range(100_000), "third": [number % 3 for number in range(100_000)]})


@pytest.mark.parametrize("form", ["parquet", "ipc", "csv", "ndjson"])
def test_written_data_reads_back(served, options, frame, form):
    for name in "ab":
        getattr(frame.lazy(), f"sink_{form}")(f"s3://{served.bucket}/forms/{form}/{name}", storage_options=options)
    read = getattr(pl, f"scan_{form}")(f"s3://{served.bucket}/forms/{form}/*", storage_options=options)
    assert_frame_equal(read.collect(), pl.concat([frame, frame]))


def test_large_files_are_uploaded_in_parts(served, options):
    noise = pl.DataFrame({"noise": [payload(1000, seed) for seed in range(20_000)]})
    where = f"s3://{served.bucket}/large.parquet"
    noise.lazy().sink_parquet(where, storage_options=options)
    assert served.head("large.parquet")["ContentLength"] > 20_000_000
    assert_frame_equal(pl.read_parquet(where, storage_options=options), noise)


def test_partitions(served, options, frame):
    frame.write_parquet(f"s3://{served.bucket}/hive/", partition_by="third", storage_options=options)
    assert len(keys(served.s3, served.bucket, Prefix="hive/third=1/")) == 1
    read = pl.scan_parquet(f"s3://{served.bucket}/hive/**/*.parquet", hive_partitioning=True, storage_options=options)
    assert read.filter(pl.col("third") == 1).select(pl.len()).collect().item() == len(range(1, 100_000, 3))
    assert_frame_equal(read.sort("number").select("number", "third").collect(), frame, check_dtypes=False)


@pytest.mark.parametrize("key", [key for key in ODD_KEYS if not set(key) & set("*?[]%#")])
def test_odd_keys(served, options, frame, key):
    """Without keys that are special in a URL or a glob."""
    frame.head(5).write_parquet(f"s3://{served.bucket}/odd/{key}", storage_options=options)
    assert f"odd/{key}" in keys(served.s3, served.bucket, Prefix="odd/")
    assert_frame_equal(pl.read_parquet(f"s3://{served.bucket}/odd/{key}", storage_options=options), frame.head(5))


def test_results_equal_the_local_file_and_the_second_run_reads_memory(served, options, flights):
    served.s3.upload_file(flights, served.bucket, "flights.parquet")

    def query(where, **more):
        late = pl.scan_parquet(where, **more).filter(pl.col("delay") > 60)
        return late.group_by("origin").agg(pl.len(), pl.col("distance").max()).sort("origin").collect()

    local = query(flights)
    where = f"s3://{served.bucket}/flights.parquet"
    served.check_second_is_warm(lambda: assert_frame_equal(query(where, storage_options=options), local))


def test_absent_files_are_an_error(served, options):
    with pytest.raises((FileNotFoundError, pl.exceptions.ComputeError)):
        pl.read_parquet(f"s3://{served.bucket}/absent.parquet", storage_options=options)
