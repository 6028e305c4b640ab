"""Clients of Google's storage as programs with one interface, at the GCS endpoint of a server with keys.

Each has the key file that `bywash keys create --gcs` prints, where its library looks for one.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from adapters import HERE, WIDE, Delta, JavaScriptAws, Library, Program, Rclone


def key_file(server):
    """Makes a service account, and returns its key file."""
    file = server.folder / "key.json"
    if not file.exists():
        create = [os.environ["BYWASH_BIN"], "keys", "create", "--gcs", "--data-dir", server.data_dir]
        file.write_text(subprocess.run(create, check=True, capture_output=True, text=True).stdout)
    return file


class Google(Library):
    """A library of Google. `parts` and `pieces` use its transfer manager, where it has one for that direction."""

    has_parts = has_pieces = True

    def __init__(self, server, bucket, home):
        super().__init__(server, bucket, home)
        self.env |= {"WIDE_GCS": server.gcs, "GOOGLE_APPLICATION_CREDENTIALS": str(key_file(server))}

    def parts(self, file, key):
        self.call("parts", file, key)

    def pieces(self, key, file):
        self.call("pieces", key, file)

    def generation(self, key):
        return int(self.call("generation", key))

    def write(self, file, key, generation):
        """Writes if the object has the generation, 0 if there is none; returns whether it was written."""
        return {"written": True, "refused": False}[self.call("write", file, key, generation).strip()]


class PythonGoogle(Google):
    # The environment of the tests, which has it.
    path = Path(sys.executable)
    command = [path, HERE / "scripts/google_objects.py"]


class Obstore(Google):
    path = Path(sys.executable)
    command = [path, HERE / "scripts/obstore_objects.py"]
    has_parts = has_pieces = False


class Gcsfs(Google):
    path = WIDE.parent / "s3fs/bin/python"
    command = [path, HERE / "scripts/gcsfs_objects.py"]
    has_parts = has_pieces = False
    # Its only condition is that the object is absent.
    write = None


class GoGoogle(Google):
    path = WIDE / "go/gcs/program"
    command = [path]
    # Its transfer manager only downloads.
    has_parts = False


class JavaGoogle(Google):
    path = WIDE / "java/gcs/classes"

    def call(self, *arguments):
        return self.run("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{self.path}:{self.path.parent}/jars/*", "Objects", *arguments)


class JavaScriptGoogle(Google):
    path = WIDE / "js/gcs/node_modules"
    command = ["node", HERE / "js/gcs.cjs"]
    # The uploads of its transfer manager go to https:// and the bucket before the endpoint's host name alone.
    has_parts = False
    call = JavaScriptAws.call


class Gcloud(Program):
    """The command line of Google, which is used where it is installed."""

    path = Path(shutil.which("gcloud") or "/usr/bin/gcloud")
    has_parts = has_pieces = True

    def __init__(self, server, bucket, home):
        super().__init__(server, bucket, home)
        self.env |= {
            "CLOUDSDK_CONFIG": str(self.home / "gcloud"),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{server.gcs}/storage/v1/",
            "CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE": str(key_file(server)),
            # It exchanges assertions at Google, whatever `token_uri` the key file has.
            "CLOUDSDK_AUTH_TOKEN_HOST": f"{server.gcs}/token",
            "CLOUDSDK_CORE_PROJECT": "p",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
            "CLOUDSDK_STORAGE_PARALLEL_COMPOSITE_UPLOAD_ENABLED": "false",
            "CLOUDSDK_STORAGE_SLICED_OBJECT_DOWNLOAD_THRESHOLD": "0",
        }

    def call(self, *arguments, **env):
        return self.run(self.path, "storage", *arguments, **env)

    def version(self):
        return self.run(self.path, "version").split("Google Cloud SDK ")[1].split()[0]

    def at(self, key):
        return f"gs://{self.bucket}/{key}"

    def put(self, file, key):
        self.call("cp", file, self.at(key), CLOUDSDK_STORAGE_RESUMABLE_THRESHOLD="1GiB")

    def upload(self, file, key):
        self.call("cp", file, self.at(key), CLOUDSDK_STORAGE_RESUMABLE_THRESHOLD="1KiB", CLOUDSDK_STORAGE_UPLOAD_CHUNK_SIZE="4MiB")

    def parts(self, file, key):
        """A composite upload: parts at the same time, which are composed and deleted."""
        composite = {"ENABLED": "true", "THRESHOLD": "10MiB", "COMPONENT_SIZE": "10MiB"}
        self.call("cp", file, self.at(key), **{f"CLOUDSDK_STORAGE_PARALLEL_COMPOSITE_UPLOAD_{name}": value for name, value in composite.items()})

    def get(self, key, file):
        self.call("cp", self.at(key), file)

    def pieces(self, key, file):
        """Ranges at the same time."""
        sliced = {"THRESHOLD": "10MiB", "COMPONENT_SIZE": "10MiB"}
        self.call("cp", self.at(key), file, **{f"CLOUDSDK_STORAGE_SLICED_OBJECT_DOWNLOAD_{name}": value for name, value in sliced.items()})

    def range(self, key, first, count, file):
        command = [self.path, "storage", "cat", "--range", f"{first}-{first + count - 1}", self.at(key)]
        return subprocess.run(command, env=self.env, capture_output=True, check=True, timeout=300).stdout

    def list(self, prefix):
        found = self.call("ls", self.at(prefix) + "**").splitlines()
        return [url.removeprefix(self.at("")) for url in found]

    def copy(self, key, to):
        self.call("cp", self.at(key), self.at(to))

    def delete(self, key):
        self.call("rm", self.at(key))

    def generation(self, key):
        return int(self.call("objects", "describe", self.at(key), "--format=value(generation)"))

    def write(self, file, key, generation):
        command = [self.path, "storage", "cp", file, self.at(key), f"--if-generation-match={generation}"]
        done = subprocess.run([str(part) for part in command], env=self.env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 or "412" in done.stderr, done.stderr
        return done.returncode == 0


class RcloneGoogle(Rclone):
    """rclone's backend for Google's storage."""

    upload_options = []
    has_parts = has_pieces = False

    def __init__(self, server, bucket, home):
        super().__init__(server, bucket, home)
        self.env |= {
            "RCLONE_CONFIG_TO_TYPE": "google cloud storage",
            "RCLONE_CONFIG_TO_ENDPOINT": f"{server.gcs}/storage/v1/",
            "RCLONE_CONFIG_TO_SERVICE_ACCOUNT_FILE": str(key_file(server)),
            "RCLONE_CONFIG_TO_BUCKET_POLICY_ONLY": "true",
        }


class GoogleDelta(Delta):
    def __init__(self, server, bucket, home):
        super().__init__(server, bucket, home)
        self.env["GOOGLE_APPLICATION_CREDENTIALS"] = str(key_file(server))


class Gcsfuse(Program):
    """Google's mount."""

    path = WIDE / "go/gcsfuse/gcsfuse"

    def __init__(self, server, bucket, home):
        super().__init__(server, bucket, home)
        # fusermount3, which mounts for it.
        self.env["PATH"] = f"{WIDE / 'debian/bin'}:{os.environ['PATH']}"

    def version(self):
        # The version is that of its module: `vX.Y.Z` after the path.
        built = subprocess.run(["go", "version", "-m", self.path], check=True, capture_output=True, text=True).stdout
        return re.search(r"gcsfuse/v3\s+v([\d.]+)", built).group(1)

    def mounting(self, top):
        """The command that mounts the bucket at `top`, and ends with the mount."""
        flags = ["--foreground", "--enable-hns=false", "--implicit-dirs", "--rename-dir-limit=1000"]
        where = ["--custom-endpoint", f"{self.server.gcs}/storage/v1/", "--key-file", key_file(self.server)]
        return [self.path, *flags, *where, self.bucket, top]


# By the name that the table of results has.
GOOGLE = {
    "google-cloud-storage for Python": PythonGoogle,
    "obstore, Google": Obstore,
    "gcsfs": Gcsfs,
    "gcloud storage": Gcloud,
    "google-cloud-storage for Go": GoGoogle,
    "google-cloud-storage for Java": JavaGoogle,
    "@google-cloud/storage": JavaScriptGoogle,
    "rclone, Google": RcloneGoogle,
}
TABLES = {"deltalake, Google": GoogleDelta}
