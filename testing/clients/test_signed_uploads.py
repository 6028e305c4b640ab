"""`bywash cp` to addresses that `bywash presign` signed, at third-party servers: moto and versitygw by S3's protocol, Azurite by Azure's.

versitygw and Azurite check the signatures. The copies have no credentials in their environment.
"""

import json
import os
import subprocess

import pytest
from harness import MIB, S3_ORIGINS, Azurite, clean_environment, payload

BUCKET = "suite-signed"
KEY = "signed/key ü%20"
# One request, and several chunks of 8 MiB.
SIZES = [100_000, 20 * MIB + 7]


class Signer:
    """A store, the credentials for it, and copies without them."""

    def __init__(self, folder, url, env, read):
        self.folder, self.url, self.env, self.read = folder, url, env, read

    def start(self, env, *arguments):
        command = [os.environ["BYWASH_BIN"], *map(str, arguments)]
        return subprocess.run(command, env=clean_environment() | env, cwd=self.folder, capture_output=True, text=True, timeout=120)

    def presign(self, *arguments):
        ended = self.start(self.env, "presign", *arguments)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    def cp(self, *arguments):
        return self.start({}, "cp", *arguments)

    def file(self, size):
        path = self.folder / f"source-{size}"
        path.write_bytes(payload(size))
        return path


@pytest.fixture(params=S3_ORIGINS)
def s3(request, tmp_path):
    origin = request.getfixturevalue(request.param)
    if BUCKET not in [bucket["Name"] for bucket in origin.s3.list_buckets()["Buckets"]]:
        origin.s3.create_bucket(Bucket=BUCKET)
    read = lambda key: origin.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()  # noqa: E731
    return Signer(tmp_path, f"s3://{BUCKET}", origin.environment(), read)


@pytest.fixture
def azure(tmp_path):
    azurite = Azurite(tmp_path)
    azurite.request("PUT", BUCKET, restype="container")
    read = lambda key: azurite.request("GET", f"{BUCKET}/{key}").content  # noqa: E731
    yield Signer(tmp_path, f"az://{BUCKET}", azurite.environment(), read)
    azurite.process.kill()


@pytest.mark.parametrize("size", SIZES)
def test_presigned_put_takes_objects_of_any_length(s3, size):
    url = s3.presign("--method", "PUT", f"{s3.url}/{KEY}")
    ended = s3.cp(s3.file(size), url)
    assert ended.returncode == 0, ended.stderr
    assert s3.read(KEY) == payload(size)


@pytest.mark.parametrize("size", SIZES)
def test_presigned_parts_are_completed_and_skipped_if_they_are_stored(s3, size):
    printed = s3.presign("--parts", "4", f"{s3.url}/{KEY}-parts")
    urls = s3.folder / "urls.json"
    urls.write_text(printed)
    ended = s3.cp("--json", s3.file(size), "--parts", urls)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["bytes"] == size
    assert s3.read(f"{KEY}-parts") == payload(size)
    # The upload has ended: its addresses do nothing any more, and the object stays.
    assert s3.cp(s3.file(10), "--parts", urls).returncode != 0
    assert s3.read(f"{KEY}-parts") == payload(size)


@pytest.mark.parametrize("size", SIZES)
def test_shared_access_signature_takes_a_blob_or_its_blocks(azure, size):
    url = azure.presign("--method", "PUT", f"{azure.url}/signed/blob")
    ended = azure.cp(azure.file(size), url)
    assert ended.returncode == 0, ended.stderr
    assert azure.read("signed/blob") == payload(size)
    changed = azure.cp(azure.file(size), url.replace("signed/blob", "signed/other"))
    assert changed.returncode == 4, changed.stderr
    assert "sig=" not in changed.stderr
