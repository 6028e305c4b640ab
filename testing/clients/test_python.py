"""The Python package: its interface, its files, processes that fork, and the server that it starts."""

import asyncio
import concurrent.futures
import gc
import multiprocessing
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy
import pytest

import bywash
import bywash.testing
from bywash import _daemon, _store, errors
from harness import MIB, until

BODY = random.Random("object").randbytes(9 * MIB + 7)


def server_pid(data):
    return int((data / "server" / "serve.lock").read_text())


def alive(pid):
    """Whether a process runs; one that has ended but was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def place(folder, patch):
    """Has `connect` use a server of this folder's own."""
    patch.setenv("BYWASH_LOCAL", str(folder / "local.sock"))
    patch.setenv("BYWASH_HOME", str(folder / "data"))
    return folder / "data"


def end_server(data):
    if (data / "server" / "serve.lock").exists() and alive(pid := server_pid(data)):
        os.kill(pid, signal.SIGKILL)
        until("the server has ended", lambda: not alive(pid), 60)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A place without a server."""
    data = place(tmp_path, monkeypatch)
    yield data
    end_server(data)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        data = place(tmp_path_factory.mktemp("python"), patch)
        yield bywash.connect()
        end_server(data)


@pytest.fixture
def bucket(store, request):
    bucket = store.create_bucket(f"b-{abs(hash(request.node.nodeid))}")
    bucket.put("object", BODY, content_type="text/x", metadata={"a": "b"})
    return bucket


def test_object_is_read_whole_and_in_ranges_without_a_copy(bucket):
    whole = bucket.get("object")
    assert bytes(whole) == BODY and whole.tobytes() == BODY and len(whole) == len(BODY)
    assert whole.leased and (whole.key, whole.size, whole.start) == ("object", len(BODY), 0)
    assert whole.etag == bucket.head("object").etag
    assert bucket.get("object").hit
    assert bytes(bucket.get("object", 5, 10)) == BODY[5:10]
    assert bytes(bucket.get("object", 9 * MIB)) == BODY[9 * MIB :]
    assert bytes(bucket.get("object", end=3)) == BODY[:3]
    last = bucket.get("object", -7)
    assert (bytes(last), last.start) == (BODY[-7:], 9 * MIB)
    assert bytes(bucket.get("object", len(BODY) - 2, len(BODY) + 9)) == BODY[-2:]
    array = whole.numpy()
    assert array.dtype == numpy.uint8 and not array.flags.writeable
    assert array.__array_interface__["data"][0] == numpy.frombuffer(whole, "u1").__array_interface__["data"][0]
    with pytest.raises(TypeError):
        memoryview(whole)[0] = 1
    bucket.put("empty", b"")
    assert bytes(bucket.get("empty")) == b""


@pytest.mark.parametrize("start, end, error", [(5, 5, ValueError), (-3, 9, ValueError), (len(BODY), None, errors.InvalidRangeError)])
def test_range_without_a_byte_is_an_error(bucket, start, end, error):
    with pytest.raises(error):
        bucket.get("object", start, end)


def test_many_ranges_are_of_one_message(bucket, store):
    ranges = [(number * 9000, number * 9000 + 100) for number in range(1000)]
    before = store.status()["requests"]
    read = bucket.get_ranges("object", ranges)
    assert [bytes(one) for one in read] == [BODY[start:end] for start, end in ranges]
    bucket.put("other", b"0123456789")
    many = bucket.get_many([("object", 0, 3), ("object", 9, 12), ("other", 2, 4), ("other",)])
    assert [bytes(one) for one in many] == [BODY[:3], BODY[9:12], b"23", b"0123456789"]
    # Both reads, the write, and the second question itself.
    assert store.status()["requests"] - before <= 5
    assert bucket.get_ranges("object", []) == []
    with pytest.raises(errors.NotFoundError, match="absent"):
        bucket.get_many([("object", 0, 3), ("absent",)])
    some = bucket.get_many([("object", 0, 3), ("absent", 0, 1), ("absent", 2, 3), ("other", 0, 1)], on_error="return")
    assert bytes(some[0]) == BODY[:3] and bytes(some[-1]) == b"0"
    assert len(some) == 4 and all(isinstance(one, errors.NotFoundError) for one in some[1:3])


@pytest.mark.parametrize("make", [bytearray, lambda size: numpy.zeros(size // 8, "f8")], ids=["bytes", "array"])
def test_buffer_is_filled(bucket, make):
    buffer = make(4 * MIB)
    found = bucket.readinto("object", buffer, 11)
    assert bytes(buffer) == BODY[11 : 11 + 4 * MIB] and found.size == len(BODY)
    with pytest.raises(errors.InvalidRangeError):
        bucket.readinto("object", buffer, len(BODY) - 5)
    with pytest.raises(TypeError, match="read-only"):
        bucket.readinto("object", bytes(5))


def test_head_and_listings_state_metadata(bucket):
    found = bucket.head("object")
    assert (found.size, found.content_type, found.metadata) == (len(BODY), "text/x", {"a": "b"})
    keys = [f"many/{number:04}" for number in range(30)]
    for key in keys:
        bucket.put(key, b"x")
    assert [entry.key for entry in bucket.list("many/")] == keys
    # Page by page.
    objects, _, after = bucket.list_page("many/", limit=20)
    objects += bucket.list_page("many/", after=after, limit=20)[0]
    assert [entry.key for entry in objects] == keys
    objects, prefixes, after = bucket.list_page(delimiter="/", limit=1)
    assert prefixes == ["many/"] and objects == [] and after is not None
    objects, _, after = bucket.list_page(delimiter="/", after=after)
    assert [entry.key for entry in objects] == ["object"] and after is None
    bucket.delete(*keys)
    assert list(bucket.list("many/")) == []


def test_conditions_of_writes_and_reads(bucket):
    first = bucket.put("k", b"1", create=True)
    with pytest.raises(FileExistsError):
        bucket.put("k", b"2", create=True)
    second = bucket.put("k", b"2", if_match=first.etag)
    with pytest.raises(errors.ConditionError):
        bucket.put("k", b"3", if_match=first.etag)
    assert bytes(bucket.get("k", if_match=second.etag)) == b"2"
    with pytest.raises(errors.ConditionError):
        bucket.get("k", if_match=first.etag)
    with pytest.raises(errors.NotModifiedError):
        bucket.get("k", if_none_match=second.etag)
    with pytest.raises(errors.ConditionError):
        bucket.delete("k", if_match=first.etag)
    bucket.delete("k", if_match=second.etag)
    assert not bucket.exists("k")
    with pytest.raises(ValueError, match="not both"):
        bucket.put("k", b"", if_match="x", create=True)


def test_copies_and_deletes(bucket, store):
    other = store.create_bucket(f"{bucket.name}-2")
    bucket.copy("object", "copied")
    bucket.copy("object", "copied", to=other)
    assert bytes(bucket.get("copied")) == bytes(other.get("copied")) == BODY
    with pytest.raises(FileExistsError):
        bucket.copy("object", "copied", create=True)
    bucket.delete("copied", "absent")
    assert not bucket.exists("copied")
    with pytest.raises(errors.ConditionError):
        store.delete_bucket(other.name)
    other.delete("copied")
    store.delete_bucket(other.name)
    assert other.name not in store.buckets()


@pytest.mark.parametrize("data", [bytearray(b"ab"), memoryview(b"ab"), numpy.frombuffer(b"ab", "u2")], ids=type)
def test_any_contiguous_buffer_is_written(bucket, data):
    bucket.put("k", data)
    assert bytes(bucket.get("k")) == b"ab"
    with pytest.raises((TypeError, BufferError)):
        bucket.put("k", memoryview(b"abcd")[::2])
    with pytest.raises(TypeError):
        bucket.put("k", "text")


def test_errors_are_of_pythons_own_kinds_and_name_what_they_are_about(bucket, store):
    with pytest.raises(FileNotFoundError) as absent:
        bucket.get("absent")
    assert "absent" in str(absent.value) and bucket.name in str(absent.value)
    assert isinstance(absent.value, errors.Error)
    with pytest.raises(errors.NoSuchBucketError, match="no-such"):
        store.bucket("no-such").get("k")
    with pytest.raises(FileExistsError):
        store.create_bucket(bucket.name)
    again = pickle.loads(pickle.dumps(absent.value))
    assert (type(again), str(again)) == (type(absent.value), str(absent.value))


def test_file_is_read_at_any_position_of_one_version(bucket):
    with bucket.open("object") as file:
        assert file.seekable() and file.read(3) == BODY[:3]
        file.seek(-5, os.SEEK_END)
        assert file.read() == BODY[-5:] and file.read(1) == b""
        file.seek(8 * MIB - 2)
        buffer = bytearray(2 * MIB)
        count = file.readinto(buffer)
        assert buffer[:count] == BODY[8 * MIB - 2 :] and file.tell() == len(BODY)
        file.seek(MIB)
        again = pickle.loads(pickle.dumps(file))
        assert again.read(9) == file.read(9) == BODY[MIB : MIB + 9]
        bucket.put("object", b"another")
        file.seek(0)
        file._window = None
        with pytest.raises(errors.ConditionError):
            file.read(1)
    with pytest.raises(ValueError):
        file.read()


def test_written_file_is_visible_at_its_end_or_not_at_all(bucket):
    with bucket.open("w", "wb", content_type="text/y") as file:
        for start in range(0, len(BODY), MIB):
            file.write(BODY[start : start + MIB])
        assert file.tell() == len(BODY) and not bucket.exists("w")
    assert bytes(bucket.get("w")) == BODY and bucket.head("w").content_type == "text/y"
    assert file.written.etag == bucket.head("w").etag
    with pytest.raises(RuntimeError), bucket.open("lost", "wb") as file:
        file.write(b"x")
        raise RuntimeError
    left = bucket.open("lost", "wb")
    left.write(b"x")
    del left
    thrown_away = bucket.open("lost", "wb")
    thrown_away.write(b"x")
    thrown_away.discard()
    assert not bucket.exists("lost")
    with pytest.raises(FileExistsError), bucket.open("w", "xb") as file:
        file.write(b"x")
    with pytest.raises(ValueError, match="mode"):
        bucket.open("w", "ab")


def continue_write(bucket, token):
    with bucket.resume(token) as file:
        position = file.tell()
        file.write(BODY[position:])
    return position


def test_captured_write_is_continued_by_another_process(bucket):
    file = bucket.open("resumed", "wb", chunk=5 * MIB)
    file.write(BODY)
    token, position = file.capture()
    assert 0 <= position <= len(BODY)
    del file
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as worker:
        assert worker.submit(continue_write, bucket, token).result() == position
    assert bytes(bucket.get("resumed")) == BODY


def test_lease_ends_with_the_last_view(bucket, store):
    def leases():
        return store.status()["leases"]

    read = bucket.get("object")
    view, array = memoryview(read)[5:9], read.numpy()
    assert leases() == 1
    del read
    gc.collect()
    assert leases() == 1 and bytes(view) == BODY[5:9]
    del view
    assert leases() == 1 and bytes(array[:3]) == BODY[:3]
    del array
    until("no lease", lambda: leases() == 0, 60)


def test_event_loop_reads_and_writes_without_threads(bucket):
    async def work():
        await bucket.put_async("async", BODY)
        read = await asyncio.gather(*(bucket.get_async("async", number, number + MIB) for number in range(30)))
        assert all(bytes(one) == BODY[number : number + MIB] for number, one in enumerate(read))
        assert [bytes(one) for one in await bucket.get_ranges_async("async", [(0, 2), (4, 5)])] == [BODY[:2], BODY[4:5]]
        assert (await bucket.head_async("async")).size == len(BODY)
        objects, _, _ = await bucket.list_page_async("async")
        assert [entry.key for entry in objects] == ["async"]
        with pytest.raises(FileNotFoundError):
            await bucket.get_async("absent")
        # Those that are given up, some before their replies, leave the store as it is.
        given_up = [asyncio.ensure_future(bucket.get_async("async")) for _ in range(20)]
        await asyncio.sleep(0)
        for one in given_up:
            one.cancel()
        ended = await asyncio.gather(*given_up, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) or bytes(one) == BODY for one in ended)
        assert bytes(await bucket.get_async("async")) == BODY
        await bucket.delete_async("async")
        assert threading.active_count() == threads

    threads = threading.active_count()
    asyncio.run(work())
    assert not bucket.exists("async")


def test_threads_share_a_store(bucket):
    def work(seed):
        chance = random.Random(seed)
        for _ in range(30):
            start = chance.randrange(len(BODY) - MIB)
            assert bytes(bucket.get("object", start, start + MIB)) == BODY[start : start + MIB]
        bucket.put(f"of-{seed}", bytes([seed]))
        return bytes(bucket.get(f"of-{seed}"))

    with concurrent.futures.ThreadPoolExecutor(12) as threads:
        assert list(threads.map(work, range(12))) == [bytes([seed]) for seed in range(12)]


def read_in_a_worker(bucket, start):
    return bytes(bucket.get("object", start, start + 9)), os.getpid()


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_of_each_start_method_read_by_the_same_bucket(bucket, method):
    view = memoryview(bucket.get("object"))
    context = multiprocessing.get_context(method)
    starts = range(0, 4000, 100)
    with concurrent.futures.ProcessPoolExecutor(4, mp_context=context) as workers:
        read = list(workers.map(read_in_a_worker, [bucket] * len(starts), starts))
    assert [data for data, _ in read] == [BODY[start : start + 9] for start in starts]
    assert os.getpid() not in {pid for _, pid in read}
    assert bytes(view) == BODY and bytes(bucket.get("object", 0, 9)) == BODY[:9]


def forked(work):
    """Runs `work` in a forked child, whose exit status is 0 if it does not fail."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"child: {error!r}\n".encode())
            os._exit(1)
    return child


