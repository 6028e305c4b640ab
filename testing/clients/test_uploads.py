"""`bywash cp` to third-party servers, killed midway: another process continues from the stored bytes."""

import json
import os
import subprocess
import time

import pytest
from harness import ACCESS_KEY, MIB, S3_ORIGINS, SECRET_KEY, Azurite, Bywash, clean_environment, file_sha256, payload, sha256

BUCKET = "suite-uploads"
KEY = "deep/object with space"
SIZE = 64 * MIB + 777
# Maximum time of a copy, reached only by a fault.
DEADLINE_SECONDS = 120
# Maximum attempts to kill a copy before it ends.
TRIES = 20


class S3:
    def __init__(self, origin):
        self.url, self.env = f"s3://{BUCKET}", origin.environment()
        self.s3 = origin.s3
        self.s3.create_bucket(Bucket=BUCKET)

    def read(self, key):
        return self.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()

    def open(self):
        return self.s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])


class Azure:
    def __init__(self, azurite):
        self.url, self.env = f"az://{BUCKET}", azurite.environment()
        self.azurite = azurite
        azurite.request("PUT", BUCKET, restype="container")

    def read(self, key):
        return self.azurite.request("GET", f"{BUCKET}/{key.replace(' ', '%20')}").content

    def open(self):
        """Returns the blobs that have only uncommitted blocks, which a listing includes only on request."""
        names = self.azurite.request("GET", BUCKET, restype="container", comp="list", include="uncommittedblobs").text
        return [name for name in names.split("<Blob>")[1:] if "<Content-Length>0<" in name]


@pytest.fixture(scope="module", params=[*S3_ORIGINS, "azure"])
def store(request, tmp_path_factory):
    if request.param != "azure":
        yield S3(request.getfixturevalue(request.param))
        return
    azurite = Azurite(tmp_path_factory.mktemp("azurite"))
    yield Azure(azurite)
    azurite.process.kill()


class Copier:
    """Runs the program with one data folder."""

    def __init__(self, folder, store):
        self.data, self.source, self.store = folder / "data", folder / "source", store
        self.env = clean_environment() | store.env

    def journal(self):
        return list((self.data / "uploads").glob("*.upload"))

    def start(self, *arguments):
        command = [os.environ["BYWASH_BIN"], *arguments, "--data-dir", self.data]
        return subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *arguments):
        child = self.start(*arguments)
        out, err = child.communicate(timeout=DEADLINE_SECONDS)
        return child.returncode, out, err

    def kill_copy(self, url, growths):
        """Starts a copy and kills it after its journal grew this often. Returns whether the copy was interrupted."""
        child = self.start("cp", self.source, url)
        deadline = time.monotonic() + DEADLINE_SECONDS
        sizes = set()
        while len(sizes) <= growths and child.poll() is None:
            assert time.monotonic() < deadline, f"the journal grew {len(sizes) - 1} times, not {growths}"
            for file in self.journal():
                try:
                    sizes.add(file.stat().st_size)
                except FileNotFoundError:
                    pass
        child.kill()
        out, err = child.communicate()
        assert child.returncode in (0, -9), (out, err)
        return child.returncode == -9 and bool(self.journal())


@pytest.mark.parametrize("growths", [0, 1, 2])
def test_killed_copy_is_resumed(store, tmp_path, growths):
    key = f"{KEY} {growths}"
    url = f"{store.url}/{key}"
    copier = Copier(tmp_path, store)
    copier.source.write_bytes(payload(SIZE, 1 + growths))
    assert any(copier.kill_copy(url, growths) for _ in range(TRIES)), f"{TRIES} copies ended before growth {growths} of the journal"
    (file,) = copier.journal()
    assert file.stat().st_mode & 0o777 == 0o600
    if growths and not store.open():
        # Killed after the store completed the object, and before the copy received the response.
        assert sha256(store.read(key)) == file_sha256(copier.source)

    code, out, err = copier.run("uploads", "resume", "--all", "--json")
    assert code == 0, (out, err)
    (done,) = [json.loads(line) for line in out.splitlines()]
    assert (done["ok"], done["url"]) == (True, url), done
    # Chunks are sent concurrently: those that the store has after the first gap are not sent again either.
    assert done["resumed_bytes"] + done["sent_bytes"] <= SIZE, done
    if growths:
        assert done["sent_bytes"] < SIZE, done
    assert sha256(store.read(key)) == file_sha256(copier.source)
    assert not list((copier.data / "uploads").iterdir())
    assert not store.open()


def test_copied_objects_are_served(store, tmp_path):
    body = payload(SIZE, 9)
    copier = Copier(tmp_path, store)
    copier.source.write_bytes(body)
    code, out, err = copier.run("cp", copier.source, f"{store.url}/served", "--json")
    assert code == 0, (out, err)
    server = Bywash(tmp_path, store.url, env=store.env)
    try:
        assert sha256(server.s3.get_object(Bucket=BUCKET, Key="served")["Body"].read()) == sha256(body)
    finally:
        server.stop()


def test_copy_in_parts_to_a_content_addressed_bucket(start, tmp_path):
    """The digest of all parts is compared before the object exists; a copy that is refused for it cannot be resumed, and leaves nothing."""
    folder, config, file = tmp_path / "blobs", tmp_path / "settings.toml", tmp_path / "large"
    folder.mkdir()
    config.write_text(f'[[bucket]]\nname = "blobs"\nurl = "file://{folder}"\ndigest-in-key = "sha256"\n')
    file.write_bytes(payload(40 * MIB + 5, 9))
    server = start("--config", config)
    keys = {"AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1"}
    env = clean_environment() | keys | {"BYWASH_DATA_DIR": str(tmp_path / "copies"), "XDG_RUNTIME_DIR": str(tmp_path / "none")}

    def bywash(*words):
        return subprocess.run([os.environ["BYWASH_BIN"], *words], env=env, capture_output=True, text=True, timeout=DEADLINE_SECONDS)

    right, wrong = file_sha256(file), sha256(b"other")
    done = bywash("cp", file, f"s3://blobs/sha256/{right}")
    assert done.returncode == 0, done.stderr
    refused = bywash("cp", file, f"s3://blobs/sha256/{wrong}")
    assert refused.returncode == 1 and right in refused.stderr and "resume" not in refused.stderr, refused.stderr
    assert bywash("uploads", "list").stdout == ""
    assert [found["Key"] for found in server.s3.list_objects_v2(Bucket="blobs")["Contents"]] == [f"sha256/{right}"]
    assert "Uploads" not in server.s3.list_multipart_uploads(Bucket="blobs")
