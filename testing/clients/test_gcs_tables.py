"""Programs of tables, unmodified, at the GCS endpoint of a server with keys: Polars and DuckDB; and their files through the S3 endpoint."""

import os
import subprocess

import duckdb
import polars
import pytest
from duckdb_extensions import import_extension
from harness import ACCESS_KEY, SECRET_KEY, Bywash, keys, payload

BUCKET = "suite-gcs-tables"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Bywash(tmp_path_factory.mktemp("gcs-tables"))
    server.s3.create_bucket(Bucket=BUCKET)
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def key_file(server):
    create = [os.environ["BYWASH_BIN"], "keys", "create", "--gcs", "--data-dir", server.data_dir]
    file = server.folder / "key.json"
    file.write_text(subprocess.run(create, check=True, capture_output=True, text=True).stdout)
    return file


@pytest.fixture(scope="module")
def flights_there(server, flights):
    """The address of `flights-3m.parquet` after an upload through the S3 endpoint."""
    server.s3.upload_file(str(flights), BUCKET, "flights.parquet")
    return f"gs://{BUCKET}/flights.parquet"


def test_polars_finds_the_endpoint_in_its_key_file(server, key_file, flights, flights_there):
    options = {"google_service_account": str(key_file), "allow_http": "true"}

    def query(place, **more):
        return polars.scan_parquet(place, **more).group_by("origin").agg(polars.len()).sort("origin").collect()

    assert query(flights_there, storage_options=options).equals(query(flights))
    # More than one part of an upload.
    frame = polars.DataFrame({"id": range(3000), "bytes": [payload(7000, seed) for seed in range(3000)]})
    frame.lazy().sink_parquet(f"gs://{BUCKET}/polars/a.parquet", storage_options=options)
    assert server.s3.head_object(Bucket=BUCKET, Key="polars/a.parquet")["ContentLength"] > 20_000_000
    assert polars.scan_parquet(f"gs://{BUCKET}/polars/*.parquet", storage_options=options).sort("id").collect().equals(frame)


def test_duckdb_signs_with_hmac_keys(server, flights, flights_there):
    import_extension("httpfs")
    db = duckdb.connect()
    address = server.gcs.removeprefix("http://")
    settings = f"ENDPOINT '{address}', URL_STYLE 'path', USE_SSL false"
    db.execute(f"CREATE SECRET (TYPE gcs, KEY_ID '{ACCESS_KEY}', SECRET '{SECRET_KEY}', {settings})")
    query = "SELECT origin, count(*), sum(delay) FROM '{}' GROUP BY 1 ORDER BY 1"
    assert db.sql(query.format(flights_there)).fetchall() == db.sql(query.format(flights)).fetchall()
    db.execute(f"COPY (SELECT range AS id, hash(range) AS h FROM range(1000000)) TO 'gcs://{BUCKET}/duckdb/a.parquet'")
    assert keys(server.s3, BUCKET, Prefix="duckdb/") == ["duckdb/a.parquet"]
    found = db.sql(f"SELECT count(*), sum(id), bool_and(h = hash(id)) FROM 'gs://{BUCKET}/duckdb/*.parquet'").fetchone()
    assert found == (1_000_000, 499_999_500_000, True)
