"""Objects downloaded to files of the server's machine: complete and compared, or not there."""

import base64
import hashlib
import http.server
import json
import os
import re
import subprocess
import threading

import pytest
from harness import MIB, payload, sha256, until

BODY = payload(20 * MIB + 17, 7)
SENT_FIRST = 9 * MIB


class HaltingOrigin:
    """Web server of one object that sends what is beyond SENT_FIRST only once `go` is set, and with `flips` another first byte."""

    def __init__(self):
        origin, self.go, self.halted = self, threading.Event(), threading.Event()
        self.flips, self.ranges = False, []
        digest = base64.b64encode(hashlib.md5(BODY).digest()).decode()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                requested = self.headers.get("Range")
                first, last = re.match(r"bytes=(\d+)-(\d*)", requested or "bytes=0-").groups()
                first, end = int(first), min(int(last or len(BODY)) + 1, len(BODY))
                self.send_response(206 if requested else 200)
                if requested:
                    self.send_header("Content-Range", f"bytes {first}-{end - 1}/{len(BODY)}")
                self.send_header("Content-Length", str(end - first))
                self.send_header("ETag", '"one"')
                self.send_header("x-goog-hash", f"md5={digest}")
                self.end_headers()
                if self.command == "HEAD":
                    return
                origin.ranges.append((first, end))
                allowed = max(first, min(end, SENT_FIRST))
                sent = bytearray(BODY[first:allowed])
                if origin.flips and first == 0 and sent:
                    sent[0] ^= 1
                try:
                    self.wfile.write(sent)
                    if allowed < end:
                        origin.halted.set()
                        origin.go.wait(60)
                        self.wfile.write(BODY[allowed:end])
                except OSError:
                    self.close_connection = True

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d" % self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.go.set()
        self.server.shutdown()


@pytest.fixture
def halting(start, tmp_path):
    """A server over a halting origin, with a folder for files."""
    origin, folder = HaltingOrigin(), tmp_path / "fetched"
    folder.mkdir()
    server = start(f"data={origin.url}/", "--fetch-folder", folder, "--memory", "64MiB")
    yield server, origin, folder
    origin.stop()


def command(server, key, path, *more):
    return [os.environ["BYWASH_BIN"], "cache", "fetch", key, path, *more, "--json", "--data-dir", server.data_dir]


def fetch(server, key, path, *more):
    return subprocess.run(command(server, key, path, *more), capture_output=True, text=True)


def test_object_in_memory_is_fetched_without_a_request(start, moto, tmp_path):
    moto.s3.create_bucket(Bucket="fetch")
    moto.s3.put_object(Bucket="fetch", Key="a/object", Body=BODY)
    folder = tmp_path / "fetched"
    folder.mkdir()
    server = start("s3://fetch", "--fetch-folder", folder, "--memory", "128MiB", env=moto.environment())
    assert server.s3.get_object(Bucket="fetch", Key="a/object")["Body"].read() == BODY
    gets = moto.gets("fetch", "a/object")
    done = fetch(server, "s3://fetch/a/object", "sub/file", "--sha256", sha256(BODY))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["path"] == str(folder.resolve() / "sub/file")
    assert (folder / "sub/file").read_bytes() == BODY
    assert moto.gets("fetch", "a/object") == gets
    files = server.stats()["file_downloads"]
    assert (files["finished"], files["finished_bytes"], files["waiting_bytes"]) == (1, len(BODY), 0)


def test_paths_out_of_the_folder_and_wrong_digests_are_refused(halting, start, tmp_path):
    server, origin, folder = halting
    origin.go.set()
    (tmp_path / "outside").mkdir()
    (folder / "out").symlink_to(tmp_path / "outside")
    for path in ("../up", str(tmp_path / "absolute"), "out/file", "a/../../up", ".bywash/file"):
        done = fetch(server, "s3://data/object", path)
        assert done.returncode != 0 and path in done.stderr, (path, done.stderr)
    done = fetch(server, "s3://data/object", "file", "--sha256", "0" * 64)
    assert done.returncode != 0 and "SHA-256" in done.stderr, done.stderr
    done = fetch(server, "s3://data/absent-bucket", "x/")
    assert done.returncode != 0 and "name the file" in done.stderr, done.stderr
    assert os.listdir(folder) == ["out"]
    assert os.listdir(tmp_path / "outside") == []
    assert sorted(name for name in os.listdir(tmp_path) if name in ("up", "absolute")) == []


