"""Ten thousand keys and an object of 5 GiB, by every client: a listing costs one request per page, a range only its blocks."""

import shutil
import subprocess
import time
import urllib.parse

import pytest
from harness import ACCESS_KEY, MIB, REGION, SECRET_KEY, Bywash, clean_environment, keys
from obstore.store import S3Store
from pyarrow.fs import FileSelector, S3FileSystem

KEYS = [f"many/{number // 1000}/{number:05}" for number in range(10_000)]
HUGE = 5 * 1024 * MIB
# Data between the holes of the huge object, by offset.
WRITTEN = {0: b"the first bytes", 3 * 1024 * MIB - 7: b"across a block's end", HUGE - 14: b"the last bytes"}
# Maximum requests to list all keys: pages of a thousand, for each of the ten folders if it lists by levels.
PAGES = 40


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server over a folder of existing files."""
    folder, files = tmp_path_factory.mktemp("width"), tmp_path_factory.mktemp("files")
    for key in KEYS:
        (files / key).parent.mkdir(parents=True, exist_ok=True)
        (files / key).write_bytes(b"x")
    with open(files / "huge", "wb") as huge:
        for offset, text in WRITTEN.items():
            huge.seek(offset)
            huge.write(text)
    server = Bywash(folder, f"width={files.as_uri()}", "--memory", "128MiB")
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def store(server):
    return S3Store(
        "width", endpoint=server.url, access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY, region=REGION,
        client_options={"allow_http": True},
    )


@pytest.fixture(scope="module")
def fs(server):
    return S3FileSystem(
        access_key=ACCESS_KEY, secret_key=SECRET_KEY, region=REGION, scheme="http",
        endpoint_override=urllib.parse.urlsplit(server.url).netloc,
    )


@pytest.fixture(scope="module")
def rclone(server):
    env = clean_environment() | {
        "RCLONE_CONFIG": "/dev/null", "RCLONE_CONFIG_TO_TYPE": "s3", "RCLONE_CONFIG_TO_PROVIDER": "Other",
        "RCLONE_CONFIG_TO_ENDPOINT": server.url, "RCLONE_CONFIG_TO_ACCESS_KEY_ID": ACCESS_KEY,
        "RCLONE_CONFIG_TO_SECRET_ACCESS_KEY": SECRET_KEY, "RCLONE_CONFIG_TO_REGION": REGION,
    }
    program = shutil.which("rclone")
    return lambda *arguments: subprocess.run([program, *map(str, arguments)], env=env, check=True, capture_output=True).stdout


@pytest.fixture
def few_pages(server):
    """Checks that a listing costs one request per page. Prints its time (shown by `-rP`)."""
    before, start = server.bucket_stats("width"), time.monotonic()
    yield
    seconds, after = time.monotonic() - start, server.bucket_stats("width")
    requests = after["requests"] - before["requests"]
    print(f"listed {len(KEYS)} keys in {seconds:.2f} s by {requests} requests")
    assert requests <= PAGES
    assert after["origin_data_requests"] == before["origin_data_requests"]


def test_ten_thousand_keys_by_boto3(server, few_pages):
    assert keys(server.s3, "width", Prefix="many/") == KEYS


def test_ten_thousand_keys_by_the_first_listing(server, few_pages):
    pages = server.s3.get_paginator("list_objects").paginate(Bucket="width", Prefix="many/")
    assert [entry["Key"] for page in pages for entry in page["Contents"]] == KEYS


def test_ten_thousand_keys_by_levels(server, few_pages):
    response = server.s3.list_objects_v2(Bucket="width", Prefix="many/", Delimiter="/")
    prefixes = [entry["Prefix"] for entry in response["CommonPrefixes"]]
    assert prefixes == [f"many/{number}/" for number in range(10)]
    assert [key for prefix in prefixes for key in keys(server.s3, "width", Prefix=prefix, Delimiter="/")] == KEYS


def test_ten_thousand_keys_by_obstore(store, few_pages):
    assert [entry["path"] for batch in store.list("many") for entry in batch] == KEYS


def test_ten_thousand_keys_by_pyarrow(fs, few_pages):
    found = fs.get_file_info(FileSelector("width/many", recursive=True))
    assert sorted(info.path for info in found if info.is_file) == [f"width/{key}" for key in KEYS]


def test_ten_thousand_keys_by_rclone(rclone, few_pages):
    found = rclone("lsf", "-R", "--files-only", "to:width/many").decode().split()
    assert sorted(f"many/{name}" for name in found) == KEYS


def ranges():
    """Ranges around each piece of data, which include zeros before and after it."""
    for offset, text in WRITTEN.items():
        start = max(offset - 10, 0)
        end = min(offset + len(text) + 10, HUGE)
        yield start, end, b"\0" * (offset - start) + text + b"\0" * (end - offset - len(text))


@pytest.fixture
def few_bytes(server):
    """Checks that only the blocks of the range are read."""
    before = server.bucket_stats("width")["origin_bytes"]
    yield
    assert server.bucket_stats("width")["origin_bytes"] - before < 64 * MIB


def test_5_gib_by_boto3(server, few_bytes):
    assert server.s3.head_object(Bucket="width", Key="huge")["ContentLength"] == HUGE
    for start, end, expected in ranges():
        got = server.s3.get_object(Bucket="width", Key="huge", Range=f"bytes={start}-{end - 1}")
        assert (got["ContentRange"], got["Body"].read()) == (f"bytes {start}-{end - 1}/{HUGE}", expected)
    assert server.s3.get_object(Bucket="width", Key="huge", Range="bytes=-14")["Body"].read() == b"the last bytes"


def test_5_gib_by_pyarrow(fs, few_bytes):
    with fs.open_input_file("width/huge") as file:
        assert file.size() == HUGE
        for start, end, expected in ranges():
            assert file.read_at(end - start, start) == expected


def test_5_gib_by_obstore(store, few_bytes):
    assert store.head("huge")["size"] == HUGE
    starts, ends, expected = zip(*ranges(), strict=True)
    found = store.get_ranges("huge", starts=starts, ends=ends, coalesce=0)
    assert tuple(bytes(piece) for piece in found) == expected
    assert store.get("huge", options={"range": {"suffix": 14}}).bytes() == b"the last bytes"


def test_5_gib_by_rclone(rclone, few_bytes):
    for start, end, expected in ranges():
        assert rclone("cat", "--offset", start, "--count", end - start, "to:width/huge") == expected
