"""boto3 with its defaults: objects, ranges, conditions, metadata, copies."""

import datetime
import email.utils
import threading

import pytest
from boto3.s3.transfer import TransferConfig
from harness import MIB, error, file_sha256, payload


@pytest.mark.parametrize("size", [0, 1, 4096, MIB - 1, MIB, MIB + 1, 5 * MIB + 3, 17 * MIB])
def test_put_then_get_returns_the_same_bytes(served, size):
    body = payload(size, size)
    put = served.put(f"sizes/{size}", body)
    head = served.head(f"sizes/{size}")
    assert head["ContentLength"] == size
    assert head["ETag"] == put["ETag"]
    for _ in range(2):  # cold, then from memory
        got = served.get(f"sizes/{size}")
        assert got["ETag"] == put["ETag"]
        assert got["ContentLength"] == size
        assert got["Body"].read() == body


def test_multipart_of_200_mib_both_ways(served, tmp_path):
    source, back = tmp_path / "source", tmp_path / "back"
    piece = payload(8 * MIB)
    with open(source, "wb") as file:
        for number in range(25):
            file.write(number.to_bytes(8, "big") + piece[8:])
    served.s3.upload_file(str(source), served.bucket, "big")
    head = served.head("big")
    assert head["ContentLength"] == 200 * MIB
    served.s3.download_file(served.bucket, "big", str(back))
    assert file_sha256(back) == file_sha256(source)


def test_overwrite_is_visible_immediately(served):
    for number in range(5):
        served.put("again", payload(100_000, number))
        assert served.read("again") == payload(100_000, number)


RANGES = [
    ("bytes=0-0", 0, 1),
    ("bytes=1-99", 1, 100),
    (f"bytes={MIB - 1}-{MIB}", MIB - 1, MIB + 1),
    (f"bytes={MIB}-{2 * MIB - 1}", MIB, 2 * MIB),
    (f"bytes={3 * MIB - 5}-", 3 * MIB - 5, 3 * MIB + 10),
    ("bytes=-10", 3 * MIB, 3 * MIB + 10),
    (f"bytes=-{100 * MIB}", 0, 3 * MIB + 10),
    (f"bytes=100-{100 * MIB}", 100, 3 * MIB + 10),
]


@pytest.mark.parametrize(("header", "start", "end"), RANGES)
def test_ranges(served, header, start, end):
    size = 3 * MIB + 10
    body = payload(size, 3)
    served.put("ranged", body)
    for _ in range(2):
        got = served.get("ranged", Range=header)
        assert got["ResponseMetadata"]["HTTPStatusCode"] == 206
        assert got["ContentRange"] == f"bytes {start}-{end - 1}/{size}"
        assert got["Body"].read() == body[start:end]


def test_range_past_the_end(served):
    served.put("short", b"0123456789")
    assert error(served.get, "short", Range="bytes=10-") == ("InvalidRange", 416)
    assert error(served.get, "short", Range="bytes=500-600") == ("InvalidRange", 416)


def test_absent_objects_and_buckets(served):
    assert error(served.get, "absent") == ("NoSuchKey", 404)
    assert error(served.head, "absent") == ("404", 404)
    assert error(served.s3.get_object, Bucket="no-such-bucket-here", Key="a") == ("NoSuchBucket", 404)
    assert error(served.s3.list_objects_v2, Bucket="no-such-bucket-here") == ("NoSuchBucket", 404)


