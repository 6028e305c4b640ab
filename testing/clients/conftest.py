"""Fixtures of all modules: origins, and a server over each of them."""

import importlib.util
import os

import pytest

from harness import S3_ORIGINS, Bywash, Moto, Versitygw

os.environ.pop("AWS_CA_BUNDLE", None)
REQUIRED = ("BYWASH_BIN", "BYWASH_AWS", "BYWASH_AZURITE", "BYWASH_FLIGHTS", "BYWASH_SERIES_FILES", "BYWASH_WIDE")
for missing in [name for name in REQUIRED if name not in os.environ]:
    pytest.exit(f"{missing} is not set: run this suite with `cargo xtask test --only clients`", returncode=2)


# Bywash's own package, s3fs with gcsfs, the old clients and the others need separate environments; each runs the files of its clients.
if importlib.util.find_spec("bywash"):
    collect_ignore_glob = ["test_[!p]*.py", "test_p[!y]*.py", "test_py[!t]*.py", "wide"]
elif importlib.util.find_spec("s3fs"):
    collect_ignore_glob = ["test_[!gs]*.py", "test_s[!3]*.py", "test_g[!c]*.py", "test_gcs_*.py", "wide"]
elif importlib.util.find_spec("awscli"):
    collect_ignore_glob = ["test_[!o]*.py", "test_o[!l]*.py", "wide"]
else:
    collect_ignore_glob = ["test_s3fs.py", "test_gcsfs.py", "test_old_clients.py", "test_python*.py"]


def pytest_sessionfinish(session, exitstatus):
    """An expression for `-k` may select no test of an environment."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.option.keyword:
        session.exitstatus = pytest.ExitCode.OK


@pytest.fixture(scope="session")
def moto(tmp_path_factory):
    """moto as an S3 origin; each module has its own bucket in it."""
    server = Moto(tmp_path_factory.mktemp("moto"))
    yield server
    server.process.kill()


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory):
    """versitygw as an S3 origin; each module has its own bucket in it."""
    server = Versitygw(tmp_path_factory.mktemp("versitygw"))
    yield server
    server.process.kill()


@pytest.fixture
def start(tmp_path):
    """Returns a function that starts servers, which are stopped after the test."""
    started = []

    def bywash(*arguments, **options):
        started.append(Bywash(tmp_path, *arguments, **options))
        return started[-1]

    bywash.folder = tmp_path
    yield bywash
    for server in started:
        server.stop()


class Served:
    """A server, one of its buckets, and a client of the origin that bypasses the server."""

    def __init__(self, server, bucket, store=None, nests=True):
        self.server, self.bucket = server, bucket
        self.origin = "s3" if store else "folder"
        # Client of the origin, if it is an S3 store.
        self.store = store and store.s3
        # Whether objects `a` and `a/b` can coexist and parts of keys can exceed 255 bytes: not if objects are files.
        self.nests = nests
        self.s3 = server.s3

    def put(self, key, body=b"", **options):
        return self.s3.put_object(Bucket=self.bucket, Key=key, Body=body, **options)

    def get(self, key, **options):
        return self.s3.get_object(Bucket=self.bucket, Key=key, **options)

    def read(self, key, **options):
        return self.get(key, **options)["Body"].read()

    def head(self, key, **options):
        return self.s3.head_object(Bucket=self.bucket, Key=key, **options)

    def stats(self):
        return self.server.bucket_stats(self.bucket)

    def check_second_is_warm(self, run):
        """Runs a function twice and checks that the second run fetches no data from the origin."""
        run()
        first = self.stats()
        run()
        second = self.stats()
        assert second["hits"] > first["hits"]
        assert second["origin_data_requests"] == first["origin_data_requests"]


@pytest.fixture(scope="module", params=["folder", *S3_ORIGINS])
def served(request, tmp_path_factory):
    """A server with credentials and a bucket, over a folder and over real S3 origins."""
    folder = tmp_path_factory.mktemp("served")
    bucket = "suite-" + request.module.__name__.removeprefix("test_").replace("_", "-")
    if request.param == "folder":
        server = Bywash(folder)
        server.s3.create_bucket(Bucket=bucket)
        origin = None
    else:
        origin = request.getfixturevalue(request.param)
        origin.s3.create_bucket(Bucket=bucket)
        server = Bywash(folder, f"s3://{bucket}", env=origin.environment())
    yield Served(server, bucket, origin, nests=request.param != "versitygw")
    assert server.stop() == 0, "an idle server must exit with 0 after SIGTERM"


@pytest.fixture(scope="session")
def flights():
    """`flights-3m.parquet`, whose digest `cargo xtask test` has checked."""
    return os.environ["BYWASH_FLIGHTS"]
