"""`bywash.testing`: a server for the tests of other programs."""

import http.client
import time
import urllib.parse

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from google.cloud import storage

import bywash.testing


def get(url):
    """Sends a request on a connection of its own. Returns status and body."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=90)
    connection.request("GET", f"{parts.path}?{parts.query}")
    response = connection.getresponse()
    return response.status, response.read()


def test_fixture_serves_boto3_and_the_store_on_free_ports(bywash_server):
    s3 = boto3.client("s3", **bywash_server.boto3)
    s3.put_object(Bucket=bywash_server.bucket, Key="k", Body=b"v")
    assert bytes(bywash_server.store().bucket(bywash_server.bucket).get("k")) == b"v"
    made = bywash_server.create_bucket()
    assert {made, "test"} <= {bucket["Name"] for bucket in s3.list_buckets()["Buckets"]}
    with pytest.raises(ClientError, match="InvalidAccessKeyId|SignatureDoesNotMatch"):
        boto3.client("s3", **{**bywash_server.boto3, "aws_secret_access_key": "another"}).list_buckets()


def test_each_test_has_a_server_of_its_own(bywash_server):
    assert list(bywash_server.store().bucket("test").list()) == []
    with bywash.testing.server(buckets=("one", "two")) as other:
        assert other.s3 != bywash_server.s3 and {"one", "two"} <= set(other.store().buckets())
    with pytest.raises(ConnectionError):
        other.store()


def test_data_of_a_named_folder_stay(tmp_path):
    with bywash.testing.server(folder=tmp_path / "kept") as first:
        first.store().bucket("test").put("k", b"v")
    with bywash.testing.server(folder=tmp_path / "kept") as second:
        assert bytes(second.store().bucket("test").get("k")) == b"v"


def test_googles_client_reads_the_key_file(bywash_server, monkeypatch):
    monkeypatch.setenv("API_ENDPOINT_OVERRIDE", bywash_server.gcs)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(bywash_server.gcs_key()))
    client = storage.Client(project="test", client_options={"api_endpoint": bywash_server.gcs})
    client.bucket("test").blob("k").upload_from_string(b"v")
    assert bytes(bywash_server.store().bucket("test").get("k")) == b"v"


def test_refused_requests_get_503_and_are_repeated_by_their_client(bywash_server):
    once = boto3.client("s3", config=Config(retries={"total_max_attempts": 1}), **bywash_server.boto3)
    bywash_server.faults.refuse()
    with pytest.raises(ClientError, match="SlowDown"):
        once.put_object(Bucket="test", Key="k", Body=bytes(3 << 20))
    bywash_server.faults.refuse(2)
    boto3.client("s3", **bywash_server.boto3).put_object(Bucket="test", Key="k", Body=bytes(3 << 20))
    assert bywash_server.faults.injected == 3
    assert once.head_object(Bucket="test", Key="k")["ContentLength"] == 3 << 20


def test_response_is_cut_after_so_many_bytes(bywash_server):
    bucket = bywash_server.store().bucket("test")
    bucket.put("k", bytes(1 << 20))
    url = boto3.client("s3", **bywash_server.boto3).generate_presigned_url("get_object", {"Bucket": "test", "Key": "k"})
    assert get(url) == (200, bytes(1 << 20))
    bywash_server.faults.cut(100_000)
    with pytest.raises(http.client.IncompleteRead) as cut:
        get(url)
    assert 0 < len(cut.value.partial) < 100_000
    bywash_server.faults.cut(0)
    with pytest.raises(ConnectionError):
        get(url)
    assert get(url) == (200, bytes(1 << 20))


def test_slow_request_is_held_back_and_faults_are_forgotten(bywash_server):
    s3 = boto3.client("s3", **bywash_server.boto3)
    bywash_server.faults.slow(0.5)
    begun = time.monotonic()
    s3.list_buckets()
    assert time.monotonic() - begun >= 0.5
    bywash_server.faults.refuse(100)
    bywash_server.faults.clear()
    s3.list_buckets()
    assert bywash_server.faults.injected == 1


def test_server_that_cannot_start_says_why():
    with pytest.raises(RuntimeError, match="no-such-option"), bywash.testing.server("--no-such-option"):
        pass
    with pytest.raises(bywash.errors.InvalidArgumentError, match="NO"), bywash.testing.server(buckets=("NO",)):
        pass
