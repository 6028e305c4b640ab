"""Tests of stores that other projects have, and programs that go on over the death of their server."""

import contextlib
import sqlite3
import urllib.parse

import pytest
from harness import Bywash, Process, until
from program_adapters import ANNEXES, DATABASES, SUITES

suites = pytest.mark.parametrize("client", SUITES.items(), ids=SUITES, indirect=True)
annexes = pytest.mark.parametrize("client", ANNEXES.items(), ids=ANNEXES, indirect=True)
databases = pytest.mark.parametrize("client", DATABASES.items(), ids=DATABASES, indirect=True)


@suites
def test_suites_of_other_projects(client):
    if client.origin != "folder":
        pytest.skip("it needs a bucket of its own")
    bucket = f"suite-{type(client).__name__.lower()}"
    client.s3.create_bucket(Bucket=bucket)
    outcomes = client.outcomes(bucket)
    passed = {name for name, outcome in outcomes.items() if outcome == "PASS"}
    failed = {name for name, outcome in outcomes.items() if outcome == "FAIL"}
    assert failed == client.refused, (client.home / "output").read_text()[-6000:]
    assert passed >= client.needed


@annexes
@pytest.mark.parametrize("signature", ["v2", "v4"])
def test_git_annex_with_either_signature(client, signature):
    client.remote("store", f"signature={signature}")
    tested = client.call("annex", "testremote", "--fast", "--size", "20MiB", "store")
    assert "All 125 tests passed" in tested, tested[-3000:]


@databases
def test_database_is_copied_over_the_death_of_its_server(client, tmp_path):
    """Rows are written while the server is killed and started again. The copy has all of them."""
    server = Bywash(tmp_path)
    server.s3.create_bucket(Bucket="databases")
    address = urllib.parse.urlsplit(server.url).netloc
    server.arguments[server.arguments.index("--s3-addr") + 1] = address
    file = tmp_path / "database"
    settings = client.settings(file, server.url, "databases")
    database = sqlite3.connect(file, isolation_level=None)
    with contextlib.closing(database):
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, data BLOB)")
        replicating = Process([client.path, "replicate", "-config", settings], client.env, tmp_path / "litestream.log")
        number = 0
        for _ in range(4):
            for _ in range(150):
                database.execute("INSERT INTO rows VALUES (?, randomblob(20000))", [number])
                number += 1
            server.kill()
            database.execute("UPDATE rows SET data = randomblob(20000) WHERE number % 10 = 0")
            server.start()
            until("objects after the start", lambda: copies(server), 60)
        replicating.stop()
        client.run(client.path, "replicate", "-config", settings, "-once")
        rows = database.execute("SELECT * FROM rows").fetchall()
    assert len(rows) == 600
    back = tmp_path / "back"
    client.run(client.path, "restore", "-config", settings, "-o", back, file)
    with contextlib.closing(sqlite3.connect(back)) as restored:
        assert restored.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert restored.execute("SELECT * FROM rows").fetchall() == rows
    assert server.stop() == 0


def copies(server):
    return server.s3.list_objects_v2(Bucket="databases").get("Contents")
