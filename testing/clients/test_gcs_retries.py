"""Google's Python client repeats failed requests at the GCS endpoint as its conformance tests demand.

The scenarios are those of googleapis/conformance-tests, `storage/v1/retry_tests.json`, for the methods that the endpoint serves; the
wide matrix runs Google's own tests of its Go and Python clients. Each scenario orders faults of a method from a proxy, calls functions
of the client, and checks that they succeed or fail as stated, that all faults came, and what the endpoint has then.
"""

import io
import os
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from fault_proxy import FaultProxy
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google_faults import OrderedFaults
from harness import MIB, Bywash, payload

# The client waits before it repeats: a second, then two, each by chance. Waits of many calls pass at the same time.
CONCURRENT = 64
SMALL = b"hello world"
LARGE = payload(9 * MIB)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    server = Bywash(tmp_path_factory.mktemp("retries"), "--anonymous", credentials=False)
    proxy = FaultProxy(server.gcs, OrderedFaults())
    yield proxy
    proxy.stop()
    assert server.stop() == 0


class Call:
    """One call of a function of the client under faults: a bucket of its own with an object, and a client that meets them."""

    def __init__(self, proxy, faults, is_conditional):
        self.proxy, self.is_conditional = proxy, is_conditional
        setup = self.connect()
        self.bucket = setup.create_bucket(uuid.uuid4().hex)
        self.object = self.bucket.blob("object")
        self.object.upload_from_string(SMALL)
        self.order = proxy.faults.order(faults)
        self.client = self.connect()
        self.client._http.headers["x-retry-test-id"] = self.order

    def connect(self):
        return storage.Client("p", AnonymousCredentials(), client_options={"api_endpoint": self.proxy.url})

    def blob(self, name="object", **options):
        """Returns an object of the client under faults."""
        return self.client.bucket(self.bucket.name).blob(name, **options)

    def absent(self):
        """Returns the condition that an object does not exist."""
        return {"if_generation_match": 0} if self.is_conditional else {}

    def current(self):
        """Returns the condition that the object is still the one of the start."""
        return {"if_generation_match": self.object.generation} if self.is_conditional else {}

    def unchanged(self):
        return {"if_metageneration_match": self.object.metageneration} if self.is_conditional else {}

    def stored(self, name):
        return self.bucket.blob(name).download_as_bytes()


def delete_bucket(call):
    call.object.delete()
    call.client.bucket(call.bucket.name).delete()
    assert call.connect().lookup_bucket(call.bucket.name) is None


def create_bucket(call):
    name = uuid.uuid4().hex
    call.client.create_bucket(name)
    assert call.connect().get_bucket(name).name == name


def read(call):
    assert call.blob().download_as_bytes() == SMALL


def list_objects(call):
    assert [blob.name for blob in call.client.list_blobs(call.bucket.name)] == ["object"]


def compose(call):
    call.blob("new").compose([call.blob(), call.blob()], **call.absent())
    assert call.stored("new") == SMALL * 2


def copy(call):
    call.client.bucket(call.bucket.name).copy_blob(call.blob(), call.bucket, "new", **call.absent())
    assert call.stored("new") == SMALL


def rewrite(call):
    call.blob("new").rewrite(call.blob(), **call.absent())
    assert call.stored("new") == SMALL


def delete(call):
    call.blob().delete(**call.current())
    assert not call.object.exists()


def insert(call):
    call.blob("new").upload_from_string(b"new", **call.absent())
    assert call.stored("new") == b"new"


