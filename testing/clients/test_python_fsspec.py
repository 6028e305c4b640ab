"""The package's fsspec file system: fsspec's own suites unmodified, pandas, pyarrow, and what these suites leave out."""

import datetime
import pickle
import random
from pathlib import Path

import fsspec
import fsspec.tests.abstract as abstract
import pandas
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet
import pytest

import bywash
import bywash.fsspec
from harness import MIB
from test_python import end_server, place

BUCKET = "suite-fsspec"
BODY = random.Random("fsspec").randbytes(9 * MIB)


@pytest.fixture(scope="session")
def filesystem(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        data = place(tmp_path_factory.mktemp("fsspec"), patch)
        filesystem = fsspec.filesystem("bywash")
        filesystem.mkdir(BUCKET)
        yield filesystem
        end_server(data)


class Fixtures(abstract.AbstractFixtures):
    """Fixtures that fsspec's suites need."""

    @pytest.fixture
    def fs(self, filesystem):
        return filesystem

    @pytest.fixture
    def fs_path(self, request):
        return f"{BUCKET}/{request.node.originalname}"

    @pytest.fixture
    def fs_join(self):
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def supports_empty_directories(self):
        """A directory is what keys have in common."""
        return False


class TestCopy(Fixtures, abstract.AbstractCopyTests):
    pass


class TestGet(Fixtures, abstract.AbstractGetTests):
    pass


class TestPut(Fixtures, abstract.AbstractPutTests):
    pass


class TestOpen(Fixtures, abstract.AbstractOpenTests):
    pass


class TestPipe(Fixtures, abstract.AbstractPipeTests):
    pass


@pytest.fixture
def fs(filesystem):
    return filesystem


@pytest.fixture
def folder(fs, request):
    return f"{BUCKET}/own-{request.node.originalname}"


def test_entry_point_is_the_file_system(fs):
    assert isinstance(fs, bywash.fsspec.BywashFileSystem)
    assert fsspec.get_filesystem_class("bywash") is bywash.fsspec.BywashFileSystem
    assert pickle.loads(pickle.dumps(fs)) == fs
    assert fs.unstrip_protocol("a/b") == "bywash://a/b"


def test_directories_are_what_keys_have_in_common(fs, folder):
    for name in ("a", "d/b", "d/e/c"):
        fs.pipe_file(f"{folder}/{name}", b"x")
    assert fs.ls(folder, detail=False) == [f"{folder}/a", f"{folder}/d"]
    assert [entry["type"] for entry in fs.ls(folder)] == ["file", "directory"]
    assert fs.ls(f"{folder}/a", detail=False) == [f"{folder}/a"]
    assert fs.find(folder) == [f"{folder}/a", f"{folder}/d/b", f"{folder}/d/e/c"]
    assert fs.find(folder, maxdepth=1) == [f"{folder}/a"]
    assert fs.find(folder, prefix="d") == [f"{folder}/d/b", f"{folder}/d/e/c"]
    assert fs.glob(f"{folder}/**/c") == [f"{folder}/d/e/c"]
    assert fs.isdir(f"{folder}/d") and not fs.isfile(f"{folder}/d") and fs.isfile(f"{folder}/a")
    assert not fs.exists(f"{folder}/d/n") and not fs.exists("no-such-bucket/a") and not fs.exists("no-such-bucket")
    assert BUCKET in fs.ls("", detail=False) and fs.isdir(BUCKET)
    with pytest.raises(FileNotFoundError):
        fs.ls(f"{folder}/n")
    with pytest.raises(FileNotFoundError):
        fs.rm(f"{folder}/n")
    fs.mv(f"{folder}/d", f"{folder}/moved", recursive=True)
    assert fs.find(folder) == [f"{folder}/a", f"{folder}/moved/b", f"{folder}/moved/e/c"]
    fs.rm(folder, recursive=True)
    assert not fs.exists(folder)


def test_bucket_is_a_directory_that_is_made_and_removed(fs):
    fs.mkdir("made-by-fsspec")
    with pytest.raises(FileExistsError):
        fs.mkdir("made-by-fsspec")
    fs.makedirs("made-by-fsspec", exist_ok=True)
    assert fs.ls("made-by-fsspec") == []
    fs.pipe_file("made-by-fsspec/a", b"x")
    with pytest.raises(OSError, match="made-by-fsspec"):
        fs.rmdir("made-by-fsspec")
    fs.rm("made-by-fsspec", recursive=True)
    assert not fs.exists("made-by-fsspec")


def test_info_states_size_etag_and_time(fs, folder):
    before = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=2)
    fs.pipe_file(f"{folder}/a", b"0123456789", content_type="text/x", metadata={"k": "v"})
    info = fs.info(f"{folder}/a")
    assert (info["name"], info["size"], info["type"]) == (f"{folder}/a", 10, "file")
    assert info["etag"] == bywash.connect().bucket(BUCKET).head(f"own-test_info_states_size_etag_and_time/a").etag
    assert (info["ContentType"], info["metadata"]) == ("text/x", {"k": "v"})
    assert before <= fs.modified(f"{folder}/a") == fs.created(f"{folder}/a")
    first = (fs.ukey(f"{folder}/a"), fs.checksum(f"{folder}/a"))
    fs.pipe_file(f"{folder}/a", b"9876543210")
    assert fs.ukey(f"{folder}/a") != first[0] and fs.checksum(f"{folder}/a") != first[1]


