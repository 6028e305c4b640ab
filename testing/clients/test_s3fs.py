"""s3fs, unmodified, with the suites that fsspec has for its file systems.

It runs in an environment of its own: s3fs pins a botocore other than boto3's newest.
"""

import fsspec
import fsspec.tests.abstract as abstract
import pytest
from harness import ACCESS_KEY, MIB, ODD_KEYS, REGION, SECRET_KEY, Bywash, payload
from s3fs import S3FileSystem

BUCKET = "suite-s3fs"


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    server = Bywash(tmp_path_factory.mktemp("s3fs"))
    server.s3.create_bucket(Bucket=BUCKET)
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="session")
def fs(server):
    """s3fs without its cache of listings."""
    options = {"endpoint_url": server.url, "client_kwargs": {"region_name": REGION}, "use_listings_cache": False}
    return S3FileSystem(key=ACCESS_KEY, secret=SECRET_KEY, **options)


class Fixtures(abstract.AbstractFixtures):
    """Fixtures that fsspec's suites need."""

    @pytest.fixture
    def fs(self, fs):
        return fs

    @pytest.fixture
    def fs_path(self, request):
        return f"{BUCKET}/{request.node.originalname}"

    @pytest.fixture
    def fs_join(self):
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def supports_empty_directories(self):
        """Object stores have none, and s3fs creates no markers."""
        return False


class TestCopy(Fixtures, abstract.AbstractCopyTests):
    pass


class TestGet(Fixtures, abstract.AbstractGetTests):
    pass


class TestPut(Fixtures, abstract.AbstractPutTests):
    pass


class TestOpen(Fixtures, abstract.AbstractOpenTests):
    def test_open_exclusive(self, fs, fs_target):
        """s3fs checks only at the write; fsspec's own test expects an error of `open`, which is impossible with S3."""
        for body, expected in ((b"first", True), (b"second", False), (payload(6 * MIB), False)):
            try:
                with fs.open(fs_target, "xb", block_size=5 * MIB) as out:
                    out.write(body)
                written = True
            except FileExistsError:
                written = False
            assert written is expected
        assert fs.cat_file(fs_target) == b"first"


class TestPipe(Fixtures, abstract.AbstractPipeTests):
    pass


@pytest.mark.parametrize("size", [0, 1, MIB + 1, 23 * MIB])
def test_written_data_reads_back(fs, size):
    body, path = payload(size, size), f"{BUCKET}/sizes/{size}"
    with fs.open(path, "wb", block_size=5 * MIB) as out:  # more than one block is uploaded in parts
        out.write(body)
    assert fs.info(path)["size"] == size
    with fs.open(path, "rb") as source:
        assert source.read() == body
    if size:
        assert fs.cat_file(path, start=size // 2, end=size // 2 + 10) == body[size // 2 : size // 2 + 10]


@pytest.mark.parametrize("key", [key for key in ODD_KEYS if not set(key) & set("*?[]")])
def test_odd_keys(fs, key):
    """Without keys that are special in a glob."""
    fs.pipe_file(f"{BUCKET}/odd/{key}", key.encode())
    assert fs.cat_file(f"{BUCKET}/odd/{key}") == key.encode()
    assert f"{BUCKET}/odd/{key}" in fs.find(f"{BUCKET}/odd")


def test_ranges_of_many_files(fs):
    bodies = {f"{BUCKET}/many/{number}": payload(1000, number) for number in range(20)}
    fs.pipe(bodies)
    assert fs.cat(f"{BUCKET}/many/*") == bodies
    paths = list(bodies)
    assert fs.cat_ranges(paths, [10] * 20, [20] * 20) == [body[10:20] for body in bodies.values()]
    fs.rm(f"{BUCKET}/many", recursive=True)
    assert not fs.exists(f"{BUCKET}/many")


def test_metadata(fs):
    path = f"{BUCKET}/described"
    fs.pipe_file(path, b"body", ContentType="text/csv", Metadata={"colour": "blue"})
    assert fs.metadata(path) == {"colour": "blue"}
    fs.setxattr(path, shape="round", copy_kwargs={"ContentType": "text/csv"})
    assert fs.metadata(path) == {"colour": "blue", "shape": "round"}
    assert fs.info(path)["ContentType"] == "text/csv"
    assert fs.cat_file(path) == b"body"


def test_buckets(fs):
    fs.mkdir("made-by-s3fs")
    fs.touch("made-by-s3fs/a/b")
    assert fs.ls("made-by-s3fs/a") == ["made-by-s3fs/a/b"]
    fs.rm("made-by-s3fs", recursive=True)
    assert not fs.exists("made-by-s3fs")


def test_address_with_a_protocol(server):
    options = {"key": ACCESS_KEY, "secret": SECRET_KEY, "endpoint_url": server.url}
    with fsspec.open(f"s3://{BUCKET}/by/address", "w", **options) as out:
        out.write("text")
    with fsspec.open(f"s3://{BUCKET}/by/address", **options) as source:
        assert source.read() == b"text"
