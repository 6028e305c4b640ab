"""A proxy between a client and a server: it breaks connections, loses responses and delays bytes, by a list of faults."""

import collections
import contextlib
import dataclasses
import socket
import threading
import time

PIECE_BYTES = 1 << 16
# Statuses that clients of Google's storage repeat.
BUSY = {429: "Too Many Requests", 500: "Internal Server Error", 502: "Bad Gateway", 503: "Service Unavailable"}


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault of one connection.

    `cut request`: the connection ends after `at` bytes of a request. `cut response`: after `at` bytes of a response, which is lost
    if that is 0. `refuse`: a request gets `status`, and the server none of it. `replace`: a request is served, and its response
    replaced by `status`. `delay`: each piece waits `seconds`. `kill`: the server is killed after `at` bytes of a request, and started
    again.
    """

    kind: str
    # Which request of the connection, from 0.
    request: int = 0
    at: int = 0
    status: int = 503
    seconds: float = 0.0


NONE = Fault("none")


class Link:
    """One connection: its two sockets, its fault, and how far it has come."""

    def __init__(self, client, fault):
        self.client, self.server, self.fault = client, None, fault
        self.request = -1
        self.sent = self.received = 0
        self.responded = True

    def has(self, kind):
        return self.fault.kind == kind and self.fault.request == self.request

    def end(self):
        """Ends both connections, whatever still passes. What was written is delivered."""
        for end in [self.client, self.server]:
            with contextlib.suppress(OSError):
                end and end.shutdown(socket.SHUT_RDWR)


class FaultProxy:
    """Carries connections to `target`, a host and a port. `restart` kills the server, starts it again and returns its address."""

    def __init__(self, target, restart):
        self.target, self.restart = target, restart
        # How often each fault happened.
        self.seen = collections.Counter()
        self.faults = iter(())
        self.open = set()
        # Held while connections and faults change, and while the server starts again.
        self.lock = threading.RLock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def begin(self, faults):
        """Ends all connections, and gives the faults to the next ones, in their order; those after them have none."""
        with self.lock:
            for link in self.open:
                link.end()
            self.faults = iter(faults)

    def stop(self):
        self.begin([])
        # A listener that is only closed would go on to accept in the other thread.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self.connection, args=(client,), daemon=True).start()

    def connection(self, client):
        with self.lock:
            link = Link(client, next(self.faults, NONE))
            self.open.add(link)
            target = self.target
        down = threading.Thread(target=self.carry, args=(self.down, link), daemon=True)
        with contextlib.suppress(OSError):
            link.server = socket.create_connection(target)
            for end in [client, link.server]:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            down.start()
            self.carry(self.up, link)
            down.join()
            link.server.close()
        with self.lock:
            self.open.discard(link)
        client.close()

    def carry(self, direction, link):
        try:
            direction(link)
        except OSError:
            # An error of a socket is an end like any other.
            pass
        finally:
            link.end()

    def up(self, link):
        """Carries requests until one end closes or a fault happens."""
        fault = link.fault
        while data := link.client.recv(PIECE_BYTES):
            if link.responded:
                link.request, link.responded, link.sent, link.received = link.request + 1, False, 0, 0
            self.delay(link)
            if link.has("refuse"):
                self.seen[fault.kind] += 1
                return self.refuse(link, data)
            if (link.has("cut request") or link.has("kill")) and link.sent + len(data) >= fault.at:
                self.seen[fault.kind] += 1
                link.server.sendall(data[: fault.at - link.sent])
                if fault.kind == "kill":
                    with self.lock:
                        self.target = self.restart()
                return None
            link.sent += len(data)
            link.server.sendall(data)
        return None

    def down(self, link):
        """Carries responses until one end closes or a fault happens."""
        fault = link.fault
        while data := link.server.recv(PIECE_BYTES):
            link.responded = True
            self.delay(link)
            if link.has("replace"):
                self.seen[fault.kind] += 1
                return self.respond(link)
            if link.has("cut response") and link.received + len(data) >= fault.at:
                self.seen[fault.kind] += 1
                link.client.sendall(data[: fault.at - link.received])
                return None
            link.received += len(data)
            link.client.sendall(data)
        return None

    def delay(self, link):
        if link.fault.kind == "delay":
            self.seen["delay"] += link.request == 0 and link.sent == 0
            time.sleep(link.fault.seconds)

    def refuse(self, link, data):
        """Reads a request to its end, and responds to it."""
        while b"\r\n\r\n" not in data:
            piece = link.client.recv(PIECE_BYTES)
            if not piece:
                return
            data += piece
        head, body = data.split(b"\r\n\r\n", 1)
        lines = [line.split(b":", 1) for line in head.split(b"\r\n")[1:]]
        left = sum(int(value) for name, value in lines if name.lower() == b"content-length") - len(body)
        while left > 0:
            piece = link.client.recv(PIECE_BYTES)
            if not piece:
                return
            left -= len(piece)
        self.respond(link)

    def respond(self, link):
        status = link.fault.status
        head = f"HTTP/1.1 {status} {BUSY[status]}\r\nContent-Type: text/plain\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy"
        link.client.sendall(head.encode())
