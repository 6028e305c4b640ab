"""Programs that bring tests of stores with them, or that keep a store up to date for as long as they run."""

import os
import re
import subprocess

from adapters import SECONDS, WIDE, Program
from harness import ACCESS_KEY, REGION, SECRET_KEY


class Suite(Program):
    """Another project's tests of its client, unmodified."""

    # Tests that fail at this server by a rule of its own.
    refused = set()
    # Tests that must have run.
    needed = set()

    def version(self):
        return (self.path.parent / "installed").read_text().split("@")[1].split()[0]

    def outcomes(self, **env):
        """Returns the outcomes of the tests on the first level by name: PASS, FAIL or SKIP."""
        done = subprocess.run(
            [self.path, "-test.v", *self.options], env=self.env | env, capture_output=True, text=True, timeout=SECONDS, cwd=self.home
        )
        (self.home / "output").write_text(done.stdout + done.stderr)
        return {name: outcome for outcome, name in re.findall(r"^--- (\w+): (\S+)", done.stdout, re.MULTILINE)}


class Distribution(Suite):
    """The storage driver of the registry of images, with the suite of all its drivers."""

    path = WIDE / "go/distribution-tests/program"
    # Without its objects of gigabytes.
    options = ["-test.short"]
    needed = {"TestS3DriverSuite", "TestEmptyRootList", "TestDelete", "TestWalk", "TestOverThousandBlobs", "TestMoveWithMultipartCopy"}
    # All objects of a folder are of the class STANDARD.
    refused = {"TestStorageClass"}

    def __init__(self, *place):
        super().__init__(*place)
        self.env |= {
            "AWS_ACCESS_KEY": ACCESS_KEY,
            "AWS_SECRET_KEY": SECRET_KEY,
            "REGION_ENDPOINT": self.server.url,
            "AWS_S3_FORCE_PATH_STYLE": "true",
            "S3_ACCELERATE": "false",
            "S3_ENCRYPT": "false",
            "S3_SECURE": "false",
        }

    def outcomes(self, bucket):
        return super().outcomes(S3_BUCKET=bucket)


class Thanos(Suite):
    """The store of Thanos, Mimir and Loki, by its acceptance test."""

    path = WIDE / "go/thanos-tests/program"
    options = ["-test.run", "TestObjStore_AcceptanceTest_e2e/(inmem|filesystem|aws_s3)"]
    needed = {"TestObjStore_AcceptanceTest_e2e"}

    def outcomes(self, bucket):
        return super().outcomes(
            S3_BUCKET=bucket,
            THANOS_ALLOW_EXISTING_BUCKET_USE="true",
            THANOS_TEST_OBJSTORE_SKIP="GCS,AZURE,SWIFT,COS,ALIYUNOSS,BOS,OCI,OBS",
            S3_ENDPOINT=self.address,
            S3_ACCESS_KEY=ACCESS_KEY,
            S3_SECRET_KEY=SECRET_KEY,
            S3_INSECURE="true",
        )


class GitAnnex(Program):
    """git-annex of Debian, with its test of a remote."""

    folder = WIDE / "debian-annex"
    path = folder / "usr/bin/git-annex"

    def __init__(self, *place):
        super().__init__(*place)
        libraries = [str(folder) for top in ("lib", "usr/lib") for folder in (self.folder / top).glob("*-linux-gnu")]
        self.env |= {
            "PATH": f"{self.folder}/usr/bin:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": ":".join(libraries),
            "MAGIC": str(self.folder / "usr/share/misc/magic.mgc"),
            "LANG": "C.UTF-8",
        }

    def call(self, *arguments):
        return self.run("git", "-C", self.home, *arguments)

    def version(self):
        return re.search(r"version: ([\d.]+)", self.run(self.path, "version")).group(1)

    def remote(self, name, *options):
        """Makes a repository with a remote in the bucket."""
        for setting, value in {
            "user.name": "test", "user.email": "test@localhost", "annex.security.allowed-ip-addresses": "all",
        }.items():
            self.call("config", "--global", setting, value)
        self.call("init", "--quiet")
        self.call("annex", "init", "--quiet", "test")
        host, port = self.address.split(":")
        # Its parts are somewhat shorter than their size.
        self.call(
            "annex", "initremote", name, "type=S3", f"host={host}", f"port={port}", "protocol=http", "requeststyle=path", "encryption=none",
            f"bucket={self.bucket}", f"fileprefix={self.home.name}/", "partsize=8MiB", *options,
        )


class Litestream(Program):
    path = WIDE / "go/litestream/litestream"

    def version(self):
        return (self.path.parent / "installed").read_text().split("@v")[1]

    def settings(self, database, url, bucket):
        """Writes its settings for one database, and returns their file."""
        file = self.home / "litestream.yml"
        file.write_text(
            f"""
dbs:
  - path: {database}
    replica:
      type: s3
      bucket: {bucket}
      path: copies/of a database
      endpoint: {url}
      region: {REGION}
      force-path-style: true
      sync-interval: 50ms
"""
        )
        return file


SUITES = {"distribution": Distribution, "thanos": Thanos}
ANNEXES = {"git-annex": GitAnnex}
DATABASES = {"litestream": Litestream}
