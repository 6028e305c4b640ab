"""Stores, buckets and files: the package's interface over the extension."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _daemon, errors
from ._files import ReadFile, WriteFile
from ._native import Client as _Client
from ._native import Object
from ._values import USER_METADATA, Metadata, Written, metadata_of
from ._version import __version__

if TYPE_CHECKING:
    from collections.abc import Buffer  # Python 3.12

# The type, where a method has its name.
List = list
# Calls that change nothing are repeated where a server was started again.
_REPEATED = frozenset(
    ["attach", "begin_get", "begin_head", "begin_list_page", "buckets", "get", "get_many", "head", "list_page", "readinto", "server", "sign",
     "status"]
)  # fmt: skip


def connect(path: str | os.PathLike[str] | None = None, *, start: bool = True, deadline: float = 60.0) -> Store:
    """Connects to this user's server.

    Parameters
    ----------
    path
        Socket of the server. By default `$BYWASH_LOCAL`, or the well-known socket of this user.
    start
        Whether to start a server if none is there. Not with `path`.
    deadline
        Seconds after which a call fails.

    Returns
    -------
    Store
        It can be used by threads at once, after a fork in both processes, and pickled.

    Raises
    ------
    errors.ConnectionLostError
        There is no server, and none was to be started.
    errors.VersionMismatchError
        The server is of another release than this package.
    """
    socket = Path(path) if path is not None else _daemon.user_socket()
    return Store(socket, deadline, start=start and path is None)


class Store:
    """The buckets of a server. `connect` makes it."""

    def __init__(self, socket: str | os.PathLike[str], deadline: float = 60.0, *, start: bool = False):
        self._socket, self._deadline, self._start = Path(socket), deadline, start
        # Origins that were attached, in order.
        self._attached: dict[tuple[str, tuple[tuple[str, str], ...]], str] = {}
        self._native = self._open()

    def _open(self) -> _Client:
        try:
            client = _Client(self._socket, self._deadline)
        except errors.ConnectionLostError:
            if not self._start:
                raise
            found: list[_Client] = []

            def is_there() -> bool:
                try:
                    found[:] = [_Client(self._socket, self._deadline)]
                except errors.ConnectionLostError:
                    return False
                return True

            _daemon.start(self._socket, is_there)
            client = found[0]
        server, *_ = client.server()
        if server.split(".")[:2] != __version__.split(".")[:2]:
            raise errors.VersionMismatchError(
                f"the server at {self._socket} is Bywash {server}, this package is {__version__}: end that server, or install "
                f"its release of the package"
            )
        return client

    def _call(self, name: str, *arguments: Any) -> Any:
        """Calls the server. One that has ended is started again, if this store may start it; then a call that changes nothing is repeated."""
        try:
            return getattr(self._native, name)(*arguments)
        except errors.ConnectionLostError:
            if not self._start:
                raise
            self._native = self._open()
            for address, options in self._attached:
                self._native.attach(address, list(options))
            if name not in _REPEATED:
                raise
            return getattr(self._native, name)(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reconnect, (str(self._socket), self._deadline, self._start)

    def __repr__(self) -> str:
        return f"<bywash.Store at {self._socket}>"

    @property
    def socket(self) -> Path:
        """Socket of the server."""
        return self._socket

    @property
    def s3(self) -> str:
        """URL of the server's S3 endpoint, for programs that speak S3 alone."""
        return self._call("server")[1]

    @property
    def gcs(self) -> str | None:
        """URL of the server's endpoint of Google's storage, if there is one."""
        return self._call("server")[2]

    @property
    def shares_memory(self) -> bool:
        """Whether objects are read in the server's memory. If not, they are copied."""
        return self._call("server")[3]

    def buckets(self) -> list[str]:
        """Returns the names of the server's buckets."""
        return [name for name, _ in self._call("buckets")]

    def bucket(self, name: str, **options: str) -> Bucket:
        """Returns a bucket by its name, or one over the origin at an address.

        An address, as `s3://data` or `file:///srv/photos`, is mounted by the server with its own credentials, or with `options`: `name`,
        `consistency`, `read_only` and those of the origin, as in a `[[bucket]]` of the server's settings. `bywash://data` is a name.
        """
        name = name.removeprefix("bywash://")
        if "://" in name:
            own = {"block_size": "block-size", "read_only": "read-only"}
            pairs = tuple((own.get(key, key), str(value)) for key, value in options.items())
            served = self._call("attach", name, list(pairs))
            self._attached[name, pairs] = served
            return Bucket(self, served, (name, options))
        return Bucket(self, name)

    def create_bucket(self, name: str, *, exist_ok: bool = False) -> Bucket:
        """Makes a bucket: a folder of the server's."""
        try:
            self._call("make_bucket", name)
        except errors.ExistsError:
            if not exist_ok:
                raise
        return Bucket(self, name)

    def delete_bucket(self, name: str) -> None:
        """Removes an empty bucket."""
        self._call("remove_bucket", name)

    def get_many(
        self, items: Iterable[tuple[str, str, int, int] | tuple[str, str]], *, on_error: str = "raise"
    ) -> list[Object | errors.Error]:
        """Reads ranges of many objects by one message.

        Parameters
        ----------
        items
            Bucket, key, start and end of each range; without start and end, the whole object. Ranges of one object that follow each other
            are of one version.
        on_error
            `raise` the first error, or `return` an exception in the place of each range that cannot be read.
        """
        groups = _grouped(items)
        return _flat(groups, self._call("get_many", groups), on_error)

    async def get_many_async(
        self, items: Iterable[tuple[str, str, int, int] | tuple[str, str]], *, on_error: str = "raise"
    ) -> list[Object | errors.Error]:
        """As `get_many`, for an event loop."""
        groups = _grouped(items)
        return _flat(groups, await _wait(self._call("begin_get", groups)), on_error)

    def status(self) -> dict[str, Any]:
        """Returns what clients of the server hold: `clients`, `leases`, `leased_bytes` and counters."""
        import json

        return json.loads(self._call("status"))


