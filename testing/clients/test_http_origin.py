"""Files of nginx, read by unmodified clients through Bywash. The log of nginx has the requests."""

import contextlib
import os
import shutil
import socket
from collections import Counter

import duckdb
import pytest
import requests
from botocore.exceptions import ClientError, ConnectionClosedError, IncompleteReadError, ResponseStreamingError
from harness import MIB, Bywash, Process, clean_environment, s3_client
from test_duckdb import results, connection

# Debian's path is not in the PATH of users.
PROGRAM = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")

CONFIGURATION = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr notice;
events {{}}
http {{
    log_format line '$request_method $uri $status';
    access_log {folder}/access.log line;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port} reuseport;
        location /files/ {{ alias {folder}/files/; }}
        location /whole/ {{ alias {folder}/files/; max_ranges 0; }}
        location /dated/ {{ alias {folder}/files/; etag off; }}
        location /barrier {{ return 204; }}
    }}
}}
"""


class Nginx:
    """A real web server in a separate process."""

    def __init__(self, folder):
        self.files, self.log = folder / "files", folder / "access.log"
        self.files.mkdir()
        # A bound socket that does not listen reserves the port for nginx.
        self.port = socket.socket()
        self.port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.port.bind(("127.0.0.1", 0))
        port = self.port.getsockname()[1]
        configuration = folder / "nginx.conf"
        configuration.write_text(CONFIGURATION.format(folder=folder, port=port))
        command = [PROGRAM, "-p", folder, "-e", "stderr", "-c", configuration]
        self.process = Process(command, clean_environment(), folder / "nginx.log")
        # Its socket listens before it prints this line.
        self.process.wait_for(r"using the \"\w+\" event method")
        self.url = f"http://127.0.0.1:{port}"
        self.barriers = 0

    def put(self, name, body, mtime):
        """Replaces a file atomically. Versions differ in their date, in seconds."""
        fresh = self.files / f".{name}"
        fresh.write_bytes(body)
        os.utime(fresh, (mtime, mtime))
        os.replace(fresh, self.files / name)

    def request_counts(self, name):
        """Returns the number of requests for a file by method, from the log."""
        requests.get(self.url + "/barrier", timeout=30).raise_for_status()
        self.barriers += 1
        lines = []
        while sum(line.startswith("GET /barrier") for line in lines) < self.barriers:
            lines = self.log.read_text().splitlines()
        return Counter(line.split()[0] for line in lines if line.split()[1].endswith(f"/{name}"))


@pytest.fixture(scope="module")
def nginx(tmp_path_factory):
    server = Nginx(tmp_path_factory.mktemp("nginx"))
    yield server
    server.process.kill()


@pytest.fixture(scope="module")
def server(nginx, tmp_path_factory):
    """Buckets over the same files on a server with all features, one without ranges, and one without ETag."""
    folder = tmp_path_factory.mktemp("web")
    settings = folder / "bywash.toml"
    settings.write_text(
        f"""
        [[bucket]]
        url = "{nginx.url}/files"
        [[bucket]]
        url = "{nginx.url}/whole"
        consistency = "revalidate=0s"
        [[bucket]]
        url = "{nginx.url}/dated"
        consistency = "revalidate=0s"
        [[bucket]]
        name = "fresh"
        url = "{nginx.url}/files"
        consistency = "revalidate=0s"
        [[key]]
        access-key = "reader"
        secret-key = "env:READER_SECRET"
        buckets = ["files"]
        read-only = true
        """
    )
    bywash = Bywash(folder, "--config", settings, "--memory", "96MiB", env={"READER_SECRET": "reader-secret"})
    yield bywash
    assert bywash.stop() == 0


def test_duckdb_reads_a_web_server_and_fetches_data_once(nginx, server, flights):
    shutil.copyfile(flights, nginx.files / "flights.parquet")
    local = results(duckdb.connect(), flights)
    assert results(connection(server), "s3://files/flights.parquet") == local
    first, counted = nginx.request_counts("flights.parquet"), server.bucket_stats("files")
    assert first["GET"] == counted["origin_data_requests"] > 0
    assert results(connection(server), "s3://files/flights.parquet") == local
    second = nginx.request_counts("flights.parquet")
    assert second["GET"] == first["GET"]
    assert sum(second.values()) == server.bucket_stats("files")["origin_requests"]


@pytest.mark.parametrize("bucket", ["fresh", "whole", "dated"])
def test_replaced_file_is_never_mixed_within_a_read(nginx, server, bucket):
    old, new = b"a" * (48 * MIB), b"b" * (48 * MIB)
    nginx.put("replaced", old, 1_700_000_000)
    body = server.s3.get_object(Bucket=bucket, Key="replaced")["Body"]
    got = body.read(MIB)
    nginx.put("replaced", new, 1_700_000_100)
    with contextlib.suppress(ConnectionClosedError, IncompleteReadError, ResponseStreamingError):
        got += body.read()
    assert got.count(b"a") == len(got), "bytes of two versions"
    assert server.s3.get_object(Bucket=bucket, Key="replaced", Range="bytes=7-9")["Body"].read() == b"bbb"
    assert server.s3.get_object(Bucket=bucket, Key="replaced")["Body"].read() == new


@pytest.mark.parametrize("bucket", ["fresh", "whole", "dated"])
def test_ranges_are_correct_on_servers_with_fewer_features(nginx, server, bucket):
    data = os.urandom(3 * MIB + 5)
    nginx.put("ranged", data, 1_700_000_000)
    for requested, wanted in [
        ("bytes=0-0", data[:1]),
        (f"bytes={MIB - 1}-{2 * MIB}", data[MIB - 1 : 2 * MIB + 1]),
        ("bytes=-10", data[-10:]),
        (f"bytes={3 * MIB}-", data[3 * MIB :]),
    ]:
        assert server.s3.get_object(Bucket=bucket, Key="ranged", Range=requested)["Body"].read() == wanted
    assert server.s3.get_object(Bucket=bucket, Key="ranged")["Body"].read() == data
    before = nginx.request_counts("ranged")["GET"]
    assert server.s3.get_object(Bucket=bucket, Key="ranged")["Body"].read() == data
    assert nginx.request_counts("ranged")["GET"] == before, "the object is in memory"


def refused(code, call, **arguments):
    with pytest.raises(ClientError) as error:
        call(**arguments)
    assert error.value.response["Error"]["Code"] == code
    return error.value.response["Error"].get("Message", "")


def test_writes_and_listings_are_rejected(nginx, server):
    message = refused("AccessDenied", server.s3.put_object, Bucket="files", Key="new", Body=b"x")
    assert "read-only" in message
    refused("AccessDenied", server.s3.delete_object, Bucket="files", Key="flights.parquet")
    refused("AccessDenied", server.s3.create_multipart_upload, Bucket="files", Key="new")
    refused("NotImplemented", server.s3.list_objects_v2, Bucket="files")
    assert not nginx.request_counts("new")
    for _ in range(3):
        refused("404", server.s3.head_object, Bucket="files", Key="none")
    assert 1 <= nginx.request_counts("none")["HEAD"] <= 3


def test_read_only_key_of_one_bucket(nginx, server):
    nginx.put("small", b"small", 1_700_000_000)
    reader = s3_client(server.url, "reader", "reader-secret")
    assert [bucket["Name"] for bucket in reader.list_buckets()["Buckets"]] == ["files"]
    assert reader.get_object(Bucket="files", Key="small")["Body"].read() == b"small"
    refused("AccessDenied", reader.get_object, Bucket="fresh", Key="small")
    message = refused("AccessDenied", reader.put_object, Bucket="files", Key="new", Body=b"x")
    assert "may only read" in message
    url = s3_client(server.url, "reader", "reader-secret", signature_version="s3v4").generate_presigned_url(
        "get_object", {"Bucket": "fresh", "Key": "small"}
    )
    assert requests.get(url, timeout=30).status_code == 403