def insert_by_session(call):
    call.blob("new", chunk_size=MIB // 4).upload_from_file(io.BytesIO(LARGE[: MIB // 2]), **call.absent())
    assert call.stored("new") == LARGE[: MIB // 2]


def change(of_client):
    def changed(call):
        blob = call.blob()
        blob.metadata = {"a": "b"}
        getattr(blob, of_client)(**call.unchanged())
        assert call.bucket.get_blob("object").metadata == {"a": "b"}

    changed.__name__ = of_client
    return changed


def upload_large(call):
    call.blob("large", chunk_size=4 * MIB).upload_from_file(io.BytesIO(LARGE), **call.absent())
    assert call.stored("large") == LARGE


def write_large(call):
    with call.blob("large", chunk_size=2 * MIB).open("wb", **call.absent()) as file:
        file.write(LARGE)
    assert call.stored("large") == LARGE


def large(call):
    call.bucket.blob("large").upload_from_string(LARGE)
    return call.blob("large")


def read_large(call):
    assert large(call).download_as_bytes() == LARGE


def read_large_to_file(call):
    file = io.BytesIO()
    large(call).download_to_file(file)
    assert file.getvalue() == LARGE


def read_large_in_chunks(call):
    file = io.BytesIO()
    blob = large(call)
    blob.chunk_size = 2 * MIB
    blob.download_to_file(file)
    assert file.getvalue() == LARGE


# Functions of the client by the method that they call.
IDEMPOTENT = {
    "storage.buckets.delete": [delete_bucket],
    "storage.buckets.get": [
        lambda call: call.client.get_bucket(call.bucket.name),
        lambda call: call.client.bucket(call.bucket.name).reload(),
        lambda call: call.client.lookup_bucket(call.bucket.name).name,
        lambda call: call.client.bucket(call.bucket.name).exists() or pytest.fail("it exists"),
    ],
    "storage.buckets.insert": [create_bucket],
    "storage.buckets.list": [lambda call: list(call.client.list_buckets(max_results=5))],
    "storage.objects.get": [read, lambda call: call.blob().reload(), lambda call: call.blob().exists() or pytest.fail("it exists")],
    "storage.objects.list": [list_objects],
}
# Repeated under a condition only.
CONDITIONAL = {
    "storage.objects.compose": [compose],
    "storage.objects.copy": [copy],
    "storage.objects.rewrite": [rewrite],
    "storage.objects.update": [change("update")],
}
# The conformance tests count these as conditional; since its version 3 the Python client always repeats them.
REPEATED = {
    "storage.objects.delete": [delete],
    "storage.objects.insert": [insert, insert_by_session],
    "storage.objects.patch": [change("patch")],
}
ALL = IDEMPOTENT | CONDITIONAL | REPEATED
SESSIONS = {"storage.objects.insert": [upload_large, write_large]}
DOWNLOADS = {"storage.objects.get": [read_large, read_large_to_file, read_large_in_chunks]}
RESET = "return-reset-connection"
TWICE = [["return-503", "return-503"], [RESET, RESET], [RESET, "return-503"]]
ONCE = [["return-503"], [RESET]]
# Faults of one call that take 15 s of waits; `BYWASH_RETRIES=all` runs them too.
STEPS = ["1000K", "1024K", "1025K", "4000K", "4096K", "4097K"] if os.environ.get("BYWASH_RETRIES") == "all" else []
# Methods, lists of faults, whether the calls have conditions, and whether they succeed.
SCENARIOS = {
    "1-idempotent": (IDEMPOTENT, TWICE, False, True),
    "2-with-conditions": (CONDITIONAL | REPEATED, TWICE, True, True),
    "3-without-conditions": (CONDITIONAL, ONCE, False, False),
    "3-always-repeated": (REPEATED, ONCE, False, True),
    "5-not-to-be-repeated": (ALL, [["return-400"], ["return-401"]], False, False),
    "6-mixed": (ALL, [["return-503", "return-400"], [RESET, "return-401"]], True, False),
    "7-sessions": (
        SESSIONS,
        [
            [RESET, "return-503"],
            ["return-408"],
            ["return-503-after-256K"],
            ["return-503-after-8192K", "return-408"],
            ["return-503-after-4080K"],
            *([[f"return-503-after-{step}" for step in STEPS]] if STEPS else []),
        ],
        True,
        True,
    ),
    "8-downloads": (DOWNLOADS, [["return-broken-stream"], ["return-broken-stream-after-256K"]], False, True),
}


def outcome(proxy, method, faults, function, is_conditional):
    """Runs a call, and returns its error, `None` if it succeeded, and the faults that did not come."""
    call = Call(proxy, {method: faults}, is_conditional)
    try:
        function(call)
    except AssertionError:
        raise
    except Exception as error:
        return error, proxy.faults.unused(call.order)
    return None, proxy.faults.unused(call.order)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_client_repeats_what_the_conformance_tests_demand(proxy, scenario):
    methods, lists, is_conditional, succeeds = SCENARIOS[scenario]
    calls = [(method, faults, function) for method, functions in methods.items() for function in functions for faults in lists]
    with ThreadPoolExecutor(CONCURRENT) as pool:
        found = list(pool.map(lambda call: outcome(proxy, *call, is_conditional), calls))
    wrong = [
        f"{method} {function.__name__} after {faults}: {error!r}, unused {unused}"
        for (method, faults, function), (error, unused) in zip(calls, found, strict=True)
        if (error is None) != succeeds or unused
    ]
    assert not wrong, "\n".join(wrong)


def test_proxy_finds_calls_that_are_not_repeated(proxy):
    """Negative control: a client that gives up fails under the faults that the scenarios state, and leaves some of them unused."""
    faults = ["return-503", "return-503"]
    error, unused = outcome(proxy, "storage.objects.get", faults, lambda call: call.blob().download_as_bytes(retry=None), False)
    assert error is not None and unused == {"storage.objects.get": ["return-503"]}
