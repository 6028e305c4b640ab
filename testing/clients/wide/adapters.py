"""Clients of objects as programs with one interface, whatever they are written in.

Command lines are used as a user would. A library is behind a program of this folder, whose first argument is the operation.
"""

import json
import os
import re
import subprocess
from pathlib import Path

from harness import ACCESS_KEY, REGION, SECRET_KEY, clean_environment, sha256

# Folder of what `cargo xtask clients --wide` has installed.
WIDE = Path(os.environ["BYWASH_WIDE"])
HERE = Path(__file__).parent
# Maximum time of one command; reached only by a fault.
SECONDS = 300


class Program:
    """A program that uses one bucket of a server, with a home of its own."""

    # What must be there for the program to run.
    path = None

    def __init__(self, server, bucket, home):
        self.server, self.bucket, self.home = server, bucket, Path(home)
        self.address = server.url.removeprefix("http://")
        self.env = clean_environment() | {
            "HOME": str(home),
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "WIDE_URL": server.url,
            "WIDE_BUCKET": bucket,
        }

    def run(self, *command, **env):
        command = [str(part) for part in command]
        done = subprocess.run(command, env=self.env | env, capture_output=True, text=True, timeout=SECONDS, cwd=self.home)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        return done.stdout


class Library(Program):
    """A program of this folder over a library."""

    command = []

    def call(self, *arguments):
        return self.run(*self.command, *arguments)

    def version(self):
        return self.call("version").strip()

    def put(self, file, key):
        self.call("put", file, key)

    def upload(self, file, key):
        self.call("upload", file, key)

    def get(self, key, file):
        self.call("get", key, file)

    def range(self, key, first, count, file):
        self.call("range", key, first, count, file)
        return file.read_bytes()

    def list(self, prefix):
        return self.call("list", prefix).splitlines()

    def copy(self, key, to):
        self.call("copy", key, to)

    def delete(self, key):
        self.call("delete", key)


class MinioPython(Library):
    path = WIDE / "python/bin/python"
    command = [path, HERE / "scripts/minio_objects.py"]


class OldMinioPython(MinioPython):
    path = WIDE / "python-old/bin/python"
    command = [path, HERE / "scripts/minio_objects.py"]


class GoAws(Library):
    path = WIDE / "go/aws/program"
    command = [path]


class OldGoAws(GoAws):
    path = WIDE / "go/aws-old/program"
    command = [path]


class GoMinio(Library):
    path = WIDE / "go/minio/program"
    command = [path]


class OldGoMinio(GoMinio):
    path = WIDE / "go/minio-old/program"
    command = [path]


class JavaScriptAws(Library):
    path = WIDE / "js/new/node_modules"
    command = ["node", HERE / "js/aws.cjs"]

    def call(self, *arguments):
        return self.run(*self.command, *arguments, NODE_PATH=str(self.path))


class OldJavaScriptAws(JavaScriptAws):
    """Version 3 from before checksums by default."""

    path = WIDE / "js/old/node_modules"


class JavaScriptAws2(JavaScriptAws):
    """Version 2, whose support has ended and which is still installed more than any other."""

    path = WIDE / "js/old/node_modules"
    command = ["node", HERE / "js/aws2.cjs"]


class JavaScriptMinio(JavaScriptAws):
    command = ["node", HERE / "js/minio.cjs"]


class JavaAws(Library):
    path = WIDE / "java/v2/classes"

    def call(self, *arguments):
        return self.run("java", "-XX:TieredStopAtLevel=1", "-cp", f"{self.path}:{self.path.parent}/jars/*", "Objects", *arguments)


class OldJavaAws(JavaAws):
    path = WIDE / "java/v2-old/classes"


class JavaAws1(JavaAws):
    """Version 1, whose support has ended."""

    path = WIDE / "java/v1/classes"


