"""Data files of series, read in place by DuckDB, Polars and pyarrow: every row, bit by bit, in both profiles."""

import os
import struct
import subprocess

import duckdb
import polars
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest

HOSTS, ROWS, STEP = 20, 5000, 10_000_000_000
ODD = [
    0x7FF8_0000_0000_0000,
    0x7FF0_0000_0000_0002,
    0x8000_0000_0000_0000,
    0x7FF0_0000_0000_0000,
    0xFFF0_0000_0000_0000,
    0x0000_0000_0000_0001,
]


def bits(host, n):
    """The same function as in `testing/series/src/bin/series-files.rs`."""
    if n % 100 < len(ODD):
        return ODD[n % 100]
    return struct.unpack("<Q", struct.pack("<d", (host * 1000 + n) / 8))[0]


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("series")
    subprocess.run([os.environ["BYWASH_SERIES_FILES"], str(folder)], check=True)
    return folder


@pytest.fixture(scope="module", params=["portable", "compact"])
def files(request, written):
    found = sorted((written / request.param / "store" / "files").glob("*.parquet"))
    assert len(found) > 3
    return [str(file) for file in found]


def with_duckdb(files):
    rows = duckdb.sql(f"SELECT source, metric, epoch_ns(timestamp), value FROM read_parquet({files})")
    return rows.to_arrow_table()


def with_polars(files):
    return polars.read_parquet(files).with_columns(polars.col("timestamp").cast(polars.Int64)).to_arrow()


def with_pyarrow(files):
    table = pyarrow.dataset.dataset(files).to_table()
    return table.set_column(2, "timestamp", table["timestamp"].cast(pyarrow.int64()))


@pytest.mark.parametrize("read", [with_duckdb, with_polars, with_pyarrow])
def test_every_row_bit_by_bit(files, read):
    table = read(files).combine_chunks()
    values = pyarrow.concat_arrays(table.column(3).chunks).view(pyarrow.uint64())
    found = sorted(zip(*(table.column(at).to_pylist() for at in range(3)), values.to_pylist()))
    rows = ((f"host {host}", metric, n) for host in range(HOSTS) for metric in ["load", "größe"] for n in range(ROWS))
    expected = sorted((source, metric, (n - ROWS // 2) * STEP, bits(int(source[5:]), n)) for source, metric, n in rows)
    assert found == expected


def test_schema_is_plain_and_bounds_exclude_nan(files):
    for file in files:
        footer = pyarrow.parquet.ParquetFile(file)
        assert [(field.name, str(field.type), field.nullable) for field in footer.schema_arrow] == [
            ("source", "string", False),
            ("metric", "string", False),
            ("timestamp", "timestamp[ns, tz=UTC]", False),
            ("value", "double", False),
        ]
        for group in range(footer.metadata.num_row_groups):
            columns = [footer.metadata.row_group(group).column(at) for at in range(4)]
            assert [column.is_stats_set for column in columns] == [True, True, True, False]
            assert all(column.has_offset_index for column in columns)


def test_query_of_one_series_and_time_range(files):
    query = f"SELECT count(*), min(value), max(value) FROM read_parquet({files}) WHERE source = 'host 7' AND metric = 'load' "
    query += "AND timestamp >= to_timestamp(100) AND timestamp < to_timestamp(200)"
    assert duckdb.sql(query).fetchall() == [(10, (7000 + 2510) / 8, (7000 + 2519) / 8)]
