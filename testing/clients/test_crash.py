"""What is left when the server is killed or the disk is full: the old object, whole, or nothing."""

import os
import shutil
import subprocess

import pytest
from botocore.exceptions import ClientError
from harness import MIB, error, head_of_put, keys, payload, until

OLD = payload(3 * MIB, 3)


@pytest.fixture(params=["folder", "s3"])
def killable(request, start):
    """A server of this test alone, over an origin that outlives it."""
    bucket = f"crash-{request.node.originalname.replace('_', '-')}"[:60].rstrip("-")
    if request.param == "folder":
        server = start()
        server.s3.create_bucket(Bucket=bucket)
    else:
        moto = request.getfixturevalue("moto")
        moto.s3.create_bucket(Bucket=bucket)
        server = start(f"s3://{bucket}", env=moto.environment())
    return server, bucket


def half_a_put(server, url, size, sent):
    """A PUT of which the server has read half when it is killed; the socket, to keep it open."""
    bare = server.connect()
    bare.sendall(head_of_put(url, size))
    bare.sendall(payload(sent))
    return bare


def test_kill_in_the_middle_of_puts(killable):
    server, bucket = killable
    server.s3.put_object(Bucket=bucket, Key="old", Body=OLD)
    where = {"Bucket": bucket, "Key": "parts"}
    where["UploadId"] = server.s3.create_multipart_upload(**where)["UploadId"]
    server.s3.upload_part(PartNumber=1, Body=payload(5 * MIB), **where)
    # A body of one chunk, and one of several, of which the first are with the origin already; over old and new names.
    sockets = [
        half_a_put(server, server.presigned("put_object", bucket, key), size, sent)
        for key in ("old", "new")
        for size, sent in ((8 * MIB, 4 * MIB), (64 * MIB, 40 * MIB))
    ]
    server.kill()
    for bare in sockets:
        bare.close()
    server.start()
    assert keys(server.s3, bucket) == ["old"]
    assert server.s3.get_object(Bucket=bucket, Key="old")["Body"].read() == OLD
    assert error(server.s3.get_object, Bucket=bucket, Key="new") == ("NoSuchKey", 404)
    assert error(server.s3.get_object, Bucket=bucket, Key="parts") == ("NoSuchKey", 404)
    server.s3.put_object(Bucket=bucket, Key="new", Body=b"after")
    assert server.s3.get_object(Bucket=bucket, Key="new")["Body"].read() == b"after"


def test_what_was_acknowledged_is_there_after_a_kill(killable, tmp_path):
    server, bucket = killable
    (tmp_path / "large").write_bytes(payload(20 * MIB))
    server.s3.put_object(Bucket=bucket, Key="small", Body=b"small", Metadata={"a": "b"})
    server.s3.upload_file(str(tmp_path / "large"), bucket, "large")
    server.kill()
    server.start()
    assert keys(server.s3, bucket) == ["large", "small"]
    got = server.s3.get_object(Bucket=bucket, Key="small")
    assert (got["Body"].read(), got["Metadata"]) == (b"small", {"a": "b"})
    assert server.s3.get_object(Bucket=bucket, Key="large")["Body"].read() == payload(20 * MIB)


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 48 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_full_disk_keeps_the_old_object(tiny_disk, start):
    s3 = start(data_dir=tiny_disk / "data").s3
    s3.create_bucket(Bucket="full")
    s3.put_object(Bucket="full", Key="old", Body=OLD)
    used = shutil.disk_usage(tiny_disk).used
    # Several chunks that cannot all fit; then a body of one chunk, onto what a neighbour has left.
    assert error(s3.put_object, Bucket="full", Key="old", Body=payload(100 * MIB))[1] >= 500
    until("the space comes back", lambda: shutil.disk_usage(tiny_disk).used <= used + MIB, 30)
    neighbour = tiny_disk / "neighbour"
    neighbour.write_bytes(bytes(shutil.disk_usage(tiny_disk).free - 4 * MIB))
    for key in ("old", "new"):
        assert error(s3.put_object, Bucket="full", Key=key, Body=payload(12 * MIB))[1] >= 500
    where = {"Bucket": "full", "Key": "parts"}
    where["UploadId"] = s3.create_multipart_upload(**where)["UploadId"]
    with pytest.raises(ClientError):
        s3.upload_part(PartNumber=1, Body=payload(12 * MIB), **where)
    s3.abort_multipart_upload(**where)
    assert keys(s3, "full") == ["old"]
    assert s3.get_object(Bucket="full", Key="old")["Body"].read() == OLD
    neighbour.unlink()
    s3.put_object(Bucket="full", Key="new", Body=payload(12 * MIB))
    assert s3.get_object(Bucket="full", Key="new")["Body"].read() == payload(12 * MIB)
