"""The faults of Google's conformance tests, for the proxy of `fault_proxy.py` before the GCS endpoint.

Tests order them by the interface of Google's storage-testbench: `POST /retry_test` with a list of instructions for each method, with an
id that later requests state in `x-retry-test-id`; `GET` and `DELETE /retry_test/ID`. Each request that has an id takes the next instruction
of its method:

* `return-N`: the proxy responds with status N; the endpoint sees nothing.
* `return-reset-connection`: the proxy resets the connection; the endpoint sees nothing.
* `return-N-after-MK`: of a resumable upload, the endpoint gets the bytes up to MK and then an end in the middle of the body; the client
  gets status N.
* `return-broken-stream`, `return-broken-stream-after-MK`: the response of a read is cut after some bytes, or after MK.
"""

import json
import re
import threading
import urllib.parse
import uuid

from fault_proxy import Fault

# Method and path of a request, and its name in Google's API. Only what the endpoint serves; of buckets, changes are of what it has.
OPERATIONS = [
    ("GET", r"/storage/v1/b/?", "storage.buckets.list"),
    ("POST", r"/storage/v1/b/?", "storage.buckets.insert"),
    ("GET", r"/storage/v1/b/[^/]+", "storage.buckets.get"),
    ("DELETE", r"/storage/v1/b/[^/]+", "storage.buckets.delete"),
    ("GET", r"/storage/v1/b/[^/]+/o/?", "storage.objects.list"),
    ("POST", r"/storage/v1/b/[^/]+/o/.+/compose", "storage.objects.compose"),
    ("POST", r"/storage/v1/b/[^/]+/o/.+/copyTo/.+", "storage.objects.copy"),
    ("POST", r"/storage/v1/b/[^/]+/o/.+/rewriteTo/.+", "storage.objects.rewrite"),
    ("GET", r"(?:/download)?/storage/v1/b/[^/]+/o/.+", "storage.objects.get"),
    ("DELETE", r"/storage/v1/b/[^/]+/o/.+", "storage.objects.delete"),
    ("PATCH", r"/storage/v1/b/[^/]+/o/.+", "storage.objects.patch"),
    ("PUT", r"/storage/v1/b/[^/]+/o/.+", "storage.objects.update"),
    ("POST", r"/upload/storage/v1/b/[^/]+/o", "storage.objects.insert"),
    ("PUT", r"/upload/storage/v1/b/[^/]+/o", "storage.objects.insert"),
    # Of the XML API.
    ("GET", r"/[^/]+/.+", "storage.objects.get"),
]
SERVED = {name for _, _, name in OPERATIONS}
INSTRUCTION = re.compile(r"return-(?:(?P<status>\d+)|(?P<fault>reset-connection|broken-stream))(?:-after-(?P<kib>\d+)K)?")
ORDERS = "/retry_test"
# What a read returns before its stream is cut, without a stated number.
FEW_BYTES = 4


def operation_of(request):
    """Returns the name of a request in Google's API; `None` if it is none that is served."""
    method = request.headers.get("x-http-method-override", request.method)
    path = urllib.parse.urlsplit(request.target).path
    for of_method, pattern, name in OPERATIONS:
        if method == of_method and re.fullmatch(pattern, path):
            return name
    return None


def cut_of_upload(request, limit):
    """Returns how many bytes of the body come before byte `limit` of the object, 0 if it ends before the body; `None` if the
    request does not reach it."""
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(request.target).query)
    if "upload_id" not in query or request.left == 0:
        return None
    found = re.match(r"bytes (\d+)-", request.headers.get("content-range", "bytes 0-"))
    begin = int(found.group(1)) if found else 0
    return max(0, limit - begin) if limit < begin + request.left else None


class OrderedFaults:
    """Faults by the ids and methods of requests."""

    # A client repeats a request on a connection that was used before without counting it; the tests count.
    keeps_connections = False

    def __init__(self):
        self.orders = {}
        self.lock = threading.Lock()

    def order(self, instructions):
        """Orders faults: lists of instructions by the names of methods. Returns the id for requests."""
        for instruction in [each for listed in instructions.values() for each in listed]:
            assert INSTRUCTION.fullmatch(instruction), instruction
        name = uuid.uuid4().hex
        with self.lock:
            self.orders[name] = {method: list(listed) for method, listed in instructions.items()}
        return name

    def unused(self, name):
        """Returns the instructions of an order that no request has taken."""
        with self.lock:
            return {method: list(listed) for method, listed in self.orders[name].items() if listed}

    def listed(self, request):
        """Returns the instructions that are left for requests like this one. The lock is held."""
        return self.orders.get(request.headers.get("x-retry-test-id"), {}).get(operation_of(request))

    def of(self, request):
        path = urllib.parse.urlsplit(request.target).path
        if path == ORDERS or path.startswith(ORDERS + "/"):
            status, document = self.ordered(request, path.removeprefix(ORDERS).strip("/"))
            return Fault("respond", status=status, document=document)
        with self.lock:
            listed = self.listed(request)
            instruction = INSTRUCTION.fullmatch(listed[0]) if listed else None
        if instruction is None:
            return None
        status, fault, kib = instruction.group("status", "fault", "kib")
        limit = None if kib is None else int(kib) * 1024
        if fault == "broken-stream":
            return Fault("cut response", at=FEW_BYTES if limit is None else limit, of_body=True)
        if fault:
            return Fault("reset")
        cut = 0 if limit is None else cut_of_upload(request, limit)
        if cut is None:
            return None
        return Fault("cut request", at=cut, of_body=True, status=int(status)) if cut else Fault("respond", status=int(status))

    def happened(self, request, fault):
        """Takes the instruction of a request: a response that is too short to be cut has not met it."""
        with self.lock:
            if listed := self.listed(request):
                listed.pop(0)

    def ordered(self, request, name):
        """Serves the interface of orders. Returns a status and a document."""
        if request.method == "POST":
            wanted = json.loads(b"".join(request.body()))
            instructions = wanted["instructions"]
            if wanted.get("transport", "HTTP").upper() != "HTTP" or not SERVED.issuperset(instructions):
                return 501, {}
            return 200, {"id": self.order(instructions)}
        if request.method == "DELETE":
            with self.lock:
                del self.orders[name]
            return 200, {}
        unused = self.unused(name)
        return 200, {"id": name, "instructions": unused, "completed": not unused}