def _reconnect(socket: str, deadline: float, start: bool) -> Store:
    return Store(socket, deadline, start=start)


def _grouped(items: Iterable[tuple]) -> list[tuple[str, str, list[tuple[int | None, int | None]]]]:
    groups: list[tuple[str, str, list]] = []
    for bucket, key, *bounds in items:
        if groups and bounds and groups[-1][:2] == (bucket, key) and groups[-1][2]:
            groups[-1][2].append(tuple(bounds))
        else:
            groups.append((bucket, key, [tuple(bounds)] if bounds else []))
    return groups


def _flat(groups: list[tuple], results: list, on_error: str) -> list:
    if on_error not in ("raise", "return"):
        raise ValueError(f"on_error is raise or return, not {on_error!r}")
    flat = []
    for (_, _, ranges), result in zip(groups, results):
        if isinstance(result, list):
            flat.extend(result)
        elif on_error == "raise":
            raise result
        else:
            flat.extend([result] * max(1, len(ranges)))
    return flat


async def _wait(pending: Any) -> Any:
    """Waits for a request on the running event loop, without a thread."""
    import asyncio

    loop = asyncio.get_running_loop()
    while True:
        done, result = pending.poll()
        if done:
            return result
        ready: asyncio.Future[None] = loop.create_future()

        def wake(ready: asyncio.Future[None] = ready) -> None:
            if not ready.done():
                ready.set_result(None)

        descriptor, writes = pending.fileno(), pending.writes()
        loop.add_reader(descriptor, wake)
        if writes:
            loop.add_writer(descriptor, wake)
        try:
            await ready
        finally:
            loop.remove_reader(descriptor)
            if writes:
                loop.remove_writer(descriptor)


def _attributes(
    content_type: str | None, metadata: Mapping[str, str] | None, attributes: Mapping[str, str] | None
) -> list[tuple[str, str]]:
    pairs = list((attributes or {}).items())
    if content_type is not None:
        pairs.append(("content-type", content_type))
    pairs.extend((f"{USER_METADATA}{name}", value) for name, value in (metadata or {}).items())
    return pairs


def _bucket(store: Store, name: str, options: dict[str, str]) -> Bucket:
    return store.bucket(name, **options)


