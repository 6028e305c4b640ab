"""Several nodes as one: real etcd, three servers on loopback, moto as their origin."""

import os
import signal
import subprocess
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
import requests
from harness import Bywash, Etcd, Moto, clean_environment, error, free_port, payload, until

pytestmark = pytest.mark.skipif("BYWASH_ETCD" not in os.environ, reason="etcd was not built")

BUCKET = "shared"
MIB = 1 << 20


def bywash(*words, fails=False):
    command = [os.environ["BYWASH_BIN"], *[str(word) for word in words]]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=90)
    assert (done.returncode != 0) == fails, done.stderr + done.stdout
    return done.stderr if fails else done.stdout


class Cluster:
    """Nodes over one origin and one etcd."""

    def __init__(self, folder, request, nodes=3):
        self.folder, self.request = folder, request
        self.origin = Moto(folder)
        request.addfinalizer(self.origin.process.kill)
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
            folder, f"{BUCKET}=s3://{BUCKET}", "--cluster", f"etcd://{self.etcd.address}/demo", "--cluster-key-file", self.key,
            "--advertise", f"127.0.0.1:{free_port()}", "--drain", "1s", *arguments, env=self.origin.environment(),
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
    first.s3.put_object(Bucket=BUCKET, Key="a", Body=b"one")
    assert body(second, "a") == b"one"
    cluster.etcd.process.child.send_signal(signal.SIGSTOP)
    until("authority has ended", lambda: first.stats()["cluster"]["authority_left_ms"] == 0, 30)
    assert "etcd      does not answer" in bywash("cluster", "status", "--data-dir", first.data_dir)
    for turn in range(3):
        text = b"without %d" % turn
        first.s3.put_object(Bucket=BUCKET, Key="a", Body=text)
        assert body(second, "a") == text
    assert first.stats()["cluster"]["writes_waited"] > 0
    cluster.etcd.process.child.send_signal(signal.SIGCONT)
    cluster.settled(3)
    second.s3.put_object(Bucket=BUCKET, Key="a", Body=b"again")
    assert body(first, "a") == b"again"


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
    other = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    Thread(target=other.serve_forever, daemon=True).start()
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
    ready = requests.get(third.admin + "/readyz", timeout=10)
    assert ready.status_code == 503 and ready.text.startswith("joining: etcd at http://"), ready.text
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
