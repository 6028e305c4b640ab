"""PyIceberg with a catalog in SQLite: one operation on a table."""

import importlib.metadata
import os
import sys

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from rows import check, draw

catalog = None


def load(prefix):
    """Opens the catalog of a prefix, kept in the home folder."""
    global catalog
    home = os.environ["HOME"]
    catalog = SqlCatalog(
        "wide",
        uri=f"sqlite:///{home}/catalog.db",
        warehouse=f"s3://{os.environ['WIDE_BUCKET']}/{prefix}",
        **{
            "s3.endpoint": os.environ["WIDE_URL"],
            "s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"],
            "s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"],
            "s3.region": os.environ["AWS_REGION"],
        },
    )
    return catalog


def write(prefix, count):
    rows = draw(int(count))
    load(prefix).create_namespace("space")
    catalog.create_table("space.table", schema=rows.schema).append(rows)


def read(prefix, count):
    rows = draw(int(count))
    table = load(prefix).load_table("space.table")
    check(table.scan().to_arrow(), rows)
    few = table.scan(row_filter="id < 10", selected_fields=("id", "name")).to_arrow()
    check(few, rows.select(["id", "name"]).slice(0, 10))


def change(prefix, count):
    rows, more = draw(int(count)), draw(int(count), 2)
    more = more.set_column(0, "id", pa.array(range(int(count), 2 * int(count)), pa.int64()))
    table = load(prefix).load_table("space.table")
    table.append(more)
    check(table.scan().to_arrow(), pa.concat_tables([rows, more]))
    table.overwrite(more)
    check(catalog.load_table("space.table").scan().to_arrow(), more)
    first = table.history()[0].snapshot_id
    check(table.scan(snapshot_id=first).to_arrow(), rows)
    catalog.purge_table("space.table")


def version():
    print(importlib.metadata.version("pyiceberg"))


operation, *arguments = sys.argv[1:]
globals()[operation](*arguments)