def test_metadata_and_content_headers(served):
    expires = datetime.datetime(2030, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    given = {
        "ContentType": "text/csv",
        "ContentEncoding": "gzip",
        "ContentDisposition": 'attachment; filename="a b.csv"',
        "ContentLanguage": "de",
        "CacheControl": "max-age=60",
    }
    served.put("described", b"body", Metadata={"colour": "blue", "Empty-Ish": "a  b"}, **given)
    for response in (served.head("described"), served.get("described")):
        assert {name: response[name] for name in given} == given
        assert {name.lower(): value for name, value in response["Metadata"].items()} == {
            "colour": "blue",
            "empty-ish": "a  b",
        }
    for call in (served.get, served.head):
        response = call("described", ResponseContentType="text/plain", ResponseExpires=expires, ResponseContentLanguage="fr")
        assert (response["ContentType"], response["ContentLanguage"]) == ("text/plain", "fr")
        assert response["ResponseMetadata"]["HTTPHeaders"]["expires"] == "Wed, 02 Jan 2030 03:04:05 GMT"
    served.put("described", b"body")
    assert served.head("described")["Metadata"] == {}


def test_if_range_of_another_version_returns_the_whole_object(served):
    """If-Range, which boto3 cannot send."""
    etag = served.put("if-range", b"0123456789")["ETag"]
    time = served.head("if-range")["LastModified"].timestamp()
    modified, earlier = (email.utils.formatdate(when, usegmt=True) for when in (time, time - 3600))
    url = served.server.presigned("get_object", served.bucket, "if-range")
    for version, expected in [(etag, 206), (modified, 206), ('"other"', 200), (f"W/{etag}", 200), (earlier, 200)]:
        response = served.server.raw("GET", url, headers={"Range": "bytes=2-4", "If-Range": version})
        assert (response.status, response.body) == (expected, b"234" if expected == 206 else b"0123456789"), version
    response = served.server.raw("GET", url, headers={"Range": "bytes=50-", "If-Range": '"other"'})
    assert (response.status, response.body) == (200, b"0123456789")


def test_conditional_put(served):
    put = served.put("conditional/a", b"one", IfNoneMatch="*")
    assert error(served.put, "conditional/a", b"two", IfNoneMatch="*") == ("PreconditionFailed", 412)
    assert error(served.put, "conditional/a", b"two", IfMatch='"0123"') == ("PreconditionFailed", 412)
    assert served.read("conditional/a") == b"one"
    again = served.put("conditional/a", b"two", IfMatch=put["ETag"])
    assert served.read("conditional/a") == b"two"
    assert error(served.put, "conditional/a", b"three", IfMatch=put["ETag"]) == ("PreconditionFailed", 412)
    assert error(served.put, "conditional/absent", b"x", IfMatch=again["ETag"]) == ("NoSuchKey", 404)


def test_conditional_put_has_one_winner(served):
    start = threading.Barrier(8)
    outcomes = []

    def create(number):
        start.wait()
        try:
            served.put("conditional/race", f"{number}".encode(), IfNoneMatch="*")
            outcomes.append(number)
        except served.s3.exceptions.ClientError as failure:
            assert failure.response["Error"]["Code"] in ("PreconditionFailed", "ConditionalRequestConflict")

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # moto checks and writes non-atomically, so several writers may succeed; over a folder only one may.
    assert len(outcomes) == 1 or (served.origin == "s3" and outcomes)
    assert int(served.read("conditional/race")) in outcomes


def test_conditional_get(served):
    put = served.put("conditional/get", b"body")
    etag, modified = put["ETag"], served.head("conditional/get")["LastModified"]
    hour = datetime.timedelta(hours=1)
    for call in (served.get, served.head):
        assert error(call, "conditional/get", IfNoneMatch=etag)[1] == 304
        assert error(call, "conditional/get", IfMatch='"0123"')[1] == 412
        assert error(call, "conditional/get", IfModifiedSince=modified + hour)[1] == 304
        assert error(call, "conditional/get", IfUnmodifiedSince=modified - hour)[1] == 412
        assert call("conditional/get", IfMatch=etag)["ETag"] == etag
        assert call("conditional/get", IfNoneMatch='"0123"')["ETag"] == etag
        assert call("conditional/get", IfModifiedSince=modified - hour)["ETag"] == etag


def test_copy(served):
    served.put("copy/from", b"body", Metadata={"a": "1"}, ContentType="text/css")
    source = {"Bucket": served.bucket, "Key": "copy/from"}
    served.s3.copy_object(Bucket=served.bucket, Key="copy/same", CopySource=source)
    served.s3.copy_object(
        Bucket=served.bucket, Key="copy/other", CopySource=source, MetadataDirective="REPLACE", Metadata={"b": "2"}
    )
    assert served.read("copy/same") == served.read("copy/other") == b"body"
    same, other = served.head("copy/same"), served.head("copy/other")
    assert (same["Metadata"], same["ContentType"]) == ({"a": "1"}, "text/css")
    assert other["Metadata"] == {"b": "2"}
    absent = {"Bucket": served.bucket, "Key": "copy/absent"}
    assert error(served.s3.copy_object, Bucket=served.bucket, Key="x", CopySource=absent) == ("NoSuchKey", 404)
    assert error(
        served.s3.copy_object, Bucket=served.bucket, Key="x", CopySource=source, CopySourceIfMatch='"0123"'
    ) == ("PreconditionFailed", 412)


def test_managed_copy_uses_parts(served):
    body = payload(21 * MIB, 21)
    served.put("copy/large", body)
    served.s3.copy(
        {"Bucket": served.bucket, "Key": "copy/large"},
        served.bucket,
        "copy/large-again",
        Config=TransferConfig(multipart_threshold=8 * MIB, multipart_chunksize=8 * MIB),
    )
    assert served.read("copy/large-again") == body


def test_delete(served):
    for number in range(5):
        served.put(f"delete/{number}", b"x")
    assert served.read("delete/0") == b"x"
    served.s3.delete_object(Bucket=served.bucket, Key="delete/0")
    assert error(served.get, "delete/0") == ("NoSuchKey", 404)
    served.s3.delete_object(Bucket=served.bucket, Key="delete/0")
    response = served.s3.delete_objects(
        Bucket=served.bucket,
        Delete={"Objects": [{"Key": f"delete/{number}"} for number in (1, 2, 3)] + [{"Key": "delete/absent"}]},
    )
    assert sorted(entry["Key"] for entry in response["Deleted"]) == [
        "delete/1", "delete/2", "delete/3", "delete/absent",
    ]
    assert "Errors" not in response
    quiet = served.s3.delete_objects(Bucket=served.bucket, Delete={"Objects": [{"Key": "delete/4"}], "Quiet": True})
    assert "Deleted" not in quiet
    assert "Contents" not in served.s3.list_objects_v2(Bucket=served.bucket, Prefix="delete/")


def test_object_has_one_version_named_null(served):
    served.put("versions/a", b"one")
    served.put("versions/b", b"two")
    response = served.s3.list_object_versions(Bucket=served.bucket, Prefix="versions/")
    found = [(entry["Key"], entry["VersionId"], entry["IsLatest"]) for entry in response["Versions"]]
    assert found == [("versions/a", "null", True), ("versions/b", "null", True)]
    assert served.read("versions/a", VersionId="null") == b"one"
    deleted = served.s3.delete_objects(
        Bucket=served.bucket, Delete={"Objects": [{"Key": "versions/a", "VersionId": "null"}]}
    )
    assert [entry["Key"] for entry in deleted["Deleted"]] == ["versions/a"]
    served.s3.delete_object(Bucket=served.bucket, Key="versions/b", VersionId="null")
    assert "Versions" not in served.s3.list_object_versions(Bucket=served.bucket, Prefix="versions/")


def test_object_attributes(served):
    put = served.put("attributes", b"0123456789")
    response = served.s3.get_object_attributes(
        Bucket=served.bucket, Key="attributes", ObjectAttributes=["ETag", "ObjectSize"]
    )
    assert response["ObjectSize"] == 10
    assert response["ETag"].strip('"') == put["ETag"].strip('"')


def test_unsupported_features_are_not_implemented(served):
    assert error(served.s3.get_bucket_policy, Bucket=served.bucket) == ("NoSuchBucketPolicy", 404)
    assert error(served.s3.put_bucket_policy, Bucket=served.bucket, Policy="{}") == ("NotImplemented", 501)
    assert error(served.put, "encrypted", b"x", ServerSideEncryption="aws:kms") == ("NotImplemented", 501)


def test_reads_never_mix_two_versions(served):
    """Writers overwrite one key with bodies of one repeated byte each; every body read has a single byte value."""
    size, done, torn = 3 * MIB, threading.Event(), []
    served.put("torn", b"a" * size)

    def reads():
        while not done.is_set():
            body = served.read("torn")
            if len(body) != size or body.count(body[:1]) != size:
                torn.append({byte: body.count(byte) for byte in set(body)})

    readers = [threading.Thread(target=reads) for _ in range(4)]
    for reader in readers:
        reader.start()
    try:
        for number in range(20):
            served.put("torn", bytes([ord("b") + number]) * size)
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert not torn
    assert served.read("torn") == bytes([ord("b") + 19]) * size
