"""The local door through its C library, from this language: forks with live views, servers that are killed and stopped, other users.

The library is called by ctypes, so a test sees just what the C interface gives: a client of another language has the same.
"""

import ctypes
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import MIB, until

LIBRARY = os.environ.get("BYWASH_C")
OK, NOT_FOUND, PRECONDITION, DEADLINE, CONNECTION = 0, 1, 3, 11, 18


class Range(ctypes.Structure):
    _fields_ = [("start", ctypes.c_uint64), ("end", ctypes.c_uint64)]


class Segment(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class Metadata(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint64), ("modified_ns", ctypes.c_int64), ("etag", ctypes.c_char * 128)]


ENTRY = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(Metadata))


def load():
    library = ctypes.CDLL(LIBRARY)
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    library.bywash_last_error.restype = text
    library.bywash_open.argtypes = [text, ctypes.c_uint32, ctypes.POINTER(pointer)]
    library.bywash_close.argtypes = [pointer]
    library.bywash_head.argtypes = [pointer, text, text, ctypes.POINTER(Metadata)]
    library.bywash_get_ranges.argtypes = [
        pointer, text, text, ctypes.POINTER(Range), ctypes.c_size_t, ctypes.POINTER(pointer)
    ]
    library.bywash_segments.argtypes = [pointer, ctypes.c_size_t, ctypes.POINTER(Segment), ctypes.c_size_t]
    library.bywash_segments.restype = ctypes.c_size_t
    library.bywash_release.argtypes = [pointer]
    library.bywash_list.argtypes = [pointer, text, text, ENTRY, pointer]
    library.bywash_put.argtypes = [pointer, text, text, text, ctypes.c_size_t, text, ctypes.c_bool]
    library.bywash_delete.argtypes = [pointer, text, text]
    library.bywash_attach.argtypes = [pointer, text, text, ctypes.c_size_t]
    return library


C = load() if LIBRARY else None


class Failed(Exception):
    def __init__(self, code):
        super().__init__(C.bywash_last_error().decode())
        self.code = code


def check(code):
    if code != OK:
        raise Failed(code)


class Client:
    def __init__(self, socket, deadline_ms=60_000):
        self.handle = ctypes.c_void_p()
        check(C.bywash_open(os.fsencode(socket), deadline_ms, ctypes.byref(self.handle)))

    def get(self, bucket, key, *ranges):
        wanted = (Range * len(ranges))(*ranges)
        view = ctypes.c_void_p()
        check(C.bywash_get_ranges(self.handle, bucket.encode(), key.encode(), wanted, len(ranges), ctypes.byref(view)))
        return View(view)

    def put(self, bucket, key, body, if_match=None, create_only=False):
        check(C.bywash_put(self.handle, bucket.encode(), key.encode(), body, len(body), if_match, create_only))

    def head(self, bucket, key):
        found = Metadata()
        check(C.bywash_head(self.handle, bucket.encode(), key.encode(), ctypes.byref(found)))
        return found

    def list(self, bucket, prefix=""):
        keys = []

        @ENTRY
        def entry(_, key, found):
            keys.append((key.decode(), found.contents.size))
            return True

        check(C.bywash_list(self.handle, bucket.encode(), prefix.encode(), entry, None))
        return keys

    def close(self):
        C.bywash_close(self.handle)


class View:
    def __init__(self, handle):
        self.handle = handle

    def bytes(self, index=0):
        count = C.bywash_segments(self.handle, index, None, 0)
        segments = (Segment * count)()
        C.bywash_segments(self.handle, index, segments, count)
        return b"".join(ctypes.string_at(segment.data, segment.len) for segment in segments)

    def release(self):
        C.bywash_release(self.handle)


@pytest.fixture
def served(start):
    server = start("--memory", "256MiB")
    server.s3.create_bucket(Bucket="data")
    server.socket = server.data_dir / "local.sock"
    return server


def local_stats(server):
    return server.stats()["local"]


def idle(server):
    until("no client", lambda: (local_stats(server)["leased_bytes"], local_stats(server)["clients"]) == (0, 0), 60)


def warm(server, key="object", size=8 * MIB):
    body = random.Random(key).randbytes(size)
    server.s3.put_object(Bucket="data", Key=key, Body=body)
    return body


