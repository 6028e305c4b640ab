"""The disk tier: what was read is on the disk after a kill, checked, and bounded."""

import json
import os
import subprocess

import pytest
from harness import MIB, payload, until

OBJECTS = {f"object-{number}": payload(20 * MIB + number, number) for number in range(5)}


@pytest.fixture
def tiered(start, moto, tmp_path, request):
    """A server with little memory and a disk tier over moto, and its bucket."""
    bucket = f"tier-{request.node.originalname.replace('_', '-')}"[:60].rstrip("-")
    moto.s3.create_bucket(Bucket=bucket)
    for key, body in OBJECTS.items():
        moto.s3.put_object(Bucket=bucket, Key=key, Body=body)
    server = start(f"s3://{bucket}", "--memory", "64MiB", "--disk", f"{tmp_path}/tier:512MiB", env=moto.environment())
    return server, bucket


def read_all(server, bucket):
    for key, body in OBJECTS.items():
        assert server.s3.get_object(Bucket=bucket, Key=key)["Body"].read() == body, key


def fill(server, bucket):
    """Reads until all blocks are on the disk: one that is evicted before its turn is written after a later read."""
    blocks = sum(-(-len(body) // MIB) for body in OBJECTS.values())

    def is_filled():
        read_all(server, bucket)
        return server.stats()["disk"]["blocks"] == blocks

    until("all blocks are on the disk", is_filled, 120)


def allocated(folder):
    return sum(os.stat(folder / name).st_blocks * 512 for name in os.listdir(folder))


def test_reads_after_a_kill_come_from_the_disk(tiered, moto):
    server, bucket = tiered
    fill(server, bucket)
    server.kill()
    gets = {key: moto.gets(bucket, key) for key in OBJECTS}
    server.start()
    read_all(server, bucket)
    disk = server.stats()["disk"]
    assert disk["state"] == "on"
    assert disk["hits"] > 0
    assert (disk["mismatches"], disk["failed_reads"]) == (0, 0)
    # A read that the disk does not return in time comes from the origin.
    assert sum(moto.gets(bucket, key) - gets[key] for key in OBJECTS) <= disk["slow_reads"]


def test_object_changed_while_the_server_was_down_is_read_anew(tiered, moto):
    server, bucket = tiered
    fill(server, bucket)
    server.kill()
    changed = payload(len(OBJECTS["object-0"]), 99)
    moto.s3.put_object(Bucket=bucket, Key="object-0", Body=changed)
    server.start()
    assert server.s3.get_object(Bucket=bucket, Key="object-0")["Body"].read() == changed


def cache(server, *arguments):
    command = [os.environ["BYWASH_BIN"], "cache", "--data-dir", server.data_dir, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_blocks_are_verified_and_listed_by_tier(tiered, tmp_path):
    server, bucket = tiered
    fill(server, bucket)
    blocks = {key: -(-len(body) // MIB) for key, body in OBJECTS.items()}
    listed = cache(server, "ls", "--tier", f"s3://{bucket}").stdout
    for key, count in blocks.items():
        assert f"{count:>7} on disk of {count:>7} blocks  s3://{bucket}/{key}\n" in listed
    found = json.loads(cache(server, "verify", "--json").stdout)
    assert (found["good_blocks"], found["damaged_blocks"], found["complete"]) == (sum(blocks.values()), 0, True)
    for path in (tmp_path / "tier").glob("*.seg"):
        with open(path, "r+b") as file:
            for offset in range(MIB // 2, os.path.getsize(path), MIB):
                file.seek(offset)
                file.write(b"damage")
    verified = cache(server, "verify", "--rate", "10GiB")
    # All but the last block of most objects, which is short.
    assert verified.returncode == 1
    assert "; 100 damaged and dropped, 0 unreadable" in verified.stdout
    assert "the origin has them" in verified.stderr
    read_all(server, bucket)


def test_limit_is_lowered_at_run_time_and_holds(tiered, tmp_path):
    server, bucket = tiered
    fill(server, bucket)
    assert allocated(tmp_path / "tier") <= 512 * MIB
    assert "disk: " in cache(server, "limit", "--disk", "80MiB").stdout
    until("the oldest segments are removed", lambda: allocated(tmp_path / "tier") <= 80 * MIB, 30)
    read_all(server, bucket)
    assert allocated(tmp_path / "tier") <= 80 * MIB


def test_damaged_segments_are_misses(tiered, tmp_path):
    server, bucket = tiered
    fill(server, bucket)
    server.kill()
    for path in (tmp_path / "tier").glob("*.seg"):
        with open(path, "r+b") as file:
            for offset in range(MIB // 2, os.path.getsize(path), MIB):
                file.seek(offset)
                file.write(b"damage")
    server.start()
    read_all(server, bucket)
