"""A proxy between a client and a server of HTTP: it breaks connections, loses responses and delays bytes, as its faults demand.

Which request has which fault is the matter of an object that the proxy has as `faults`: `FaultsInOrder` here, `OrderedFaults` in
`google_faults.py`. `of(request)` returns the fault of a request, or `None`; `happened(request, fault)` is called when one takes effect.
"""

import collections
import contextlib
import dataclasses
import itertools
import json
import socket
import struct
import threading
import time
import urllib.parse
from http import HTTPStatus

PIECE_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault of one request.

    `respond`: the proxy responds with `status` and `document`, and the server gets nothing. `reset`: the client's connection is reset, and the
    server gets nothing. `cut request`: the server gets `at` bytes; then both connections end, or with a `status` the server's alone, and the
    client gets that. `kill`: as that, and the server is killed and started again. `cut response`: the client gets `at` bytes, and the end.
    `replace`: the request is served, and its response replaced by `status`. `delay`: each piece of both waits `seconds`.
    """

    kind: str
    # Which request of the connection has it, from 0, where faults belong to connections.
    request: int = 0
    at: int = 0
    # Whether `at` counts bytes of the body alone.
    of_body: bool = False
    status: int | None = None
    document: dict | None = None
    seconds: float = 0.0


NONE = Fault("none")


class FaultsInOrder:
    """Gives each connection the next of these faults; connections after the last one have none."""

    # Whether connections go on after their first request.
    keeps_connections = True

    def __init__(self, faults=()):
        self.left = iter(faults)

    def of(self, request):
        link = request.link
        if request.number == 0:
            link.own = next(self.left, NONE)
        # A slow connection is slow for all its requests.
        return link.own if link.own.kind == "delay" or link.own.request == request.number else None

    def happened(self, request, fault):
        pass


class Request:
    """A request as it arrives: its head, and the rest of its body."""

    def __init__(self, link, number, lines):
        self.link, self.number, self.lines = link, number, lines
        self.method, self.target, _ = lines[0].decode("latin-1").split(" ", 2)
        named = [line.decode("latin-1").partition(":") for line in lines[1:-1]]
        self.headers = {name.strip().lower(): value.strip() for name, _, value in named}
        self.is_chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        self.left = int(self.headers.get("content-length", 0))

    @classmethod
    def read(cls, link, number):
        """Returns the next request of a connection, `None` at its end."""
        lines = []
        while not lines or lines[-1].strip():
            lines.append(link.reader.readline())
            if not lines[-1]:
                return None
        return cls(link, number, lines)

    def head(self, keeps_connection):
        if keeps_connection:
            return b"".join(self.lines)
        kept = [line for line in self.lines[1:] if not line.lower().startswith(b"connection:")]
        return b"".join([self.lines[0], b"connection: close\r\n", *kept])

    def body(self):
        """Yields what is left of the body, as it is framed."""
        while self.is_chunked:
            line = self.link.reader.readline()
            yield line
            size = int(line.split(b";")[0], 16)
            # The bytes and their line end; after the last chunk, trailers and an empty line.
            if size:
                yield self.link.reader.read(size + 2)
                continue
            self.is_chunked = False
            while (trailer := self.link.reader.readline()).strip():
                yield trailer
            yield trailer
        while self.left:
            piece = self.link.reader.read1(min(PIECE_BYTES, self.left))
            if not piece:
                raise ConnectionError("the client left")
            self.left -= len(piece)
            yield piece


class ServerLeft(Exception):
    """The server takes no more of a request; it may have responded."""


class Link:
    """One connection of a client, the one to the server, and the fault of the present request."""

    def __init__(self, client):
        self.client, self.server, self.down = client, None, None
        self.reader = client.makefile("rb")
        self.request, self.fault, self.own = None, NONE, NONE
        # Bytes of the present response, and of its head, as far as that is known.
        self.received, self.head = 0, b""
        # Whether the client gets none of the response.
        self.is_muted = self.is_reset = False

    def begin(self, request, fault):
        self.request, self.fault, self.received, self.head = request, fault, 0, b""

    def send(self, piece):
        try:
            self.server.sendall(piece)
        except OSError as error:
            raise ServerLeft from error

    def before_cut(self, data):
        """Returns how many of the bytes of a response come before its cut; `None` if the cut is not among them."""
        limit = self.fault.at
        if self.fault.of_body:
            if b"\r\n\r\n" not in self.head:
                self.head += data
            head, end, _ = self.head.partition(b"\r\n\r\n")
            limit = limit + len(head + end) if end else self.received + len(data) + 1
        before, self.received = limit - self.received, self.received + len(data)
        return before if before <= len(data) else None

    def respond(self):
        """Responds to the client in place of the server."""
        status = self.fault.status
        document = self.fault.document
        if document is None:
            document = {"error": {"code": status, "message": f"a fault of the proxy: {status}"}}
        text = json.dumps(document)
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        self.client.sendall(f"{head}Content-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode())

    def end(self):
        """Ends both connections, whatever still passes. What was written is delivered, unless the client's connection is reset."""
        for end in [self.server, None if self.is_reset else self.client]:
            with contextlib.suppress(OSError):
                end and end.shutdown(socket.SHUT_RDWR)

    def close(self):
        if self.is_reset:
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for end in [self.reader, self.client, self.server]:
            with contextlib.suppress(OSError):
                end and end.close()


