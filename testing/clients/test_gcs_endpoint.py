"""Google's own Python client, unmodified, against the GCS endpoint over a folder and over an S3 origin."""

import gzip
import hashlib
import io
import json
import os
import signal
import subprocess
from pathlib import Path
from unittest import mock

import pytest
import requests
from botocore.exceptions import ClientError
from google.api_core.exceptions import Conflict, Forbidden, NotFound, PreconditionFailed
from google.auth.exceptions import RefreshError
from google.cloud import storage
from harness import MIB, Bywash, payload, s3_client
from obstore.exceptions import AlreadyExistsError
from obstore.store import GCSStore

BUCKET = "suite-gcs-endpoint"
CHUNK = 4 * MIB


def client_of(server):
    """Returns a client in the environment that `bywash env --gcs` prints."""
    env = [os.environ["BYWASH_BIN"], "env", "--gcs", "--json", "--data-dir", server.data_dir]
    printed = subprocess.run(env, check=True, capture_output=True, text=True).stdout
    with mock.patch.dict(os.environ, json.loads(printed)):
        return storage.Client(project="p")


@pytest.fixture(scope="module", params=["folder", "moto"])
def bucket(request, tmp_path_factory):
    """A bucket of Google's client over each origin."""
    folder = tmp_path_factory.mktemp("gcs-endpoint")
    if request.param == "folder":
        server = Bywash(folder, "--anonymous", credentials=False)
        bucket = client_of(server).create_bucket(BUCKET)
    else:
        origin = request.getfixturevalue(request.param)
        origin.s3.create_bucket(Bucket=BUCKET)
        server = Bywash(folder, f"s3://{BUCKET}", "--anonymous", credentials=False, env=origin.environment())
        bucket = client_of(server).bucket(BUCKET)
    bucket.server = server
    bucket.kind = request.param
    yield bucket
    assert server.stop() == 0


def test_flights_are_uploaded_in_chunks_listed_and_read(bucket, flights):
    content = Path(flights).read_bytes()
    blob = bucket.blob("flights/flights-3m.parquet", chunk_size=CHUNK)
    blob.upload_from_filename(flights, content_type="application/parquet")
    assert blob.size == len(content)
    assert [found.name for found in bucket.client.list_blobs(bucket, prefix="flights/")] == [blob.name]
    # The client compares the CRC32C where the response has it.
    whole = bucket.blob(blob.name).download_as_bytes()
    assert hashlib.sha256(whole).digest() == hashlib.sha256(content).digest()
    assert bucket.blob(blob.name).download_as_bytes(start=1_000_000, end=1_000_099) == content[1_000_000:1_000_100]
    pieces = io.BytesIO()
    bucket.blob(blob.name, chunk_size=CHUNK).download_to_file(pieces)
    assert pieces.getvalue() == content
    found = bucket.get_blob(blob.name)
    assert (found.content_type, found.size) == ("application/parquet", len(content))
    if bucket.kind == "folder":
        assert found.crc32c == blob.crc32c
    # The S3 endpoint has the same bytes at once.
    assert bucket.server.s3.get_object(Bucket=BUCKET, Key=blob.name)["Body"].read() == content


def test_small_objects_have_metadata_and_are_copied_and_deleted(bucket):
    blob = bucket.blob("small/a b+c")
    blob.metadata = {"colour": "blue"}
    blob.cache_control = "no-store"
    blob.upload_from_string(b"small", content_type="text/plain", checksum="crc32c")
    found = bucket.get_blob(blob.name)
    assert (found.metadata, found.cache_control, found.content_type) == ({"colour": "blue"}, "no-store", "text/plain")
    copied = bucket.copy_blob(blob, bucket, "small/copy")
    assert (copied.size, bucket.blob("small/copy").download_as_bytes()) == (5, b"small")
    token, rewritten, total = bucket.blob("small/rewritten").rewrite(blob)
    assert (token, rewritten, total) == (None, 5, 5)
    names = [found.name for found in bucket.client.list_blobs(bucket, prefix="small/")]
    assert names == ["small/a b+c", "small/copy", "small/rewritten"]
    for name in names:
        bucket.blob(name).delete()
    with pytest.raises(NotFound):
        bucket.blob("small/copy").delete()
    assert bucket.get_blob("small/copy") is None


