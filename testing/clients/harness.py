"""Starts servers and stores, and sends requests that no client library would send.

All waits are for an event (a printed line, a closed socket, a counter) with a deadline that only a fault reaches.
"""

import base64
import contextlib
import email.utils
import hashlib
import hmac
import http.client
import http.server
import itertools
import json
import os
import queue
import random
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.parse
from pathlib import Path

import boto3
import requests
from botocore.config import Config
from botocore.exceptions import ClientError, EndpointConnectionError

ACCESS_KEY = "suite-access-key"
SECRET_KEY = "suite/secret+key=with specials"
REGION = "us-east-1"
MIB = 1024 * 1024
# Keys that a wrong encoding or a path library would change. All clients and origins support them.
ODD_KEYS = [
    "a b", " lead", "a+b", "a%20b", "a%2Fb", "per%cent", "ümläut/✓", "日本", "x=1/y=2", "a&b;c", "~*'()!", "#?", "[a]", "a\\b",
    "a:b@c,d$", "..a", "a..b", ".hidden", "-dash", "a" * 200,
]
# Maximum time until a server prints its addresses, and until it stops after SIGTERM; reached only by a fault.
START_SECONDS = 120
STOP_SECONDS = 120


def clean_environment():
    """Returns the environment without variables that would configure a client."""
    dropped = re.compile(r"^(AWS_.*|AZUR.*|.*_proxy|BYWASH_.*)$", re.IGNORECASE)
    environment = {name: value for name, value in os.environ.items() if not dropped.match(name)}
    environment["AWS_EC2_METADATA_DISABLED"] = "true"
    return environment


class Process:
    """A child process whose output lines a test can wait for."""

    def __init__(self, command, env, log):
        self.log = Path(log)
        self.lines = queue.Queue()
        self.seen = []
        self._log = open(self.log, "a", buffering=1)
        self.child = subprocess.Popen(
            [str(part) for part in command],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.child.stdout:
            self._log.write(line)
            self.seen.append(line)
            self.lines.put(line)
        self.lines.put(None)

    def wait_for(self, pattern, seconds=START_SECONDS):
        """Returns the first match of `pattern` in a line after those of earlier calls."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self.lines.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line like {pattern!r} in {seconds} s; see {self.log}") from None
            if line is None:
                raise AssertionError(f"ended with {self.child.wait()} before {pattern!r}:\n{''.join(self.seen[-20:])}")
            if found := re.search(pattern, line):
                return found

    def kill(self):
        """Sends SIGKILL: no handler runs, as in a power failure."""
        self.child.kill()
        self.child.wait()

    def stop(self):
        """Sends SIGTERM and returns the exit code."""
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
            try:
                self.child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"still running {STOP_SECONDS} s after SIGTERM; see {self.log}") from None
        return self.child.returncode


def s3_client(url, access_key=ACCESS_KEY, secret_key=SECRET_KEY, verify=None, **config):
    """Creates a boto3 client without retries, which would hide a fault of the server."""
    config.setdefault("retries", {"total_max_attempts": 1})
    config.setdefault("max_pool_connections", 32)
    return boto3.session.Session().client(
        "s3",
        endpoint_url=url,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name=REGION,
        verify=verify,
        config=Config(**config),
    )


class S3Origin:
    """A real S3 origin in a separate process. Subclasses start it and set `process` and `url`."""

    def __init__(self):
        self.s3 = s3_client(self.url, "origin", "origin")

    def environment(self):
        """Returns variables that make a program use this server as S3."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "origin",
            "AWS_SECRET_ACCESS_KEY": "origin",
            "AWS_REGION": REGION,
        }


class Moto(S3Origin):
    """moto. Checks no signatures and no digests, and logs one line per request."""

    def __init__(self, folder):
        program = Path(os.sys.executable).parent / "moto_server"
        self.process = Process([program, "-H", "127.0.0.1", "-p", "0"], clean_environment(), folder / "moto.log")
        self.url = self.process.wait_for(r"Running on (http://127\.0\.0\.1:\d+)").group(1)
        super().__init__()

    def gets(self, bucket, key):
        """Returns the number of logged GET requests for an object."""
        return sum(f"GET /{bucket}/{key} " in line for line in list(self.process.seen))


