"""Several nodes as one: real etcd, three servers on loopback, moto as their origin."""

import concurrent.futures
import contextlib
import io
import itertools
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.parse
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import pytest
import requests
from fault_proxy import FaultProxy, FaultsInOrder
from google.cloud import storage
from harness import Azurite, Balancer, Bywash, Etcd, Moto, Process, Versitygw, clean_environment, error, free_port, payload, s3_client, until

pytestmark = pytest.mark.skipif("BYWASH_ETCD" not in os.environ, reason="etcd was not built")

BUCKET = "shared"
MIB = 1 << 20
# Debian's path is not in the PATH of users.
NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")


def bywash(*words, fails=False):
    command = [os.environ["BYWASH_BIN"], *[str(word) for word in words]]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=90)
    assert (done.returncode != 0) == fails, done.stderr + done.stdout
    return done.stderr if fails else done.stdout


class Cluster:
    """Nodes over one origin and one etcd."""

    def __init__(self, folder, request, *arguments, nodes=3, origin=Moto):
        self.folder, self.request, self.arguments = folder, request, arguments
        self.origin = origin(folder)
        request.addfinalizer(self.origin.process.kill)
        if origin is Azurite:
            self.url = f"az://{BUCKET}"
            self.origin.request("PUT", BUCKET, restype="container")
        else:
            self.url = f"s3://{BUCKET}"
            self.origin.s3.create_bucket(Bucket=BUCKET)
        self.etcd = Etcd(folder)
        request.addfinalizer(self.etcd.process.kill)
        self.key = folder / "cluster.key"
        bywash("cluster", "key", self.key)
        self.nodes = [self.start(f"node{number}") for number in range(nodes)]
        self.settled(nodes)

    def start(self, name, *arguments):
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        node = Bywash(
            folder, f"{BUCKET}={self.url}", "--cluster", f"etcd://{self.etcd.address}/demo", "--cluster-key-file", self.key,
            "--advertise", f"127.0.0.1:{free_port()}", "--drain", "1s", *self.arguments, *arguments, env=self.origin.environment(),
        )
        self.request.addfinalizer(node.kill)
        return node

    def settled(self, count):
        """Waits until `count` nodes are members for each other and all shards have a holder among them."""

        def is_settled():
            states = [node.stats()["cluster"] for node in self.nodes if node.process.child.poll() is None]
            held = sum(state["shards"] for state in states)
            return all(len(state["members"]) == count for state in states) and held == states[0]["shards_total"]

        until(f"{count} members hold all shards", is_settled, 60)

    def origin_bytes(self):
        return sum(node.bucket_stats(BUCKET)["origin_bytes"] for node in self.nodes if node.process.child.poll() is None)

    def fallbacks(self):
        """Requests of running nodes to others that ended at the origin: a node that does not respond within 150 ms costs one."""
        running = [node for node in self.nodes if node.process.child.poll() is None]
        return sum(sum(node.stats()["cluster"]["fallbacks"].values()) for node in running)


@pytest.fixture
def cluster(tmp_path, request):
    return Cluster(tmp_path, request)


# Origins of the case that all are to pass: `BYWASH_CLUSTER_ORIGINS=moto,versitygw,azurite` by hand.
ORIGINS = {"moto": Moto, "versitygw": Versitygw, "azurite": Azurite}


@pytest.fixture(params=os.environ.get("BYWASH_CLUSTER_ORIGINS", "moto").split(","))
def cluster_of_each_origin(tmp_path, request):
    return Cluster(tmp_path, request, origin=ORIGINS[request.param])


class Readers:
    """Threads that read an object through all nodes at once and compare it."""

    def __init__(self, nodes, key, data, count):
        self.key, self.data, self.read = key, data, 0
        self.total = count * len(data)
        self.pool = concurrent.futures.ThreadPoolExecutor(count)
        self.reads = [self.pool.submit(self._read, nodes[reader % len(nodes)].s3) for reader in range(count)]

    def _read(self, s3):
        found = bytearray()
        for piece in s3.get_object(Bucket=BUCKET, Key=self.key)["Body"].iter_chunks(1 << 18):
            found += piece
            self.read += len(piece)
        return found == self.data

    def wait_for_half(self):
        until("half of the bytes have come", lambda: self.read > self.total / 2 or all(read.done() for read in self.reads), 60)

    def end(self):
        assert all(read.result(120) for read in self.reads)
        self.pool.shutdown()


