"""Formats of tables: written, appended, read by columns and filters, changed, cleaned up; what a run wrote the next one reads."""

import json

import pytest
from adapters import SPARK, TABLES
from harness import keys

tables = pytest.mark.parametrize("client", TABLES.items(), ids=TABLES, indirect=True)
spark = pytest.mark.parametrize("client", SPARK.items(), ids=SPARK, indirect=True)


@pytest.fixture
def prefix(request):
    return "tables/" + request.node.name.replace(" ", "").replace(",", "-").replace("[", "/").strip("]")


@tables
def test_small_table(client, prefix):
    """Each command is a process of its own and compares what it reads with what it drew from a seed."""
    client.call("write", prefix, 1000)
    client.call("read", prefix, 1000)
    assert keys(client.s3, client.bucket, Prefix=prefix)


@tables
def test_table_of_20_mib(client, prefix):
    client.call("write", prefix, 20_000)
    client.call("read", prefix, 20_000)
    sizes = [entry["Size"] for entry in client.s3.list_objects_v2(Bucket=client.bucket, Prefix=prefix)["Contents"]]
    assert sum(sizes) > 20 << 20


@tables
def test_changes(client, prefix):
    client.call("write", prefix, 1000)
    client.call("change", prefix, 1000)


@spark
@pytest.mark.parametrize("committer", ["file", "directory", "magic"])
def test_spark_with_its_committers(client, prefix, committer):
    client.call("write", prefix, 20_000, committer)
    found = keys(client.s3, client.bucket, Prefix=prefix)
    marker = client.s3.get_object(Bucket=client.bucket, Key=f"{prefix}/table/_SUCCESS")["Body"].read()
    # That of the committer of files is empty.
    assert (json.loads(marker)["committer"] if marker else "file") == committer
    assert not [key for key in found if "_temporary" in key or "__magic" in key]
    assert client.s3.list_multipart_uploads(Bucket=client.bucket, Prefix=prefix).get("Uploads", []) == []


@spark
def test_spark_renames_and_deletes(client, prefix):
    client.call("change", prefix, 1000)
    assert keys(client.s3, client.bucket, Prefix=prefix + "/renamed") == []
