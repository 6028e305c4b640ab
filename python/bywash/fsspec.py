"""Buckets as an fsspec file system: `fsspec.open("bywash://first/a.parquet")`, and by `register` also `s3://` and `gs://`.

Every path goes to the server of this user, which caches what it reads for all processes. A file is one version of an object; a directory
is what keys have in common up to a `/`. Listings are asked of the server each time: it is on the same machine.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable
from typing import Any

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from fsspec.utils import stringify_path

from . import errors
from ._files import WriteFile
from ._store import Bucket, Store, connect
from ._values import Metadata

__all__ = ["BywashFileSystem", "register"]

# Bytes that one read of a file asks for at least.
_BLOCK_BYTES = 8 << 20


class BywashFileSystem(AbstractFileSystem):
    """Buckets of this user's server.

    Parameters
    ----------
    socket
        Socket of the server. By default the one of this user, which is started if it is missing.
    start
        Whether to start one.
    deadline
        Seconds after which a call fails.
    options
        Options of the origins that paths of `s3://`, `gs://`, `az://` and `https://` name, as `Store.bucket` has them.
    """

    protocol: str | tuple[str, ...] = "bywash"
    root_marker = ""
    sep = "/"
    # What a path names in front of its bucket: nothing, or the kind of an origin.
    _scheme = ""

    def __init__(
        self,
        socket: str | None = None,
        start: bool = True,
        deadline: float = 60.0,
        options: dict[str, str] | None = None,
        **storage_options: Any,
    ):
        super().__init__(**storage_options)
        self._arguments = (socket, start, deadline)
        self._options = dict(options or {})
        self._store: Store | None = None
        self._buckets: dict[str, Bucket] = {}

    @property
    def store(self) -> Store:
        """The store, connected at its first use."""
        if self._store is None:
            socket, start, deadline = self._arguments
            self._store = connect(socket, start=start, deadline=deadline)
        return self._store

    def _bucket(self, name: str) -> Bucket:
        bucket = self._buckets.get(name)
        if bucket is None:
            address = f"{self._scheme}{name}"
            bucket = self.store.bucket(address, **(self._options if self._scheme else {}))
            self._buckets[name] = bucket
        return bucket

    def _split(self, path: str) -> tuple[str, str]:
        """Returns bucket and key; the key is empty for a bucket, both for the root."""
        bucket, _, key = self._strip_protocol(path).partition("/")
        return bucket, key

    def _object(self, path: str) -> tuple[Bucket, str]:
        bucket, key = self._split(path)
        if not key:
            raise IsADirectoryError(21, "a bucket, not an object", path)
        return self._bucket(bucket), key

    # --- looking

    def _entry(self, bucket: str, found: Metadata) -> dict[str, Any]:
        modified = datetime.datetime.fromtimestamp(found.modified_ns / 1e9, datetime.timezone.utc)
        entry = {
            "name": f"{bucket}/{found.key}",
            "size": found.size,
            "type": "file",
            "etag": found.etag,
            "ETag": found.etag,
            "version": found.version,
            "LastModified": modified,
            "mtime": found.modified_ns / 1e9,
        }
        if found.attributes:
            entry["ContentType"] = found.content_type
            entry["metadata"] = found.metadata
        return entry

    @staticmethod
    def _directory(name: str) -> dict[str, Any]:
        return {"name": name.rstrip("/"), "size": 0, "type": "directory"}

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        bucket, key = self._split(path)
        if not bucket:
            return self._directory("")
        if not key:
            if not self._scheme and bucket not in self.store.buckets():
                raise FileNotFoundError(2, "no such bucket", path)
            return self._directory(bucket)
        try:
            return self._entry(bucket, self._bucket(bucket).head(key))
        except errors.NotFoundError:
            pass
        objects, prefixes, _ = self._bucket(bucket).list_page(f"{key}/", limit=1)
        if objects or prefixes:
            return self._directory(f"{bucket}/{key}")
        raise FileNotFoundError(2, "no such object or directory", path)

    def exists(self, path: str, **kwargs: Any) -> bool:
        # An error that is not an absence says nothing of the object.
        try:
            self.info(path, **kwargs)
        except FileNotFoundError:
            return False
        return True

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        bucket, key = self._split(path)
        entries = self._level(bucket, f"{key}/" if key else "") if bucket else self._all_buckets()
        if not entries and (key or not bucket or self._scheme or bucket not in self.store.buckets()):
            if not bucket:
                return []
            # Of a file it is the file.
            entries = [self.info(path)]
        entries.sort(key=lambda entry: entry["name"])
        return entries if detail else [entry["name"] for entry in entries]

    def _all_buckets(self) -> list[dict[str, Any]]:
        return [] if self._scheme else [self._directory(name) for name in self.store.buckets()]

    def _level(self, bucket: str, prefix: str) -> list[dict[str, Any]]:
        entries, after = [], None
        while True:
            objects, prefixes, after = self._bucket(bucket).list_page(prefix, "/", after=after)
            # The marker of the directory itself is not in it.
            entries += [self._entry(bucket, found) for found in objects if found.key != prefix]
            entries += [self._directory(f"{bucket}/{common}") for common in prefixes]
            if after is None:
                return entries

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **kwargs: Any
    ) -> Any:
        if maxdepth is not None or withdirs or not self._split(path)[0]:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **kwargs)
        bucket, key = self._split(path)
        prefix = f"{key}/" if key else ""
        wanted = prefix + kwargs.get("prefix", "")
        objects = self._bucket(bucket).list(wanted)
        found = {
            entry["name"]: entry
            for entry in (self._entry(bucket, one) for one in objects if not one.key.endswith("/"))
        }
        if not found and key and not kwargs.get("prefix"):
            # Of a file it is the file.
            entry = self._file(bucket, key)
            found = {entry["name"]: entry} if entry else {}
        return found if detail else sorted(found)

    def _file(self, bucket: str, key: str) -> dict[str, Any] | None:
        try:
            return self._entry(bucket, self._bucket(bucket).head(key))
        except errors.NotFoundError:
            return None

    def created(self, path: str) -> datetime.datetime:
        return self.modified(path)

    def modified(self, path: str) -> datetime.datetime:
        entry = self.info(path)
        if "LastModified" not in entry:
            raise IsADirectoryError(21, "a directory has no time", path)
        return entry["LastModified"]

    def checksum(self, path: str) -> int:
        entry = self.info(path)
        return int.from_bytes(str(entry.get("etag") or entry).encode()[:16], "big")

    def ukey(self, path: str) -> str:
        entry = self.info(path)
        return f"{entry['name']} {entry['size']} {entry.get('etag')} {entry.get('mtime')}"

    # --- reading

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        bucket, key = self._object(path)
        bounds = _bounds(start, end, lambda: bucket.head(key).size)
        if bounds is None:
            return b""
        return bucket.get(key, *bounds).tobytes()

    def cat_ranges(
        self,
        paths: list[str],
        starts: list[int | None] | int | None,
        ends: list[int | None] | int | None,
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        """Reads ranges of many files by one message."""
        if not isinstance(paths, list):
            raise TypeError("paths is a list")
        starts = starts if isinstance(starts, Iterable) else [starts] * len(paths)
        ends = ends if isinstance(ends, Iterable) else [ends] * len(paths)
        starts, ends = list(starts), list(ends)
        if not len(paths) == len(starts) == len(ends):
            raise ValueError("as many starts and ends as paths")
        results: list[Any] = [None] * len(paths)
        wanted: list[tuple[int, tuple[str, str, int, int]]] = []
        for index, (path, start, end) in enumerate(zip(paths, starts, ends)):
            if start is None or end is None or start < 0 or end < 0:
                results[index] = self._one(path, start, end, on_error)
            elif start >= end:
                results[index] = b""
            else:
                bucket, key = self._object(path)
                wanted.append((index, (bucket.name, key, start, end)))
        read = self.store.get_many([item for _, item in wanted], on_error="return") if wanted else []
        for (index, _), result in zip(wanted, read):
            if isinstance(result, BaseException):
                if isinstance(result, errors.InvalidRangeError):
                    result = b""
                elif on_error == "raise":
                    raise result
                results[index] = result
            else:
                results[index] = result.tobytes()
        return results

    def _one(self, path: str, start: int | None, end: int | None, on_error: str) -> Any:
        try:
            return self.cat_file(path, start, end)
        except Exception as error:
            if on_error == "raise":
                raise
            return error

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **kwargs: Any) -> Any:
        paths = self.expand_path(path, recursive=recursive, **kwargs)
        if len(paths) == 1 and not isinstance(path, list) and paths[0] == self._strip_protocol(path):
            return self.cat_file(paths[0])
        files = [one for one in paths if not self.isdir(one)] if recursive else paths
        read = self.cat_ranges(files, None, None, on_error="return")
        found = {}
        for one, result in zip(files, read):
            if isinstance(result, BaseException):
                if on_error == "raise":
                    raise result
                if on_error == "return":
                    found[one] = result
            else:
                found[one] = result
        return found

    def get_file(self, rpath: str, lpath: Any, callback: Any = None, outfile: Any = None, **kwargs: Any) -> None:
        if outfile is None and not hasattr(lpath, "write"):
            local = stringify_path(lpath)
            if self.isdir(rpath):
                os.makedirs(local, exist_ok=True)
                return
            if os.path.isdir(local):
                return
            os.makedirs(os.path.dirname(os.path.abspath(local)), exist_ok=True)
        super().get_file(rpath, lpath, **_given(callback=callback, outfile=outfile), **kwargs)

    # --- writing

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        bucket, key = self._object(path)
        try:
            bucket.put(key, value, create=mode == "create", **_write_options(kwargs))
        except errors.ExistsError as error:
            raise FileExistsError(17, str(error), path) from error

    def put_file(self, lpath: Any, rpath: str, callback: Any = None, mode: str = "overwrite", **kwargs: Any) -> None:
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
            return
        bucket, key = self._object(rpath)
        size = os.path.getsize(lpath)
        if callback is not None:
            callback.set_size(size)
        with open(lpath, "rb") as source, bucket.open(key, "wb", create=mode == "create", **_write_options(kwargs)) as target:
            while piece := source.read(4 << 20):
                target.write(piece)
                if callback is not None:
                    callback.relative_update(len(piece))

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
            return
        (source, from_key), (target, to_key) = self._object(path1), self._object(path2)
        source.copy(from_key, to_key, to=target)

    def rm_file(self, path: str) -> None:
        bucket, key = self._object(path)
        # A store does not say whether there was one.
        bucket.head(key)
        bucket.delete(key)

    def _rm(self, path: str) -> None:
        self.rm_file(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        paths = self.expand_path(path, recursive=recursive, maxdepth=maxdepth)
        by_bucket: dict[str, list[str]] = {}
        folders, whole = [], []
        for one in paths:
            bucket, key = self._split(one)
            if not key:
                whole.append(bucket)
            elif recursive and self._file(bucket, key) is None:
                folders.append((bucket, f"{key}/"))
            else:
                by_bucket.setdefault(bucket, []).append(key)
        for bucket, prefix in folders:
            # Markers that other programs made.
            by_bucket.setdefault(bucket, []).append(prefix)
        for bucket, keys in by_bucket.items():
            if not recursive:
                for key in keys:
                    self._bucket(bucket).head(key)
            self._bucket(bucket).delete(*keys)
        for bucket in whole:
            self.rmdir(bucket)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        bucket, key = self._split(path)
        if not bucket or self._scheme:
            return
        if key and bucket in self.store.buckets():
            # A directory is there with its first object.
            return
        if key and not create_parents:
            raise FileNotFoundError(2, "no such bucket", bucket)
        try:
            self.store.create_bucket(bucket, exist_ok=bool(key))
        except errors.ExistsError as error:
            raise FileExistsError(17, str(error), path) from error

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        bucket, key = self._split(path)
        if not bucket or self._scheme:
            return
        try:
            self.store.create_bucket(bucket, exist_ok=exist_ok or bool(key))
        except errors.ExistsError as error:
            raise FileExistsError(17, str(error), path) from error

    def rmdir(self, path: str) -> None:
        bucket, key = self._split(path)
        if key:
            if self._level(bucket, f"{key}/"):
                raise OSError(39, "directory not empty", path)
            return
        self._buckets.pop(bucket, None)
        try:
            self.store.delete_bucket(bucket)
        except errors.ConditionError as error:
            raise OSError(39, str(error), path) from error

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        if truncate or not self.exists(path):
            self.pipe_file(path, b"")
        else:
            raise NotImplementedError("an object's time is that of its last write: touch truncates")

    def sign(self, path: str, expiration: int = 100, method: str = "GET", **kwargs: Any) -> str:
        bucket, key = self._object(path)
        return bucket.sign(key, method, int(expiration))

    def invalidate_cache(self, path: str | None = None) -> None:
        # Nothing is kept here.
        super().invalidate_cache(path)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        if mode == "rb":
            return ReadBywashFile(self, path, block_size=block_size, **kwargs)
        if mode in ("wb", "xb"):
            return WriteBywashFile(self, path, mode, autocommit, **kwargs)
        raise NotImplementedError(f"mode {mode!r}: objects are opened by rb, wb or xb")


def _given(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


_WRITE_OPTIONS = ("if_match", "content_type", "metadata", "attributes")


def _write_options(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: arguments[name] for name in _WRITE_OPTIONS if name in arguments}


def _bounds(start: int | None, end: int | None, size: Any) -> tuple[int | None, int | None] | None:
    """Returns a range as `Bucket.get` has it; `None` if it is empty."""
    if (start is not None and start < 0 and end is not None) or (end is not None and end < 0):
        length = size()
        start = 0 if start is None else max(0, start + length if start < 0 else start)
        end = length if end is None else end + length if end < 0 else end
    if start is not None and end is not None and start >= end:
        return None
    if start is None and end == 0:
        return None
    return start, end


class ReadBywashFile(AbstractBufferedFile):
    """One version of an object as a file of fsspec, without a cache of its own: the server's memory is it."""

    def __init__(self, fs: BywashFileSystem, path: str, block_size: int | None = None, **kwargs: Any):
        bucket, key = fs._object(path)
        self._file = bucket.open(key, "rb")
        self._file.name = key
        super().__init__(
            fs, path, "rb", block_size=block_size or _BLOCK_BYTES, size=self._file.size, cache_type="none", **kwargs
        )

    @property
    def details(self) -> dict[str, Any]:
        return self.fs._entry(self._file._bucket.name, self._file.metadata)

    @details.setter
    def details(self, value: Any) -> None:
        pass

    def read(self, length: int | None = -1) -> bytes:
        self._check()
        return self._file.read(-1 if length is None else length)

    def readinto(self, buffer: Any) -> int:
        self._check()
        return self._file.readinto(buffer)

    def readinto1(self, buffer: Any) -> int:
        return self.readinto(buffer)

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, loc: int, whence: int = 0) -> int:
        self._check()
        return self._file.seek(int(loc), whence)

    @property
    def loc(self) -> int:
        return self._file._position

    @loc.setter
    def loc(self, value: int) -> None:
        self._file._position = value

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._file._bucket.get(self._file.name, start, end, if_match=self._file._etag).tobytes()

    def close(self) -> None:
        self._file.close()
        super().close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.fs, self.path, self.blocksize, self._file._etag, self.tell())