def test_fork_with_live_views_and_a_warm_connection(bucket):
    view = bucket.get("object")

    def work():
        assert bytes(view) == BODY
        assert bytes(bucket.get("object", 3, 9)) == BODY[3:9]
        bucket.put(f"child-{os.getpid()}", b"x")

    for _ in range(int(os.environ.get("BYWASH_FORKS", 100))):
        assert os.waitpid(forked(work), 0)[1] == 0
        assert bytes(bucket.get("object", 1, 4)) == BODY[1:4]


def test_store_and_bucket_of_an_origin_go_through_pickle(store, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a").write_bytes(b"of the folder")
    bucket = store.bucket(f"file://{tmp_path / 'photos'}")
    assert bytes(bucket.get("a")) == b"of the folder" and bucket.name == "photos"
    again = pickle.loads(pickle.dumps(bucket))
    assert again == bucket and bytes(again.get("a")) == b"of the folder"
    assert pickle.loads(pickle.dumps(store)).buckets() == store.buckets()
    with pytest.raises(errors.InvalidArgumentError):
        store.bucket("no-such-kind://x")


def test_signed_address_is_read_without_credentials(bucket):
    import requests

    assert requests.get(bucket.sign("object")).content == BODY


def test_there_is_no_server_and_none_is_started(data):
    with pytest.raises(errors.ConnectionLostError, match="bywash serve"):
        bywash.connect(start=False)
    with pytest.raises(ConnectionError):
        bywash.connect(data / "elsewhere.sock")
    assert not data.exists()


def test_hundred_processes_that_start_at_once_start_one_server(data):
    def work():
        bywash.connect().create_bucket(f"of-{os.getpid()}")

    children = [forked(work) for _ in range(100)]
    assert {os.waitpid(child, 0)[1] for child in children} == {0}
    assert {f"of-{child}" for child in children} <= set(bywash.connect().buckets())
    assert (data / "daemon.log").read_text().count("ready s3=") == 1
    # It is no child of these: a program may wait for all of its own.
    parent = re.search(r"PPid:\t(\d+)", Path(f"/proc/{server_pid(data)}/status").read_text())[1]
    assert int(parent) not in (os.getpid(), *children)


def test_killed_server_is_started_again_and_views_stay(data, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a").write_bytes(b"of the folder")
    store = bywash.connect()
    bucket, photos = store.create_bucket("kept"), store.bucket(f"file://{tmp_path / 'photos'}")
    bucket.put("object", BODY)
    view = bucket.get("object")
    end_server(data)
    assert bytes(view) == BODY
    assert bytes(photos.get("a")) == b"of the folder"
    assert bytes(bucket.get("object")) == BODY
    end_server(data)
    # A write may have been carried out: its caller decides.
    with pytest.raises(errors.ConnectionLostError):
        bucket.put("k", b"x")
    bucket.put("k", b"y")
    assert bytes(bucket.get("k")) == b"y"
    never = bywash.connect(_daemon.user_socket())
    end_server(data)
    with pytest.raises(errors.ConnectionLostError):
        never.buckets()


def test_server_that_nobody_uses_ends_and_is_started_again(data, monkeypatch):
    monkeypatch.setenv("BYWASH_IDLE_EXIT", "5s")
    store = bywash.connect()
    store.create_bucket("kept")
    pid = server_pid(data)
    del store
    gc.collect()
    until("the server has ended", lambda: not alive(pid), 90)
    assert "kept" in bywash.connect().buckets()
    assert server_pid(data) != pid


def test_server_that_cannot_start_says_why(data, monkeypatch):
    monkeypatch.setenv("BYWASH_IDLE_EXIT", "no span")
    with pytest.raises(errors.UnavailableError, match="idle-exit"):
        bywash.connect()
    monkeypatch.setenv("BYWASH_BIN", str(data / "absent"))
    with pytest.raises(errors.Error, match="absent"):
        bywash.connect()


def test_settings_of_another_server_do_not_reach_the_one_that_is_started(data, monkeypatch):
    others = {"ANONYMOUS": "true", "TLS_CERT": "/absent", "S3_ADDR": "192.0.2.1:1", "CLUSTER": "etcd://192.0.2.1:1/x", "BUCKET": "theirs"}
    for name, value in others.items():
        monkeypatch.setenv(f"BYWASH_{name}", value)
    monkeypatch.setenv("BYWASH_MEMORY", "96MiB")
    store = bywash.connect()
    assert "theirs" not in store.buckets()
    until("its banner is written", lambda: "at most 96.00 MiB" in (data / "daemon.log").read_text(), 60)
    with bywash.testing.server() as server:
        assert server.store().buckets() == ["test"]


def test_server_of_another_release_is_refused(store, monkeypatch):
    monkeypatch.setattr(_store, "__version__", "99.0.0")
    with pytest.raises(errors.VersionMismatchError, match="99.0.0"):
        bywash.connect(store.socket)


def test_module_is_the_program():
    shown = subprocess.run([sys.executable, "-m", "bywash", "--version"], capture_output=True, text=True, check=True)
    assert bywash.__version__ in shown.stdout
    installed = Path(sys.executable).parent / "bywash"
    assert installed.exists() and (os.environ.get("BYWASH_BIN") or installed.samefile(_daemon.program()))


def test_subinterpreter_is_refused_by_name():
    script = """
import bywash
try:
    import _interpreters as sub
    print(sub.exec(sub.create(), "import bywash").formatted)
except ImportError:
    # Before Python 3.13.
    import _xxsubinterpreters as sub
    try:
        sub.run_string(sub.create(), "import bywash")
    except sub.RunFailedError as error:
        print(error)
"""
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "subinterpreter" in shown.stdout, shown


SPINE = "import fsspec, pandas as pd; print(len(pd.read_parquet('bywash://first/flights-3m.parquet')))"


def test_pandas_reads_what_another_process_has_read_without_a_server_running(data, flights):
    bywash.connect().create_bucket("first").put("flights-3m.parquet", Path(flights).read_bytes())
    end_server(data)

    def read():
        ran = subprocess.run([sys.executable, "-c", SPINE], capture_output=True, text=True)
        assert (ran.returncode, ran.stdout) == (0, "3000000\n"), ran.stderr

    read()
    store = bywash.connect(start=False)
    first = store.status()
    assert first["shared_bytes"] > 0, "it was read in the server's memory"
    assert store.bucket("first").get("flights-3m.parquet").hit
    read()
    assert server_pid(data) and store.status()["shared_bytes"] > first["shared_bytes"]
