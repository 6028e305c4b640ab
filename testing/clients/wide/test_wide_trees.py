"""Backups and mounts: whole trees of files, stored, read back, removed."""

import contextlib
import os
import shutil
import subprocess

import pytest
from adapters import BACKUPS, MOUNTS
from harness import MIB, REGION, Process, keys, payload, until

backups = pytest.mark.parametrize("client", BACKUPS.items(), ids=BACKUPS, indirect=True)
mounts = pytest.mark.parametrize("client", MOUNTS.items(), ids=MOUNTS, indirect=True)


@pytest.fixture
def tree(tmp_path):
    top = tmp_path / "tree"
    for number in range(1200):
        file = top / f"folder {number % 7}" / f"ü-{number}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(payload(number, number))
    (top / "large").write_bytes(payload(20 * MIB))
    return top


def contents(top):
    return {path.relative_to(top).as_posix(): path.read_bytes() for path in top.rglob("*") if path.is_file()}


@backups
def test_backups(client, tree, tmp_path):
    client.call("init")
    client.call("backup", "--quiet", tree)
    first = contents(tree)
    client.call("restore", "latest", "--target", tmp_path / "back")
    assert contents(tmp_path / "back" / tree.relative_to("/")) == first
    (tree / "large").write_bytes(payload(20 * MIB, 2))
    shutil.rmtree(tree / "folder 3")
    client.call("backup", "--quiet", tree)
    client.call("check", "--read-data")
    client.call("forget", "--keep-last", "1", "--prune")
    client.call("restore", "latest", "--target", tmp_path / "second")
    assert contents(tmp_path / "second" / tree.relative_to("/")) == contents(tree)
    assert keys(client.s3, client.bucket, Prefix=f"restic-{client.home.name}/locks/") == []


@pytest.fixture
def mounted(client, tmp_path):
    """The bucket as a folder of this machine."""
    if not os.path.exists("/dev/fuse") or os.geteuid() != 0:
        pytest.skip("mounting needs root and /dev/fuse")
    top = tmp_path / "mounted"
    top.mkdir()
    options = f"url={client.server.url},use_path_request_style,multipart_size=5,endpoint={REGION}"
    process = Process([client.path, client.bucket, top, "-f", "-o", options], client.env, tmp_path / "s3fs.log")
    until("the mount or its end", lambda: os.path.ismount(top) or process.child.poll() is not None, 60)
    assert os.path.ismount(top), "".join(process.seen)
    yield top
    with contextlib.suppress(subprocess.CalledProcessError):
        subprocess.run(["umount", top], check=True)
    process.stop()


@mounts
def test_mounted_bucket(client, mounted, tmp_path):
    for number in range(1200):
        client.s3.put_object(Bucket=client.bucket, Key=f"mount/many/{number:04}", Body=b"x")
    assert sorted(os.listdir(mounted / "mount/many")) == [f"{number:04}" for number in range(1200)]
    folder = mounted / "mount/own"
    folder.mkdir()
    small, large = payload(1000), payload(20 * MIB)
    (folder / "small ü").write_bytes(small)
    (folder / "large").write_bytes(large)
    assert client.s3.get_object(Bucket=client.bucket, Key="mount/own/small ü")["Body"].read() == small
    head = client.s3.head_object(Bucket=client.bucket, Key="mount/own/large")
    assert "-" in head["ETag"], "the file was not sent in parts"
    assert client.s3.get_object(Bucket=client.bucket, Key="mount/own/large")["Body"].read() == large
    with open(folder / "large", "rb") as file:
        file.seek(MIB - 1)
        assert file.read(70_000) == large[MIB - 1 : MIB - 1 + 70_000]
    os.rename(folder / "large", folder / "moved")
    assert (folder / "moved").read_bytes() == large
    shutil.copy(folder / "moved", folder / "copy")
    with open(folder / "small ü", "ab") as file:
        file.write(b"more")
    assert (folder / "small ü").read_bytes() == small + b"more"
    for name in ("copy", "moved", "small ü"):
        (folder / name).unlink()
    folder.rmdir()
    assert keys(client.s3, client.bucket, Prefix="mount/own") == []
