"""No acknowledged write is lost in a power failure: a server and `bywash cp` on a file system that is cloned while they write.

The disk is a file on XFS, mounted through a loop device. A reflink clone of the file has the bytes that had reached the disk at
that moment, and none that only the page cache had. Mounting the clone replays its journal; then a server starts on it.

`BYWASH_POWER_CLONES` clones are taken (2), of the file systems in `BYWASH_POWER_FS` (ext4).
"""

import contextlib
import hashlib
import os
import random
import shutil
import subprocess
import threading
import time
import urllib.parse

import pytest
import requests
from botocore.exceptions import BotoCoreError, ClientError
from harness import MIB, Bywash, clean_environment, payload

CLONES = int(os.environ.get("BYWASH_POWER_CLONES", 2))
FILE_SYSTEMS = os.environ.get("BYWASH_POWER_FS", "ext4").split(",")
# The unit of chunks in Google's protocol.
CHUNK = 256 * 1024
# Errors of requests to a killed server.
FAILED = (BotoCoreError, ClientError, requests.RequestException)
SEED = int(os.environ.get("BYWASH_POWER_SEED", 1))


def run(*command):
    subprocess.run([str(word) for word in command], check=True, capture_output=True)


class Disk:
    """A file system in a file. `clone` copies the file while programs write."""

    def __init__(self, folder, kind):
        self.folder, self.kind, self.mounted = folder, kind, []

    def open(self):
        self.folder.mkdir()
        # A reflink includes unsynced bytes of the outer file system: all that the loop device wrote.
        self.outer = self.mount_new(self.folder / "outer.img", "xfs", "2G")
        self.file = self.outer / "inner.img"
        self.path = self.mount_new(self.file, self.kind, "600M")

    def mount_new(self, file, kind, size):
        run("truncate", "-s", size, file)
        # -F and -f: overwrite an older file system.
        run(f"mkfs.{kind}", "-q", "-F" if kind == "ext4" else "-f", file)
        return self.mount(file)

    def mount(self, file):
        place = self.folder / f"{file.name}-mounted"
        place.mkdir(exist_ok=True)
        # A clone has the identity of its original.
        options = "loop,nouuid" if self.kind == "xfs" and file.parent != self.folder else "loop"
        run("mount", "-o", options, file, place)
        self.mounted.append(place)
        return place

    def clone(self, number):
        """Takes a clone and returns its file."""
        file = self.outer / f"clone-{number}.img"
        run("cp", "--reflink=always", self.file, file)
        return file

    def unmount(self, place):
        run("umount", place)
        self.mounted.remove(place)

    def close(self):
        for place in reversed(self.mounted):
            subprocess.run(["umount", "-l", place], check=False)


@pytest.fixture(params=FILE_SYSTEMS)
def disk(request, tmp_path):
    if os.geteuid() != 0 or not shutil.which("mkfs.xfs"):
        pytest.skip("loop devices need root, and clones the programs of XFS")
    made = Disk(tmp_path / "disks", request.param)
    request.addfinalizer(made.close)
    try:
        made.open()
    except subprocess.CalledProcessError as failure:
        pytest.skip(f"no file system in a file is mounted here: {failure.stderr.decode(errors='replace')}")
    return made


class Key:
    """The values that a key may have: the last acknowledged one, and each one sent later."""

    def __init__(self):
        self.tried, self.acknowledged = [None], 0

    def attempt(self, value):
        self.tried.append(value)
        return len(self.tried) - 1

    def acknowledge(self, number):
        self.acknowledged = number

    def allowed(self, acknowledged):
        return self.tried[acknowledged:]


