"""boto3 and the AWS command line of 2023, which wait for `100 Continue` before every body, also empty ones."""

import subprocess
import sys
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from harness import ACCESS_KEY, MIB, REGION, SECRET_KEY, clean_environment, file_sha256, keys, payload

# Less than the idle timeout of a connection, which would end a stall.
READ_TIMEOUT = 30


@pytest.fixture
def aws(start, tmp_path):
    """Returns a function that runs `aws ...` on a single connection to a server with the bucket `old`."""
    server = start()
    server.s3.create_bucket(Bucket="old")
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text("[default]\ns3 =\n  max_concurrent_requests = 1\n")
    env = clean_environment() | {
        "HOME": str(tmp_path),
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_MAX_ATTEMPTS": "1",
    }

    def run(*arguments):
        command = [Path(sys.executable).parent / "aws", "--endpoint-url", server.url, "--cli-read-timeout", READ_TIMEOUT, *arguments]
        done = subprocess.run([str(part) for part in command], env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    run.server = server
    return run


def test_the_clients_are_old():
    assert tuple(map(int, boto3.__version__.split("."))) < (1, 36), "newer versions send checksums by default and do not stall"


def test_empty_files_do_not_stall(aws, tmp_path):
    tree, back = tmp_path / "tree", tmp_path / "back"
    (tree / "deep").mkdir(parents=True)
    for number in range(4):
        (tree / f"empty{number}").touch()
        (tree / "deep" / f"empty{number}").touch()
        (tree / f"full{number}").write_text(str(number))
    aws("s3", "sync", "--no-progress", tree, "s3://old/tree")
    aws("s3", "sync", "--no-progress", "s3://old/tree", back)
    files = lambda root: {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert files(back) == files(tree)
    assert aws("s3", "sync", "--no-progress", tree, "s3://old/tree") == ""


def test_requests_follow_an_empty_body_on_one_connection(aws):
    s3 = aws.server.client(max_pool_connections=1, read_timeout=READ_TIMEOUT)
    for number in range(3):
        s3.put_object(Bucket="old", Key=f"empty{number}", Body=b"")
        s3.put_object(Bucket="old", Key=f"full{number}", Body=b"body")
        assert s3.get_object(Bucket="old", Key=f"full{number}")["Body"].read() == b"body"
        assert s3.head_object(Bucket="old", Key=f"empty{number}")["ContentLength"] == 0
    gone = {"Objects": [{"Key": key} for key in keys(s3, "old")]}
    assert len(s3.delete_objects(Bucket="old", Delete=gone)["Deleted"]) == 6
    assert keys(s3, "old") == []


def test_parts_listings_and_removal(aws, tmp_path):
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(payload(20 * MIB))
    aws("s3", "cp", "--only-show-errors", source, "s3://old/big")
    aws("s3", "cp", "--only-show-errors", "s3://old/big", "s3://old/copy")
    aws("s3", "cp", "--only-show-errors", "s3://old/copy", back)
    assert file_sha256(back) == file_sha256(source)
    assert "big" in aws("s3", "ls", "s3://old/")
    aws("s3", "rm", "--recursive", "s3://old/")
    assert keys(aws.server.s3, "old") == []


@pytest.mark.parametrize("version", ["s3", "s3v4"])
def test_presigned_urls_of_both_versions(aws, version):
    import requests

    s3 = boto3.session.Session().client(
        "s3", endpoint_url=aws.server.url, aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY, region_name=REGION,
        config=Config(signature_version=version),
    )
    where = {"Bucket": "old", "Key": "presigned"}
    assert requests.put(s3.generate_presigned_url("put_object", where), data=b"by url", timeout=30).status_code == 200
    assert requests.get(s3.generate_presigned_url("get_object", where), timeout=30).content == b"by url"
