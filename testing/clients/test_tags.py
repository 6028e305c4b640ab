"""boto3: tags of objects, which a folder stores. An S3 origin keeps its own, which pass through."""

import pytest
from conftest import Served
from harness import MIB, Bywash, error, payload


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server over a folder only."""
    server = Bywash(tmp_path_factory.mktemp("served"))
    server.s3.create_bucket(Bucket="suite-tags")
    yield Served(server, "suite-tags")
    assert server.stop() == 0


def tags(served, key):
    found = served.s3.get_object_tagging(Bucket=served.bucket, Key=key)["TagSet"]
    return {tag["Key"]: tag["Value"] for tag in found}


def tag(served, key, **given):
    tag_set = [{"Key": name, "Value": value} for name, value in given.items()]
    return served.s3.put_object_tagging(Bucket=served.bucket, Key=key, Tagging={"TagSet": tag_set})


def test_tags_are_stored_with_the_object(served):
    served.put("with", b"body", Tagging="colour=blue&shape=very+round&empty=", Metadata={"a": "1"})
    assert tags(served, "with") == {"colour": "blue", "shape": "very round", "empty": ""}
    got = served.get("with")
    assert (got["TagCount"], got["Metadata"], got["Body"].read()) == (3, {"a": "1"}, b"body")
    served.put("with", b"body")
    assert tags(served, "with") == {}
    assert "TagCount" not in served.get("with")


@pytest.mark.parametrize("size", [0, 100, 9 * MIB])
def test_changing_tags_changes_nothing_else(served, size):
    body = payload(size, size)
    served.put("changed", body, ContentType="text/css", Metadata={"a": "1"}, Tagging="old=1")
    tag(served, "changed", new="2", other="ü ✓")
    assert tags(served, "changed") == {"new": "2", "other": "ü ✓"}
    got = served.get("changed")
    assert (got["ContentType"], got["Metadata"], got["Body"].read()) == ("text/css", {"a": "1"}, body)
    served.s3.delete_object_tagging(Bucket=served.bucket, Key="changed")
    assert tags(served, "changed") == {}
    assert served.read("changed") == body


def test_copies_and_uploads_in_parts(served):
    served.put("from", b"body", Tagging="a=1")
    source = {"Bucket": served.bucket, "Key": "from"}
    served.s3.copy_object(Bucket=served.bucket, Key="copied", CopySource=source)
    served.s3.copy_object(Bucket=served.bucket, Key="described", CopySource=source, MetadataDirective="REPLACE", Metadata={"b": "2"})
    served.s3.copy_object(Bucket=served.bucket, Key="retagged", CopySource=source, TaggingDirective="REPLACE", Tagging="b=2")
    served.s3.copy_object(Bucket=served.bucket, Key="bare", CopySource=source, TaggingDirective="REPLACE")
    found = {key: tags(served, key) for key in ("copied", "described", "retagged", "bare")}
    assert found == {"copied": {"a": "1"}, "described": {"a": "1"}, "retagged": {"b": "2"}, "bare": {}}
    where = {"Bucket": served.bucket, "Key": "parts"}
    upload = where | {"UploadId": served.s3.create_multipart_upload(**where, Tagging="a=1")["UploadId"]}
    part = served.s3.upload_part(**upload, PartNumber=1, Body=b"body")
    served.s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
    assert tags(served, "parts") == {"a": "1"}


def test_invalid_tags_are_rejected(served):
    served.put("refused", b"body", Tagging="a=1")
    many = {f"k{number}": "" for number in range(11)}
    assert error(tag, served, "refused", **many) == ("InvalidTag", 400)
    assert error(tag, served, "refused", **{"k" * 129: ""}) == ("InvalidTag", 400)
    assert error(tag, served, "refused", k="v" * 257) == ("InvalidTag", 400)
    assert error(served.put, "refused", b"", Tagging="a=1&a=2") == ("InvalidTag", 400)
    assert error(tag, served, "absent", a="1") == ("NoSuchKey", 404)
    assert tags(served, "refused") == {"a": "1"}


def test_tags_of_an_s3_origin_pass_through(start, moto):
    moto.s3.create_bucket(Bucket="suite-tags")
    moto.s3.put_object(Bucket="suite-tags", Key="its", Body=b"body", Tagging="its=own")
    beside, served = Served(moto, "suite-tags"), Served(start("s3://suite-tags", env=moto.environment()), "suite-tags")
    assert tags(served, "its") == {"its": "own"}
    assert served.get("its")["TagCount"] == 1
    tag(served, "its", new="1 + 2 = 3", other="a/b@c")
    assert tags(served, "its") == tags(beside, "its") == {"new": "1 + 2 = 3", "other": "a/b@c"}
    # moto takes fewer characters than S3; what a store refuses comes back as it was meant.
    assert error(tag, served, "its", new="1 & 2") == ("InvalidTag", 400)
    assert tags(served, "its") == {"new": "1 + 2 = 3", "other": "a/b@c"}
    assert served.read("its") == b"body"
    served.s3.delete_object_tagging(Bucket=served.bucket, Key="its")
    assert tags(served, "its") == tags(beside, "its") == {}
    assert error(tag, served, "absent", a="1") == ("NoSuchKey", 404)


@pytest.mark.parametrize("size", [0, 100, 9 * MIB])
def test_tags_of_writes_and_copies_reach_an_s3_origin(start, moto, size):
    bucket = f"suite-tags-{size}"
    moto.s3.create_bucket(Bucket=bucket)
    beside, served = Served(moto, bucket), Served(start(f"s3://{bucket}", env=moto.environment()), bucket)
    body = payload(size, size)
    served.put("a", body, Metadata={"a": "1"}, Tagging="colour=blue&shape=very+round&empty=")
    assert tags(beside, "a") == {"colour": "blue", "shape": "very round", "empty": ""}
    source = {"Bucket": bucket, "Key": "a"}
    served.s3.copy_object(Bucket=bucket, Key="copied", CopySource=source)
    served.s3.copy_object(Bucket=bucket, Key="described", CopySource=source, MetadataDirective="REPLACE", Metadata={"b": "2"})
    served.s3.copy_object(Bucket=bucket, Key="retagged", CopySource=source, TaggingDirective="REPLACE", Tagging="b=2")
    found = {key: tags(beside, key) for key in ("copied", "described", "retagged")}
    assert found == {"copied": tags(beside, "a"), "described": tags(beside, "a"), "retagged": {"b": "2"}}
    assert served.read("described") == served.read("a") == body
    where = {"Bucket": bucket, "Key": "parts"}
    upload = where | {"UploadId": served.s3.create_multipart_upload(**where, Tagging="a=1")["UploadId"]}
    part = served.s3.upload_part(**upload, PartNumber=1, Body=b"body")
    served.s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
    assert tags(beside, "parts") == {"a": "1"}