def test_ranges_of_many_files_are_read_by_one_message(fs, folder):
    paths = [f"{folder}/{number}" for number in range(5)]
    for number, path in enumerate(paths):
        fs.pipe_file(path, BODY[number : number + 1000])
    before = fs.store.status()["requests"]
    read = fs.cat_ranges(paths * 40, [3] * 200, [9] * 200)
    assert read == [BODY[number + 3 : number + 9] for number in range(5)] * 40
    assert fs.store.status()["requests"] - before <= 2
    assert fs.cat_ranges([paths[0]] * 5, [0, -3, None, 990, 7], [None, None, 2, 2000, 7]) == [
        BODY[:1000], BODY[997:1000], BODY[:2], BODY[990:1000], b""
    ]  # fmt: skip
    some = fs.cat_ranges([paths[0], f"{folder}/n", f"{folder}/n", paths[1]], 0, 3)
    assert (some[0], some[3]) == (BODY[:3], BODY[1:4]) and [type(one) for one in some[1:3]] == [bywash.errors.NotFoundError] * 2
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges([f"{folder}/n"], 0, 3, on_error="raise")
    assert fs.cat_file(paths[0], -5, -2) == BODY[995:998]
    assert set(fs.cat(f"{folder}/*")) == set(paths)
    assert fs.head(paths[0], 4) == BODY[:4] and fs.tail(paths[0], 4) == BODY[996:1000]


def test_object_that_is_there_is_not_created_again(fs, folder):
    fs.pipe_file(f"{folder}/a", b"1", mode="create")
    with pytest.raises(FileExistsError):
        fs.pipe_file(f"{folder}/a", b"2", mode="create")
    assert fs.cat_file(f"{folder}/a") == b"1"


def test_transaction_shows_all_files_at_its_end_or_none(fs, folder):
    with fs.transaction:
        for name in "ab":
            with fs.open(f"{folder}/{name}", "wb") as file:
                file.write(b"x")
        assert not fs.exists(f"{folder}/a")
    assert fs.find(folder) == [f"{folder}/a", f"{folder}/b"]
    with pytest.raises(RuntimeError), fs.transaction:
        with fs.open(f"{folder}/c", "wb") as file:
            file.write(b"x")
        raise RuntimeError
    assert fs.find(folder) == [f"{folder}/a", f"{folder}/b"]


