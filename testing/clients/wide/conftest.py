"""Fixtures of the wide matrix: one server over a folder, moto or versitygw, and each client with a home of its own; and its table of results."""

import collections
import os

import pytest
from harness import Bywash, Moto, Versitygw

BUCKET = "wide"
# Names of the clients that run, separated by semicolons; all without it.
CHOSEN = os.environ.get("BYWASH_WIDE_CLIENTS")


def pytest_collection_modifyitems(config, items):
    """Leaves clients out that were not chosen."""
    here = os.path.dirname(__file__)

    def is_chosen(item):
        client = getattr(item, "callspec", None) and item.callspec.params.get("client")
        return not str(item.path).startswith(here) or bool(client) and client[0] in CHOSEN.split(";")

    if CHOSEN:
        left_out = [item for item in items if not is_chosen(item)]
        items[:] = [item for item in items if is_chosen(item)]
        config.hook.pytest_deselected(items=left_out)


# The origin of the bucket: `folder`, `moto`, or `versitygw`.
ORIGIN = os.environ.get("BYWASH_WIDE_ORIGIN", "folder")
S3 = {"moto": Moto, "versitygw": Versitygw}


@pytest.fixture(scope="session")
def wide(tmp_path_factory):
    """A server with credentials and a bucket over the origin."""
    folder = tmp_path_factory.mktemp("wide")
    origin = S3[ORIGIN](folder) if ORIGIN in S3 else None
    if origin:
        origin.s3.create_bucket(Bucket=BUCKET)
        # moto ignores conditions of deletes.
        heeds = {"AWS_CONDITIONAL_DELETE": "etag"} if ORIGIN == "versitygw" else {}
        server = Bywash(folder, f"s3://{BUCKET}", env=origin.environment() | heeds)
    else:
        server = Bywash(folder)
        server.s3.create_bucket(Bucket=BUCKET)
    yield server
    assert server.stop() == 0
    if origin:
        origin.process.kill()


@pytest.fixture(scope="session")
def versions():
    """Version of each client, found once."""
    return {}


@pytest.fixture
def client(request, wide, versions, tmp_path, record_property):
    """The client of a test that is parametrised by name and class."""
    name, kind = request.param
    if not kind.path.exists():
        # A client that was chosen by name must run.
        missing = pytest.fail if CHOSEN else pytest.skip
        missing(f"{name} is not installed; `cargo xtask clients --wide` prints the reason")
    record_property("client", name)
    client = kind(wide, BUCKET, tmp_path)
    client.origin = ORIGIN
    client.s3 = wide.s3
    if name not in versions:
        versions[name] = client.version()
    record_property("version", versions[name])
    return client


def pytest_terminal_summary(terminalreporter):
    """Prints a row for each client: version, tests that passed, seconds."""
    rows = collections.defaultdict(lambda: {"version": "", "passed": 0, "failed": 0, "seconds": 0.0})
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            properties = dict(getattr(report, "user_properties", []))
            if "client" not in properties:
                continue
            row = rows[properties["client"]]
            row["version"] = properties.get("version", row["version"])
            row["passed" if outcome == "passed" else "failed"] += 1
            row["seconds"] += report.duration
    if not rows or CHOSEN:
        return
    terminalreporter.write_line("| client | version | passed | failed | seconds |")
    terminalreporter.write_line("|---|---|--:|--:|--:|")
    for name, row in rows.items():
        cells = [name, row["version"], row["passed"], row["failed"], f"{row['seconds']:.1f}"]
        terminalreporter.write_line(f"| {' | '.join(map(str, cells))} |")