class ConnectionBalancer(FaultProxy):
    """Passes each connection to a node that is ready, in turn, as a load balancer does."""

    def __init__(self, nodes):
        self.nodes, self.ready, self.turns, self.closed = nodes, [], itertools.count(), False
        self.look()
        threading.Thread(target=self._look_again, daemon=True).start()
        super().__init__(None, FaultsInOrder())

    def look(self):
        ready = []
        for node in self.nodes:
            with contextlib.suppress(requests.RequestException):
                if requests.get(node.admin + "/readyz", timeout=1).status_code == 200:
                    ready.append(node)
        self.ready = ready

    def _look_again(self):
        while not self.closed:
            self.look()
            time.sleep(0.1)

    def connect(self):
        ready, turn = self.ready, next(self.turns)
        for step in range(len(ready)):
            address = urllib.parse.urlsplit(ready[(turn + step) % len(ready)].url)
            with contextlib.suppress(OSError):
                server = socket.create_connection((address.hostname, address.port), 1)
                server.settimeout(None)
                return server
        raise ConnectionError("no node is ready")

    def close(self):
        self.closed = True
        self.stop()


class Load(threading.Thread):
    """A client with boto3's own retries that writes, and reads what it wrote and a hot object."""

    def __init__(self, url, name, hot):
        super().__init__(daemon=True)
        self.s3 = s3_client(url, retries={})
        self.name, self.hot, self.ended, self.done, self.failure = name, hot, False, 0, None

    def run(self):
        try:
            while not self.ended:
                key, text = f"{self.name}-{self.done % 4}", b"%d" % self.done
                self.s3.put_object(Bucket=BUCKET, Key=key, Body=text)
                assert self.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() == text, f"{key} is stale"
                assert self.s3.get_object(Bucket=BUCKET, Key="hot")["Body"].read() == self.hot
                self.done += 1
        except Exception as failure:
            self.failure = failure


def body(node, key):
    return node.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()


def test_bytes_come_from_the_origin_once_and_writes_are_seen_at_once(cluster):
    first, second, third = cluster.nodes
    data = payload(40 * MIB)
    cluster.origin.s3.put_object(Bucket=BUCKET, Key="cold", Body=data)
    for node in cluster.nodes:
        assert body(node, "cold") == data
    most = 3 * len(data) if cluster.fallbacks() else len(data)
    assert len(data) <= cluster.origin_bytes() <= most
    assert sum(node.stats()["cluster"]["peer_hits"] for node in cluster.nodes) > 0

    for turn in range(60):
        writer, reader = cluster.nodes[turn % 3], cluster.nodes[(turn + 1) % 3]
        text = b"%d" % turn
        writer.s3.put_object(Bucket=BUCKET, Key=f"key{turn % 4}", Body=text)
        assert body(reader, f"key{turn % 4}") == text
        assert body(cluster.nodes[(turn + 2) % 3], f"key{turn % 4}") == text
    second.s3.delete_object(Bucket=BUCKET, Key="key0")
    assert error(first.s3.get_object, Bucket=BUCKET, Key="key0") == ("NoSuchKey", 404)
    third.s3.copy_object(Bucket=BUCKET, Key="key0", CopySource=f"{BUCKET}/key1")
    assert body(first, "key0") == body(second, "key1")


def test_a_killed_node_leaves_reads_and_writes(cluster):
    first, second, third = cluster.nodes
    names = [f"object{number}" for number in range(24)]
    for name in names:
        first.s3.put_object(Bucket=BUCKET, Key=name, Body=name.encode())
        assert body(third, name) == name.encode()
    third.kill()
    for turn, name in enumerate(names):
        writer, reader = (first, second) if turn % 2 else (second, first)
        assert body(reader, name) == name.encode()
        began = time.monotonic()
        writer.s3.put_object(Bucket=BUCKET, Key=name, Body=b"new")
        # The limit of a begin at a holder that does not answer, and the window of the bucket.
        assert time.monotonic() - began < 15
        assert body(reader, name) == b"new"
    cluster.settled(2)
    third.start()
    cluster.settled(3)
    assert body(third, names[0]) == b"new"