class S3cmd(Program):
    path = WIDE / "python/bin/s3cmd"
    command = [path]

    def __init__(self, *place):
        super().__init__(*place)
        settings = {
            "access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "host_base": self.address, "host_bucket": self.address,
            "use_https": "False", "bucket_location": REGION, "multipart_chunk_size_mb": 5, "progress_meter": "False",
        }
        lines = ["[default]", *[f"{name} = {value}" for name, value in settings.items()]]
        (self.home / ".s3cfg").write_text("\n".join(lines) + "\n")

    def call(self, *arguments):
        return self.run(*self.command, *arguments)

    def version(self):
        return self.call("--version").split()[-1]

    def at(self, key):
        return f"s3://{self.bucket}/{key}"

    def put(self, file, key):
        self.call("put", file, self.at(key))

    upload = put

    def get(self, key, file):
        self.call("get", "--force", self.at(key), file)

    def range(self, key, first, count, file):
        """Continues a download of which `first` bytes are there, in a file with the wrong ones."""
        file.write_bytes(bytes(first))
        self.call("get", "--continue", self.at(key), file)
        return file.read_bytes()[first : first + count]

    def list(self, prefix):
        lines = self.call("ls", "--recursive", self.at(prefix)).splitlines()
        return [line.split(self.at(""), 1)[1] for line in lines]

    def copy(self, key, to):
        self.call("cp", self.at(key), self.at(to))

    def delete(self, key):
        self.call("del", self.at(key))


class OldS3cmd(S3cmd):
    path = WIDE / "debian/usr/bin/s3cmd"
    # Debian's program is for Debian's Python.
    command = ["/usr/bin/python3", path]

    def __init__(self, *place):
        super().__init__(*place)
        self.env["PYTHONPATH"] = str(WIDE / "debian/usr/lib/python3/dist-packages")


class Mc(Program):
    path = WIDE / "go/mc/mc"

    def __init__(self, *place):
        super().__init__(*place)
        self.call("alias", "set", "to", self.server.url, ACCESS_KEY, SECRET_KEY, "--api", "S3v4", "--path", "on")

    def call(self, *arguments):
        return self.run(self.path, "--config-dir", self.home, "--disable-pager", *arguments)

    def version(self):
        # Built by Go's own command, it has no version of its own.
        return (self.path.parent / "installed").read_text().split("@")[1]

    def at(self, key):
        return f"to/{self.bucket}/{key}"

    def put(self, file, key):
        self.call("cp", "--quiet", file, self.at(key))

    upload = put

    def get(self, key, file):
        self.call("cp", "--quiet", self.at(key), file)

    def range(self, key, first, count, file):
        command = [self.path, "--config-dir", self.home, "cat", "--offset", str(first), self.at(key)]
        with open(file, "wb") as output:
            subprocess.run(command, env=self.env, stdout=output, check=True, timeout=SECONDS)
        return file.read_bytes()[:count]

    def list(self, prefix):
        folder, _, name = prefix.rpartition("/")
        lines = self.call("ls", "--recursive", "--json", self.at(prefix)).splitlines()
        return [f"{folder}/{json.loads(line)['key']}" for line in lines]

    def copy(self, key, to):
        self.call("cp", "--quiet", self.at(key), self.at(to))

    def delete(self, key):
        self.call("rm", "--quiet", self.at(key))