class Versitygw(S3Origin):
    """versitygw over a folder. Checks signatures and digests. Used only on machines with Go, which builds it."""

    PROGRAM = Path(os.environ.get("BYWASH_VERSITYGW") or Path(__file__).parents[2] / "target/peers/bin/versitygw")

    def __init__(self, folder):
        (folder / "gateway").mkdir()
        # Another process may take the port between its choice and its use: versitygw then exits.
        for _ in range(5):
            with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
                address = f"127.0.0.1:{free.getsockname()[1]}"
            command = [self.PROGRAM, "--access", "origin", "--secret", "origin", "--port", address, "--quiet", "posix", folder / "gateway"]
            self.process = Process(command, clean_environment(), folder / "versitygw.log")
            self.url = f"http://{address}"
            super().__init__()
            until("versitygw responds or exits", lambda: self.ended() or self.responds(), START_SECONDS)
            if not self.ended():
                return
        raise AssertionError(f"versitygw does not start; see {self.process.log}")

    def ended(self):
        return self.process.child.poll() is not None

    def responds(self):
        with contextlib.suppress(EndpointConnectionError):
            return self.s3.list_buckets()


# Fixtures of S3 origins, or of those that `BYWASH_S3_ORIGINS` names: the gate runs one of them.
S3_ORIGINS = ["moto", *(["versitygw"] if Versitygw.PROGRAM.exists() else [])]
if chosen := os.environ.get("BYWASH_S3_ORIGINS"):
    S3_ORIGINS = [origin for origin in S3_ORIGINS if origin in chosen.split(",")] or S3_ORIGINS