def test_a_stopped_node_hands_over_at_once(cluster):
    first, second, third = cluster.nodes
    data = payload(24 * MIB)
    first.s3.put_object(Bucket=BUCKET, Key="hot", Body=data)
    for node in cluster.nodes:
        assert body(node, "hot") == data
    third.process.child.send_signal(signal.SIGTERM)
    until("its shards are with others", lambda: sum(node.stats()["cluster"]["shards"] for node in (first, second)) == 4096, 30)
    assert third.process.child.wait(30) == 0
    for node in (first, second):
        assert body(node, "hot") == data
    most = 6 * len(data) if cluster.fallbacks() else 2 * len(data)
    assert cluster.origin_bytes() <= most, "blocks are requested at most once more"


def test_without_etcd_reads_and_writes_go_on(cluster):
    first, second, _ = cluster.nodes
    hot = payload(4 * MIB)
    first.s3.put_object(Bucket=BUCKET, Key="a", Body=b"one")
    first.s3.put_object(Bucket=BUCKET, Key="hot", Body=hot)
    assert body(second, "a") == b"one"
    assert all(body(node, "hot") == hot for node in cluster.nodes)
    loaded, fallbacks = cluster.origin_bytes(), cluster.fallbacks()
    cluster.etcd.process.child.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    lapsed = lambda node: node.stats()["cluster"]["authority_left_ms"] == 0  # noqa: E731
    until("authority has ended", lambda: all(lapsed(node) for node in cluster.nodes), 30)
    assert "etcd      does not answer" in bywash("cluster", "status", "--data-dir", first.data_dir)
    for turn in range(3):
        text = b"without %d" % turn
        first.s3.put_object(Bucket=BUCKET, Key="a", Body=text)
        assert body(second, "a") == text
    assert first.stats()["cluster"]["writes_waited"] > 0
    # Longer than leases last: they all end when etcd goes on.
    until("leases are over", lambda: time.monotonic() > stopped + 8, 30)
    cluster.etcd.process.child.send_signal(signal.SIGCONT)
    began = time.monotonic()
    assert all(body(node, "hot") == hot for node in cluster.nodes)
    # No read waits until the nodes are registered again.
    assert time.monotonic() - began < 6
    cluster.settled(3)
    assert all(body(node, "hot") == hot for node in cluster.nodes)
    # No block was dropped. A node that does not respond in time costs a request.
    most = len(hot) * (cluster.fallbacks() - fallbacks) + MIB
    assert cluster.origin_bytes() - loaded < most
    second.s3.put_object(Bucket=BUCKET, Key="a", Body=b"again")
    assert body(first, "a") == b"again"


def test_case_13_cold_readers_cost_each_byte_once_and_nodes_come_and_go(cluster):
    third = cluster.nodes[2]
    data = payload(32 * MIB)
    for key in ("cold", "moving"):
        cluster.origin.s3.put_object(Bucket=BUCKET, Key=key, Body=data)
    Readers(cluster.nodes, "cold", data, 12).end()
    loaded = cluster.origin_bytes()
    assert len(data) <= loaded <= (3 if cluster.fallbacks() else 1) * len(data)

    readers = Readers(cluster.nodes, "moving", data, 12)
    readers.wait_for_half()
    third.process.child.send_signal(signal.SIGTERM)
    left = 0
    cluster.nodes[2:] = [cluster.start("node3")]
    with contextlib.suppress(requests.RequestException):
        # It ends when its readers have.
        while True:
            left = third.bucket_stats(BUCKET)["origin_bytes"]
            time.sleep(0.05)
    readers.end()
    assert third.process.child.wait(30) == 0
    loaded = cluster.origin_bytes() + left - loaded
    most = 4 if cluster.fallbacks() else 2
    assert loaded < most * len(data), f"{loaded / len(data):.2f} times"
    cluster.settled(3)


