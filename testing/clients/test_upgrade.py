"""A data folder of f979ecb, restored from a backup, is readable.

The archive was made once by that build. Its server had objects, an open upload, tags and series, and was killed in the midst of a
PUT, with rows that only the log had.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from harness import ACCESS_KEY, clean_environment, keys, s3_client

ARCHIVE = Path(__file__).parent / "data-folder-f979ecb.tar.gz"
PART = b"part one " * (640 * 1024)


@pytest.fixture
def restored(start, tmp_path):
    """A server on the restored folder, with the credentials of the folder."""
    subprocess.run(["tar", "-xzf", ARCHIVE, "-C", tmp_path], check=True)
    server = start(credentials=False)
    stored = json.loads((server.data_dir / "credentials.json").read_text())
    assert stored["access_key"] != ACCESS_KEY
    server.s3 = s3_client(server.url, stored["access_key"], stored["secret_key"])
    return server


def query(server, *words):
    command = [os.environ["BYWASH_BIN"], "series", "--data-dir", server.data_dir, "query", *words, "--json"]
    lines = subprocess.run(command, env=clean_environment(), check=True, capture_output=True, text=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def test_objects_have_their_bytes_types_metadata_and_tags(restored):
    s3 = restored.s3
    assert keys(s3, "first") == ["folder/", "folder/tagged", "large", "plain"]
    plain = s3.get_object(Bucket="first", Key="plain")
    assert (plain["Body"].read(), plain["ContentType"], plain["Metadata"]) == (b"plain body", "text/x-plain", {"colour": "green"})
    tags = s3.get_object_tagging(Bucket="first", Key="folder/tagged")["TagSet"]
    assert {tag["Key"]: tag["Value"] for tag in tags} == {"stage": "test", "owner": "b"}
    assert s3.get_object(Bucket="first", Key="large")["Body"].read() == b"0123456789abcdef" * (10 << 16)


def test_open_upload_is_listed_and_completed(restored):
    s3 = restored.s3
    (upload,) = s3.list_multipart_uploads(Bucket="first")["Uploads"]
    where = {"Bucket": "first", "Key": "parts", "UploadId": upload["UploadId"]}
    (part,) = s3.list_parts(**where)["Parts"]
    assert part["Size"] == len(PART)
    second = s3.upload_part(PartNumber=2, Body=b"the end", **where)["ETag"]
    parts = [{"PartNumber": 1, "ETag": part["ETag"]}, {"PartNumber": 2, "ETag": second}]
    s3.complete_multipart_upload(MultipartUpload={"Parts": parts}, **where)
    whole = s3.get_object(Bucket="first", Key="parts")
    assert (whole["Body"].read(), whole["Metadata"]) == (PART + b"the end", {"kept": "yes"})


def test_rows_of_files_and_log_are_readable(restored):
    rows = query(restored, "garden,place=bed1", "temperature")
    values = [row["value"] for row in rows]
    assert values == [number / 4 for number in range(1, 3300, 3)]
    assert query(restored, "bywash*", "*"), "the server's own history"


def test_sweep_removes_leftovers_of_a_killed_put_and_keeps_the_open_upload(restored):
    bucket = restored.data_dir / "buckets/first"
    command = [os.environ["BYWASH_BIN"], "uploads", "sweep", "--older-than", "1s", "--data-dir", restored.data_dir, f"file://{bucket}"]
    swept = subprocess.run(command, env=clean_environment(), check=True, capture_output=True, text=True).stdout
    assert swept.splitlines() == [f"file://{bucket}/half: dropped"]
    assert len(restored.s3.list_multipart_uploads(Bucket="first")["Uploads"]) == 1
