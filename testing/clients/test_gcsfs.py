"""gcsfs, unmodified, against the GCS endpoint: on an anonymous server, and with a key file on a server with keys.

It runs in the environment of s3fs, which has the same fsspec.
"""

import json
import os
import subprocess
import sys
import time
from unittest import mock

import pytest
from harness import MIB, Bywash, clean_environment, payload

# As `bywash env --gcs` prints it; gcsfs reads it when it is imported.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
from gcsfs import GCSFileSystem  # noqa: E402
from gcsfs.retry import HttpError  # noqa: E402

BUCKET = "suite-gcsfs"
NAMES = 1200
# With its default settings gcsfs asks by gRPC over TLS for the kind of a bucket, and gives up after a minute.
PROBE_SECONDS = 30


def file_system(endpoint, **options):
    """Returns gcsfs without its caches of listings and of instances, which would hide what the endpoint answers."""
    options = {"token": "anon", "project": "p", "use_listings_cache": False, "skip_instance_cache": True} | options
    return GCSFileSystem(endpoint_url=endpoint, **options)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Bywash(tmp_path_factory.mktemp("gcsfs"), "--anonymous", credentials=False)
    server.s3.create_bucket(Bucket=BUCKET)
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def fs(server):
    return file_system(server.gcs)


@pytest.fixture(scope="module")
def many(fs):
    """Objects whose names need more than one page of a listing."""
    bodies = {f"{BUCKET}/many/name-{number:04}": b"%d" % number for number in range(NAMES)}
    fs.pipe(bodies)
    return list(bodies)


def through_s3(server, path):
    """Returns the bytes that the S3 endpoint has at this moment."""
    bucket, key = path.split("/", 1)
    return server.s3.get_object(Bucket=bucket, Key=key)["Body"].read()


