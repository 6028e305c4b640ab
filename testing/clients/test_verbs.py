"""The program's verbs over third-party stores: moto by `s3://`, Azurite by `az://`; and presigned URLs of `gs://`."""

import contextlib
import datetime
import hashlib
import json
import os
import subprocess
import urllib.parse

import pytest
import requests
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from harness import MIB, S3_ORIGINS, Azurite, clean_environment, payload

BUCKET = "suite-verbs"
FILES = {"a.txt": b"abc", "dir/b c+d%20.bin": payload(1000), "dir/deep/ü✓": payload(70_000), "dir/empty": b"", "large": payload(17 * MIB + 5)}


class Verbs:
    """Runs the program with one environment, in a separate folder."""

    def __init__(self, folder, env, url):
        self.folder, self.env, self.url = folder, clean_environment() | env, url

    def start(self, *arguments):
        command = [os.environ["BYWASH_BIN"], *map(str, arguments)]
        return subprocess.run(command, env=self.env, cwd=self.folder, capture_output=True, timeout=120)

    def run(self, *arguments):
        done = self.start(*arguments)
        assert done.returncode == 0, (arguments, done.stderr.decode())
        return done.stdout

    def fail(self, *arguments):
        done = self.start(*arguments)
        assert done.returncode not in (0, 101), (arguments, done.stdout)
        return done.stderr.decode()

    def lines(self, *arguments):
        return [json.loads(line) for line in self.run(*arguments, "--json").splitlines()]

    def keys(self, prefix=""):
        return [line["name"] for line in self.lines("ls", "-r", f"{self.url}/{prefix}")]


