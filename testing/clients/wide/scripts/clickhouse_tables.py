"""chdb, ClickHouse as a library: one operation on files by its function `s3`."""

import importlib.metadata
import os
import sys

import chdb


def at(prefix, file, form="Parquet"):
    place = f"{os.environ['WIDE_URL']}/{os.environ['WIDE_BUCKET']}/{prefix}/{file}"
    return f"s3('{place}', '{os.environ['AWS_ACCESS_KEY_ID']}', '{os.environ['AWS_SECRET_ACCESS_KEY']}', '{form}')"


def ask(query, form="TSV"):
    return str(chdb.query(query, form)).strip()


def drawn(count):
    """Rows that any process computes again: the bytes are a chain of digests of the number."""
    data = "arrayStringConcat(arrayMap(step -> hex(SHA512(concat(toString(number), '-', toString(step)))), range(9)))"
    return f"SELECT number AS id, concat('näme-', toString(number % 1000)) AS name, sin(number) AS value, {data} AS data FROM numbers({count})"


def digest(rows):
    return ask(f"SELECT count(), sum(id), groupBitXor(cityHash64(id, name, value, data)) FROM ({rows})")


def write(prefix, count):
    # Parts of the smallest size, so that the larger table is sent in several.
    settings = "SETTINGS s3_truncate_on_insert = 1, output_format_parquet_compression_method = 'none', s3_max_single_part_upload_size = 5242880"
    ask(f"INSERT INTO FUNCTION {at(prefix, 'one.parquet')} {settings} {drawn(count)}")


def read(prefix, count):
    assert digest(f"SELECT * FROM {at(prefix, 'one.parquet')}") == digest(drawn(count))
    assert ask(f"SELECT sum(id) FROM {at(prefix, 'one.parquet')} WHERE id < 10") == "45"


def change(prefix, count):
    """Many files of one table, matched by a pattern."""
    files = f"SELECT number AS id, number % 300 AS part FROM numbers({count})"
    target = at(prefix, "parts/{_partition_id}.csv", "CSV").removesuffix(")") + ", 'id UInt64, part UInt64')"
    ask(f"INSERT INTO FUNCTION {target} PARTITION BY part SELECT id, part FROM ({files})")
    found = ask(f"SELECT count(), sum(c1), uniqExact(_file) FROM {at(prefix, 'parts/*.csv', 'CSV')}")
    assert found.split() == [count, str(int(count) * (int(count) - 1) // 2), "300"], found


def version():
    print(importlib.metadata.version("chdb"))


operation, *arguments = sys.argv[1:]
globals()[operation](*arguments)