def test_case_17_upload_goes_on_after_a_kill_between_any_two_of_its_requests(cluster_of_each_origin):
    cluster = cluster_of_each_origin
    nodes, turns = cluster.nodes, itertools.count()

    def next_node():
        """The node that served the request before is killed, and the one killed before it started again."""
        turn = next(turns)
        if turn > 0:
            nodes[(turn - 1) % 3].kill()
        if turn > 1:
            nodes[(turn - 2) % 3].start()
        return nodes[turn % 3].s3

    data = [payload(5 * MIB, seed=1), payload(5 * MIB, seed=2), b"end"]
    upload = {"Bucket": BUCKET, "Key": "parts"}
    upload["UploadId"] = next_node().create_multipart_upload(**upload)["UploadId"]
    parts = []
    for number, part in enumerate(data, 1):
        parts.append({"PartNumber": number, "ETag": next_node().upload_part(**upload, PartNumber=number, Body=part)["ETag"]})
    listed = next_node().list_parts(**upload)["Parts"]
    assert [(part["PartNumber"], part["Size"]) for part in listed] == [(n, len(part)) for n, part in enumerate(data, 1)]
    assert [found["UploadId"] for found in next_node().list_multipart_uploads(Bucket=BUCKET)["Uploads"]] == [upload["UploadId"]]
    completion = {**upload, "MultipartUpload": {"Parts": parts}}
    done = next_node().complete_multipart_upload(**completion)
    assert next_node().complete_multipart_upload(**completion)["ETag"] == done["ETag"]
    assert next_node().get_object(Bucket=BUCKET, Key="parts")["Body"].read() == b"".join(data)
    assert "Uploads" not in next_node().list_multipart_uploads(Bucket=BUCKET)


def test_case_19_rolling_restart_under_load_fails_no_request(cluster):
    hot = payload(MIB)
    cluster.nodes[0].s3.put_object(Bucket=BUCKET, Key="hot", Body=hot)
    balancer = ConnectionBalancer(cluster.nodes)
    loads = [Load(balancer.url, f"client{number}", hot) for number in range(4)]
    for load in loads:
        load.start()
    for node, end in [*[(node, signal.SIGTERM) for node in cluster.nodes], (cluster.nodes[1], signal.SIGKILL)]:
        done = sum(load.done for load in loads)
        node.process.child.send_signal(end)
        node.process.child.wait(60)
        node.start()
        until("it is ready", lambda node=node: node in balancer.ready, 60)
        until("clients go on", lambda done=done: any(load.failure for load in loads) or sum(load.done for load in loads) > done + 40, 60)
    for load in loads:
        load.ended = True
    for load in loads:
        load.join(60)
        assert not load.is_alive() and load.failure is None, load.failure
    balancer.close()


def test_open_uploads_continue_at_any_node(cluster):
    first, second, third = cluster.nodes
    begun = first.s3.create_multipart_upload(Bucket=BUCKET, Key="parts", Metadata={"by": "first"})
    upload = {"Bucket": BUCKET, "Key": "parts", "UploadId": begun["UploadId"]}
    data = [payload(5 * MIB, seed=seed) for seed in range(2)] + [b"end"]
    parts = []
    for number, part in enumerate(data, 1):
        node = cluster.nodes[number % 3]
        parts.append({"PartNumber": number, "ETag": node.s3.upload_part(**upload, PartNumber=number, Body=part)["ETag"]})
    listed = third.s3.list_parts(**upload)["Parts"]
    assert [(part["PartNumber"], part["Size"]) for part in listed] == [(n, len(part)) for n, part in enumerate(data, 1)]
    assert [found["UploadId"] for found in second.s3.list_multipart_uploads(Bucket=BUCKET)["Uploads"]] == [begun["UploadId"]]
    first.kill()
    done = second.s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    again = third.s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    assert again["ETag"] == done["ETag"]
    assert body(third, "parts") == b"".join(data)
    assert third.s3.head_object(Bucket=BUCKET, Key="parts")["Metadata"] == {"by": "first"}


def google_client(folder, url):
    """Makes a service account, and returns its client at a load balancer and its table for the settings of nodes."""
    data = folder / "accounts"
    key = bywash("keys", "create", "--gcs", "--name", "app", "--endpoint", url, "--data-dir", data)
    (folder / "key.json").write_text(key)
    table = bywash("keys", "ls", "--toml", "--data-dir", data)
    client = storage.Client.from_service_account_json(folder / "key.json", client_options={"api_endpoint": url})
    return client, table


