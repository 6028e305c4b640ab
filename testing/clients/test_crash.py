"""After a kill or with a full disk, the old object is complete or there is none."""

import os
import random
import shutil
import subprocess

import pytest
from botocore.exceptions import ClientError
from harness import MIB, S3_ORIGINS, Azurite, error, head_of_put, keys, payload, read_response, until

OLD = payload(3 * MIB, 3)


@pytest.fixture(params=["folder", *S3_ORIGINS, "azure"])
def killable(request, start, tmp_path):
    """A server of this test, over an origin that survives it."""
    bucket = f"crash-{request.node.originalname.replace('_', '-')}"[:60].rstrip("-")
    if request.param == "folder":
        server = start()
        server.s3.create_bucket(Bucket=bucket)
    elif request.param in S3_ORIGINS:
        origin = request.getfixturevalue(request.param)
        origin.s3.create_bucket(Bucket=bucket)
        server = start(f"s3://{bucket}", env=origin.environment())
    else:
        azurite = Azurite(tmp_path)
        request.addfinalizer(azurite.process.kill)
        azurite.request("PUT", bucket, restype="container")
        server = start(f"az://{bucket}", env=azurite.environment())
    return server, bucket


def partial_put(server, url, size, sent):
    """Sends part of a PUT. Returns the socket, which keeps the request open."""
    bare = server.connect()
    bare.sendall(head_of_put(url, size))
    bare.sendall(payload(sent))
    return bare


def test_kill_during_puts_leaves_complete_objects(killable):
    server, bucket = killable
    server.s3.put_object(Bucket=bucket, Key="old", Body=OLD)
    where = {"Bucket": bucket, "Key": "parts"}
    where["UploadId"] = server.s3.create_multipart_upload(**where)["UploadId"]
    server.s3.upload_part(PartNumber=1, Body=payload(5 * MIB), **where)
    # A body of one chunk, and one of several, of which the origin has the first; over old and new keys.
    sockets = [
        partial_put(server, server.presigned("put_object", bucket, key), size, sent)
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


def test_acknowledged_objects_survive_a_kill(killable, tmp_path):
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


def test_open_upload_continues_after_kills(killable, tmp_path, request):
    server, bucket = killable
    rng = random.Random(4)
    bodies = {number: payload(5 * MIB + number, number) for number in range(1, 7)}
    bodies[7] = b"the end"
    where = {"Bucket": bucket, "Key": "deep/parts"}
    where["UploadId"] = server.s3.create_multipart_upload(Metadata={"a": "b"}, **where)["UploadId"]
    stored = {}
    for _ in range(int(os.environ.get("BYWASH_KILLS", 5))):
        number = rng.choice(list(bodies.keys() - stored.keys()) or list(bodies))
        body = bodies[number]
        how = "sending" if number in stored else rng.choice(["sending", "sent", "responded"])
        url = server.presigned("upload_part", bucket, where["Key"], UploadId=where["UploadId"], PartNumber=number)
        bare = server.connect()
        bare.sendall(head_of_put(url, len(body)))
        bare.sendall(body[: rng.randrange(len(body))] if how == "sending" else body)
        if how == "responded":
            response = read_response(bare)
            assert response.status == 200, response
            stored[number] = response.headers["etag"]
        server.kill()
        bare.close()
        server.start()
        assert [found["UploadId"] for found in server.s3.list_multipart_uploads(Bucket=bucket)["Uploads"]] == [where["UploadId"]]
        listed = {part["PartNumber"]: part["ETag"] for part in server.s3.list_parts(**where).get("Parts", [])}
        assert stored.items() <= listed.items(), f"{how} {number}"
        stored = listed
    for number in bodies.keys() - stored.keys():
        stored[number] = server.s3.upload_part(PartNumber=number, Body=bodies[number], **where)["ETag"]
    parts = {"Parts": [{"PartNumber": number, "ETag": stored[number]} for number in sorted(stored)]}

    # Killed after the origin completed it and before the file was removed: the next server finds the result.
    (file,) = (server.data_dir / "multipart").iterdir()
    os.link(file, tmp_path / "spare")
    completed = server.s3.complete_multipart_upload(MultipartUpload=parts, **where)
    server.kill()
    os.rename(tmp_path / "spare", file)
    server.start()
    again = server.s3.complete_multipart_upload(MultipartUpload=parts, IfNoneMatch="*", **where)
    assert again["ETag"] == completed["ETag"]
    got = server.s3.get_object(Bucket=bucket, Key=where["Key"])
    assert (got["Body"].read(), got["Metadata"]) == (b"".join(bodies[number] for number in sorted(bodies)), {"a": "b"})
    if "[azure]" in request.node.name:
        # Its ETags do not tell which parts an object has.
        assert error(server.s3.complete_multipart_upload, MultipartUpload=parts, **where) == ("NoSuchUpload", 404)
    else:
        # Repeated, it answers as the first time; with other parts it does not.
        repeated = server.s3.complete_multipart_upload(MultipartUpload=parts, **where)
        assert repeated["ETag"] == completed["ETag"]
        fewer = {"Parts": parts["Parts"][:-1]}
        assert error(server.s3.complete_multipart_upload, MultipartUpload=fewer, **where) == ("NoSuchUpload", 404)
    assert not list((server.data_dir / "multipart").iterdir())


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
    # Several chunks that do not fit together; then a body of one chunk, in the space that is left.
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