def test_conditions_guard_writes(bucket):
    blob = bucket.blob("conditional")
    blob.upload_from_string(b"first", if_generation_match=0)
    with pytest.raises(PreconditionFailed):
        bucket.blob("conditional").upload_from_string(b"second", if_generation_match=0)
    first = bucket.get_blob("conditional").generation
    bucket.blob("conditional").upload_from_string(b"second", if_generation_match=first)
    with pytest.raises(PreconditionFailed):
        bucket.blob("conditional").upload_from_string(b"third", if_generation_match=first)
    large = bucket.blob("conditional", chunk_size=CHUNK)
    with pytest.raises(PreconditionFailed):
        large.upload_from_file(io.BytesIO(payload(9 * MIB)), if_generation_match=0)
    assert bucket.blob("conditional").download_as_bytes() == b"second"
    second = bucket.get_blob("conditional").generation
    with pytest.raises(PreconditionFailed):
        bucket.blob("conditional").delete(if_generation_match=first)
    if bucket.kind == "folder":
        bucket.blob("conditional").delete(if_generation_match=second)


def test_pages_and_prefixes(bucket):
    names = [f"pages/{group}/{number:03}" for group in "ab" for number in range(60)]
    for name in names:
        bucket.blob(name).upload_from_string(b"x")
    listed = bucket.client.list_blobs(bucket, prefix="pages/", page_size=50)
    assert [found.name for found in listed] == names
    level = bucket.client.list_blobs(bucket, prefix="pages/", delimiter="/")
    assert list(level) == [] and level.prefixes == {"pages/a/", "pages/b/"}
    some = bucket.client.list_blobs(bucket, start_offset="pages/a/058", end_offset="pages/b/002")
    assert [found.name for found in some] == ["pages/a/058", "pages/a/059", "pages/b/000", "pages/b/001"]


def test_metadata_is_patched_and_updated(bucket):
    blob = bucket.blob("patched")
    blob.upload_from_string(b"patched", content_type="text/plain")
    assert blob.metageneration == 1
    blob.metadata = {"colour": "blue", "shape": "round"}
    blob.cache_control = "no-store"
    blob.patch()
    assert blob.metageneration == 2
    found = bucket.get_blob("patched")
    assert (found.metadata, found.cache_control) == ({"colour": "blue", "shape": "round"}, "no-store")
    assert (found.content_type, found.metageneration) == ("text/plain", 2)
    found.metadata = {"colour": None, "size": "small"}
    found.patch()
    assert bucket.get_blob("patched").metadata == {"shape": "round", "size": "small"}
    other = bucket.get_blob("patched")
    other.content_language = "de"
    other.update()
    found = bucket.get_blob("patched")
    assert (found.content_language, found.metageneration) == ("de", 4)
    assert found.download_as_bytes() == b"patched"
    stale = bucket.blob("patched")
    stale.metadata = {"a": "b"}
    with pytest.raises(PreconditionFailed):
        stale.patch(if_generation_match=1)
    if bucket.kind == "folder":
        with pytest.raises(PreconditionFailed):
            stale.patch(if_metageneration_match=1)
        stale.patch(if_metageneration_match=4)
    # The S3 endpoint has the same metadata at once.
    head = bucket.server.s3.head_object(Bucket=BUCKET, Key="patched")
    assert head["Metadata"]["shape"] == "round" and head["ContentLanguage"] == "de"


