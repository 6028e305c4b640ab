"""Unmodified pyarrow, whose S3 file system sends chunked bodies with CRC64NVME in trailers, and marks folders by keys that end in `/`."""

import urllib.parse

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from harness import ACCESS_KEY, MIB, ODD_KEYS, REGION, SECRET_KEY, keys, payload
from pyarrow.fs import FileSelector, FileType, S3FileSystem


@pytest.fixture(scope="module")
def fs(served):
    return S3FileSystem(
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        region=REGION,
        scheme="http",
        endpoint_override=urllib.parse.urlsplit(served.server.url).netloc,
    )


def write(fs, path, body, **metadata):
    with fs.open_output_stream(path, metadata=metadata or None) as out:
        out.write(body)


def read(fs, path):
    with fs.open_input_stream(path) as source:
        return source.read()


@pytest.mark.parametrize("size", [0, 1, MIB + 1, 11 * MIB, 23 * MIB])
def test_written_data_reads_back(served, fs, size):
    """Above 10 MiB pyarrow uploads in parts."""
    body, path = payload(size, size), f"{served.bucket}/sizes/{size}"
    write(fs, path, body)
    assert read(fs, path) == body
    info = fs.get_file_info(path)
    assert (info.type, info.size) == (FileType.File, size)
    assert served.read(f"sizes/{size}") == body, "boto3 reads what pyarrow wrote"


def test_ranges(served, fs):
    body = payload(3 * MIB + 10, 3)
    write(fs, f"{served.bucket}/ranged", body)
    with fs.open_input_file(f"{served.bucket}/ranged") as file:
        assert file.size() == len(body)
        for start, length in [(0, 1), (MIB - 1, 2), (3 * MIB, 10), (3 * MIB + 9, 1), (17, 2 * MIB)]:
            assert file.read_at(length, start) == body[start : start + length]
        assert file.read_at(100, len(body)) == b""


@pytest.mark.parametrize("key", ODD_KEYS)
def test_odd_keys(served, fs, key):
    write(fs, f"{served.bucket}/odd/{key}", key.encode())
    assert read(fs, f"{served.bucket}/odd/{key}") == key.encode()
    assert served.read(f"odd/{key}") == key.encode()
    found = fs.get_file_info(FileSelector(f"{served.bucket}/odd", recursive=True))
    assert f"{served.bucket}/odd/{key}" in [info.path for info in found]


def test_metadata(served, fs):
    path = f"{served.bucket}/described"
    write(fs, path, b"body", **{"Content-Type": "text/csv", "Cache-Control": "max-age=60", "Content-Language": "de"})
    head = served.head("described")
    assert (head["ContentType"], head["CacheControl"], head["ContentLanguage"]) == ("text/csv", "max-age=60", "de")
    with fs.open_input_file(path) as source:
        assert source.metadata()["Content-Type"] == b"text/csv"


def test_empty_folders_are_listed(served, fs):
    top = f"{served.bucket}/folders"
    fs.create_dir(f"{top}/empty/deep")
    assert fs.get_file_info(f"{top}/empty").type == fs.get_file_info(f"{top}/empty/deep").type == FileType.Directory
    assert keys(served.s3, served.bucket, Prefix="folders/") == ["folders/", "folders/empty/", "folders/empty/deep/"]
    write(fs, f"{top}/empty/deep/file", b"x")
    found = {info.path: info.type for info in fs.get_file_info(FileSelector(top, recursive=True))}
    assert found == {
        f"{top}/empty": FileType.Directory,
        f"{top}/empty/deep": FileType.Directory,
        f"{top}/empty/deep/file": FileType.File,
    }
    fs.delete_dir(f"{top}/empty")
    assert fs.get_file_info(f"{top}/empty").type == FileType.NotFound
    assert fs.get_file_info(f"{served.bucket}/absent").type == FileType.NotFound


def test_copy_move_delete(served, fs):
    top = f"{served.bucket}/verbs"
    body = payload(2 * MIB)
    write(fs, f"{top}/a", body)
    fs.copy_file(f"{top}/a", f"{top}/b")
    fs.move(f"{top}/b", f"{top}/c")
    assert read(fs, f"{top}/c") == body
    assert fs.get_file_info(f"{top}/b").type == FileType.NotFound
    fs.delete_file(f"{top}/a")
    with pytest.raises(FileNotFoundError):
        read(fs, f"{top}/a")


def test_datasets(served, fs):
    table = pa.table({"number": range(10_000), "half": [number / 2 for number in range(10_000)], "part": [number % 7 for number in range(10_000)]})
    where = f"{served.bucket}/dataset"
    for _ in range(2):  # the second overwrites the first
        ds.write_dataset(
            table, where, filesystem=fs, format="parquet", partitioning=["part"], partitioning_flavor="hive",
            existing_data_behavior="delete_matching",
        )
    dataset = ds.dataset(where, filesystem=fs, partitioning="hive")
    assert len(dataset.files) == 7
    assert dataset.to_table(columns=["number", "half", "part"]).sort_by("number") == table.cast(
        pa.schema([("number", pa.int64()), ("half", pa.float64()), ("part", pa.int32())])
    )
    assert dataset.count_rows(filter=ds.field("part") == 3) == len(range(3, 10_000, 7))
    fs.delete_dir_contents(where)
    assert [info.path for info in fs.get_file_info(FileSelector(where, recursive=True))] == []


def test_columns_of_a_parquet_file(served, fs, flights):
    """The columns equal those of the local file, from the origin and then from memory."""
    served.s3.upload_file(flights, served.bucket, "flights.parquet")
    local = pq.read_table(flights, columns=["origin", "delay"])

    def check():
        assert pq.read_table(f"{served.bucket}/flights.parquet", filesystem=fs, columns=["origin", "delay"]) == local

    served.check_second_is_warm(check)