class Load:
    """Clients of one server, each with its own keys, until they are stopped or the server ends."""

    def __init__(self, server, keys, sessions, rows, seed):
        self.server, self.keys, self.sessions, self.rows = server, keys, sessions, rows
        self.over = threading.Event()
        self.done, self.wrong = 0, []
        clients = [self.objects, self.objects, self.objects, self.session, self.values, self.reads]
        self.threads = [threading.Thread(target=self.run, args=(client, f"{seed}-{number}", number)) for number, client in enumerate(clients)]
        for thread in self.threads:
            thread.start()

    def run(self, client, seed, number):
        rng = random.Random(seed)
        try:
            with contextlib.suppress(*FAILED):
                while not self.over.is_set():
                    client(rng, number)
                    self.done += 1
        except AssertionError as error:
            self.wrong.append(error)

    def stop(self):
        self.over.set()
        for thread in self.threads:
            thread.join()
        assert not self.wrong and self.done > 0, f"{self.done} operations, wrong: {self.wrong}"

    def objects(self, rng, number):
        """A PUT, a deletion, or an upload in parts."""
        s3, name = self.server.s3, f"{number}/{rng.randrange(6)}"
        key = self.keys.setdefault(name, Key())
        where = {"Bucket": "folder", "Key": name}
        drawn = rng.random()
        if drawn < 0.2:
            attempt = key.attempt(None)
            s3.delete_object(**where)
        elif drawn < 0.3:
            parts = [rng.randbytes(5 * MIB), rng.randbytes(1000)]
            attempt = key.attempt(hashlib.sha256(b"".join(parts)).hexdigest())
            where["UploadId"] = s3.create_multipart_upload(**where)["UploadId"]
            etags = [s3.upload_part(PartNumber=at, Body=part, **where)["ETag"] for at, part in enumerate(parts, 1)]
            listed = [{"PartNumber": at, "ETag": etag} for at, etag in enumerate(etags, 1)]
            s3.complete_multipart_upload(MultipartUpload={"Parts": listed}, **where)
        else:
            body = rng.randbytes(rng.choice([0, 10, 5000, 300_000]))
            attempt = key.attempt(hashlib.sha256(body).hexdigest())
            s3.put_object(Body=body, **where)
        key.acknowledge(attempt)

    def session(self, rng, number):
        """A resumable session that stays open: one chunk after the other."""
        name = f"session-{len(self.sessions)}"
        url = f"{self.server.gcs}/upload/storage/v1/b/folder/o?uploadType=resumable&name={name}"
        started = requests.post(url, timeout=60)
        started.raise_for_status()
        state = {"name": name, "url": started.headers["Location"], "acknowledged": 0}
        self.sessions.append(state)
        for _ in range(rng.randrange(3, 30)):
            if self.over.is_set():
                return
            start = state["acknowledged"]
            chunk = payload_of_session(name)[start : start + CHUNK]
            headers = {"Content-Range": f"bytes {start}-{start + CHUNK - 1}/*"}
            response = requests.put(state["url"], data=chunk, headers=headers, timeout=60)
            assert response.status_code == 308, response.text
            state["acknowledged"] = int(response.headers["Range"].removeprefix("bytes=0-")) + 1

    def values(self, rng, number):
        self.rows.append(len(self.rows))
        at = self.rows[-1]
        requests.post(self.server.admin + "/write", data=f"m v={at * 2} {at + 1}", timeout=60).raise_for_status()

    def reads(self, rng, number):
        """Objects of the remote bucket, which go to the disk tier."""
        at = rng.randrange(8)
        assert self.server.s3.get_object(Bucket="remote", Key=f"{at}")["Body"].read() == payload(MIB, at)


def payload_of_session(name):
    return payload(9 * MIB, int(name.removeprefix("session-")) + 1000)


def serve(folder, root, origin, bucket):
    """A server whose every file is below `root`."""
    for name in ("bucket", "data", "disk"):
        (root / name).mkdir(exist_ok=True)
    places = [f"folder=file://{root}/bucket", f"remote=s3://{bucket}", "--disk", f"{root}/disk:64MiB"]
    return Bywash(folder, *places, "--anonymous", "--memory", "128MiB", credentials=False, data_dir=root / "data", env=origin.environment())


def found(server, name):
    """Digest of an object, or None."""
    try:
        body = server.s3.get_object(Bucket="folder", Key=name)["Body"].read()
    except ClientError as failure:
        assert failure.response["Error"]["Code"] == "NoSuchKey", failure
        return None
    return hashlib.sha256(body).hexdigest()


def check_objects(server, keys, acknowledged):
    pages = server.s3.get_paginator("list_objects_v2").paginate(Bucket="folder")
    listed = {entry["Key"] for page in pages for entry in page.get("Contents", [])}
    for name, number in acknowledged.items():
        value = found(server, name)
        assert value in keys[name].allowed(number), f"{name} has none of its {len(keys[name].allowed(number))} possible values"
        assert (name in listed) == (value is not None), name
    return len(acknowledged)


