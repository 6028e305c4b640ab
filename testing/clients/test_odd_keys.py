"""Keys that are not valid paths: stored and returned unchanged, or rejected, but never stored under another key."""

import json
import os
import subprocess

import pytest
from harness import ACCESS_KEY, REGION, SECRET_KEY, clean_environment, error, keys, payload

REFUSED = ["a//b", "a//", "//a", "/a", "./x", "../x", "a/./b", "a/../b", "..", ".", "c/\x01"]


def listed(served, prefix=""):
    """Returns the keys of all three listings, which must be equal."""
    s3, where = served.s3, {"Bucket": served.bucket, "Prefix": prefix}
    found = keys(s3, **{"bucket": served.bucket, "Prefix": prefix})
    for size in (1, 2, 1000):
        pages = s3.get_paginator("list_objects").paginate(**where, PaginationConfig={"PageSize": size})
        assert [entry["Key"] for page in pages for entry in page.get("Contents", [])] == found
    pages = s3.get_paginator("list_object_versions").paginate(**where, PaginationConfig={"PageSize": 2})
    assert [entry["Key"] for page in pages for entry in page.get("Versions", [])] == found
    return found


@pytest.mark.parametrize("key", REFUSED)
def test_invalid_keys_are_rejected_for_boto3(served, key):
    before = listed(served)
    assert error(served.put, key, b"x") == ("InvalidArgument", 400)
    # Other programs may have written it to a store: it is read and deleted if the origin's client reaches it, and else refused by name.
    read = error(served.get, key)
    assert read == ("NoSuchKey", 404) or (served.origin != "folder" and read == ("NotImplemented", 501))
    if read == ("NoSuchKey", 404):
        served.s3.delete_object(Bucket=served.bucket, Key=key)
    else:
        assert error(served.s3.delete_object, Bucket=served.bucket, Key=key) == read
    assert error(served.s3.create_multipart_upload, Bucket=served.bucket, Key=key) == ("InvalidArgument", 400)
    served.put("source", b"x")
    source = {"Bucket": served.bucket, "Key": "source"}
    assert error(served.s3.copy_object, Bucket=served.bucket, Key=key, CopySource=source) == ("InvalidArgument", 400)
    served.s3.delete_object(**source)
    assert listed(served) == before


def aws(served, tmp_path, *arguments):
    if served.origin != "folder":
        pytest.skip("boto3 has shown it; the command line takes seconds to start")
    env = clean_environment() | {
        "HOME": str(tmp_path), "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": REGION, "AWS_ENDPOINT_URL": served.server.url, "AWS_MAX_ATTEMPTS": "1",
    }
    command = [os.environ["BYWASH_AWS"], "s3api", *arguments, "--bucket", served.bucket]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def test_invalid_keys_are_rejected_for_the_aws_cli(served, tmp_path):
    done = aws(served, tmp_path, "put-object", "--key", "a//b")
    assert done.returncode != 0
    assert "InvalidArgument" in done.stderr


def test_folder_keys_by_the_aws_cli(served, tmp_path):
    assert aws(served, tmp_path, "put-object", "--key", "cli/made/").returncode == 0
    found = json.loads(aws(served, tmp_path, "list-objects-v2", "--prefix", "cli/", "--delimiter", "/").stdout)
    assert [entry["Prefix"] for entry in found["CommonPrefixes"]] == ["cli/made/"]
    assert aws(served, tmp_path, "head-object", "--key", "cli/made/").returncode == 0
    assert aws(served, tmp_path, "delete-object", "--key", "cli/made/").returncode == 0
    assert listed(served, "cli/") == []


def test_folder_key_is_a_separate_object(served):
    if not served.nests:
        pytest.skip("the origin keeps objects as files, and `own` cannot be a file and a folder")
    for key in ("own", "own/", "own/a", "own/ x", "own/-x", "own/.hidden", "own/deep/", "own/deep/+x"):
        served.put(key, key.encode(), Metadata={"key": key.encode().hex()})
    expected = sorted(["own", "own/", "own/a", "own/ x", "own/-x", "own/.hidden", "own/deep/", "own/deep/+x"])
    assert listed(served, "own") == expected
    for key in expected:
        assert served.read(key) == key.encode()
        assert served.head(key)["Metadata"]["key"] == key.encode().hex()
    response = served.s3.list_objects_v2(Bucket=served.bucket, Prefix="own/", Delimiter="/")
    assert [entry["Key"] for entry in response["Contents"]] == ["own/", "own/ x", "own/-x", "own/.hidden", "own/a"]
    assert [entry["Prefix"] for entry in response["CommonPrefixes"]] == ["own/deep/"]
    after = served.s3.list_objects_v2(Bucket=served.bucket, Prefix="own", StartAfter="own/")
    assert [entry["Key"] for entry in after["Contents"]] == expected[2:]
    served.s3.delete_object(Bucket=served.bucket, Key="own/")
    assert error(served.get, "own/") == ("NoSuchKey", 404)
    assert served.read("own") == b"own"
    assert listed(served, "own") == [key for key in expected if key != "own/"]


def test_folder_keys_are_copied_and_uploaded_in_parts(served):
    body = payload(6 << 20)
    where = {"Bucket": served.bucket, "Key": "parts/"}
    upload = served.s3.create_multipart_upload(**where)["UploadId"]
    assert [entry["Key"] for entry in served.s3.list_multipart_uploads(Bucket=served.bucket)["Uploads"]] == ["parts/"]
    part = served.s3.upload_part(**where, UploadId=upload, PartNumber=1, Body=body)
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    served.s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload=parts)
    served.s3.copy_object(Bucket=served.bucket, Key="copied/", CopySource=where)
    assert served.read("parts/") == served.read("copied/") == body
    response = served.s3.delete_objects(Bucket=served.bucket, Delete={"Objects": [{"Key": "parts/"}, {"Key": "copied/"}, {"Key": "a//b"}]})
    deleted = sorted(entry["Key"] for entry in response["Deleted"])
    assert deleted == ["a//b", "copied/", "parts/"]
