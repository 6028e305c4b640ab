"""Google's own conformance tests of its clients for Go and Python, unmodified, at the GCS endpoint behind a proxy that injects their faults,
and the system tests of its media library for Python.

The former order faults from Google's storage-testbench, and check that calls succeed or fail as their data file states and that all faults came.
The proxy refuses orders for methods that the endpoint does not serve, and for gRPC; Go's test skips those.
"""

import collections
import importlib
import os
import re
import subprocess
import sys
import uuid
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
from adapters import WIDE
from fault_proxy import FaultProxy
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google_faults import SERVED, OrderedFaults
from harness import Bywash

# Of Go's client: the compiled test, and its data, in the folder of the module.
GO = WIDE / "go/gcs-tests"
# Of the Python client: its source distribution.
PYTHON = WIDE / "python-gcs-tests"
# Most of the time is the client's waits.
CONCURRENT = 48
# Of its media library: tests that fail, by reason.
FAILING = {
    "keys of customers are not served": {
        "test_simple_upload_with_headers",
        "test_multipart_upload_with_headers",
        "test_resumable_upload_with_headers",
        "test_resumable_upload_recover_with_headers",
        "TestDownload.test_extra_headers",
        "TestRawDownload.test_extra_headers",
        "TestChunkedDownload.test_chunked_with_extra_headers",
        "TestRawChunkedDownload.test_chunked_with_extra_headers",
    },
    "a session outlives a chunk that was refused": {"test_resumable_upload_bad_chunk_size"},
}


@pytest.fixture
def proxy(tmp_path):
    server = Bywash(tmp_path, "--anonymous", credentials=False)
    proxy = FaultProxy(server.gcs, OrderedFaults())
    yield proxy
    proxy.stop()
    assert server.stop() == 0


def needs(folder):
    if not (folder / "installed").exists():
        pytest.skip(f"{folder.name} is not installed; `cargo xtask clients --wide` prints the reason")


def test_go_client(proxy):
    needs(GO)
    # Short: without the tests that need Google, which begin by making buckets there.
    command = [GO / "program", "-test.short", "-test.v", "-test.run", "TestRetryConformance/^http"]
    env = os.environ | {"STORAGE_EMULATOR_HOST": proxy.url}
    done = subprocess.run(command, cwd=GO / "source", env=env, capture_output=True, text=True, timeout=900)
    lines = re.findall(r"--- (PASS|FAIL|SKIP): TestRetryConformance/(\S+)", done.stdout)
    found = collections.Counter(outcome for outcome, _ in lines)
    print(f"Go: {dict(found)}")
    failed = [name for outcome, name in lines if outcome == "FAIL"]
    assert not failed and done.returncode == 0, "\n".join([*failed, done.stdout[-20_000:], done.stderr[-2000:]])
    assert found["PASS"] > 100


def module_of(proxy):
    """Loads Google's test, which would start the storage-testbench in a container."""
    sys.path.insert(0, str(PYTHON))
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]
    quiet = [mock.patch(f"subprocess.{name}") for name in ["run", "Popen"]] + [mock.patch("time.sleep")]
    with mock.patch.dict(os.environ, STORAGE_EMULATOR_HOST=proxy.url), quiet[0], quiet[1], quiet[2]:
        module = importlib.import_module("tests.conformance.test_conformance")
        return module, importlib.import_module("tests.conformance.conftest")


def test_python_client(proxy):
    needs(PYTHON)
    module, conftest = module_of(proxy)
    calls = [
        (scenario["id"], method, case, function)
        for scenario in module._CONFORMANCE_TESTS
        for method in scenario["methods"]
        if method["name"] in SERVED
        for case in scenario["cases"]
        for function in module.method_mapping.get(method.get("group") or method["name"], [])
        if not re.search("_acl_|make_(public|private)", function.__name__)
    ]

    def run(call):
        client = storage.Client("p", AnonymousCredentials(), client_options={"api_endpoint": proxy.url})
        bucket = client.create_bucket(uuid.uuid4().hex)
        small, large = bucket.blob(uuid.uuid4().hex), bucket.blob(uuid.uuid4().hex)
        small.upload_from_string(conftest._STRING_CONTENT)
        small.reload()
        text = conftest._create_block(conftest._SIZE_9MB)
        resources = {"bucket": bucket, "object": small, "notification": None, "hmac_key": None}
        if call[1].get("group") or "download" in call[3].__name__ or "reader" in call[3].__name__:
            large.upload_from_string(text)
        try:
            module.run_test_case(*call, proxy.url, **resources, file_data=(large, text))
        except Exception as error:
            return f"S{call[0]} {call[1]['name']} {call[3].__name__} {call[2]['instructions']}: {error!r}"
        return None

    with ThreadPoolExecutor(CONCURRENT) as pool:
        failed = [failure for failure in pool.map(run, calls) if failure]
    print(f"Python: {len(calls) - len(failed)} of {len(calls)}")
    assert not failed, "\n".join(failed)
    assert len(calls) > 100


def test_python_media_library(tmp_path):
    needs(PYTHON)
    server = Bywash(tmp_path, "--anonymous", credentials=False)
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "google_media_tests", "-p", "no:cacheprovider"]
    command += [f"--junitxml={report}", "tests/resumable_media/system"]
    modules = os.pathsep.join([os.path.dirname(__file__), str(PYTHON / "modules")])
    env = os.environ | {"PYTHONPATH": modules, "GCS_ENDPOINT": server.gcs}
    done = subprocess.run(command, cwd=PYTHON, env=env, capture_output=True, text=True, timeout=300)
    assert server.stop() == 0
    # One that fails, and then in its end, is there twice.
    cases = list(ElementTree.parse(report).iter("testcase"))
    name = lambda case: ".".join([*re.findall(r"\.(Test\w+)$", case.get("classname")), case.get("name")])  # noqa: E731
    failed = {name(case) for case in cases if case.find("failure") is not None or case.find("error") is not None}
    total = len({name(case) for case in cases})
    print(f"Python, media library: {total - len(failed)} of {total}")
    assert failed == set().union(*FAILING.values()), done.stdout[-20_000:] + done.stderr[-2000:]
    assert total == 87
