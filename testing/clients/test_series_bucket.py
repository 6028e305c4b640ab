"""Series whose files are in a bucket: servers on two machines, kills, and a store that is down."""

import os
import signal
import subprocess

import pytest
import requests
from harness import ACCESS_KEY, S3_ORIGINS, SECRET_KEY, Azurite, Bywash, Moto, clean_environment

BUCKET = "series-files"


@pytest.fixture(params=["folder", *S3_ORIGINS, "azure"])
def shared(request, tmp_path):
    """The URL of a bucket that several servers use, and the environment that reaches it."""
    bucket = f"{BUCKET}-{request.node.originalname.replace('_', '-')}"[:60].rstrip("-")
    if request.param == "folder":
        (tmp_path / "bucket").mkdir()
        return f"file://{tmp_path}/bucket", {}
    if request.param in S3_ORIGINS:
        origin = request.getfixturevalue(request.param)
        origin.s3.create_bucket(Bucket=bucket)
        return f"s3://{bucket}", origin.environment()
    azurite = Azurite(tmp_path)
    request.addfinalizer(azurite.process.kill)
    azurite.request("PUT", bucket, restype="container")
    return f"az://{bucket}", azurite.environment()


@pytest.fixture
def machine(shared, tmp_path, request):
    """Returns a function that starts the server of a machine: a data folder of its own, and the shared bucket."""
    url, env = shared

    def start(name):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        server = Bywash(folder, f"metrics={url}", "--series-bucket", "metrics/all", env=env)
        request.addfinalizer(server.stop)
        return server

    return start


def write(server, *points):
    lines = "\n".join(f"m v={value} {at}" for at, value in points)
    return requests.post(server.admin + "/write", data=lines, auth=(ACCESS_KEY, SECRET_KEY), timeout=90)


def rows(server):
    query = {"source": "m", "metric": "v"}
    response = requests.get(server.admin + "/series/query", params=query, auth=(ACCESS_KEY, SECRET_KEY), timeout=90)
    assert response.ok, response.text
    return [(row["timestamp"], row["value"]) for row in response.json()]


def series(shared, *words):
    """Runs `bywash series` at the bucket itself."""
    url, env = shared
    command = [os.environ["BYWASH_BIN"], "series", "--at", f"{url}/all", *words]
    done = subprocess.run(command, env=clean_environment() | env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_rows_of_killed_servers_come_back(machine, shared):
    first = machine("first")
    assert write(first, (1, 1.0)).status_code == 204
    # A stop flushes, so that the next machine has them; a kill leaves them to the log.
    assert first.stop() == 0
    first.start()
    assert write(first, (2, 2.0), (5, 1.0)).status_code == 204
    first.kill()

    second = machine("second")
    assert rows(second) == [(1, 1.0)]
    assert write(second, (3, 3.0), (5, 2.0)).status_code == 204
    second.kill()
    second.start()
    assert rows(second) == [(1, 1.0), (3, 3.0), (5, 2.0)]
    assert second.stop() == 0

    first.start()
    everything = [(1, 1.0), (2, 2.0), (3, 3.0), (5, 2.0)]
    assert rows(first) == everything, "of one timestamp the last one written"
    assert first.stop() == 0
    third = machine("third")
    assert rows(third) == everything
    assert len(series(shared, "query", "m").splitlines()) == len(everything)
    assert "bywash  starts" in series(shared, "ls")
    # The files are objects of the bucket, and the history is a bucket of its own.
    listed = third.s3.list_objects_v2(Bucket="metrics", Prefix="all/")["Contents"]
    assert {"all/series/manifest", "all/history/manifest"} <= {found["Key"] for found in listed}
    assert third.s3.get_object(Bucket="bywash-history", Key="manifest")["Body"].read()


def test_two_servers_at_once_have_one_writer(machine):
    first, second = machine("first"), machine("second")
    assert write(second, (1, 1.0)).status_code == 204
    assert write(first, (2, 2.0)).status_code == 204, "it has not learned of the other yet"
    # It learns at a stop, at a flush, or within a minute.
    assert first.stop() == 0
    assert "another process writes" in first.process.log.read_text()
    assert rows(second) == [(1, 1.0)]
    assert second.stop() == 0
    first.start()
    assert rows(first) == [(1, 1.0), (2, 2.0)]


def test_store_that_is_down_is_named_and_holds_up_no_write(tmp_path, request):
    """The store is one of this test's own, stopped and continued."""
    (tmp_path / "store").mkdir()
    origin = Moto(tmp_path / "store")
    request.addfinalizer(origin.process.kill)
    origin.s3.create_bucket(Bucket="down")
    server = Bywash(tmp_path, "metrics=s3://down", "--series-bucket", "metrics", env=origin.environment())
    request.addfinalizer(server.stop)
    assert write(server, (1, 1.0)).status_code == 204
    origin.process.child.send_signal(signal.SIGSTOP)
    request.addfinalizer(lambda: origin.process.child.send_signal(signal.SIGCONT))
    for at in range(2, 50):
        assert write(server, (at, 1.0)).status_code == 204
    assert len(rows(server)) == 49
    # A stop tries to flush, gives up in time, and leaves the rows to the log.
    assert server.stop() == 0
    assert "stay in their log" in server.process.log.read_text()
    origin.process.child.send_signal(signal.SIGCONT)
    server.start()
    assert len(rows(server)) == 49
    metrics = requests.get(server.admin + "/metrics", timeout=30).text
    assert 'bywash_series_store_failing_seconds{database="values"} 0\n' in metrics
