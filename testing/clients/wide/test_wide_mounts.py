"""Mounts: the bucket as a folder in which programs work as in any other, over either endpoint."""

import contextlib
import os
import shutil
import subprocess

import pytest
from adapters import S3fsFuse
from gcs_adapters import Gcsfuse
from harness import MIB, Process, keys, payload, until

MOUNTS = {"s3fs-fuse": S3fsFuse, "gcsfuse": Gcsfuse}
mounts = pytest.mark.parametrize("client", MOUNTS.items(), ids=MOUNTS, indirect=True)
GIT = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    **{f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


@contextlib.contextmanager
def mount_of(client, folder):
    """The bucket as a folder of this machine."""
    top = folder / "mounted"
    top.mkdir()
    process = Process(client.mounting(top), client.env, folder / "mount.log")
    until("the mount or its end", lambda: os.path.ismount(top) or process.child.poll() is not None, 60)
    assert os.path.ismount(top), "".join(process.seen)
    try:
        yield top
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            subprocess.run(["umount", top], check=True)
        process.stop()


@pytest.fixture
def mounted(client, tmp_path):
    if not os.path.exists("/dev/fuse") or os.geteuid() != 0:
        pytest.skip("mounting needs root and /dev/fuse")
    with mount_of(client, tmp_path) as top:
        yield top


def run(*command, folder=None):
    done = subprocess.run([str(part) for part in command], cwd=folder, env=os.environ | GIT, capture_output=True, timeout=300)
    assert done.returncode == 0, f"{command}: {done.stderr.decode(errors='replace')}"
    return done.stdout.decode()


def contents(top):
    """The files of a tree with their bytes, and its links with their targets."""
    paths = sorted(path for path in top.rglob("*") if path.is_symlink() or path.is_file())
    return {str(path.relative_to(top)): os.readlink(path) if path.is_symlink() else path.read_bytes() for path in paths}


def repository(top, scratch):
    """git: objects by links or renames, locks by exclusive creation and rename."""
    work = top / "repository"
    run("git", "init", "-q", "-b", "main", work)
    for number in range(3):
        (work / f"file{number}").write_text(f"{number}\n")
    (work / "deep/er").mkdir(parents=True)
    (work / "deep/er/file").write_text("deep\n")
    run("git", "add", ".", folder=work)
    run("git", "commit", "-qm", "first", folder=work)
    run("git", "mv", "file1", "deep/moved", folder=work)
    run("git", "commit", "-qam", "second", folder=work)
    run("git", "checkout", "-q", "-b", "other", "HEAD~1", folder=work)
    (work / "beside").write_text("beside\n")
    run("git", "add", "beside", folder=work)
    run("git", "commit", "-qm", "third", folder=work)
    run("git", "checkout", "-q", "main", folder=work)
    run("git", "merge", "-q", "other", "-m", "merged", folder=work)
    run("git", "gc", "-q", folder=work)
    run("git", "fsck", "--strict", folder=work)
    assert run("git", "status", "--porcelain", folder=work) == ""
    run("git", "clone", "-q", work, scratch / "clone")
    assert (scratch / "clone/deep/moved").read_text() == "1\n"
    assert len(run("git", "log", "--oneline", folder=scratch / "clone").splitlines()) == 4
    shutil.rmtree(work)


def archive(top, scratch):
    """tar: a tree with an empty file, a large one and a link, written as an archive and unpacked."""
    tree = scratch / "tree"
    (tree / "x/y").mkdir(parents=True)
    (tree / "large").write_bytes(payload(3 * MIB))
    (tree / "x/y/small").write_text("small\n")
    (tree / "empty").touch()
    (tree / "x/link").symlink_to("y/small")
    run("tar", "cf", top / "a.tar", "-C", scratch, "tree")
    (top / "unpacked").mkdir()
    run("tar", "xf", top / "a.tar", "-C", top / "unpacked")
    assert contents(top / "unpacked/tree") == contents(tree)
    (top / "unpacked/tree").rename(top / "tree +&%ü")
    assert contents(top / "tree +&%ü") == contents(tree)
    assert not (top / "unpacked/tree").exists()


def renames(top, scratch):
    (top / "one").write_text("one")
    (top / "two").write_text("two")
    (top / "one").rename(top / "two")
    assert (top / "two").read_text() == "one" and not (top / "one").exists()
    # A name that was taken before, over a newer file.
    (top / "one").write_text("three")
    (top / "two").rename(top / "one")
    assert (top / "one").read_text() == "one"
    large = payload(20 * MIB)
    (top / "large").write_bytes(large)
    (top / "large").rename(top / "renamed")
    assert (top / "renamed").read_bytes() == large
    shutil.copy(top / "renamed", top / "copy")
    assert (top / "copy").read_bytes() == large


def lengths(top, scratch):
    body = payload(3 * MIB)
    (top / "file").write_bytes(body)
    # By an open file: s3fs 1.90 loses the bytes of one that it truncates by name, also directly over moto.
    for length in (1000, 5000):
        with open(top / "file", "r+b") as file:
            file.truncate(length)
    assert (top / "file").read_bytes() == body[:1000] + bytes(4000)
    with open(top / "file", "wb"):
        pass
    assert (top / "file").stat().st_size == 0


def appends(top, scratch):
    """Small, and to a file of several MiB, of which a mount sends the end alone."""
    for number in range(5):
        with open(top / "log", "a") as file:
            file.write(f"line {number}\n")
    assert (top / "log").read_text() == "".join(f"line {number}\n" for number in range(5))
    body = payload(3 * MIB)
    (top / "large").write_bytes(body)
    for _ in range(2):
        with open(top / "large", "ab") as file:
            file.write(b"tail")
    assert (top / "large").read_bytes() == body + b"tailtail"
    with open(top / "large", "r+b") as file:
        file.seek(1000)
        file.write(b"XYZ")
    assert (top / "large").read_bytes() == body[:1000] + b"XYZ" + body[1003:] + b"tailtail"


def links_and_times(top, scratch):
    (top / "file").write_text("x")
    (top / "link").symlink_to("file")
    (top / "dangling").symlink_to("nothing")
    assert (top / "link").read_text() == "x" and os.readlink(top / "dangling") == "nothing"
    os.utime(top / "file", (978307200, 978307200))
    assert (top / "file").stat().st_mtime == 978307200
    (top / "file").rename(top / "moved")
    assert (top / "moved").stat().st_mtime == 978307200
    (top / "link").unlink()
    assert not (top / "link").is_symlink() and (top / "moved").exists()


def removals(top, scratch):
    (top / "many").mkdir()
    for number in range(60):
        (top / f"many/{number}").write_text(str(number))
    assert sorted(int(path.read_text()) for path in (top / "many").iterdir()) == list(range(60))
    with open(top / "held", "w") as file:
        file.write("held")
        os.unlink(top / "held")
    assert not (top / "held").exists()


OPERATIONS = [repository, archive, renames, lengths, appends, links_and_times, removals]


@mounts
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_programs_work_in_the_mounted_folder(client, mounted, tmp_path, operation):
    folder, scratch = mounted / operation.__name__, tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    operation(folder, scratch)
    shutil.rmtree(folder)
    assert keys(client.s3, client.bucket, Prefix=f"{operation.__name__}/") == []


@mounts
def test_mount_and_endpoint_see_the_same(client, mounted):
    for number in range(1200):
        client.s3.put_object(Bucket=client.bucket, Key=f"mount/many/{number:04}", Body=b"x")
    assert sorted(os.listdir(mounted / "mount/many")) == [f"{number:04}" for number in range(1200)]
    folder = mounted / "mount/own"
    folder.mkdir()
    small, large = payload(1000), payload(20 * MIB)
    (folder / "small ü").write_bytes(small)
    (folder / "large").write_bytes(large)

    def stored(key):
        return client.s3.get_object(Bucket=client.bucket, Key=key)["Body"].read()

    assert stored("mount/own/small ü") == small
    assert stored("mount/own/large") == large
    if isinstance(client, S3fsFuse):
        head = client.s3.head_object(Bucket=client.bucket, Key="mount/own/large")
        assert "-" in head["ETag"], "the file was not sent in parts"
    with open(folder / "large", "rb") as file:
        file.seek(MIB - 1)
        assert file.read(70_000) == large[MIB - 1 : MIB - 1 + 70_000]
    with open(folder / "small ü", "ab") as file:
        file.write(b"more")
    assert stored("mount/own/small ü") == small + b"more"
    for name in ("large", "small ü"):
        (folder / name).unlink()
    folder.rmdir()
    assert keys(client.s3, client.bucket, Prefix="mount/own") == []


@pytest.mark.parametrize("client", [("gcsfuse", Gcsfuse)], ids=["gcsfuse"], indirect=True)
def test_grpc_is_refused_at_once(client, tmp_path):
    """A mount that looks for a hierarchical namespace by gRPC ends with the reason, and does not try for minutes."""
    top = tmp_path / "mounted"
    top.mkdir()
    command = [part for part in client.mounting(top) if part != "--enable-hns=false"]
    command[command.index("--custom-endpoint") + 1] = client.server.gcs
    anonymous = ["--anonymous-access" if part == "--key-file" else part for part in command]
    anonymous.pop(anonymous.index("--anonymous-access") + 1)
    done = subprocess.run([str(part) for part in anonymous], env=client.env, capture_output=True, text=True, timeout=30)
    assert done.returncode != 0 and "no gRPC" in done.stdout + done.stderr