def test_objects_are_composed(bucket):
    parts = [payload(3 * MIB), b"", payload(9 * MIB), b"end"]
    blobs = []
    for number, part in enumerate(parts):
        blob = bucket.blob(f"compose/{number}")
        blob.upload_from_string(part)
        blobs.append(blob)
    whole = bucket.blob("compose/whole")
    whole.content_type = "text/x"
    whole.compose(blobs, if_generation_match=0)
    found = bucket.get_blob("compose/whole")
    assert (found.size, found.content_type) == (sum(map(len, parts)), "text/x")
    # The client compares the CRC32C where the response has it.
    assert found.download_as_bytes() == b"".join(parts)
    with pytest.raises(PreconditionFailed):
        whole.compose(blobs, if_generation_match=0)
    # Further bytes at the end of an object.
    whole.compose([whole, blobs[3]])
    assert bucket.blob("compose/whole").download_as_bytes() == b"".join(parts) + b"end"


def test_batches_change_and_delete_many(bucket):
    names = [f"batch/a b+{number}" for number in range(40)]
    for name in names:
        bucket.blob(name).upload_from_string(b"x")
    with bucket.client.batch():
        for name in names[:10]:
            blob = bucket.blob(name)
            blob.metadata = {"changed": "yes"}
            blob.patch()
    assert bucket.get_blob(names[9]).metadata == {"changed": "yes"}
    with bucket.client.batch(raise_exception=False) as batch:
        for name in [*names[:20], "batch/absent"]:
            bucket.blob(name).delete()
    assert [response.status_code for response in batch._responses] == [204] * 20 + [404]
    left = [found.name for found in bucket.client.list_blobs(bucket, prefix="batch/")]
    assert left == sorted(names[20:])
    bucket.delete_blobs(left)
    with pytest.raises(NotFound), bucket.client.batch():
        bucket.blob("batch/absent").delete()


def test_gzip_is_decompressed_for_clients_that_do_not_take_it(bucket):
    text = b"line of text\n" * 500_000
    compressed = gzip.compress(text)
    blob = bucket.blob("compressed")
    blob.content_encoding = "gzip"
    blob.upload_from_string(compressed, content_type="text/plain")
    assert bucket.blob("compressed").download_as_bytes(raw_download=True) == compressed
    assert bucket.blob("compressed").download_as_bytes() == text
    address = f"{bucket.server.gcs}/storage/v1/b/{BUCKET}/o/compressed?alt=media"
    plain = requests.get(address, headers={"Accept-Encoding": "identity"}, timeout=60)
    assert plain.content == text and "Content-Encoding" not in plain.headers
    assert plain.headers["X-Goog-Stored-Content-Encoding"] == "gzip"
    assert plain.headers["X-Goog-Stored-Content-Length"] == str(len(compressed))
    assert plain.headers["Warning"].startswith("214 ")


def test_listings_have_patterns_fields_and_properties(bucket):
    for name in ["glob/1.csv", "glob/2.txt", "glob/deep/3.csv"]:
        bucket.blob(name).upload_from_string(b"x", content_type="text/x")
    found = bucket.client.list_blobs(bucket, match_glob="glob/**.csv")
    assert [blob.name for blob in found] == ["glob/1.csv", "glob/deep/3.csv"]
    found = bucket.client.list_blobs(bucket, match_glob="glob/*.csv", fields="items(name),nextPageToken")
    assert [(blob.name, blob.size) for blob in found] == [("glob/1.csv", None)]
    bucket.blob("glob/deep/").upload_from_string(b"")
    level = bucket.client.list_blobs(bucket, prefix="glob/", delimiter="/", include_trailing_delimiter=True)
    assert [blob.name for blob in level] == ["glob/1.csv", "glob/2.txt", "glob/deep/"]
    if bucket.kind == "folder":
        blob = next(iter(bucket.client.list_blobs(bucket, prefix="glob/")))
        assert blob.content_type == "text/x" and blob.md5_hash and blob.crc32c