def test_c_interface_reads_writes_lists_and_names_its_errors(served):
    body = warm(served)
    client = Client(served.socket)
    view = client.get("data", "object")
    assert view.bytes() == body
    some = client.get("data", "object", Range(5, 10), Range(MIB - 1, 3 * MIB))
    assert (some.bytes(0), some.bytes(1)) == (body[5:10], body[MIB - 1 : 3 * MIB])
    assert local_stats(served)["leases"] == 2
    client.put("data", "written", b"by C")
    assert served.s3.get_object(Bucket="data", Key="written")["Body"].read() == b"by C"
    assert client.list("data") == [("object", 8 * MIB), ("written", 4)]
    etag = client.head("data", "written").etag
    assert served.s3.head_object(Bucket="data", Key="written")["ETag"].strip('"') == etag.decode()
    with pytest.raises(Failed) as failed:
        client.put("data", "written", b"again", if_match=b"other")
    assert failed.value.code == PRECONDITION
    with pytest.raises(Failed, match="absent") as failed:
        client.get("data", "absent")
    assert failed.value.code == NOT_FOUND
    some.release()
    view.release()
    client.close()
    idle(served)


def test_c_program_sums_an_object_without_a_fault_or_a_leak(served, tmp_path):
    body = warm(served)
    crate = Path(__file__).parents[2] / "crates" / "bywash-c"
    library = Path(LIBRARY).resolve()
    program = tmp_path / "sum"
    warnings = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
    paths = [f"-I{crate / 'include'}", f"-L{library.parent}", f"-Wl,-rpath,{library.parent}"]
    subprocess.run(["cc", *warnings, *paths, crate / "examples" / "sum.c", "-lbywash_c", "-o", program], check=True)
    # Where there is no valgrind, the program runs by itself.
    found = shutil.which("valgrind")
    checks = ["--quiet", "--leak-check=full", "--errors-for-leak-kinds=all", "--error-exitcode=9"]
    valgrind = [found, *checks] if found else []
    ran = subprocess.run([*valgrind, program, served.socket, "data", "object"], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, f"{sum(body)} 1\n"), ran.stderr
    none = subprocess.run([*valgrind, program, served.socket, "data", "absent"], capture_output=True, text=True)
    assert none.returncode == 1 and "absent" in none.stderr, none.stderr


def in_child(work):
    """Runs `work` in a forked child and returns its exit status: 0 if it did not fail. The child does not return to the test."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"child: {error!r}\n".encode())
            os._exit(1)
    return os.waitpid(child, 0)[1]


def test_view_of_a_parent_is_read_by_its_children_after_it_released_it(served):
    body = warm(served)
    client = Client(served.socket)
    view = client.get("data", "object")
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.read(go[0], 1)
        # The parent has released the view and read other objects since.
        same = view.bytes() == body
        own = client.get("data", "object")
        same &= own.bytes() == body
        own.release()
        grandchild = os.fork()
        if grandchild == 0:
            os._exit(0 if view.bytes() == body else 1)
        same &= os.waitpid(grandchild, 0)[1] == 0
        os._exit(0 if same else 1)
    view.release()
    for number in range(40):
        other = warm(served, f"other-{number % 4}")
        read = client.get("data", f"other-{number % 4}")
        assert read.bytes() == other
        read.release()
    os.write(go[1], b"x")
    assert os.waitpid(child, 0)[1] == 0
    client.close()
    idle(served)
    for end in (*ready, *go):
        os.close(end)


def test_views_of_a_child_that_executes_another_program_end(served):
    warm(served)
    client = Client(served.socket)
    view = client.get("data", "object")
    child = os.fork()
    if child == 0:
        os.execvp("sleep", ["sleep", "60"])
    # The parent's own copies go; the child's were closed when it executed the program.
    view.release()
    client.close()
    until("no lease", lambda: local_stats(served)["leased_bytes"] == 0, 60)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_thousand_forks_leave_nothing(served):
    body = warm(served, size=2 * MIB)
    client = Client(served.socket)
    view = client.get("data", "object")

    def work():
        assert view.bytes() == body
        own = client.get("data", "object", Range(0, MIB))
        assert own.bytes() == body[:MIB]

    for _ in range(int(os.environ.get("BYWASH_FORKS", 100))):
        assert in_child(work) == 0
        # Both go on with connections of their own.
        mine = client.get("data", "object", Range(MIB, 2 * MIB))
        assert mine.bytes() == body[MIB:]
        mine.release()
    view.release()
    client.close()
    idle(served)


CRASHING_CLIENT = """
import os, random, sys
sys.path.insert(0, os.environ["TESTS"])
import test_local as local
client = local.Client(sys.argv[1])
random.seed(int(sys.argv[2]))
body = random.Random("object").randbytes(8 << 20)
views = []
print("ready", flush=True)
while True:
    start = random.randrange(7 << 20)
    end = start + random.randrange(1, 1 << 20)
    view = client.get("data", "object", local.Range(start, end))
    if view.bytes() != body[start:end]:
        print("wrong bytes", flush=True)
        os._exit(1)
    views.append(view)
    if random.random() < 0.6:
        views.pop(random.randrange(len(views))).release()