def _reopen(fs: BywashFileSystem, path: str, block_size: int, etag: str | None, position: int) -> ReadBywashFile:
    file = ReadBywashFile(fs, path, block_size)
    if file._file._etag != etag:
        raise errors.VersionChangedError(f"{path}: the object was replaced since the file was opened; open it again")
    file.seek(position)
    return file


class WriteBywashFile(AbstractBufferedFile):
    """An object being written as a file of fsspec. It becomes visible at its end, or at that of the transaction."""

    def __init__(self, fs: BywashFileSystem, path: str, mode: str, autocommit: bool, **kwargs: Any):
        bucket, key = fs._object(path)
        options = _write_options(kwargs)
        self._file: WriteFile = bucket.open(key, mode, **options)
        super().__init__(fs, path, "wb", block_size=_BLOCK_BYTES, autocommit=autocommit, cache_type="none")

    def write(self, data: Any) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self, force: bool = False) -> None:
        # Bytes are on their way; the object is visible whole or not at all.
        if self.closed:
            raise ValueError("Flush on closed file")

    def close(self) -> None:
        if self.closed:
            return
        if self.autocommit:
            self._file.close()
        self.closed = True
        self.fs.invalidate_cache(self.path)

    def commit(self) -> None:
        """Makes the object visible, at the end of a transaction."""
        self._file.close()

    def discard(self) -> None:
        """Drops what was written."""
        self._file.discard()

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is not None:
            self.closed = True
            self._file.discard()
            return
        self.close()

    def __del__(self) -> None:
        # The file below drops what nobody closed.
        self.closed = True

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a file that is being written cannot be pickled: see WriteFile.capture")


class S3BywashFileSystem(BywashFileSystem):
    """Paths of `s3://`, through the server."""

    protocol = ("s3", "s3a")
    _scheme = "s3://"


class GcsBywashFileSystem(BywashFileSystem):
    """Paths of `gs://`, through the server."""

    protocol = ("gs", "gcs")
    _scheme = "gs://"


class AzureBywashFileSystem(BywashFileSystem):
    """Paths of `az://`, through the server."""

    protocol = ("az", "abfs", "abfss")
    _scheme = "az://"


_BY_PROTOCOL = {
    name: kind for kind in (S3BywashFileSystem, GcsBywashFileSystem, AzureBywashFileSystem) for name in kind.protocol
}


def register(*protocols: str) -> None:
    """Has fsspec open paths of these protocols through the server: `s3`, `gs`, `az` and their other names.

    The server's own credentials reach the origins: those of the environment in which it was started, or `options`.
    """
    import fsspec

    for protocol in protocols:
        if protocol not in _BY_PROTOCOL:
            known = ", ".join(sorted(_BY_PROTOCOL))
            raise ValueError(f"protocol {protocol!r}: one of {known}")
        fsspec.register_implementation(protocol, _BY_PROTOCOL[protocol], clobber=True)
