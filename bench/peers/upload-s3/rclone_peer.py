"""Uploads files of the sizes in a line of its input by one run of rclone, and prints a line of figures: see `Figures` of the
harness. Its last figure is the run's own peak memory in bytes."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PART = "16M"
PARTS_AT_ONCE = "4"


def write_files(folder, sizes):
    content = memoryview(bytes(64 << 20))
    for at, size in enumerate(sizes):
        file = folder / str(at)
        if not file.exists() or file.stat().st_size != size:
            file.write_bytes(content[:size])


def main():
    endpoint, at_once = sys.argv[1], sys.argv[2]
    store = f":s3,provider=Other,env_auth=true,endpoint='{endpoint}':bench/rclone"
    # rclone exits if this variable is set, also without TLS.
    env = {name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"}
    with tempfile.TemporaryDirectory() as home:
        # Without a file rclone prints a warning.
        config = Path(home) / "rclone.conf"
        config.touch()
        files = Path(home) / "files"
        files.mkdir()
        command = ["rclone", "--config", config, "copy", "--quiet", "--ignore-times", "--s3-no-check-bucket"]
        # moto reports the version "null" of an object, and rejects requests for it.
        command += ["--s3-no-head"]
        command += ["--transfers", at_once, "--s3-upload-concurrency", PARTS_AT_ONCE]
        command += ["--s3-chunk-size", PART, "--s3-upload-cutoff", PART, files, store]
        print("ready", flush=True)
        for line in sys.stdin:
            write_files(files, [int(size) for size in line.split()])
            begun = time.monotonic()
            child = subprocess.Popen(command, env=env)
            _, status, usage = os.wait4(child.pid, 0)
            seconds = time.monotonic() - begun
            if status:
                sys.exit(f"rclone failed: {status}")
            print(seconds, usage.ru_utime + usage.ru_stime, "nan", usage.ru_maxrss * 1024, flush=True)


main()