class FaultProxy:
    """Carries connections to the server at the URL `target`. `restart` kills the server, starts it again and returns its URL."""

    def __init__(self, target, faults, restart=None):
        self.target, self.faults, self.restart = target, faults, restart
        # How often each fault happened.
        self.seen = collections.Counter()
        self.open = set()
        # Held while connections and faults change, and while the server starts again.
        self.lock = threading.RLock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = "http://127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def begin(self, faults):
        """Ends all connections; the next ones have these faults."""
        with self.lock:
            for link in self.open:
                link.end()
            self.faults = faults

    def stop(self):
        self.begin(FaultsInOrder())
        # A listener that is only closed would go on to accept in the other thread.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self.connection, args=(client,), daemon=True).start()

    def connection(self, client):
        link = Link(client)
        with self.lock:
            self.open.add(link)
        # An error of a socket is an end like any other.
        with contextlib.suppress(OSError):
            self.up(link)
        link.end()
        if link.down:
            link.down.join()
        with self.lock:
            self.open.discard(link)
        link.close()

    def connect(self):
        """Returns a connection to the server."""
        with self.lock:
            target = urllib.parse.urlsplit(self.target)
        return socket.create_connection((target.hostname, target.port))

    def happens(self, link):
        self.seen[link.fault.kind] += 1
        self.faults.happened(link.request, link.fault)

    def up(self, link):
        """Carries requests until one end closes or a fault ends the connection."""
        for number in itertools.count():
            request = Request.read(link, number)
            if request is None:
                return
            fault = self.faults.of(request) or NONE
            link.begin(request, fault)
            if fault.kind in ("respond", "reset", "delay"):
                self.happens(link)
            if fault.kind == "reset":
                link.is_reset = True
                return
            if fault.kind == "respond":
                self.respond(link)
                return
            if link.server is None:
                link.server = self.connect()
                link.server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                link.down = threading.Thread(target=self.down, args=(link,), daemon=True)
                link.down.start()
            try:
                if self.send(link):
                    return
            except ServerLeft:
                link.down.join()
                return

    def send(self, link):
        """Carries one request. Returns whether a fault has ended it."""
        request, fault, sent = link.request, link.fault, 0
        head = request.head(self.faults.keeps_connections)
        limit = fault.at + (len(head) if fault.of_body else 0) if fault.kind in ("cut request", "kill") else None
        for piece in itertools.chain([head], request.body()):
            time.sleep(fault.seconds)
            if limit is not None and sent + len(piece) >= limit:
                self.happens(link)
                link.send(piece[: limit - sent])
                self.cut(link)
                return True
            link.send(piece)
            sent += len(piece)
        return False

    def cut(self, link):
        """Ends a request of which the server has a part."""
        if link.fault.kind == "kill":
            with self.lock:
                self.target = self.restart()
        if link.fault.status:
            # The end of the connection: the server has done what it does with a part of a body.
            link.is_muted = True
            link.server.shutdown(socket.SHUT_WR)
            link.down.join()
            self.respond(link)

    def respond(self, link):
        for _ in link.request.body():
            pass
        link.respond()

    def down(self, link):
        """Carries responses until one end closes or a fault happens."""
        with contextlib.suppress(OSError):
            self.responses(link)
        if not link.is_muted:
            link.end()

    def responses(self, link):
        while data := link.server.recv(PIECE_BYTES):
            fault = link.fault
            time.sleep(fault.seconds)
            if link.is_muted:
                continue
            if fault.kind == "replace":
                self.happens(link)
                return link.respond()
            if fault.kind == "cut response" and (before := link.before_cut(data)) is not None:
                self.happens(link)
                return link.client.sendall(data[:before])
            link.client.sendall(data)
        return None