class Rclone(Program):
    """rclone of today; Debian's is in the gate (`test_rclone.py`)."""

    path = WIDE / "python/bin/rclone"
    # So that the files of the tests go in parts.
    upload_options = ["--s3-upload-cutoff", "5M"]

    def __init__(self, *place):
        super().__init__(*place)
        self.env |= {
            "RCLONE_CONFIG": "/dev/null",
            "RCLONE_CONFIG_TO_TYPE": "s3",
            "RCLONE_CONFIG_TO_PROVIDER": "Other",
            "RCLONE_CONFIG_TO_ENDPOINT": self.server.url,
            "RCLONE_CONFIG_TO_ENV_AUTH": "true",
            "RCLONE_CONFIG_TO_REGION": REGION,
            "RCLONE_RETRIES": "1",
            "RCLONE_LOW_LEVEL_RETRIES": "1",
        }

    def call(self, *arguments):
        return self.run(self.path, *arguments)

    def version(self):
        return self.call("version").split()[1].removeprefix("v")

    def at(self, key):
        return f"to:{self.bucket}/{key}"

    def put(self, file, key):
        self.call("copyto", *self.upload_options, file, self.at(key))

    upload = put

    def get(self, key, file):
        self.call("copyto", self.at(key), file)

    def range(self, key, first, count, file):
        command = [self.path, "cat", "--offset", str(first), "--count", str(count), self.at(key)]
        return subprocess.run(command, env=self.env, capture_output=True, check=True, timeout=SECONDS).stdout

    def list(self, prefix):
        return [prefix + name for name in self.call("lsf", "--recursive", "--files-only", self.at(prefix)).splitlines()]

    def copy(self, key, to):
        self.call("copyto", self.at(key), self.at(to))

    def delete(self, key):
        self.call("deletefile", self.at(key))


class S5cmd(Program):
    path = WIDE / "python-data/bin/s5cmd"
    # A failure is to be seen, not repeated; parts of 5 MiB, so that the files of the tests go in parts.
    options = ["--raw", "--part-size", "5"]

    def call(self, operation, *arguments):
        return self.run(self.path, "--endpoint-url", self.server.url, "--retry-count", "0", operation, *arguments)

    def version(self):
        return self.call("version").split("-")[0].removeprefix("v")

    def at(self, key):
        return f"s3://{self.bucket}/{key}"

    def put(self, file, key):
        self.call("cp", *self.options, file, self.at(key))

    upload = put

    def get(self, key, file):
        self.call("cp", *self.options, self.at(key), file)

    def range(self, key, first, count, file):
        """Downloads by ranges of 1 MiB at the same time."""
        self.call("cp", "--raw", "--part-size", "1", "--concurrency", "3", self.at(key), file)
        return file.read_bytes()[first : first + count]

    def list(self, prefix):
        lines = self.run(self.path, "--json", "--endpoint-url", self.server.url, "ls", self.at(prefix + "*")).splitlines()
        return [json.loads(line)["key"].removeprefix(self.at("")) for line in lines]

    def copy(self, key, to):
        self.call("cp", "--raw", self.at(key), self.at(to))

    def delete(self, key):
        self.call("rm", "--raw", self.at(key))


class CommonRuntime(Library):
    """Amazon's client in C, which its connectors and mounts have."""

    path = WIDE / "python-data/bin/python"
    command = [path, HERE / "scripts/crt_objects.py"]

    def copy(self, key, to):
        """Between plain keys: it refuses to send a copy to a key with a space, which it does not encode."""
        plain = [f"crt/{sha256(name.encode())}" for name in (key, to)]
        self.s3.copy_object(Bucket=self.bucket, Key=plain[0], CopySource={"Bucket": self.bucket, "Key": key})
        super().copy(*plain)
        self.s3.copy_object(Bucket=self.bucket, Key=to, CopySource={"Bucket": self.bucket, "Key": plain[1]})


# By the name that the table of results has.
OBJECTS = {
    "s3cmd": S3cmd,
    "s3cmd, old": OldS3cmd,
    "s5cmd": S5cmd,
    "mc": Mc,
    "rclone": Rclone,
    "minio-py": MinioPython,
    "minio-py, old": OldMinioPython,
    "minio-go": GoMinio,
    "minio-go, old": OldGoMinio,
    "minio-js": JavaScriptMinio,
    "AWS common runtime": CommonRuntime,
    "AWS SDK for Go": GoAws,
    "AWS SDK for Go, old": OldGoAws,
    "AWS SDK for JavaScript": JavaScriptAws,
    "AWS SDK for JavaScript, old": OldJavaScriptAws,
    "AWS SDK for JavaScript 2": JavaScriptAws2,
    "AWS SDK for Java": JavaAws,
    "AWS SDK for Java, old": OldJavaAws,
    "AWS SDK for Java 1": JavaAws1,
}