def check_sessions(server, sessions, acknowledged):
    """Each open session has at least the acknowledged bytes, and completes with the right content."""
    for state in sessions[: len(acknowledged)][-3:]:
        name, wanted = state["name"], acknowledged[state["name"]]
        parsed = urllib.parse.urlsplit(state["url"])
        url = f"{server.gcs}{parsed.path}?{parsed.query}"
        asked = requests.put(url, headers={"Content-Range": "bytes */*"}, timeout=60)
        assert asked.status_code == 308, f"{name}: {asked.status_code} {asked.text}"
        there = int(asked.headers.get("Range", "bytes=0--1").removeprefix("bytes=0-")) + 1
        assert there >= wanted, f"{name} has {there} bytes, {wanted} were acknowledged"
        rest = payload_of_session(name)[there:]
        headers = {"Content-Range": f"bytes {there}-{9 * MIB - 1}/{9 * MIB}"}
        assert requests.put(url, data=rest, headers=headers, timeout=60).status_code == 200
        assert found(server, name) == hashlib.sha256(payload_of_session(name)).hexdigest()


def check_rows(server, sent):
    """Values of the last seconds may be lost. Each value that is read was sent, and new writes succeed."""
    response = requests.get(server.admin + "/series/query", params={"source": "m", "metric": "v"}, timeout=60)
    if response.status_code != 404:
        response.raise_for_status()
        for row in response.json():
            assert row["value"] == (row["timestamp"] - 1) * 2 and row["timestamp"] <= sent, row
    requests.post(server.admin + "/write", data="m v=1 9999999", timeout=60).raise_for_status()


def test_acknowledged_work_survives_power_failures(disk, moto, tmp_path):
    bucket = f"power-{disk.kind}"
    moto.s3.create_bucket(Bucket=bucket)
    for at in range(8):
        moto.s3.put_object(Bucket=bucket, Key=f"{at}", Body=payload(MIB, at))
    keys, sessions, rows = {}, [], []
    rng = random.Random(SEED)
    compared = hits = 0
    for number in range(CLONES):
        server = serve(tmp_path, disk.path, moto, bucket)
        load = Load(server, keys, sessions, rows, f"{SEED}-{number}")
        time.sleep(rng.uniform(0.5, 3))
        acknowledged = {name: key.acknowledged for name, key in list(keys.items())}
        kept = {state["name"]: state["acknowledged"] for state in list(sessions)}
        file = disk.clone(number)
        server.kill()
        load.stop()
        place = disk.mount(file)
        after = serve(tmp_path, place, moto, bucket)
        compared += check_objects(after, keys, acknowledged)
        check_sessions(after, sessions, kept)
        check_rows(after, len(rows))
        for at in range(8):
            assert after.s3.get_object(Bucket="remote", Key=f"{at}")["Body"].read() == payload(MIB, at)
        hits += after.stats()["disk"]["hits"] if after.stats().get("disk") else 0
        assert after.stop() == 0
        disk.unmount(place)
        file.unlink()
    print(f"{disk.kind}: {CLONES} clones, {compared} keys compared, {sum(len(key.tried) for key in keys.values())} writes, {hits} disk hits")
    assert compared > 0


def test_upload_of_the_command_line_continues_after_power_failures(disk, moto, tmp_path):
    bucket = f"power-cp-{disk.kind}"
    moto.s3.create_bucket(Bucket=bucket)
    body = payload(60 * MIB, 77)
    (tmp_path / "large").write_bytes(body)
    rng = random.Random(SEED)
    resumed = 0
    for number in range(CLONES):
        data = disk.path / f"data-{number}"
        env = clean_environment() | moto.environment() | {"BYWASH_DATA_DIR": str(data), "XDG_RUNTIME_DIR": str(tmp_path)}
        command = [os.environ["BYWASH_BIN"], "cp", str(tmp_path / "large"), f"s3://{bucket}/{number}"]
        copy = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        time.sleep(rng.uniform(0.2, 1.5))
        file = disk.clone(number)
        copy.kill()
        copy.wait()
        place = disk.mount(file)
        env["BYWASH_DATA_DIR"] = str(place / f"data-{number}")
        listed = subprocess.run([os.environ["BYWASH_BIN"], "uploads", "list"], env=env, capture_output=True, text=True)
        assert listed.returncode == 0, listed.stderr
        if f"/{number}" in listed.stdout:
            done = subprocess.run([os.environ["BYWASH_BIN"], "uploads", "resume", "--all"], env=env, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert moto.s3.get_object(Bucket=bucket, Key=f"{number}")["Body"].read() == body
            resumed += 1
        disk.unmount(place)
        file.unlink()
    print(f"{disk.kind}: {CLONES} clones, {resumed} uploads continued")