class Bucket:
    """A bucket of a server. `Store.bucket` makes it."""

    def __init__(self, store: Store, name: str, origin: tuple[str, dict[str, str]] | None = None):
        # An origin that was attached by its address is attached again where this is unpickled.
        self._store, self._name, self._origin = store, name, origin

    def __reduce__(self) -> tuple[Any, ...]:
        address, options = self._origin or (self._name, {})
        return _bucket, (self._store, address, options)

    def __repr__(self) -> str:
        return f"<bywash.Bucket {self._name} at {self._store.socket}>"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Bucket)
            and (self._name, self._store.socket) == (other._name, other._store.socket)
        )

    def __hash__(self) -> int:
        return hash((self._name, self._store.socket))

    @property
    def name(self) -> str:
        """Name of the bucket, also at the server's S3 and GCS endpoints."""
        return self._name

    @property
    def store(self) -> Store:
        """The store."""
        return self._store

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._store._call(name, self._name, *arguments)

    # --- reading

    def get(
        self,
        key: str,
        start: int | None = None,
        end: int | None = None,
        *,
        if_match: str | None = None,
        if_none_match: str | None = None,
        version: str | None = None,
    ) -> Object:
        """Reads an object, or its bytes from `start` to before `end`, as many as there are. A negative `start` counts from the end.

        The result has the buffer protocol: `bytes(obj)`, `memoryview(obj)`, `numpy.frombuffer(obj, "u1")`. Its bytes are in the server's
        memory, and stay as they are until it and all its buffers are gone.

        Raises
        ------
        errors.NotFoundError
            There is no such object.
        errors.ConditionError
            It does not have the ETag `if_match`, or has `if_none_match` (`errors.NotModifiedError`).
        """
        ranges = _range(start, end)
        return self._call("get", key, ranges, if_match, if_none_match, version)[0]

    def get_ranges(
        self, key: str, ranges: Sequence[tuple[int, int]], *, if_match: str | None = None
    ) -> List[Object]:
        """Reads many ranges of one version of an object by one message, each from a start to before an end."""
        if not ranges:
            return []
        return self._call("get", key, list(ranges), if_match)

    def get_many(
        self, items: Iterable[tuple[str, int, int] | tuple[str]], *, on_error: str = "raise"
    ) -> List[Object | errors.Error]:
        """Reads ranges of many objects by one message: key, start and end of each; see `Store.get_many`."""
        return self._store.get_many(((self._name, *item) for item in items), on_error=on_error)

    def readinto(self, key: str, buffer: Buffer, start: int = 0, *, if_match: str | None = None) -> Metadata:
        """Fills a buffer with the object's bytes from `start` on: one copy, and nothing is held at the server."""
        return metadata_of(self._call("readinto", key, start, buffer, if_match))

    def head(
        self,
        key: str,
        *,
        if_match: str | None = None,
        if_none_match: str | None = None,
        version: str | None = None,
    ) -> Metadata:
        """Returns an object's metadata."""
        return metadata_of(self._call("head", key, if_match, if_none_match, version))

    def exists(self, key: str) -> bool:
        """Whether there is such an object."""
        try:
            self.head(key)
        except errors.NotFoundError:
            return False
        return True

    def list(self, prefix: str = "") -> Iterator[Metadata]:
        """Iterates over the objects whose keys begin with `prefix`, in the order of keys, page by page."""
        after = None
        while True:
            objects, _, after = self.list_page(prefix, after=after)
            yield from objects
            if after is None:
                return

    def list_page(
        self, prefix: str = "", delimiter: str = "", *, after: str | None = None, limit: int = 0
    ) -> tuple[List[Metadata], List[str], str | None]:
        """Returns one page of a listing: objects, the prefixes into which `delimiter` folds others, and the token of the next page."""
        objects, prefixes, after = self._call("list_page", prefix, delimiter, after, limit)
        return [metadata_of(found) for found in objects], prefixes, after

    # --- writing

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        if_match: str | None = None,
        create: bool = False,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> Written:
        """Writes an object: only over the version with the ETag `if_match`, or only if there is none (`create`)."""
        pairs = _attributes(content_type, metadata, attributes)
        return Written(*self._call("put", key, data, pairs, if_match, create))

    def open(
        self,
        key: str,
        mode: str = "rb",
        *,
        if_match: str | None = None,
        create: bool = False,
        chunk: int | None = None,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> ReadFile | WriteFile:
        """Opens an object as a file.

        `rb` reads one version, by blocks of the server's memory. `wb` writes: the object becomes visible at `close`, or not at all; an
        exception in a `with` block discards it. The server keeps one chunk of it in memory.
        """
        if mode in ("r", "rb"):
            return ReadFile(self, key, if_match)
        if mode in ("w", "wb", "x", "xb"):
            if mode[0] == "x" and self.exists(key):
                # Early; the condition holds at the end.
                raise errors.ExistsError(f"open {key} in bucket {self._name} to create it: there is such an object; open it by wb to replace it")
            pairs = _attributes(content_type, metadata, attributes)
            writer = self._call("writer", key, pairs, if_match, create or mode[0] == "x", chunk)
            return WriteFile(writer, self, key)
        raise ValueError(f"mode {mode!r}: objects are opened by rb, wb or xb")

    def resume(self, token: bytes, key: str = "") -> WriteFile:
        """Continues a write that `WriteFile.capture` has captured, in any process. Write on from its `tell()`."""
        return WriteFile(self._call("resume", token), self, key)

    def copy(
        self, source: str, target: str, *, to: Bucket | None = None, if_match: str | None = None, create: bool = False
    ) -> None:
        """Copies an object within the server; `to` another bucket of it."""
        bucket = (to or self)._name
        self._call("copy", source, bucket, target, if_match, create)

    def delete(self, *keys: str, if_match: str | None = None) -> None:
        """Deletes objects. One that is not there counts as deleted.

        Raises
        ------
        errors.Error
            The first failure; the other keys are deleted all the same. With several, its `failures` is a list of key and error.
        """
        _raise_failed(self._call("delete", list(keys), if_match))

    def sign(self, key: str, method: str = "GET", expires: int = 3600) -> str:
        """Returns an address of the server's S3 endpoint that is good for one kind of request without credentials."""
        return self._call("sign", method, key, expires)

    # --- for event loops

    async def get_async(
        self,
        key: str,
        start: int | None = None,
        end: int | None = None,
        *,
        if_match: str | None = None,
        if_none_match: str | None = None,
        version: str | None = None,
    ) -> Object:
        """As `get`, for an event loop: no thread waits."""
        wanted = [(self._name, key, _range(start, end))]
        (result,) = await _wait(self._store._call("begin_get", wanted, if_match, if_none_match, version))
        if isinstance(result, BaseException):
            raise result
        return result[0]

    async def get_ranges_async(self, key: str, ranges: Sequence[tuple[int, int]]) -> List[Object]:
        """As `get_ranges`, for an event loop."""
        if not ranges:
            return []
        (result,) = await _wait(self._store._call("begin_get", [(self._name, key, list(ranges))]))
        if isinstance(result, BaseException):
            raise result
        return result

    async def head_async(self, key: str) -> Metadata:
        """As `head`, for an event loop."""
        return metadata_of(await _wait(self._call("begin_head", key)))

    async def list_page_async(
        self, prefix: str = "", delimiter: str = "", *, after: str | None = None, limit: int = 0
    ) -> tuple[List[Metadata], List[str], str | None]:
        """As `list_page`, for an event loop."""
        page = await _wait(self._call("begin_list_page", prefix, delimiter, after, limit))
        objects, prefixes, after = page
        return [metadata_of(found) for found in objects], prefixes, after

    async def put_async(
        self,
        key: str,
        data: Buffer,
        *,
        if_match: str | None = None,
        create: bool = False,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Written:
        """As `put`, for an event loop."""
        pairs = _attributes(content_type, metadata, None)
        return Written(*await _wait(self._call("begin_put", key, data, pairs, if_match, create)))

    async def delete_async(self, *keys: str, if_match: str | None = None) -> None:
        """As `delete`, for an event loop."""
        for first in range(0, len(keys), 1000):
            some = list(keys[first : first + 1000])
            _raise_failed(await _wait(self._call("begin_delete", some, if_match)))


def _raise_failed(failed: list[tuple[str, errors.Error]]) -> None:
    if failed:
        error = failed[0][1]
        error.failures = failed
        raise error


def _range(start: int | None, end: int | None) -> list[tuple[int | None, int | None]]:
    """Returns a range as the extension has it; none is the whole object."""
    if start is None and end is None:
        return []
    if start is not None and start < 0:
        if end is not None:
            raise ValueError("a start that counts from the end has no end: read the last bytes")
        return [(None, -start)]
    if end is not None and end < 0:
        raise ValueError("an end counts from the start")
    return [(start or 0, end)]
