"""Lance: one operation on a data set."""

import importlib.metadata
import os
import sys

import lance
import pyarrow as pa
from rows import check, draw

options = {
    "aws_endpoint": os.environ["WIDE_URL"],
    "aws_region": os.environ["AWS_REGION"],
    "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
    "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
    "allow_http": "true",
}


def at(prefix):
    return f"s3://{os.environ['WIDE_BUCKET']}/{prefix}"


def data_set(prefix, **more):
    return lance.dataset(at(prefix), storage_options=options, **more)


def write(prefix, count):
    lance.write_dataset(draw(int(count)), at(prefix), storage_options=options)


def read(prefix, count):
    rows = draw(int(count))
    check(data_set(prefix).to_table(), rows)
    few = data_set(prefix).to_table(columns=["id", "name"], filter="id < 10")
    check(few, rows.select(["id", "name"]).slice(0, 10))
    check(data_set(prefix).take([5, 700]), rows.take([5, 700]))


def change(prefix, count):
    rows, more = draw(int(count)), draw(int(count), 2)
    more = more.set_column(0, "id", pa.array(range(int(count), 2 * int(count)), pa.int64()))
    lance.write_dataset(more, at(prefix), mode="append", storage_options=options)
    check(data_set(prefix).to_table(), pa.concat_tables([rows, more]))
    data_set(prefix).delete("id < 500")
    data_set(prefix).optimize.compact_files()
    check(data_set(prefix).to_table(), pa.concat_tables([rows, more]).slice(500))
    check(data_set(prefix, version=1).to_table(), rows)


def version():
    print(importlib.metadata.version("pylance"))


operation, *arguments = sys.argv[1:]
globals()[operation](*arguments)
