"""Makes an OCI image of the program without a container runtime: `cargo xtask image`.

The result is an OCI image layout in a tar file (an `oci-archive`). It has the
program, the C library that it is linked with, the certificates of this machine, and a user that is not root. Equal inputs make
equal files: all times are SOURCE_DATE_EPOCH, or 0.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path

USER = 65532
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
DESCRIPTION = "The path between object storage and the programs that read and write it: one cache, many doors"


class Layer:
    """The files of the image, as a tar archive with fixed times and owners."""

    def __init__(self):
        self.bytes = io.BytesIO()
        self.tar = tarfile.open(fileobj=self.bytes, mode="w", format=tarfile.USTAR_FORMAT)
        self.folders = set()

    def _entry(self, name, mode, owner):
        entry = tarfile.TarInfo(name)
        entry.mode, entry.uid, entry.gid, entry.mtime = mode, owner, owner, EPOCH
        return entry

    def folder(self, name, mode=0o755, owner=0):
        parent = str(Path(name).parent)
        if parent != ".":
            self.folder(parent)
        if name not in self.folders:
            self.folders.add(name)
            entry = self._entry(name, mode, owner)
            entry.type = tarfile.DIRTYPE
            self.tar.addfile(entry)

    def file(self, name, content, mode=0o644):
        self.folder(str(Path(name).parent))
        entry = self._entry(name, mode, 0)
        entry.size = len(content)
        self.tar.addfile(entry, io.BytesIO(content))

    def link(self, name, target):
        self.folder(str(Path(name).parent))
        entry = self._entry(name, 0o777, 0)
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        self.tar.addfile(entry)

    def content(self):
        self.tar.close()
        return self.bytes.getvalue()


def libraries(program):
    """Returns the files that the dynamic linker needs for the program, the linker included."""
    listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    return sorted(set(re.findall(r"(/\S+) \(0x", listed)))


def stripped(program):
    """Returns the program without debug information; without the tool as it is."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bywash")
        shutil.copyfile(program, path)
        if shutil.which("strip"):
            subprocess.run(["strip", path], check=True)
        return path.read_bytes()


def files(program):
    """Returns the one layer of the image."""
    layer = Layer()
    layer.file("etc/passwd", f"root:x:0:0::/:/usr/sbin/nologin\nbywash:x:{USER}:{USER}::/data:/usr/sbin/nologin\n".encode())
    layer.file("etc/group", f"root:x:0:\nbywash:x:{USER}:\n".encode())
    layer.file("etc/nsswitch.conf", b"hosts: files dns\n")
    layer.file(str(CERTIFICATES).lstrip("/"), CERTIFICATES.read_bytes())
    for library in libraries(program):
        # Under the name by which it is found, whatever links lead there.
        layer.file(library.lstrip("/"), Path(library).read_bytes(), 0o755)
    layer.file("usr/bin/bywash", stripped(program), 0o755)
    layer.folder("data", 0o700, USER)
    layer.folder("tmp", 0o1777)
    return layer.content()


def settings(version, revision):
    return {
        "User": f"{USER}:{USER}",
        "Env": ["PATH=/usr/bin", "BYWASH_DATA_DIR=/data"],
        "Entrypoint": ["/usr/bin/bywash"],
        "Cmd": ["serve"],
        "WorkingDir": "/data",
        "Volumes": {"/data": {}},
        "ExposedPorts": {"8420/tcp": {}, "8421/tcp": {}},
        "StopSignal": "SIGTERM",
        "Labels": {
            "org.opencontainers.image.title": "bywash",
            "org.opencontainers.image.description": DESCRIPTION,
            "org.opencontainers.image.version": version,
            "org.opencontainers.image.revision": revision,
            "org.opencontainers.image.licenses": "Apache-2.0",
        },
    }


def image(program, version, revision):
    """Returns the bytes of the image."""
    layer = files(program)
    packed = gzip.compress(layer, 9, mtime=0)
    blobs = {}

    def add(kind, content):
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    config = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "created": f"{datetime.fromtimestamp(EPOCH, UTC):%Y-%m-%dT%H:%M:%SZ}",
        "config": settings(version, revision),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": add("application/vnd.oci.image.config.v1+json", as_json(config)),
        "layers": [add("application/vnd.oci.image.layer.v1.tar+gzip", packed)],
    }
    found = add("application/vnd.oci.image.manifest.v1+json", as_json(manifest))
    found["annotations"] = {"org.opencontainers.image.ref.name": f"bywash:{version}"}
    whole = Layer()
    whole.file("oci-layout", as_json({"imageLayoutVersion": "1.0.0"}))
    whole.file("index.json", as_json({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [found]}))
    for digest, content in sorted(blobs.items()):
        whole.file(f"blobs/sha256/{digest}", content)
    return whole.content()


def as_json(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--version", required=True)
    parser.add_argument("--revision", default="")
    arguments = parser.parse_args()
    content = image(arguments.program, arguments.version, arguments.revision)
    arguments.output.write_bytes(content)
    print(f"{arguments.output}: {len(content) / (1 << 20):.1f} MiB, sha256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
