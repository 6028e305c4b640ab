"""A server for the tests of other programs: S3 and Google's storage API on free ports, keys, buckets, injected faults.

    def test_upload(bywash_server):
        s3 = boto3.client("s3", **bywash_server.boto3)
        s3.put_object(Bucket=bywash_server.bucket, Key="k", Body=b"v")

The fixture `bywash_server` is found by pytest when the package is installed. `server()` is the same as a context manager.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import selectors
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from . import _daemon
from ._store import Store

__all__ = ["Faults", "Server", "server"]

_START_SECONDS = 60.0


class Faults:
    """Faults of the next responses of a server's endpoints, in the order in which they are added; each is one request's."""

    def __init__(self) -> None:
        self._next: list[tuple[str, float]] = []
        self._lock = threading.Lock()
        self.injected = 0
        """Faults that requests have met."""

    def refuse(self, requests: int = 1) -> None:
        """Answers requests by 503 SlowDown, without the server."""
        self._add("refuse", 0, requests)

    def slow(self, seconds: float, requests: int = 1) -> None:
        """Holds requests back for so long before the server gets them."""
        self._add("slow", seconds, requests)

    def cut(self, after: int, requests: int = 1) -> None:
        """Closes the connection after so many bytes of a response."""
        self._add("cut", after, requests)

    def clear(self) -> None:
        """Forgets the faults that no request has met yet."""
        with self._lock:
            self._next.clear()

    def _add(self, kind: str, amount: float, requests: int) -> None:
        with self._lock:
            self._next.extend([(kind, amount)] * requests)

    def _take(self) -> tuple[str, float] | None:
        with self._lock:
            if not self._next:
                return None
            self.injected += 1
            return self._next.pop(0)


_BUSY_BODY = b"<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>SlowDown</Code><Message>Injected by a test</Message></Error>"
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/xml\r\nconnection: close\r\n"
    b"content-length: " + str(len(_BUSY_BODY)).encode() + b"\r\n\r\n" + _BUSY_BODY
)


def _refuse(client: socket.socket) -> None:
    """Sends the response, and takes the rest of the request: with unread bytes the client would get a reset in its place."""
    client.sendall(_BUSY)
    client.shutdown(socket.SHUT_WR)
    client.settimeout(_START_SECONDS)
    while client.recv(65536):
        pass


class _Proxy:
    """Passes connections on to an endpoint, and injects faults at the beginnings of requests."""

    def __init__(self, target: tuple[str, int], faults: Faults):
        self._target, self._faults = target, faults
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(self._target) as server:
            self._pass(client, server)

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        left: float | None = None
        # A request begins when the client sends after the server did.
        begins = True
        with selectors.DefaultSelector() as ready:
            ready.register(client, selectors.EVENT_READ)
            ready.register(server, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    data = key.fileobj.recv(65536)
                    if not data:
                        return
                    if key.fileobj is client:
                        fault = self._faults._take() if begins else None
                        begins = False
                        if fault and fault[0] == "refuse":
                            _refuse(client)
                            return
                        if fault and fault[0] == "slow":
                            time.sleep(fault[1])
                        if fault and fault[0] == "cut":
                            left = fault[1]
                        server.sendall(data)
                        continue
                    begins = True
                    if left is not None:
                        data = data[: int(left)]
                        left -= len(data)
                        client.sendall(data)
                        if left <= 0:
                            return
                        continue
                    client.sendall(data)

    def close(self) -> None:
        self._listener.close()


class Server:
    """A running server with one bucket. `server` makes it."""

    access_key = "test-access-key"
    secret_key = "test-secret-key"
    region = "us-east-1"

    def __init__(self, folder: Path, buckets: tuple[str, ...], arguments: tuple[str, ...]):
        self.folder, self.bucket = folder, buckets[0]
        self.faults = Faults()
        self._log = folder / "bywash.log"
        data = folder / "data"
        # Socket of the local door, for `BYWASH_LOCAL`.
        self.socket = folder / "local.sock"
        command = [
            _daemon.program(), "serve", "--data-dir", str(data), "--s3-addr", "127.0.0.1:0", "--gcs-addr", "127.0.0.1:0",
            "--admin-addr", "127.0.0.1:0", "--local", str(self.socket), "--access-key", self.access_key,
            "--secret-key", self.secret_key, "--no-history", *([] if "--memory" in arguments else ["--memory", "256MiB"]), *arguments,
        ]  # fmt: skip
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=_daemon.environment())
        ready = self._wait()
        self.direct_s3, self.admin, self.direct_gcs = ready["s3"], ready["admin"], ready["gcs"]
        self._proxies = [self._proxy(url) for url in (self.direct_s3, self.direct_gcs)]
        self.s3, self.gcs = (f"http://{host}:{port}" for host, port in (proxy.address for proxy in self._proxies))

    def _proxy(self, url: str) -> _Proxy:
        host, port = url.removeprefix("http://").rsplit(":", 1)
        return _Proxy((host, int(port)), self.faults)

    def _wait(self) -> dict[str, str]:
        timer = threading.Timer(_START_SECONDS, self._process.kill)
        timer.start()
        try:
            for line in self._process.stdout:
                if line.startswith(b"ready "):
                    threading.Thread(target=self._drain, daemon=True).start()
                    return dict(re.findall(r"(\w+)=(\S+)", line.decode()))
        finally:
            timer.cancel()
        raise RuntimeError(f"the server did not start: {self._log.read_text(errors='replace')[-2000:]}")

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    def _drain(self) -> None:
        for _ in self._process.stdout:
            pass

    @property
    def boto3(self) -> dict[str, str]:
        """Arguments of `boto3.client("s3", ...)`."""
        return {
            "endpoint_url": self.s3,
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
            "region_name": self.region,
        }

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which clients of S3 find the server."""
        return {
            "AWS_ENDPOINT_URL": self.s3,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_ALLOW_HTTP": "true",
        }

    @property
    def storage_options(self) -> dict[str, str]:
        """Options of Polars, delta-rs, obstore and others built on object_store."""
        return {
            "aws_endpoint_url": self.s3,
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
            "aws_region": self.region,
            "aws_allow_http": "true",
        }

    def gcs_key(self) -> Path:
        """Returns the key file of a service account, for clients of Google's storage at `gcs`."""
        path = self.folder / "gcs-key.json"
        if not path.exists():
            command = [_daemon.program(), "keys", "create", "--gcs", "--data-dir", str(self.folder / "data"), "--endpoint", self.gcs]
            key = subprocess.run(command, check=True, capture_output=True, env=_daemon.environment()).stdout
            path.touch(mode=0o600)
            path.write_bytes(key)
        return path

    def store(self) -> Store:
        """Returns the server as a `bywash.Store`."""
        return Store(self.socket)

    def create_bucket(self, name: str | None = None) -> str:
        """Makes a bucket unless it is there, of a new name by default, and returns its name."""
        name = name or f"test-{secrets.token_hex(6)}"
        self.store().create_bucket(name, exist_ok=True)
        return name

    def stop(self) -> None:
        """Ends the server."""
        for proxy in self._proxies:
            proxy.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def server(*arguments: str, buckets: tuple[str, ...] = ("test",), folder: str | os.PathLike[str] | None = None) -> Iterator[Server]:
    """Starts a server with these buckets on free ports, and stops it at the end.

    `arguments` are further ones of `bywash serve`. `folder` keeps the data; by default it is temporary.
    """
    path = Path(folder) if folder is not None else Path(tempfile.mkdtemp(prefix="bywash-test-"))
    path.mkdir(parents=True, exist_ok=True)
    try:
        running = Server(path, buckets, arguments)
        try:
            for name in buckets:
                running.create_bucket(name)
            yield running
        finally:
            running.stop()
    finally:
        if folder is None:
            shutil.rmtree(path, ignore_errors=True)
