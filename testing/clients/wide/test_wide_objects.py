"""Command lines and SDKs: objects of one request and of parts, ranges, listings, copies, deletions."""

import concurrent.futures
import hashlib
import os

import pytest
from adapters import OBJECTS
from harness import MIB, error, file_sha256, keys, payload, sha256

clients = pytest.mark.parametrize("client", OBJECTS.items(), ids=OBJECTS, indirect=True)
# 10,000 by `cargo xtask clients --wide`, which sets it.
NAMES = 10_000 if os.environ.get("BYWASH_WIDE_LARGE") else 1200


@pytest.fixture
def key(request):
    """A key that no other test has, with characters that a wrong encoding changes."""
    return f"objects/{hashlib.sha256(request.node.name.encode()).hexdigest()[:16]} a+b=ü.bin"


@pytest.fixture(scope="session")
def many(wide):
    """More keys than one page of a listing has."""
    names = [f"many/deep/name-{number:05}" for number in range(NAMES)]
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda name: wide.s3.put_object(Bucket="wide", Key=name, Body=b"x"), names))
    return names


def body_of(client, key):
    return client.s3.get_object(Bucket=client.bucket, Key=key)["Body"].read()


@clients
@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_small_objects(client, key, tmp_path, size):
    body = payload(size)
    (tmp_path / "file").write_bytes(body)
    client.put(tmp_path / "file", key)
    assert body_of(client, key) == body
    client.get(key, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == body


@clients
def test_objects_of_parts(client, key, tmp_path):
    body = payload(20 * MIB)
    (tmp_path / "file").write_bytes(body)
    client.upload(tmp_path / "file", key)
    head = client.s3.head_object(Bucket=client.bucket, Key=key)
    assert "-" in head["ETag"], "the object was not sent in parts"
    assert sha256(body_of(client, key)) == sha256(body)
    client.get(key, tmp_path / "back")
    assert file_sha256(tmp_path / "back") == sha256(body)


@clients
def test_ranges(client, key, tmp_path):
    body = payload(3 * MIB)
    client.s3.put_object(Bucket=client.bucket, Key=key, Body=body)
    assert client.range(key, MIB - 1, 70_000, tmp_path / "part") == body[MIB - 1 : MIB - 1 + 70_000]


@clients
def test_listing_of_several_pages(client, many):
    assert sorted(client.list("many/deep/")) == many


@clients
def test_copies_and_deletions(client, key):
    body = payload(1000)
    client.s3.put_object(Bucket=client.bucket, Key=key, Body=body)
    client.copy(key, f"{key} copy")
    assert body_of(client, f"{key} copy") == body
    client.delete(key)
    assert keys(client.s3, client.bucket, Prefix=key) == [f"{key} copy"]
    assert error(client.s3.head_object, Bucket=client.bucket, Key=key) == ("404", 404)