def test_server_without_a_folder_writes_no_files(start):
    server = start("memory://", credentials=False)
    done = fetch(server, "s3://memory/object", "file")
    assert done.returncode != 0 and "--fetch-folder" in done.stderr, done.stderr


def test_killed_server_leaves_no_file_and_the_next_fetch_succeeds(halting):
    server, origin, folder = halting
    (folder / "file").write_text("before")
    # As a kill leaves it between the link and the rename, or on file systems without unnamed files.
    leftover = folder / ".bywash-cp-killed"
    leftover.write_bytes(b"half")
    fetching = subprocess.Popen(command(server, "s3://data/object", "file"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert origin.halted.wait(60)
    until("bytes wait", lambda: server.stats()["file_downloads"]["waiting_bytes"] == len(BODY), 30)
    server.kill()
    fetching.communicate()
    assert fetching.returncode != 0
    assert (folder / "file").read_text() == "before"
    origin.go.set()
    server.start()
    done = fetch(server, "s3://data/object", "file")
    assert done.returncode == 0, done.stderr
    assert (folder / "file").read_bytes() == BODY
    assert os.listdir(folder) == ["file"]


def test_stopped_server_finishes_its_fetches(halting):
    server, origin, folder = halting
    fetching = subprocess.Popen(command(server, "s3://data/object", "file"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert origin.halted.wait(60)
    threading.Timer(1, origin.go.set).start()
    assert server.stop() == 0
    fetching.communicate()
    assert fetching.returncode == 0
    assert (folder / "file").read_bytes() == BODY


def test_stopped_server_names_the_fetches_that_it_gives_up(halting):
    server, origin, folder = halting
    (folder / "file").write_text("before")
    fetching = subprocess.Popen(command(server, "s3://data/object", "file"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert origin.halted.wait(60)
    server.stop()
    fetching.communicate()
    assert fetching.returncode != 0
    assert (folder / "file").read_text() == "before"
    said = server.process.log.read_text()
    cancelled = [line for line in said.splitlines() if "cancelled" in line]
    assert len(cancelled) == 1 and "object" in cancelled[0] and "file" in cancelled[0], said


def test_client_that_leaves_cancels_its_fetch(halting):
    server, origin, folder = halting
    fetching = subprocess.Popen(command(server, "s3://data/object", "file"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert origin.halted.wait(60)
    fetching.kill()
    fetching.communicate()
    until("the fetch is cancelled", lambda: server.stats()["file_downloads"]["cancelled"] == 1, 30)
    assert os.listdir(folder) == []
    assert server.stats()["file_downloads"]["waiting_bytes"] == 0


def test_blocks_of_a_killed_whole_read_are_not_believed(start, tmp_path):
    """A web origin that states a digest and sends a wrong byte: on the disk, it must not outlive the read that would find it."""
    origin = HaltingOrigin()
    try:
        origin.flips = True
        server = start(f"data={origin.url}/", "--disk", f"{tmp_path}/tier:512MiB", "--memory", "64MiB")
        reading = server.s3.get_object(Bucket="data", Key="object")["Body"]
        # Nothing is held back but the end.
        assert reading.read(8 * MIB)[1:] == BODY[1 : 8 * MIB]
        assert origin.halted.wait(60)
        until("blocks are on the disk", lambda: server.stats()["disk"]["blocks"] >= 4, 60)
        server.kill()
        reading.close()
        origin.flips = False
        origin.go.set()
        server.start()
        ranged = server.s3.get_object(Bucket="data", Key="object", Range="bytes=0-99")["Body"].read()
        assert ranged == BODY[:100]
        # What was compared is found.
        assert server.s3.get_object(Bucket="data", Key="object")["Body"].read() == BODY
        until("all blocks are on the disk", lambda: server.stats()["disk"]["blocks"] == -(-len(BODY) // MIB), 60)
        until("no block waits", lambda: server.stats()["disk"]["queued_blocks"] == 0, 60)
        until("no version is marked", lambda: not (tmp_path / "tier/unverified").read_bytes().strip(b"\0"), 60)
        server.kill()
        server.start()
        origin.ranges.clear()
        assert server.s3.get_object(Bucket="data", Key="object", Range="bytes=0-99")["Body"].read() == BODY[:100]
        assert origin.ranges == []
    finally:
        origin.stop()