def test_files_read_and_write_as_pythons_own(fs, folder, tmp_path):
    with fs.open(f"{folder}/a", "wb") as file:
        assert file.write(BODY) == len(BODY) and file.tell() == len(BODY)
    with fs.open(f"{folder}/a", block_size=4096) as file:
        assert (file.size, file.read(5), file.tell()) == (len(BODY), BODY[:5], 5)
        file.seek(-4, 2)
        assert file.read() == BODY[-4:]
        file.seek(MIB)
        buffer = bytearray(3 * MIB)
        assert file.readinto(buffer) == 3 * MIB and buffer == BODY[MIB : 4 * MIB]
        assert pickle.loads(pickle.dumps(file)).read(3) == BODY[4 * MIB : 4 * MIB + 3]
        assert file.details["size"] == len(BODY)
    with pytest.raises(RuntimeError), fs.open(f"{folder}/b", "wb") as file:
        file.write(b"x")
        raise RuntimeError
    assert not fs.exists(f"{folder}/b")
    with fs.open(f"{folder}/text", "w") as file:
        file.write("line one\nline two\n")
    with fs.open(f"{folder}/text", "r") as file:
        assert list(file) == ["line one\n", "line two\n"]
    fs.get_file(f"{folder}/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == BODY
    fs.put_file(tmp_path / "a", f"{folder}/c")
    assert fs.cat_file(f"{folder}/c") == BODY
    with pytest.raises(FileNotFoundError):
        fs.open(f"{folder}/n")


def test_pandas_and_pyarrow_read_and_write(fs, folder):
    frame = pandas.DataFrame({"a": range(10_000), "b": [f"row {number}" for number in range(10_000)]})
    frame.to_parquet(f"bywash://{folder}/set/one.parquet")
    frame.to_csv(f"bywash://{folder}/one.csv", index=False)
    pandas.testing.assert_frame_equal(pandas.read_parquet(f"bywash://{folder}/set/one.parquet"), frame)
    pandas.testing.assert_frame_equal(pandas.read_csv(f"bywash://{folder}/one.csv"), frame)
    arrow = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
    pyarrow.dataset.write_dataset(
        pyarrow.table({"a": [1, 2, 3], "part": ["x", "x", "y"]}), f"{folder}/parts", format="parquet", partitioning=["part"],
        partitioning_flavor="hive", filesystem=arrow,
    )  # fmt: skip
    read = pyarrow.dataset.dataset(f"{folder}/parts", filesystem=fs, partitioning="hive").to_table(filter=pyarrow.dataset.field("part") == "x")
    assert read["a"].to_pylist() == [1, 2]
    info = arrow.get_file_info(pyarrow.fs.FileSelector(f"{folder}/parts", recursive=True))
    assert sorted(one.base_name for one in info) == ["part-0.parquet", "part-0.parquet", "part=x", "part=y"]
    assert arrow.get_file_info(f"{folder}/n").type == pyarrow.fs.FileType.NotFound


def test_other_protocols_go_through_the_server_where_they_are_registered(fs, tmp_path):
    bywash.fsspec.register("s3")
    try:
        registered = fsspec.filesystem("s3", options={"endpoint": "http://127.0.0.1:1", "region": "us-east-1"})
        assert isinstance(registered, bywash.fsspec.BywashFileSystem)
        assert registered._strip_protocol("s3://b/k") == "b/k" and registered.unstrip_protocol("b/k") == "s3://b/k"
    finally:
        fsspec.register_implementation("s3", "s3fs.S3FileSystem", clobber=True)
        fsspec.registry  # The next test finds what fsspec itself has.
    with pytest.raises(ValueError, match="one of"):
        bywash.fsspec.register("ftp")


def test_signed_address_is_read_without_credentials(fs, folder):
    import requests

    fs.pipe_file(f"{folder}/a", b"0123456789")
    assert requests.get(fs.sign(f"{folder}/a")).content == b"0123456789"
    assert Path(fs.store.socket).exists()
