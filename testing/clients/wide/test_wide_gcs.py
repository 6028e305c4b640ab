"""Clients of Google's storage at the GCS endpoint; what they write, the S3 endpoint has at once with the same bytes, and the other way."""

import os

import pytest
from gcs_adapters import GOOGLE, TABLES
from harness import MIB, error, file_sha256, keys, payload, sha256
from test_wide_objects import body_of, key, many  # noqa: F401

clients = pytest.mark.parametrize("client", GOOGLE.items(), ids=GOOGLE, indirect=True)
conditional = {name: kind for name, kind in GOOGLE.items() if getattr(kind, "write", None)}
# 200 MiB by `cargo xtask clients --wide`, which sets it.
SIZES = [0, 1, 4 * MIB, 20 * MIB, *([200 * MIB] if os.environ.get("BYWASH_WIDE_LARGE") else [])]


def check_stored(client, key, body, file):
    """Checks that the S3 endpoint and the client read the same bytes."""
    assert sha256(body_of(client, key)) == sha256(body)
    client.get(key, file)
    assert file_sha256(file) == sha256(body)


@clients
@pytest.mark.parametrize("size", SIZES)
def test_round_trips(client, key, tmp_path, size):  # noqa: F811
    """By one request, then by a resumable session over it."""
    body = payload(size)
    (tmp_path / "file").write_bytes(body)
    client.put(tmp_path / "file", key)
    check_stored(client, key, body, tmp_path / "back")
    other = payload(size, 2)
    (tmp_path / "file").write_bytes(other)
    client.upload(tmp_path / "file", key)
    check_stored(client, key, other, tmp_path / "back")


@clients
def test_transfer_managers(client, key, tmp_path):  # noqa: F811
    """Parts that are composed, and ranges at the same time."""
    body = payload(40 * MIB)
    (tmp_path / "file").write_bytes(body)
    send = client.parts if client.has_parts else client.upload
    before = set(keys(client.s3, client.bucket))
    send(tmp_path / "file", key)
    assert set(keys(client.s3, client.bucket)) - before == {key}
    assert sha256(body_of(client, key)) == sha256(body)
    (client.pieces if client.has_pieces else client.get)(key, tmp_path / "back")
    assert file_sha256(tmp_path / "back") == sha256(body)


@clients
def test_ranges(client, key, tmp_path):  # noqa: F811
    body = payload(3 * MIB)
    client.s3.put_object(Bucket=client.bucket, Key=key, Body=body)
    assert client.range(key, MIB - 1, 70_000, tmp_path / "part") == body[MIB - 1 : MIB - 1 + 70_000]


@clients
def test_listing_of_several_pages(client, many):  # noqa: F811
    assert sorted(client.list("many/deep/")) == many


@pytest.mark.parametrize("client", conditional.items(), ids=conditional, indirect=True)
def test_conditions(client, key, tmp_path):  # noqa: F811
    for name in ["first", "second", "third"]:
        (tmp_path / name).write_text(name)
    assert client.write(tmp_path / "first", key, 0)
    assert not client.write(tmp_path / "second", key, 0)
    generation = client.generation(key)
    assert client.write(tmp_path / "second", key, generation)
    assert not client.write(tmp_path / "third", key, generation)
    assert body_of(client, key) == b"second"
    # A write through the S3 endpoint is a new generation.
    generation = client.generation(key)
    client.s3.put_object(Bucket=client.bucket, Key=key, Body=b"by S3")
    assert not client.write(tmp_path / "third", key, generation)
    assert body_of(client, key) == b"by S3"


@clients
def test_copies_and_deletions(client, key):  # noqa: F811
    body = payload(1000)
    client.s3.put_object(Bucket=client.bucket, Key=key, Body=body)
    client.copy(key, f"{key} copy")
    assert body_of(client, f"{key} copy") == body
    client.delete(key)
    assert keys(client.s3, client.bucket, Prefix=key) == [f"{key} copy"]
    assert error(client.s3.head_object, Bucket=client.bucket, Key=key) == ("404", 404)


@pytest.mark.parametrize("client", TABLES.items(), ids=TABLES, indirect=True)
def test_tables(client):
    client.call("write", "gcs-tables/small", 1000)
    client.call("change", "gcs-tables/small", 1000)
    client.call("write", "gcs-tables/large", 20_000)
    client.call("read", "gcs-tables/large", 20_000)
    sizes = [entry["Size"] for entry in client.s3.list_objects_v2(Bucket=client.bucket, Prefix="gcs-tables/large")["Contents"]]
    assert sum(sizes) > 20 * MIB