def test_upload_continues_after_the_server_was_killed(tmp_path):
    """The client, in the middle of an upload, retries until the server is back on the same port."""
    server = Bywash(tmp_path, "--anonymous", credentials=False)
    client = client_of(server)
    bucket = client.create_bucket("killed")
    content = payload(20 * MIB)

    class Source(io.BytesIO):
        killed = False

        def read(self, size=-1):
            if self.tell() >= 8 * MIB and not Source.killed:
                Source.killed = True
                server.process.child.send_signal(signal.SIGKILL)
                server.process.child.wait()
                at = server.arguments.index("--gcs-addr") + 1
                server.arguments[at] = server.gcs.removeprefix("http://")
                server.start()
            return super().read(size)

    bucket.blob("key", chunk_size=CHUNK).upload_from_file(Source(content), size=len(content))
    assert Source.killed
    assert bucket.blob("key").download_as_bytes() == content
    assert server.stop() == 0


def test_server_with_keys_refuses_and_says_why(start):
    server = start()
    refused = requests.get(server.gcs + "/storage/v1/b", timeout=30)
    assert refused.status_code == 401
    assert "bywash keys create --gcs" in refused.json()["error"]["message"]


def test_buckets_are_created_listed_and_deleted(start):
    server = start("--anonymous", "--no-history", credentials=False)
    client = client_of(server)
    client.create_bucket("one")
    with pytest.raises(Conflict):
        client.create_bucket("one")
    client.create_bucket("two")
    assert [bucket.name for bucket in client.list_buckets()] == ["one", "two"]
    client.bucket("one").delete()
    assert client.lookup_bucket("one") is None
    assert client.get_bucket("two").name == "two"


def keyed_client(server, folder, *arguments):
    """Makes a service account, and returns its client in the environment that `bywash env --gcs --key-file` prints, with its file."""
    program = os.environ["BYWASH_BIN"]
    data = ["--data-dir", server.data_dir]
    made = subprocess.run([program, "keys", "create", "--gcs", *arguments, *data], check=True, capture_output=True, text=True)
    file = folder / "key.json"
    file.write_text(made.stdout)
    env = [program, "env", "--gcs", "--json", "--key-file", file, *data]
    printed = subprocess.run(env, check=True, capture_output=True, text=True).stdout
    with mock.patch.dict(os.environ, json.loads(printed)):
        return storage.Client(), file


def test_key_file_opens_its_buckets_alone(tmp_path):
    """Google's client, with nothing but its environment, gets tokens for the key file: for all buckets, or for one to read."""
    server = Bywash(tmp_path)
    client, file = keyed_client(server, tmp_path)
    content = payload(9 * MIB)
    for name in ["mine", "other"]:
        client.create_bucket(name).blob("key", chunk_size=CHUNK).upload_from_file(io.BytesIO(content))
    assert {bucket.name for bucket in client.list_buckets()} >= {"mine", "other"}
    reader_folder = tmp_path / "reader"
    reader_folder.mkdir()
    reader, _ = keyed_client(server, reader_folder, "--name", "reader", "--bucket", "mine", "--read-only")
    assert reader.bucket("mine").blob("key").download_as_bytes() == content
    assert [bucket.name for bucket in reader.list_buckets()] == ["mine"]
    for forbidden in [
        lambda: reader.bucket("other").blob("key").download_as_bytes(),
        lambda: reader.bucket("mine").blob("key").upload_from_string(b"changed"),
        lambda: reader.bucket("mine").blob("key").delete(),
    ]:
        with pytest.raises(Forbidden):
            forbidden()
    # The key of one account is not that of another one.
    damaged = json.loads(file.read_text()) | {"client_email": "reader@bywash.iam.gserviceaccount.com"}
    stranger = storage.Client.from_service_account_info(damaged, client_options={"api_endpoint": server.gcs})
    with pytest.raises(RefreshError):
        stranger.bucket("mine").blob("key").download_as_bytes()
    assert server.stop() == 0
    assert json.loads(file.read_text())["private_key"] not in (tmp_path / "bywash.log").read_text()