class Azurite:
    """A real server of Azure's protocol in a separate process. Checks signatures."""

    ACCOUNT = "devstoreaccount1"
    # The public key in Azurite's documentation.
    KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    VERSION = "2023-11-03"

    def __init__(self, folder):
        command = [os.environ["BYWASH_AZURITE"], "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]
        command += ["--blobHost", "127.0.0.1", "--blobPort", "0"]
        self.process = Process(command, clean_environment(), folder / "azurite.log")
        self.url = self.process.wait_for(r"listens on (http://127\.0\.0\.1:\d+)").group(1)

    def environment(self):
        """Returns variables that make a program use this server as Azure."""
        return {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": self.url}

    def request(self, method, path, **query):
        """Sends a request without a body, signed with Shared Key. `path` is a container, or a container and a blob in it."""
        resource = f"/{self.ACCOUNT}/{path}"
        headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": self.VERSION}
        signed = [method, *[""] * 11, *[f"{name}:{value}" for name, value in headers.items()]]
        # The signed resource of an emulator has the account twice: as the account, and as the first part of the path.
        signed += [f"/{self.ACCOUNT}{resource}", *[f"{name}:{value}" for name, value in sorted(query.items())]]
        mac = hmac.digest(base64.b64decode(self.KEY), "\n".join(signed).encode(), "sha256")
        headers["Authorization"] = f"SharedKey {self.ACCOUNT}:{base64.b64encode(mac).decode()}"
        response = requests.request(method, self.url + resource, params=query, headers=headers, timeout=30)
        response.raise_for_status()
        return response


class Prometheus:
    """Debian's Prometheus. Scrapes one server twice a second."""

    # Folder of `prometheus` and `promtool`.
    PROGRAMS = os.environ.get("BYWASH_PROMETHEUS")

    def __init__(self, folder, url, **job):
        url = urllib.parse.urlsplit(url)
        job |= {"job_name": "bywash", "scheme": url.scheme, "static_configs": [{"targets": [url.netloc]}]}
        settings = folder / "prometheus.yml"
        # JSON is YAML.
        settings.write_text(json.dumps({"global": {"scrape_interval": "500ms"}, "scrape_configs": [job]}))
        command = [f"{self.PROGRAMS}/prometheus", f"--config.file={settings}", f"--storage.tsdb.path={folder}/prometheus"]
        command.append("--web.listen-address=127.0.0.1:0")
        self.process = Process(command, clean_environment(), folder / "prometheus.log")
        address = self.process.wait_for(r'msg="Listening on" address=(\S+)').group(1)
        self.url = f"http://{address}"
        # Its line "Server is ready" comes before or after that of the address.
        deadline = time.monotonic() + START_SECONDS
        while not requests.get(f"{self.url}/-/ready", timeout=30).ok:
            assert time.monotonic() < deadline, f"Prometheus is not ready; see {self.process.log}"
            time.sleep(0.05)

    def query(self, expression):
        """Returns the result of an instant query: pairs of labels and value."""
        response = requests.get(f"{self.url}/api/v1/query", params={"query": expression}, timeout=30)
        assert response.ok, (expression, response.text)
        result = response.json()["data"]["result"]
        return [(sample["metric"], float(sample["value"][1])) for sample in result]

    def scrape(self, count=1):
        """Waits for `count` scrapes that begin after this call."""
        for _ in range(count):
            now = time.time()
            until("a scrape", lambda: self.query(f"timestamp(bywash_build_info) > {now}"), 30)

    def stop(self):
        return self.process.stop()


class Bywash:
    """`bywash serve`, with credentials unless `credentials` is false."""

    def __init__(self, folder, *arguments, env=None, credentials=True, data_dir=None):
        self.folder = Path(folder)
        self.data_dir = Path(data_dir or self.folder / "data")
        self.arguments = [
            "serve", *arguments, "--data-dir", self.data_dir, "--s3-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0",
            "--gcs-addr", "127.0.0.1:0",
        ]
        if "--memory" not in arguments:
            self.arguments += ["--memory", "512MiB"]
        if credentials:
            self.arguments += ["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY]
        # The user's well-known socket is that of this folder's servers.
        self.env = clean_environment() | {"XDG_RUNTIME_DIR": str(self.folder)} | (env or {})
        self.start()

    def start(self):
        self.process = Process([os.environ["BYWASH_BIN"], *self.arguments], self.env, self.folder / "bywash.log")
        ready = self.process.wait_for(r"^ready s3=(\S+) admin=(\S+)(?: metrics=(\S+))?(?: gcs=(\S+))?")
        self.url, self.admin, self.metrics, self.gcs = ready.groups()
        self.s3 = s3_client(self.url)
        self.signer = s3_client(self.url, signature_version="s3v4")

    def client(self, **options):
        return s3_client(self.url, **options)

    def stats(self):
        response = requests.get(self.admin + "/stats", timeout=30)
        response.raise_for_status()
        return response.json()

    def bucket_stats(self, bucket):
        return self.stats()["buckets"][bucket]

    def stop(self):
        return self.process.stop()

    def kill(self):
        self.process.kill()

    def presigned(self, operation, bucket, key, **more):
        """Returns a SigV4 presigned URL, with which a test can send a request without a client library."""
        return self.signer.generate_presigned_url(operation, {"Bucket": bucket, "Key": key, **more})

    def raw(self, method, url, body=None, headers=None):
        """Sends one request exactly as given, without normalisation of the URL."""
        address = urllib.parse.urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=90)
        with contextlib.closing(connection):
            connection.request(method, url.removeprefix(self.url), body=body, headers=headers or {})
            response = connection.getresponse()
            return Response(response.status, dict(response.getheaders()), response.read())

    def connect(self, receive_buffer=None):
        """Opens a socket to the endpoint."""
        address = urllib.parse.urlsplit(self.url)
        bare = socket.socket()
        if receive_buffer:
            bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        bare.settimeout(90)
        bare.connect((address.hostname, address.port))
        return bare


class Response:
    """An HTTP response with its body."""

    def __init__(self, status, headers, body):
        self.status, self.body = status, body
        self.headers = {name.lower(): value for name, value in headers.items()}

    @property
    def code(self):
        """Returns the S3 error code."""
        found = re.search(rb"<Code>(\w+)</Code>", self.body)
        return found.group(1).decode() if found else None

    def __repr__(self):
        return f"{self.status} {self.code} {self.body[:300]!r}"


def read_response(bare):
    """Reads the response to a request sent on a socket."""
    response = http.client.HTTPResponse(bare)
    response.begin()
    return Response(response.status, dict(response.getheaders()), response.read())


def head_of_put(url, length):
    """Formats the head of a PUT. The test sends the body, or part of it."""
    parts = urllib.parse.urlsplit(url)
    return f"PUT {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {length}\r\n\r\n".encode()


def payload(size, seed=1):
    """Returns `size` pseudo-random bytes of a seed."""
    return random.Random(seed).randbytes(size)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def file_sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def error(call, *arguments, **named):
    """Returns the S3 error code and HTTP status with which a boto3 call fails."""
    try:
        call(*arguments, **named)
    except ClientError as failure:
        return failure.response["Error"]["Code"], failure.response["ResponseMetadata"]["HTTPStatusCode"]
    raise AssertionError("succeeded")


def until(what, condition, seconds):
    """Polls a condition on another process, which offers no event to wait for."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not in {seconds} s: {what}"
        time.sleep(0.05)
    return value


def keys(s3, bucket, **options):
    """Returns all keys of a bucket."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, **options)
    return [entry["Key"] for page in pages for entry in page.get("Contents", [])]


def free_port():
    """Returns a port that no process listens on now, below those that the system gives to connections and to port 0."""
    while True:
        port = random.randrange(20000, 32000)
        with contextlib.closing(socket.socket()) as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Etcd:
    """etcd with one member, for nodes of a cluster."""

    def __init__(self, folder):
        self.address = f"127.0.0.1:{free_port()}"
        peers = f"http://127.0.0.1:{free_port()}"
        command = [
            os.environ["BYWASH_ETCD"], "--data-dir", folder / "etcd", "--name", "one",
            "--listen-client-urls", f"http://{self.address}", "--advertise-client-urls", f"http://{self.address}",
            "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"one={peers}",
            "--log-level", "warn",
        ]
        self.process = Process(command, clean_environment(), folder / "etcd.log")
        until("etcd answers", self.answers, START_SECONDS)

    def answers(self):
        assert self.process.child.poll() is None, f"etcd ended; see {self.process.log}"
        with contextlib.suppress(requests.RequestException):
            return requests.get(f"http://{self.address}/health", timeout=5).json()["health"] == "true"
        return False


class Balancer:
    """A load balancer of HTTP: each request goes to the next of its backends, or where `choose` sends its target."""

    def __init__(self, choose=None):
        self.backends, self.choose, self.served = [], choose, []
        self.turns = itertools.count()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def pass_on(self, method, target, headers, body):
        backend = self.choose and self.choose(target)
        backend = backend or self.backends[next(self.turns) % len(self.backends)]
        address = urllib.parse.urlsplit(backend)
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=90)
        with contextlib.closing(connection):
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            self.served.append((backend, method, target, response.status))
            return response.status, response.getheaders(), response.read()

    def handler(balancer):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def serve(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, headers, body = balancer.pass_on(self.command, self.path, self.headers, body)
                self.send_response_only(status)
                for name, value in headers:
                    if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve

            def log_message(self, *_):
                pass

        return Handler


def compare_table(page, marker, lines, variable):
    """Compares the lines between two markers of a page, or writes them if the variable is set."""
    before, rest = page.read_text().split(f"<!-- {marker} -->\n")
    known, after = rest.split("<!-- end -->\n")
    new = "\n".join([*lines, ""])
    if os.environ.get(variable):
        page.write_text(f"{before}<!-- {marker} -->\n{new}<!-- end -->\n{after}")
    else:
        assert known == new, f"{variable}=1 writes {page.name}"