def documented_nginx(folder, request, nodes):
    """Starts nginx as docs/operations.md has it, for two nodes. Returns its URL and its log of sessions, nodes and statuses."""
    text = (Path(__file__).parents[2] / "docs/operations.md").read_text()
    rules = next(block for block in text.split("```") if "map $arg_upload_id" in block)
    known = zip(["3f0c6a51d2b84e97", "9b27e40d15ac8f36"], ["10.0.0.11:8421", "10.0.0.12:8421"], nodes)
    for node, address, (own, gcs) in known:
        rules = rules.replace(node, own).replace(address, gcs.removeprefix("http://"))
    port, log = free_port(), folder / "sessions.log"
    rules = rules.replace("listen 8421;", f"listen 127.0.0.1:{port};")
    temporary = "".join(f"{name}_temp_path {folder}/{name};" for name in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"])
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr notice; events {{}}\n"
        f"http {{ log_format line '$arg_upload_id $upstream_addr $status'; access_log {log} line; {temporary}\n{rules}}}\n"
    )
    nginx = Process([NGINX, "-p", folder, "-e", "stderr", "-c", configuration], clean_environment(), folder / "nginx.out")
    request.addfinalizer(nginx.kill)
    nginx.wait_for(r"using the \"\w+\" event method")
    return f"http://127.0.0.1:{port}", log


def test_googles_client_works_through_a_load_balancer(tmp_path, request):
    """Each request goes to the next of three nodes, those of a resumable session too: these are repeated until they come to its node."""
    balancer = Balancer()
    request.addfinalizer(balancer.stop)
    client, table = google_client(tmp_path, balancer.url)
    settings = tmp_path / "bywash.toml"
    settings.write_text(table)
    cluster = Cluster(tmp_path, request, "--config", settings)
    balancer.backends = [node.gcs for node in cluster.nodes]
    bucket = client.bucket(BUCKET)
    for number in range(6):
        bucket.blob(f"small/{number}").upload_from_string(b"%d" % number, if_generation_match=0)
    listed = list(client.list_blobs(bucket, prefix="small/", page_size=1))
    assert [blob.name for blob in listed] == [f"small/{number}" for number in range(6)]
    for number, blob in enumerate(listed):
        found = bucket.get_blob(blob.name)
        assert found.generation == blob.generation
        assert found.download_as_bytes(if_generation_match=blob.generation) == b"%d" % number
    token, _, _ = bucket.blob("small/copy").rewrite(listed[0])
    assert token is None and bucket.blob("small/copy").download_as_bytes() == b"0"

    data = payload(6 * MIB + 17)
    blob = bucket.blob("chunked", chunk_size=4 * MIB)
    blob.upload_from_file(io.BytesIO(data), if_generation_match=0)
    assert bucket.blob("chunked").download_as_bytes() == data
    sessions = [(backend, status) for backend, _, target, status in balancer.served if "upload_id=" in target]
    assert {status for _, status in sessions} == {200, 308, 503}, "a round robin sends them to other nodes too"
    assert len({backend for backend, status in sessions if status != 503}) == 1
    assert not {404, 410} & {status for _, status in sessions}

    # With the rule of docs/operations.md none of them is repeated.
    names = {requests.get(node.admin + "/stats", timeout=10).json()["cluster"]["node"]: node.gcs for node in cluster.nodes}
    balancer.choose = lambda target: next((gcs for node, gcs in names.items() if target.endswith(f".{node}")), None)
    balancer.served.clear()
    bucket.blob("chunked", chunk_size=4 * MIB).upload_from_file(io.BytesIO(data[::-1]))
    assert bucket.blob("chunked").download_as_bytes() == data[::-1]
    assert 503 not in {status for *_, status in balancer.served}
    if NGINX:
        url, served = documented_nginx(tmp_path, request, list(names.items())[:2])
        client = storage.Client.from_service_account_json(tmp_path / "key.json", client_options={"api_endpoint": url})
        for _ in range(4):
            client.bucket(BUCKET).blob("by nginx", chunk_size=4 * MIB).upload_from_file(io.BytesIO(data))
        assert client.bucket(BUCKET).blob("by nginx").download_as_bytes() == data
        lines = [line.split() for line in served.read_text().splitlines()]
        sessions = [(backend, status) for session, backend, status in lines if session != "-"]
        assert len(sessions) == 8 and {status for _, status in sessions} == {"200", "308"}
        assert len({backend for backend, _ in sessions}) == 2, "both nodes have sessions"