def test_signed_urls_of_the_client_are_good_for_their_method(tmp_path):
    server = Bywash(tmp_path)
    client, _ = keyed_client(server, tmp_path)
    blob = client.create_bucket("signed").blob("a b/key +")
    options = {"version": "v4", "expiration": 600, "api_access_endpoint": server.gcs}
    put = blob.generate_signed_url(method="PUT", content_type="text/x", **options)
    assert requests.put(put, data=b"bytes", headers={"Content-Type": "text/x"}, timeout=60).status_code == 200
    get = blob.generate_signed_url(method="GET", response_disposition="attachment", **options)
    read = requests.get(get, timeout=60)
    assert (read.content, read.headers["Content-Disposition"]) == (b"bytes", "attachment")
    assert requests.delete(get, timeout=60).status_code == 403
    assert requests.get(get.replace("key", "other"), timeout=60).status_code == 403
    start = blob.generate_signed_url(method="RESUMABLE", **options)
    started = requests.post(start, headers={"x-goog-resumable": "start"}, timeout=60)
    assert started.status_code == 201
    assert requests.put(started.headers["Location"], data=b"by session", timeout=60).status_code == 200
    assert blob.download_as_bytes() == b"by session"
    assert server.stop() == 0


def test_obstore_takes_the_endpoint_from_its_key_file(tmp_path):
    server = Bywash(tmp_path)
    client, file = keyed_client(server, tmp_path)
    bucket = client.create_bucket("xml")
    store = GCSStore("xml", config={"service_account": str(file)}, client_options={"allow_http": True})
    body = payload(23 * MIB)
    store.put("folder/large", body)
    assert bucket.blob("folder/large").download_as_bytes() == body
    small = store.put("folder/small", b"small", mode="create")
    with pytest.raises(AlreadyExistsError):
        store.put("folder/small", b"again", mode="create")
    store.put("folder/small", b"newer", mode={"e_tag": small["e_tag"], "version": small["version"]})
    assert store.get_range("folder/large", start=MIB, end=MIB + 9).to_bytes() == body[MIB : MIB + 9]
    store.copy("folder/small", "folder/copy")
    listed = [meta["path"] for page in store.list("folder") for meta in page]
    assert listed == ["folder/copy", "folder/large", "folder/small"]
    store.delete(listed)
    assert list(bucket.list_blobs()) == []
    assert server.stop() == 0


def test_s3_client_signs_with_hmac_keys(tmp_path):
    """boto3 as Google documents it for its storage: without the checksums that are sent as trailers."""
    server = Bywash(tmp_path)
    server.s3.create_bucket(Bucket="hmac")
    options = {"request_checksum_calculation": "when_required", "response_checksum_validation": "when_required"}
    google = s3_client(server.gcs, **options)
    google.put_object(Bucket="hmac", Key="a b/key +", Body=b"bytes", Metadata={"a": "b"})
    found = google.get_object(Bucket="hmac", Key="a b/key +")
    assert found["Body"].read() == b"bytes"
    body = payload(12 * MIB)
    google.upload_fileobj(io.BytesIO(body), "hmac", "large")
    assert server.s3.get_object(Bucket="hmac", Key="large")["Body"].read() == body
    listed = google.list_objects_v2(Bucket="hmac")
    assert [entry["Key"] for entry in listed["Contents"]] == ["a b/key +", "large"]
    google.copy_object(Bucket="hmac", Key="copy", CopySource={"Bucket": "hmac", "Key": "large"})
    google.delete_object(Bucket="hmac", Key="large")
    signer = s3_client(server.gcs, signature_version="s3v4", **options)
    presigned = signer.generate_presigned_url("get_object", Params={"Bucket": "hmac", "Key": "copy"})
    assert requests.get(presigned, timeout=60).content == body
    stranger = s3_client(server.gcs, secret_key="other", **options)
    with pytest.raises(ClientError):
        stranger.get_object(Bucket="hmac", Key="copy")
    assert server.stop() == 0
