"""The OCI image: made without a container runtime, and run by crun or runc."""

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import boto3
import pytest
from harness import MIB, payload, until

# crun of Debian 12 refuses a machine whose control groups are of both versions.
RUNTIME = next((name for name in ("runc", "crun") if shutil.which(name)), None)
PACKAGING = Path(__file__).parents[2] / "packaging"


def make(folder, program):
    output = folder / "image.tar"
    command = [sys.executable, PACKAGING / "image.py", program, output, "--version", "0", "--revision", "test"]
    subprocess.run(command, check=True, capture_output=True)
    return output


def unpacked(image, folder):
    """Unpacks an image as a runtime does, digests compared. Returns its configuration and its files."""
    with tarfile.open(image) as tar:
        tar.extractall(folder / "layout", filter="data")

    def blob(found):
        content = (folder / "layout/blobs/sha256" / found["digest"].removeprefix("sha256:")).read_bytes()
        assert (len(content), "sha256:" + hashlib.sha256(content).hexdigest()) == (found["size"], found["digest"])
        return content

    index = json.loads((folder / "layout/index.json").read_text())
    manifest = json.loads(blob(index["manifests"][0]))
    config = json.loads(blob(manifest["config"]))
    (layer,) = manifest["layers"]
    (folder / "layer").write_bytes(blob(layer))
    root = folder / "root"
    with tarfile.open(folder / "layer") as tar:
        tar.extractall(root, numeric_owner=True, filter="fully_trusted")
    return config, root


# Small, so that it is packed in no time; linked as the program is.
PROGRAM = "/usr/bin/env"


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    return make(tmp_path_factory.mktemp("image"), PROGRAM)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_equal_inputs_make_equal_images(tmp_path, image):
    # The time and the name of what it is made from do not count.
    copy = tmp_path / "renamed"
    shutil.copy(PROGRAM, copy)
    os.utime(copy, (1, 1))
    assert make(tmp_path, copy).read_bytes() == image.read_bytes()


def test_image_has_what_runtimes_look_for(tmp_path, image):
    config, root = unpacked(image, tmp_path)
    assert config["os"] == "linux" and config["architecture"] in ("amd64", "arm64")
    settings = config["config"]
    assert settings["User"] == "65532:65532"
    assert (root / settings["Entrypoint"][0].lstrip("/")).stat().st_mode & 0o777 == 0o755
    assert (root / "etc/ssl/certs/ca-certificates.crt").stat().st_size > 100_000
    assert (root / "data").stat().st_mode & 0o777 == 0o700
    assert {"org.opencontainers.image.version", "org.opencontainers.image.licenses"} < settings["Labels"].keys()


@pytest.mark.skipif(os.getuid() != 0 or not RUNTIME, reason="root and runc or crun run the image")
def test_one_line_serves_a_bucket(tmp_path, request):
    config, root = unpacked(make(tmp_path, os.environ["BYWASH_BIN"]), tmp_path)
    port, name = free_port(), f"bywash-test-{os.getpid()}"
    settings = config["config"]
    uid, gid = map(int, settings["User"].split(":"))
    arguments = ["serve", "--bucket", "first", "--s3-addr", f"0.0.0.0:{port}", "--insecure-http"]
    keys = ["BYWASH_ACCESS_KEY=development", "BYWASH_SECRET_KEY=a-secret-of-tests"]
    ports = ["BYWASH_GCS_ADDR=off", "BYWASH_ADMIN_ADDR=127.0.0.1:0", "BYWASH_MEMORY=64MiB"]
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
    ]
    bundle = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": uid, "gid": gid},
            "args": [*settings["Entrypoint"], *arguments],
            "env": [*settings["Env"], *keys, *ports],
            "cwd": settings["WorkingDir"],
            "noNewPrivileges": True,
            "capabilities": {},
        },
        "root": {"path": str(root)},
        "mounts": mounts,
        # The network of this machine, so that the port is there.
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")]},
    }
    (tmp_path / "config.json").write_text(json.dumps(bundle))
    log = (tmp_path / "log").open("w+")
    command = [RUNTIME, "run", "--bundle", tmp_path, name]
    running = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def end():
        subprocess.run([RUNTIME, "kill", name, "KILL"], capture_output=True)
        running.wait(30)
        subprocess.run([RUNTIME, "delete", "--force", name], capture_output=True)

    request.addfinalizer(end)
    text = (tmp_path / "log").read_text
    until("the server is ready or ends", lambda: "\nready " in text() or running.poll() is not None, 60)
    if running.poll() is not None and "bywash" not in text().lower():
        pytest.skip(f"{RUNTIME} runs no container here: {text()}")
    assert re.search(r"\nready s3=", text()), text()
    key, secret = (pair.split("=")[1] for pair in keys)
    s3 = boto3.client(
        "s3", endpoint_url=f"http://127.0.0.1:{port}", aws_access_key_id=key, aws_secret_access_key=secret, region_name="us-east-1"
    )
    body = payload(9 * MIB)
    s3.put_object(Bucket="first", Key="a/b", Body=body)
    assert s3.get_object(Bucket="first", Key="a/b")["Body"].read() == body
    assert (root / "data/buckets/first/a/b").stat().st_uid == uid
    subprocess.run([RUNTIME, "kill", name, "TERM"], check=True)
    assert running.wait(30) == 0, text()
