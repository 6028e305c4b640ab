"""boto3: both forms of listings, with paging, delimiters and keys that need encoding; buckets."""

import pytest
from harness import error, keys

NAMES = sorted(
    [f"list/{letter}/{number:02}" for letter in "abc" for number in range(7)]
    + ["list/plain", "list/with space", "list/plus+and&amp", "list/ümläut/✓.txt", "list/per%cent", "list/<xml>\"'"],
    key=lambda name: name.encode(),
)


@pytest.fixture(scope="module", autouse=True)
def objects(served):
    for name in NAMES:
        served.put(name, name.encode())
    served.put("other", b"")


def test_listing_is_in_byte_order(served):
    assert keys(served.s3, served.bucket, Prefix="list/") == NAMES
    for name in NAMES:
        assert served.read(name) == name.encode()


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_paging_v2(served, size):
    pages = list(
        served.s3.get_paginator("list_objects_v2").paginate(
            Bucket=served.bucket, Prefix="list/", PaginationConfig={"PageSize": size}
        )
    )
    assert [entry["Key"] for page in pages for entry in page["Contents"]] == NAMES
    assert all(page["KeyCount"] <= size for page in pages)
    assert not pages[-1]["IsTruncated"]


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_paging_v1(served, size):
    pages = served.s3.get_paginator("list_objects").paginate(
        Bucket=served.bucket, Prefix="list/", PaginationConfig={"PageSize": size}
    )
    assert [entry["Key"] for page in pages for entry in page["Contents"]] == NAMES


@pytest.mark.parametrize("form", ["list_objects", "list_objects_v2"])
@pytest.mark.parametrize("size", [1, 2, 1000])
def test_delimiter_with_paging(served, form, size):
    pages = list(
        served.s3.get_paginator(form).paginate(
            Bucket=served.bucket, Prefix="list/", Delimiter="/", PaginationConfig={"PageSize": size}
        )
    )
    found = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
    prefixes = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", [])]
    assert found == [name for name in NAMES if "/" not in name.removeprefix("list/")]
    assert prefixes == ["list/a/", "list/b/", "list/c/", "list/ümläut/"]
    assert all(len(page.get("Contents", [])) + len(page.get("CommonPrefixes", [])) <= size for page in pages)


def test_any_delimiter(served):
    response = served.s3.list_objects_v2(Bucket=served.bucket, Prefix="list/a/", Delimiter="0")
    assert [entry["Prefix"] for entry in response["CommonPrefixes"]] == ["list/a/0"]
    assert "Contents" not in response


def test_start_after_and_empty_listing(served):
    after = served.s3.list_objects_v2(Bucket=served.bucket, Prefix="list/", StartAfter=NAMES[10])
    assert [entry["Key"] for entry in after["Contents"]] == NAMES[11:]
    none = served.s3.list_objects_v2(Bucket=served.bucket, MaxKeys=0)
    assert (none["KeyCount"], none["IsTruncated"]) == (0, False)
    assert "Contents" not in served.s3.list_objects_v2(Bucket=served.bucket, Prefix="no/such/prefix")


def test_prefix_is_a_string_not_a_folder(served):
    assert keys(served.s3, served.bucket, Prefix="list/pl") == ["list/plain", "list/plus+and&amp"]
    assert keys(served.s3, served.bucket, Prefix="list/a/0") == [f"list/a/{number:02}" for number in range(7)]


def test_entries_have_size_etag_and_time(served):
    entry = served.s3.list_objects_v2(Bucket=served.bucket, Prefix="list/plain")["Contents"][0]
    head = served.head("list/plain")
    assert (entry["Size"], entry["ETag"]) == (10, head["ETag"])
    assert abs((entry["LastModified"] - head["LastModified"]).total_seconds()) < 1


def test_key_that_extends_another_is_listed_separately(served):
    if not served.nests:
        pytest.skip("the origin keeps objects as files, and `nest/a` cannot be a file and a folder")
    served.put("nest/a", b"short")
    served.put("nest/a/b", b"long")
    served.put("nest/a.b", b"dot")
    assert keys(served.s3, served.bucket, Prefix="nest/") == ["nest/a", "nest/a.b", "nest/a/b"]
    assert (served.read("nest/a"), served.read("nest/a/b")) == (b"short", b"long")


def test_buckets(served):
    s3 = served.s3
    assert served.bucket in [entry["Name"] for entry in s3.list_buckets()["Buckets"]]
    s3.head_bucket(Bucket=served.bucket)
    assert error(s3.head_bucket, Bucket="no-such-bucket-here")[1] == 404
    if served.origin != "folder":
        return  # only a root folder can make buckets
    s3.create_bucket(Bucket="made-here")
    s3.put_object(Bucket="made-here", Key="a/b", Body=b"x")
    # One's own bucket, as in us-east-1.
    s3.create_bucket(Bucket="made-here")
    assert error(s3.delete_bucket, Bucket="made-here") == ("BucketNotEmpty", 409)
    s3.delete_object(Bucket="made-here", Key="a/b")
    s3.delete_bucket(Bucket="made-here")
    assert error(s3.head_bucket, Bucket="made-here")[1] == 404
    assert error(s3.delete_bucket, Bucket="made-here") == ("NoSuchBucket", 404)
    assert error(s3.get_object, Bucket="made-here", Key="a/b") == ("NoSuchBucket", 404)
