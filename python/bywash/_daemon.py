"""The server that `connect` starts when this user has none.

It has a data folder of its own, ends when nobody has used it for ten minutes, and writes a log. A hundred processes that start at once
start one: the first takes a lock, the others wait for it. Modules that only a start needs are imported by it: most programs find a server.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from . import errors

# Maximum time until a server listens; reached only by a fault.
_START_SECONDS = 60.0
# Maximum time until a server that ends has left its data folder: its own limit for requests in progress, and some.
_END_SECONDS = 20.0
# Begins the lines of each server in the log.
_MARK = "# started by the Python package"
_IDLE = "BYWASH_IDLE_EXIT"
# Settings that the environment passes to a server started here. Others configure another server: its buckets,
# addresses, keys, certificates, its cluster.
_SETTINGS = frozenset(f"BYWASH_{name}" for name in ("MEMORY", "DISK", "DISK_DAILY_WRITES", "IDLE_AGE", "LOG"))


def user_socket() -> Path:
    """Returns the socket of this user's server: `$BYWASH_LOCAL`, or the well-known one."""
    if named := os.environ.get("BYWASH_LOCAL"):
        return Path(named)
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = Path(runtime, "bywash") if os.path.isabs(runtime) else Path(f"/tmp/bywash-{os.geteuid()}")
    return folder / "default.sock"


def data_folder() -> Path:
    """Returns the data folder of the server that this package starts: `$BYWASH_HOME`, or one below the user's data."""
    if named := os.environ.get("BYWASH_HOME"):
        return Path(named)
    data = os.environ.get("XDG_DATA_HOME", "")
    base = Path(data) if os.path.isabs(data) else Path.home() / ".local" / "share"
    return base / "bywash"


def program() -> str:
    """Returns the path of the program: `$BYWASH_BIN`, the one that was installed with this package, or the one on the path."""
    if named := os.environ.get("BYWASH_BIN"):
        return named
    import shutil
    import sysconfig

    schemes = ["posix_prefix", "posix_user", "venv"]
    known = set(sysconfig.get_scheme_names())
    folders = [sysconfig.get_path("scripts", scheme) for scheme in schemes if scheme in known]
    for folder in [os.path.dirname(sys.executable), *folders]:
        path = os.path.join(folder, "bywash")
        if os.access(path, os.X_OK):
            return path
    if found := shutil.which("bywash"):
        return found
    raise errors.NotFoundError(
        "the program bywash is not installed with this package: install the package again, or name the program in BYWASH_BIN"
    )


@contextlib.contextmanager
def _lock(path: Path, deadline: float, held_by: str) -> Iterator[None]:
    """Holds a lock of all processes of this user, which ends with the process."""
    import fcntl

    with open(path, "a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise errors.DeadlineError(f"{path} is locked: {held_by}") from None
                time.sleep(0.02)
        yield


def start(socket: Path, is_there: Callable[[], bool]) -> None:
    """Starts a server at `socket`, unless another process does. Returns when `is_there()`."""
    import select
    import signal

    deadline = time.monotonic() + _START_SECONDS
    data = data_folder()
    for folder in (socket.parent, data):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = data / "daemon.log"
    starting = f"another process has been starting a server for {_START_SECONDS:.0f} s, see {log}"
    with _lock(data / "start.lock", deadline, starting):
        if is_there():
            return
        _wait_for_the_last(data / "server" / "serve.lock", socket)
        command = [
            program(), "serve", "--data-dir", str(data / "server"), "--local", str(socket), "--s3-addr", "127.0.0.1:0",
            "--gcs-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0", "--idle-exit", os.environ.get(_IDLE, "10m"),
        ]  # fmt: skip
        server = _spawn(command, log)
        try:
            while not is_there():
                # Readable when the server has ended.
                if select.select([server], [], [], 0.005)[0]:
                    raise errors.UnavailableError(f"the server did not start: {_last_lines(log)}")
                if time.monotonic() > deadline:
                    signal.pidfd_send_signal(server, signal.SIGKILL)
                    raise errors.DeadlineError(f"the server did not listen within {_START_SECONDS:.0f} s: see {log}")
        finally:
            os.close(server)


def environment(settings: frozenset[str] = frozenset()) -> dict[str, str]:
    """Returns the environment of a server: this process's, with only these settings of Bywash."""
    return {name: value for name, value in os.environ.items() if not name.startswith("BYWASH_") or name in settings}


def _wait_for_the_last(lock: Path, socket: Path) -> None:
    """Waits until a server that is ending has left the data folder."""
    if lock.exists():
        held_by = f"a server that does not listen at {socket} uses the folder; end it, or name another folder in BYWASH_HOME"
        with _lock(lock, time.monotonic() + _END_SECONDS, held_by):
            pass


def _spawn(command: list[str], log: Path) -> int:
    """Runs a program in a session of its own, so that it outlives this process and its terminal, and not as a child of this process,
    which may wait for all of its children. Returns a descriptor of the process."""
    import subprocess

    with open(log, "ab") as output:
        output.write(f"{_MARK} {time.strftime('%Y-%m-%dT%H:%M:%S%z')}\n".encode())
        output.flush()
        between = subprocess.run(
            ["/bin/sh", "-c", '"$@" >&2 & echo $!', "sh", *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output, start_new_session=True, cwd="/", check=True,
            env=environment(_SETTINGS),
        )  # fmt: skip
    try:
        return os.pidfd_open(int(between.stdout))
    except ProcessLookupError:
        raise errors.UnavailableError(f"the server did not start: {_last_lines(log)}") from None


def _last_lines(log: Path) -> str:
    """Returns what the last server has written at its end."""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 2000))
        lines = file.read().decode(errors="replace").rpartition(_MARK)[2].splitlines()
    return " | ".join(lines[1:][-3:]) or f"it wrote nothing to {log}"
