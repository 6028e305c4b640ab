"""Unmodified rclone of Debian: trees both ways, sync, check, uploads in parts, odd names."""

import json
import shutil
import subprocess

import pytest
from harness import ACCESS_KEY, MIB, ODD_KEYS, REGION, SECRET_KEY, clean_environment, keys, payload


@pytest.fixture(scope="module")
def rclone(served, tmp_path_factory):
    """Returns a function that runs `rclone ...`, with the server as remote `to:`, and returns its output."""
    program = shutil.which("rclone")
    assert program, "rclone is missing; `cargo xtask test --only tools` installs it"
    env = clean_environment() | {
        "HOME": str(tmp_path_factory.mktemp("home")),
        "RCLONE_CONFIG": "/dev/null",
        "RCLONE_CONFIG_TO_TYPE": "s3",
        "RCLONE_CONFIG_TO_PROVIDER": "Other",
        "RCLONE_CONFIG_TO_ENDPOINT": served.server.url,
        "RCLONE_CONFIG_TO_ACCESS_KEY_ID": ACCESS_KEY,
        "RCLONE_CONFIG_TO_SECRET_ACCESS_KEY": SECRET_KEY,
        "RCLONE_CONFIG_TO_REGION": REGION,
        "RCLONE_RETRIES": "1",
        "RCLONE_LOW_LEVEL_RETRIES": "1",
    }

    def run(*arguments, code=0, stdin=None):
        command = [program, *[str(argument) for argument in arguments]]
        done = subprocess.run(command, env=env, input=stdin, capture_output=True, timeout=120)
        assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.fixture
def tree(tmp_path):
    """Files of various sizes and names, one of which is uploaded in parts."""
    top = tmp_path / "tree"
    for key in [*ODD_KEYS, "deep/er/file"]:
        (top / key).parent.mkdir(parents=True, exist_ok=True)
        (top / key).write_bytes(key.encode())
    (top / "empty").touch()
    (top / "large").write_bytes(payload(12 * MIB, 12))
    return top


def contents(top):
    return {path.relative_to(top).as_posix(): path.read_bytes() for path in top.rglob("*") if path.is_file()}


def test_trees_both_ways(served, rclone, tree, tmp_path):
    where = f"to:{served.bucket}/tree"
    rclone("copy", "--s3-upload-cutoff", "5M", tree, where)
    assert set(keys(served.s3, served.bucket, Prefix="tree/")) == {f"tree/{name}" for name in contents(tree)}
    rclone("check", "--download", tree, where)
    rclone("copy", where, tmp_path / "back")
    assert contents(tmp_path / "back") == contents(tree)
    mtimes = {entry["Path"]: entry["ModTime"] for entry in json.loads(rclone("lsjson", "-R", "--files-only", where))}
    assert mtimes == {entry["Path"]: entry["ModTime"] for entry in json.loads(rclone("lsjson", "-R", "--files-only", tree))}


def test_sync_uploads_and_deletes_only_changes(served, rclone, tree):
    where = f"to:{served.bucket}/sync"
    rclone("sync", tree, where)
    before = served.stats()["requests"]
    (tree / "empty").unlink()
    (tree / "deep/er/file").write_bytes(b"longer than before")
    log = rclone("sync", "--use-json-log", "--stats-one-line", "-v", tree, where)
    assert log == b""
    assert set(keys(served.s3, served.bucket, Prefix="sync/")) == {f"sync/{name}" for name in contents(tree)}
    assert served.read("sync/deep/er/file") == b"longer than before"
    # One HEAD per file for its time, and the listings; no file is uploaded again.
    assert served.stats()["requests"] - before < 3 * len(contents(tree))


def test_single_files_and_ranges(served, rclone, tmp_path):
    body = payload(3 * MIB)
    (tmp_path / "file").write_bytes(body)
    rclone("copyto", tmp_path / "file", f"to:{served.bucket}/files/a")
    rclone("moveto", f"to:{served.bucket}/files/a", f"to:{served.bucket}/files/b")
    assert keys(served.s3, served.bucket, Prefix="files/") == ["files/b"]
    assert rclone("cat", "--offset", MIB - 1, "--count", 10, f"to:{served.bucket}/files/b") == body[MIB - 1 : MIB + 9]
    assert json.loads(rclone("size", "--json", f"to:{served.bucket}/files")) == {"count": 1, "bytes": len(body), "sizeless": 0}
    rclone("deletefile", f"to:{served.bucket}/files/b")
    assert keys(served.s3, served.bucket, Prefix="files/") == []


def test_upload_from_a_pipe(served, rclone):
    """A body of unknown length is uploaded in parts."""
    body = payload(7 * MIB, 7)
    rclone("rcat", "--streaming-upload-cutoff", "1M", f"to:{served.bucket}/piped", stdin=body)
    assert served.read("piped") == body


def test_metadata(served, rclone, tmp_path):
    (tmp_path / "file.csv").write_bytes(b"a,b\n")
    rclone("copy", "--metadata", "--metadata-set", "colour=blue", tmp_path / "file.csv", f"to:{served.bucket}/described")
    head = served.head("described/file.csv")
    assert (head["ContentType"], head["Metadata"]["colour"]) == ("text/csv; charset=utf-8", "blue")


def test_buckets(served, rclone):
    if served.origin != "folder":
        pytest.skip("only a root folder can make buckets")
    rclone("mkdir", "to:made-by-rclone")
    assert b"made-by-rclone" in rclone("lsd", "to:")
    rclone("rcat", "to:made-by-rclone/a/b", stdin=b"x")
    rclone("purge", "to:made-by-rclone")
    assert b"made-by-rclone" not in rclone("lsd", "to:")