def write(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def read(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def azurite(tmp_path_factory):
    server = Azurite(tmp_path_factory.mktemp("azurite"))
    server.request("PUT", BUCKET, restype="container")
    yield server
    server.process.kill()


@pytest.fixture(params=[*S3_ORIGINS, "azure"])
def verbs(request, tmp_path):
    if request.param != "azure":
        origin = request.getfixturevalue(request.param)
        with contextlib.suppress(origin.s3.exceptions.BucketAlreadyOwnedByYou):
            origin.s3.create_bucket(Bucket=BUCKET)
        return Verbs(tmp_path, origin.environment(), f"s3://{BUCKET}")
    return Verbs(tmp_path, request.getfixturevalue("azurite").environment(), f"az://{BUCKET}")


def test_tree_is_uploaded_inspected_and_downloaded(verbs, tmp_path):
    write(tmp_path / "up", FILES)
    verbs.run("cp", "-r", "up", f"{verbs.url}/t/")
    assert verbs.keys("t/") == sorted(f"t/{name}" for name in FILES)
    level = {(line["kind"], line["name"]) for line in verbs.lines("ls", f"{verbs.url}/t/")}
    assert level == {("prefix", "t/dir/"), ("object", "t/a.txt"), ("object", "t/large")}
    for name, content in FILES.items():
        assert verbs.run("cat", f"{verbs.url}/t/{name}") == content
        (facts,) = verbs.lines("stat", f"{verbs.url}/t/{name}")
        assert facts["size"] == len(content) and facts["e_tag"]
    assert verbs.run("cat", "--range", "8388600-8388700", f"{verbs.url}/t/large") == FILES["large"][8388600:8388701]
    (total,) = verbs.lines("du", f"{verbs.url}/t")
    assert (total["objects"], total["bytes"]) == (len(FILES), sum(map(len, FILES.values())))
    verbs.run("cp", "-r", f"{verbs.url}/t/", "down")
    assert read(tmp_path / "down") == FILES


def test_objects_are_copied_moved_synced_and_removed(verbs, tmp_path):
    write(tmp_path / "up", FILES)
    verbs.run("sync", "up", f"{verbs.url}/s")
    assert not verbs.lines("sync", "up", f"{verbs.url}/s")
    verbs.run("cp", f"{verbs.url}/s/large", f"{verbs.url}/copy/large")
    verbs.run("mv", f"{verbs.url}/s/dir/b c+d%20.bin", f"{verbs.url}/moved/")
    assert verbs.run("cat", f"{verbs.url}/copy/large") == FILES["large"]
    assert verbs.run("cat", f"{verbs.url}/moved/b c+d%20.bin") == FILES["dir/b c+d%20.bin"]
    assert "does not exist" in verbs.fail("stat", f"{verbs.url}/s/dir/b c+d%20.bin")
    verbs.run("sync", "--delete", f"{verbs.url}/s", "down")
    rest = {name: content for name, content in FILES.items() if not name.startswith("dir/b")}
    assert read(tmp_path / "down") == rest
    (tmp_path / "down" / "a.txt").unlink()
    verbs.run("sync", "--delete", "down", f"{verbs.url}/s")
    assert "s/a.txt" not in verbs.keys("s")
    assert "exists already" in verbs.fail("cp", "--create-only", "down/large", f"{verbs.url}/s/large")
    verbs.run("rm", f"{verbs.url}/copy/large", f"{verbs.url}/moved/b c+d%20.bin")
    assert len(verbs.lines("rm", "-r", f"{verbs.url}/s")) == 3
    assert not [key for key in verbs.keys() if key.startswith(("s/", "copy/", "moved/"))]


def test_presigned_urls_work_without_credentials(verbs):
    body = payload(100_000)
    key = "signed/key ü%20"
    put = verbs.run("presign", "--method", "PUT", f"{verbs.url}/{key}").decode().strip()
    # Azure needs the type of the blob.
    requests.put(put, data=body, headers={"x-ms-blob-type": "BlockBlob"}, timeout=30).raise_for_status()
    get = verbs.run("presign", f"{verbs.url}/{key}").decode().strip()
    assert requests.get(get, timeout=30).content == body
    verbs.run("rm", f"{verbs.url}/{key}")


def test_connection_string_configures_azure(azurite, tmp_path):
    """Azurite checks signatures, so success shows that the key in the string is used."""
    string = f"DefaultEndpointsProtocol=http;AccountName={azurite.ACCOUNT};AccountKey={azurite.KEY};BlobEndpoint={azurite.url}/{azurite.ACCOUNT};"
    verbs = Verbs(tmp_path, {"AZURE_STORAGE_CONNECTION_STRING": string}, f"az://{BUCKET}")
    write(tmp_path / "up", {"small": b"small", "large": FILES["large"]})
    verbs.run("cp", "-r", "up", f"{verbs.url}/string/")
    verbs.run("cp", "-r", f"{verbs.url}/string/", "down")
    assert read(tmp_path / "down") == read(tmp_path / "up")
    wrong = Verbs(tmp_path, {"AZURE_STORAGE_CONNECTION_STRING": string.replace(azurite.KEY, "d3Jvbmc=")}, verbs.url)
    assert "check AZURE_STORAGE_CONNECTION_STRING" in wrong.fail("ls", f"{verbs.url}/string/")
    verbs.run("rm", "-r", f"{verbs.url}/string")


def test_google_signatures_follow_the_specification(tmp_path):
    """Version 4, checked with the account's public key. The canonical request is built from Google's specification."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    account = {
        "type": "service_account", "client_email": "suite@project.iam.gserviceaccount.com", "private_key_id": "1",
        "private_key": pem.decode(),
    }
    (tmp_path / "account.json").write_text(json.dumps(account))
    verbs = Verbs(tmp_path, {"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "account.json")}, "gs://bucket")
    for method, name, path in [("GET", "dir/a bü", "/bucket/dir/a%20b%C3%BC"), ("PUT", "plain.txt", "/bucket/plain.txt")]:
        address = verbs.run("presign", "--method", method, "--expires", "30m", f"gs://bucket/{name}").decode().strip()
        parts = urllib.parse.urlsplit(address)
        assert (parts.scheme, parts.hostname, parts.path) == ("https", "storage.googleapis.com", path)
        query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True))
        signature = bytes.fromhex(query.pop("X-Goog-Signature"))
        scope = query["X-Goog-Credential"].split("/", 1)[1]
        assert query["X-Goog-Credential"].startswith("suite@project.iam.gserviceaccount.com/")
        assert scope.endswith("/storage/goog4_request")
        assert (query["X-Goog-Algorithm"], query["X-Goog-Expires"]) == ("GOOG4-RSA-SHA256", "1800")
        signed_at = datetime.datetime.strptime(query["X-Goog-Date"], "%Y%m%dT%H%M%SZ")
        now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
        assert abs(now - signed_at) < datetime.timedelta(minutes=5)
        quoted = [f"{urllib.parse.quote(name, safe='')}={urllib.parse.quote(value, safe='')}" for name, value in sorted(query.items())]
        request = "\n".join([method, path, "&".join(quoted), f"host:{parts.netloc}", "", "host", "UNSIGNED-PAYLOAD"])
        text = "\n".join(["GOOG4-RSA-SHA256", query["X-Goog-Date"], scope, hashlib.sha256(request.encode()).hexdigest()])
        # Raises if it is not the account's signature of exactly this text.
        key.public_key().verify(signature, text.encode(), padding.PKCS1v15(), hashes.SHA256())
