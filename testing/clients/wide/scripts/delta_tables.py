"""delta-rs: one operation on a table."""

import importlib.metadata
import os
import sys

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from rows import check, draw

# At the endpoint of Google's storage, which the key file names, or at that of S3.
if key_file := os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
    scheme, options = "gs", {"google_service_account": key_file, "allow_http": "true"}
else:
    scheme, options = "s3", {"AWS_ENDPOINT_URL": os.environ["WIDE_URL"], "AWS_ALLOW_HTTP": "true"}


def at(prefix):
    return f"{scheme}://{os.environ['WIDE_BUCKET']}/{prefix}"


def table(prefix):
    return DeltaTable(at(prefix), storage_options=options)


def write(prefix, count):
    write_deltalake(at(prefix), draw(int(count)), storage_options=options)


def read(prefix, count):
    rows = draw(int(count))
    check(table(prefix).to_pyarrow_table(), rows)
    few = table(prefix).to_pyarrow_table(columns=["id", "name"], filters=[("id", "<", 10)])
    check(few, rows.select(["id", "name"]).slice(0, 10))


def change(prefix, count):
    rows, more = draw(int(count)), draw(int(count), 2)
    more = more.set_column(0, "id", pa.array(range(int(count), 2 * int(count)), pa.int64()))
    write_deltalake(at(prefix), more, mode="append", storage_options=options)
    check(table(prefix).to_pyarrow_table(), pa.concat_tables([rows, more]))
    table(prefix).delete("id < 500")
    table(prefix).optimize.compact()
    table(prefix).create_checkpoint()
    removed = table(prefix).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert removed, "the vacuum removed nothing"
    now = table(prefix)
    check(now.to_pyarrow_table(), pa.concat_tables([rows, more]).slice(500))
    assert now.version() >= 3


def version():
    print(importlib.metadata.version("deltalake"))


operation, *arguments = sys.argv[1:]
globals()[operation](*arguments)
sys.stdout.flush()
# Without the interpreter's end: pyarrow aborts there now and then, while its threads still hold files of delta-rs.
os._exit(0)