class Restic(Program):
    path = WIDE / "go/restic/restic"

    def call(self, *arguments):
        where = f"s3:{self.server.url}/{self.bucket}/restic-{self.home.name}"
        return self.run(self.path, "--repo", where, "--no-cache", *arguments, RESTIC_PASSWORD="of a test")

    def version(self):
        return self.run(self.path, "version").split()[1]


class OldRestic(Restic):
    path = WIDE / "debian/usr/bin/restic"


class S3fsFuse(Program):
    path = WIDE / "debian/usr/bin/s3fs"

    def __init__(self, *place):
        super().__init__(*place)
        folders = [str(folder) for top in ("lib", "usr/lib") for folder in (WIDE / "debian" / top).glob("*-linux-gnu")]
        self.env["LD_LIBRARY_PATH"] = ":".join(folders)

    def version(self):
        return re.search(r"V([\d.]+)", self.run(self.path, "--version")).group(1)

    def mounting(self, top):
        """The command that mounts the bucket at `top`, and ends with the mount."""
        options = f"url={self.server.url},use_path_request_style,multipart_size=5,endpoint={REGION}"
        return [self.path, self.bucket, top, "-f", "-o", options]


class Script(Program):
    """A script of this folder that does one operation of a library of tables."""

    script = None

    def call(self, *arguments):
        return self.run(self.path, HERE / "scripts" / self.script, *arguments)

    def version(self):
        return self.call("version").strip()


class Delta(Script):
    path = WIDE / "python/bin/python"
    script = "delta_tables.py"


class OldDelta(Delta):
    path = WIDE / "python-old/bin/python"

    def __init__(self, *place):
        super().__init__(*place)
        # It does not commit by If-None-Match yet, and refuses to commit without this promise of a single writer.
        self.env["AWS_S3_ALLOW_UNSAFE_RENAME"] = "true"


class Iceberg(Script):
    path = WIDE / "python/bin/python"
    script = "iceberg_tables.py"


class OldIceberg(Iceberg):
    path = WIDE / "python-old/bin/python"


class Lance(Script):
    path = WIDE / "python/bin/python"
    script = "lance_tables.py"


class OldLance(Lance):
    path = WIDE / "python-old/bin/python"


class ClickHouse(Script):
    path = WIDE / "python-chdb/bin/python"
    script = "clickhouse_tables.py"


class OldClickHouse(ClickHouse):
    path = WIDE / "python-old/bin/python"


class Spark(Script):
    path = WIDE / "spark/bin/python"
    script = "spark_tables.py"

    def __init__(self, *place):
        super().__init__(*place)
        self.env["WIDE_JARS"] = str(WIDE / "java/spark/jars")


class OldSpark(Spark):
    path = WIDE / "spark-old/bin/python"

    def __init__(self, *place):
        super().__init__(*place)
        self.env["WIDE_JARS"] = str(WIDE / "java/spark-old/jars")


class Rasters(Script):
    path = WIDE / "python-data/bin/python"
    script = "gdal_rasters.py"


class Vectors(Rasters):
    script = "gdal_vectors.py"


class Icechunk(Rasters):
    script = "icechunk_arrays.py"


class TensorStore(Rasters):
    script = "tensorstore_arrays.py"


TABLES = {
    "deltalake": Delta,
    "deltalake, old": OldDelta,
    "pyiceberg": Iceberg,
    "pyiceberg, old": OldIceberg,
    "pylance": Lance,
    "pylance, old": OldLance,
    "chdb": ClickHouse,
    "chdb, old": OldClickHouse,
    "rasterio": Rasters,
    "pyogrio": Vectors,
    "icechunk": Icechunk,
    "tensorstore": TensorStore,
}
SPARK = {"Spark": Spark, "Spark, old": OldSpark}
BACKUPS = {"restic": Restic, "restic, old": OldRestic}