"""


def test_clients_killed_at_random_leave_no_leased_frame(served, tmp_path):
    warm(served)
    kills = int(os.environ.get("BYWASH_KILLS", 8))
    chance = random.Random(7)
    environment = {**os.environ, "TESTS": str(Path(__file__).parent)}
    running = []
    for number in range(kills):
        command = [sys.executable, "-c", CRASHING_CLIENT, str(served.socket), str(number)]
        child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "ready\n"
        running.append(child)
        if len(running) == 3:
            time.sleep(chance.random() * 0.05)
            victim = running.pop(chance.randrange(3))
            assert victim.poll() is None, victim.stdout.read()
            victim.kill()
            victim.wait()
    for child in running:
        child.kill()
        child.wait()
    until("no lease", lambda: local_stats(served)["leased_bytes"] == 0, 60)
    idle(served)
    budget = served.stats()["budget"]
    assert budget["used"] <= budget["limit"]


def test_killed_server_leaves_views_and_the_next_call_finds_the_next_server(start):
    server = start("--memory", "256MiB")
    server.s3.create_bucket(Bucket="data")
    body = warm(server)
    socket = server.data_dir / "local.sock"
    client = Client(socket)
    view = client.get("data", "object")
    server.kill()
    assert view.bytes() == body
    with pytest.raises(Failed, match="bywash serve") as failed:
        client.get("data", "object")
    assert failed.value.code == CONNECTION
    server.start()
    again = client.get("data", "object")
    assert again.bytes() == view.bytes() == body
    again.release()
    view.release()
    client.close()
    idle(server)


def test_call_to_a_stopped_server_ends_at_its_deadline(served):
    body = warm(served)
    client = Client(served.socket, deadline_ms=700)
    view = client.get("data", "object")
    served.process.child.send_signal(signal.SIGSTOP)
    # The signal may be on its way still.
    os.waitpid(served.process.child.pid, os.WUNTRACED)
    try:
        begun = time.monotonic()
        with pytest.raises(Failed, match="did not reply") as failed:
            client.get("data", "object", Range(0, MIB))
        assert failed.value.code == DEADLINE
        assert time.monotonic() - begun < 30
        assert view.bytes() == body
        # A release is not waited for.
        view.release()
    finally:
        served.process.child.send_signal(signal.SIGCONT)
    client.close()
    idle(served)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user needs root")
def test_other_user_is_refused_even_where_the_socket_is_open_to_all(served):
    os.chmod(served.socket, 0o777)
    for folder in served.socket.parents:
        if folder.owner() == "root" and folder != Path("/"):
            os.chmod(folder, folder.stat().st_mode | 0o055)

    def work():
        os.setgid(65534)
        os.setuid(65534)
        with pytest.raises(Failed, match="own user|user 0|another user|runs as user"):
            Client(served.socket)

    assert in_child(work) == 0


def test_second_server_of_a_user_says_that_the_place_is_taken(start, tmp_path):
    first, second = (start(data_dir=tmp_path / name) for name in ("one", "two"))
    said = "".join(second.process.seen)
    assert re.search(r"another server listens at .*default\.sock", said), said
    assert str(second.data_dir / "local.sock") in said
    for server in (first, second):
        client = Client(server.data_dir / "local.sock")
        client.close()


def test_memory_of_the_map_belongs_to_the_server_and_stays_below_its_formula(served):
    for number in range(60):
        body = warm(served, f"object-{number}")
        assert served.s3.get_object(Bucket="data", Key=f"object-{number}")["Body"].read() == body
    status = Path(f"/proc/{served.process.child.pid}/status").read_text()
    kib = {name: int(value) for name, value in re.findall(r"(Rss\w+):\s+(\d+) kB", status)}
    assert kib["RssShmem"] > 100 * 1024, "blocks are in shared memory"
    found = re.search(r"resident_bytes=(\d+)", "".join(served.process.seen))
    assert (kib["RssAnon"] + kib["RssShmem"]) * 1024 <= int(found[1])