def test_nodes_are_shown_and_ready_apart_from_alive(cluster):
    first = cluster.nodes[0]
    shown = bywash("cluster", "status", "--data-dir", first.data_dir)
    assert "cluster demo, node " in shown and shown.count("127.0.0.1:") == 3 and "(this)" in shown
    assert requests.get(first.admin + "/readyz", timeout=10).text == "ready\n"
    assert requests.get(first.admin + "/healthz", timeout=10).text == "ok\n"
    metrics = requests.get(first.admin + "/metrics", timeout=10).text
    assert "\nbywash_cluster_members 3\n" in metrics and '\nbywash_cluster_state{state="up"} 1\n' in metrics


def test_what_one_node_has_alone_is_refused(tmp_path):
    key = tmp_path / "cluster.key"
    bywash("cluster", "key", key)
    assert "exists" in bywash("cluster", "key", key, fails=True)
    options = [
        "--cluster", "etcd://127.0.0.1:1/demo", "--cluster-key-file", key, "--advertise", "127.0.0.1:1", "--data-dir", tmp_path / "data",
        "--access-key", "key", "--secret-key", "secret",
    ]
    assert "of one node alone" in bywash("serve", *options, fails=True)
    assert "one process only" in bywash("serve", *options, f"file://{tmp_path}", fails=True)
    key.chmod(0o644)
    assert "other users" in bywash("serve", *options, "s3://data", fails=True)
    key.chmod(0o600)
    bywash("keys", "create", "--gcs", "--name", "app", "--endpoint", "http://h", "--data-dir", tmp_path / "data")
    assert "keys ls --toml" in bywash("serve", *options, "s3://data", fails=True)
    bywash("keys", "rm", "app", "--data-dir", tmp_path / "data")
    # It has no /version, as any server that is not etcd.
    other = HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    options[1] = f"etcd://127.0.0.1:{other.server_port}/demo"
    refused = bywash("serve", *options, "s3://data", fails=True)
    assert "--cluster: etcd at" in refused and "refused a request" in refused
    other.shutdown()


def test_a_node_starts_without_etcd_and_joins_later(cluster):
    first, second, third = cluster.nodes
    first.s3.put_object(Bucket=BUCKET, Key="a", Body=b"one")
    third.kill()
    cluster.etcd.process.child.send_signal(signal.SIGSTOP)
    until("authority has ended", lambda: first.stats()["cluster"]["authority_left_ms"] == 0, 30)
    third.start()
    assert requests.get(third.admin + "/healthz", timeout=10).status_code == 200
    reason = "joining: etcd at http://"
    until("the reason is known", lambda: requests.get(third.admin + "/readyz", timeout=10).text.startswith(reason), 30)
    assert requests.get(third.admin + "/readyz", timeout=10).status_code == 503
    assert any("start etcd, or correct --cluster" in line for line in third.process.seen)
    assert body(third, "a") == b"one"
    first.s3.put_object(Bucket=BUCKET, Key="a", Body=b"two")
    assert body(third, "a") == b"two"
    cluster.etcd.process.child.send_signal(signal.SIGCONT)
    cluster.settled(3)
    assert requests.get(third.admin + "/readyz", timeout=10).text == "ready\n"
    third.s3.put_object(Bucket=BUCKET, Key="a", Body=b"three")
    assert body(first, "a") == body(second, "a") == b"three"


def test_the_last_node_ends_at_once(tmp_path, request):
    cluster = Cluster(tmp_path, request, nodes=1)
    (node,) = cluster.nodes
    node.kill()
    node.arguments[node.arguments.index("--drain") + 1] = "60s"
    node.start()
    began = time.monotonic()
    assert node.stop() == 0
    assert time.monotonic() - began < 20
