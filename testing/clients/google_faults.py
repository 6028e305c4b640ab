"""A proxy before the GCS endpoint that injects the faults of Google's conformance tests.

It has the interface by which those tests order faults from Google's storage-testbench: `POST /retry_test` with a list of instructions
for each method, with an id that later requests state in `x-retry-test-id`; `GET` and `DELETE /retry_test/ID`. All other requests go to the
endpoint, and each that has an id takes the next instruction of its method:

* `return-N`: the proxy responds with status N; the endpoint sees nothing.
* `return-reset-connection`: the proxy resets the connection; the endpoint sees nothing.
* `return-N-after-MK`: of a resumable upload, the endpoint gets the bytes up to MK and then an end in the middle of the body; the client
  gets status N.
* `return-broken-stream`, `return-broken-stream-after-MK`: the response of a read is cut after some bytes, or after MK.
"""

import json
import re
import socket
import socketserver
import struct
import threading
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler

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
# What a read returns before its stream is cut, without a stated number.
FEW_BYTES = 4
PIECE = 64 * 1024


def operation_of(method, path):
    """Returns the name of a request in Google's API; `None` if it is none that is served."""
    for of_method, pattern, name in OPERATIONS:
        if method == of_method and re.fullmatch(pattern, path):
            return name
    return None


class FaultProxy:
    """The proxy, on a port of its own."""

    def __init__(self, target):
        self.target = urllib.parse.urlsplit(target)
        self.orders = {}
        self.lock = threading.Lock()
        handler = type("Handler", (Exchange,), {"proxy": self})
        self.server = Server(("127.0.0.1", 0), handler)
        self.url = "http://127.0.0.1:%d" % self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=[0.05], daemon=True).start()

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

    def first(self, name, operation):
        """Returns the next instruction for an operation; `None` if there is none."""
        with self.lock:
            listed = self.orders.get(name, {}).get(operation)
            return INSTRUCTION.fullmatch(listed[0]) if listed else None

    def take(self, name, operation):
        with self.lock:
            self.orders[name][operation].pop(0)

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256

    def shutdown_request(self, request):
        # Without a FIN before the RST of a reset.
        self.close_request(request)

    def handle_error(self, request, client_address):
        """A client that leaves is no error."""


class Exchange(BaseHTTPRequestHandler):
    """One request and its response, on a connection of their own."""

    protocol_version = "HTTP/1.1"
    proxy = None

    def log_message(self, *arguments):
        pass

    def handle_any(self):
        self.close_connection = True
        path = urllib.parse.urlsplit(self.path).path
        if path == "/retry_test" or path.startswith("/retry_test/"):
            return self.ordered(path.removeprefix("/retry_test").strip("/"))
        name = self.headers.get("x-retry-test-id")
        method = self.headers.get("x-http-method-override", self.command)
        operation = operation_of(method, path)
        instruction = self.proxy.first(name, operation)
        if instruction is None:
            return self.forward()
        status, fault, kib = instruction.group("status", "fault", "kib")
        limit = None if kib is None else int(kib) * 1024
        if status and limit is not None:
            cut = self.cut_of_upload(limit)
            if cut is None:
                return self.forward()
            self.proxy.take(name, operation)
            if cut:
                self.forward(body_limit=cut)
            return self.fail(int(status))
        if fault == "broken-stream":
            if self.forward(response_limit=FEW_BYTES if limit is None else limit):
                self.proxy.take(name, operation)
            return None
        self.proxy.take(name, operation)
        if status:
            return self.fail(int(status))
        return self.reset()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

    def ordered(self, name):
        """Serves the interface of orders."""
        if self.command == "POST":
            wanted = json.loads(self.rfile.read(int(self.headers["content-length"])))
            instructions = wanted["instructions"]
            if wanted.get("transport", "HTTP").upper() != "HTTP" or not SERVED.issuperset(instructions):
                return self.respond(501, {})
            return self.respond(200, {"id": self.proxy.order(instructions)})
        if self.command == "DELETE":
            with self.proxy.lock:
                del self.proxy.orders[name]
            return self.respond(200, {})
        unused = self.proxy.unused(name)
        return self.respond(200, {"id": name, "instructions": unused, "completed": not unused})

    def cut_of_upload(self, limit):
        """Returns how many bytes of the body come before byte `limit` of the object, 0 if it ends before the body; `None` if the
        request does not reach it."""
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        length = int(self.headers.get("content-length", 0))
        if "upload_id" not in query or length == 0:
            return None
        found = re.match(r"bytes (\d+)-", self.headers.get("content-range", "bytes 0-"))
        begin = int(found.group(1)) if found else 0
        return max(0, limit - begin) if limit < begin + length else None

    def fail(self, status):
        for _ in self.body():
            pass
        self.respond(status, {"error": {"code": status, "message": f"a fault was ordered: {status}"}})

    def respond(self, status, document):
        text = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(text)

    def reset(self):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def body(self):
        """Yields what is left of the body, as it is framed."""
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            while not self.unread_chunks:
                line = self.rfile.readline()
                yield line
                size = int(line.split(b";")[0], 16)
                # The bytes and their line end; after the last chunk, trailers and an empty line.
                if size:
                    yield self.rfile.read(size + 2)
                    continue
                self.unread_chunks = True
                while (trailer := self.rfile.readline()).strip():
                    yield trailer
                yield trailer
            return
        if self.left is None:
            self.left = int(self.headers.get("content-length", 0))
        while self.left:
            piece = self.rfile.read(min(PIECE, self.left))
            if not piece:
                raise ConnectionError("the client left")
            self.left -= len(piece)
            yield piece

    unread_chunks = False
    left = None

    def forward(self, body_limit=None, response_limit=None):
        """Forwards the request, and the response. Returns whether the response was cut.

        body_limit: bytes of the body after which the endpoint gets no more, and the client nothing of the response.
        response_limit: bytes of the response's body after which the connection is closed."""
        target = self.proxy.target
        with socket.create_connection((target.hostname, target.port), timeout=120) as endpoint:
            head = [f"{self.command} {self.path} HTTP/1.1", "connection: close"]
            head += [f"{name}: {value}" for name, value in self.headers.items() if name.lower() not in ("connection", "expect")]
            try:
                endpoint.sendall("\r\n".join([*head, "", ""]).encode("latin-1"))
                for piece in self.body():
                    if body_limit is not None and len(piece) >= body_limit:
                        endpoint.sendall(piece[:body_limit])
                        endpoint.shutdown(socket.SHUT_WR)
                        break
                    endpoint.sendall(piece)
                    body_limit = body_limit and body_limit - len(piece)
            except (BrokenPipeError, ConnectionResetError):
                pass  # The endpoint has responded without the rest.
            if body_limit is not None:
                # The end of the connection: the endpoint has done what it does with a part of a body.
                while endpoint.recv(PIECE):
                    pass
                return False
            return self.pass_response(endpoint, response_limit)

    def pass_response(self, endpoint, limit):
        received = b""
        while b"\r\n\r\n" not in received and (piece := endpoint.recv(PIECE)):
            received += piece
        head, separator, body = received.partition(b"\r\n\r\n")
        self.wfile.write(head + separator)
        while body:
            if limit is not None and len(body) >= limit:
                self.wfile.write(body[:limit])
                return True
            self.wfile.write(body)
            limit = limit and limit - len(body)
            body = endpoint.recv(PIECE)
        return False