@pytest.mark.parametrize("size", [0, 1, 4 * MIB, 20 * MIB])
def test_files_are_put_and_got(server, fs, tmp_path, size):
    """Files above 5 MiB go through a resumable session."""
    body, path = payload(size, size), f"{BUCKET}/sizes/a b+{size}"
    (tmp_path / "file").write_bytes(body)
    fs.put_file(tmp_path / "file", path, chunksize=5 * MIB)
    assert fs.info(path)["size"] == size
    assert through_s3(server, path) == body
    fs.get_file(path, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == body


def test_written_blocks_read_back(server, fs):
    body, path = payload(20 * MIB), f"{BUCKET}/blocks"
    with fs.open(path, "wb", block_size=5 * MIB) as out:
        for start in range(0, len(body), 3 * MIB):
            out.write(body[start : start + 3 * MIB])
    assert through_s3(server, path) == body
    with fs.open(path, "rb", block_size=MIB) as source:
        source.seek(7 * MIB)
        assert source.read(100_000) == body[7 * MIB : 7 * MIB + 100_000]
        source.seek(0)
        assert source.read() == body


def test_listing_of_several_pages(fs, many):
    assert sorted(fs.ls(f"{BUCKET}/many", detail=False)) == many
    assert fs.find(f"{BUCKET}/many") == many
    assert fs.glob(f"{BUCKET}/many/name-11*") == [path for path in many if "/name-11" in path]


def test_ranges_of_many_files(fs):
    bodies = {f"{BUCKET}/ranges/{number:02}": payload(1000, number) for number in range(20)}
    fs.pipe(bodies)
    paths = list(bodies)
    assert fs.cat(paths) == bodies
    assert fs.cat_ranges(paths, [10] * 20, [20] * 20) == [body[10:20] for body in bodies.values()]
    assert fs.cat_file(paths[3], start=-7) == bodies[paths[3]][-7:]


def test_copies_and_moves(server, fs, caplog):
    body = payload(4 * MIB)
    fs.pipe_file(f"{BUCKET}/tree/deep/a b", body)
    fs.cp_file(f"{BUCKET}/tree/deep/a b", f"{BUCKET}/tree/copy+1")
    assert through_s3(server, f"{BUCKET}/tree/copy+1") == body
    fs.mv(f"{BUCKET}/tree/copy+1", f"{BUCKET}/tree/moved")
    # It moves by moveTo; it would copy and delete after an error.
    assert "moveTo" not in caplog.text
    assert sorted(fs.find(f"{BUCKET}/tree")) == [f"{BUCKET}/tree/deep/a b", f"{BUCKET}/tree/moved"]
    fs.cp(f"{BUCKET}/tree", f"{BUCKET}/other", recursive=True)
    assert through_s3(server, f"{BUCKET}/other/deep/a b") == body


def test_removal_one_by_one_and_in_batches(fs):
    """gcsfs sends batches to addresses of Google alone, so the second half of the test answers for the address."""
    paths = [f"{BUCKET}/removed/{number:03}" for number in range(150)]
    fs.pipe({path: b"x" for path in paths})
    fs.rm(paths[:10])
    assert fs.find(f"{BUCKET}/removed") == paths[10:]
    with mock.patch.object(GCSFileSystem, "on_google", True):
        fs.rm(f"{BUCKET}/removed", recursive=True)
    assert fs.find(f"{BUCKET}/removed") == []


def test_exclusive_writes(fs):
    path = f"{BUCKET}/exclusive"
    fs.pipe_file(path, b"first", mode="create")
    with pytest.raises(FileExistsError):
        fs.pipe_file(path, b"second", mode="create")
    with pytest.raises(FileExistsError), fs.open(path, "xb", block_size=5 * MIB) as out:
        out.write(payload(6 * MIB))
    assert fs.cat_file(path) == b"first"


def test_metadata(server, fs):
    path = f"{BUCKET}/described"
    fs.pipe_file(path, b"body", metadata={"colour": "blue"}, content_type="text/csv")
    fs.setxattrs(path, shape="round")
    assert fs.info(path)["metadata"] == {"colour": "blue", "shape": "round"}
    head = server.s3.head_object(Bucket=BUCKET, Key="described")
    assert (head["Metadata"], head["ContentType"]) == ({"colour": "blue", "shape": "round"}, "text/csv")


def test_buckets(fs):
    fs.mkdir("made-by-gcsfs")
    fs.touch("made-by-gcsfs/a/b")
    assert fs.ls("made-by-gcsfs/a") == ["made-by-gcsfs/a/b"]
    fs.rm("made-by-gcsfs", recursive=True)
    assert not fs.exists("made-by-gcsfs")


def test_environment_of_the_server_is_enough(server):
    """A program in the environment that `bywash env --gcs` prints uses addresses with a protocol, and waits for no probe."""
    command = [os.environ["BYWASH_BIN"], "env", "--gcs", "--json", "--data-dir", server.data_dir]
    printed = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    program = f"""
import fsspec
with fsspec.open("gs://{BUCKET}/by/address", "w", token="anon") as out:
    out.write("text")
with fsspec.open("gs://{BUCKET}/by/address", token="anon") as source:
    assert source.read() == b"text"
"""
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=True, env=clean_environment() | printed, timeout=120)
    assert time.monotonic() - begun < PROBE_SECONDS
    assert through_s3(server, f"{BUCKET}/by/address") == b"text"


def test_key_file_opens_a_server_with_keys(tmp_path):
    server = Bywash(tmp_path)
    server.s3.create_bucket(Bucket=BUCKET)
    create = [os.environ["BYWASH_BIN"], "keys", "create", "--gcs", "--data-dir", server.data_dir]
    (tmp_path / "key.json").write_text(subprocess.run(create, check=True, capture_output=True, text=True).stdout)
    fs = file_system(server.gcs, token=str(tmp_path / "key.json"))
    body = payload(6 * MIB)
    fs.pipe_file(f"{BUCKET}/key", body, chunksize=5 * MIB)
    assert through_s3(server, f"{BUCKET}/key") == body
    assert fs.cat_file(f"{BUCKET}/key", start=MIB, end=MIB + 10) == body[MIB : MIB + 10]
    # Without the file, a server with keys has nothing for gcsfs.
    with pytest.raises(HttpError, match="keys create --gcs"):
        file_system(server.gcs).cat_file(f"{BUCKET}/key")
    assert server.stop() == 0
