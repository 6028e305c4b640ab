"""Backups: whole trees of files, stored, read back, removed."""

import shutil

import pytest
from adapters import BACKUPS
from harness import MIB, keys, payload

backups = pytest.mark.parametrize("client", BACKUPS.items(), ids=BACKUPS, indirect=True)


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
