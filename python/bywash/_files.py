"""Objects as files."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from ._values import Written

if TYPE_CHECKING:
    from collections.abc import Buffer  # Python 3.12

    from ._store import Bucket

# Bytes that a file reads at once: a block of the server, and eight where reads follow each other.
_BLOCK_BYTES = 1 << 20
_WINDOW_BYTES = 8 << 20


class ReadFile(io.RawIOBase):
    """One version of an object as a file. `Bucket.open` makes it."""

    def __init__(self, bucket: Bucket, key: str, if_match: str | None = None):
        super().__init__()
        self._bucket, self.name = bucket, key
        found = bucket.head(key, if_match=if_match)
        self.metadata = found
        self.size, self._etag = found.size, found.etag
        self._position = 0
        self._window: memoryview | None = None
        self._window_start = 0

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _reopen, (self._bucket, self.name, self._etag, self._position)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._check_open()
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}
        if whence not in base:
            raise ValueError(f"whence {whence}: 0, 1 or 2")
        position = base[whence] + offset
        if position < 0:
            raise OSError(22, f"{self.name}: a position before the start")
        self._position = position
        return position

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _bytes(self, size: int) -> memoryview:
        """Returns up to `size` bytes at the position, at least one before the end, without a copy."""
        start = self._position
        size = min(size, self.size - start)
        if size <= 0:
            return memoryview(b"")
        window = self._window
        if window is None or not self._window_start <= start < self._window_start + len(window):
            follows = window is not None and start == self._window_start + len(window)
            least = _WINDOW_BYTES if follows else _BLOCK_BYTES - start % _BLOCK_BYTES
            end = min(start + max(size, least), self.size)
            read = self._bucket.get(self.name, start, end, if_match=self._etag)
            self._window = window = memoryview(read)
            self._window_start = start
        offset = start - self._window_start
        return window[offset : offset + size]

    def readinto(self, buffer: Buffer) -> int:
        self._check_open()
        target = memoryview(buffer).cast("B")
        filled = 0
        while filled < len(target):
            some = self._bytes(len(target) - filled)
            if not some:
                break
            target[filled : filled + len(some)] = some
            filled += len(some)
            self._position += len(some)
        return filled

    def read(self, size: int | None = -1) -> bytes:
        self._check_open()
        left = self.size - self._position
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted <= 0:
            return b""
        some = self._bytes(wanted)
        if len(some) == wanted:
            self._position += wanted
            return bytes(some)
        whole = bytearray(wanted)
        self.readinto(whole)
        return bytes(whole)

    def readall(self) -> bytes:
        return self.read()

    def close(self) -> None:
        self._window = None
        super().close()


def _reopen(bucket: Bucket, key: str, etag: str | None, position: int) -> ReadFile:
    file = ReadFile(bucket, key, etag)
    file.seek(position)
    return file


class WriteFile(io.RawIOBase):
    """An object being written as a file. `Bucket.open` makes it. Nothing is visible until it is closed."""

    def __init__(self, writer: Any, bucket: Bucket, key: str):
        super().__init__()
        self._writer, self._bucket, self.name = writer, bucket, key
        self._end = writer.position
        self.written: Written | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        position = self._writer.position
        return self._end if position is None else position

    def write(self, data: Buffer) -> int:
        if self.closed:
            raise ValueError("write to closed file")
        with memoryview(data) as view:
            size = view.nbytes
        self._writer.write(data)
        return size

    def capture(self) -> tuple[bytes, int]:
        """Returns a token for `Bucket.resume` and the number of bytes that the store has. The write stays there if this file is never
        closed. The token may contain a capability to write to the store: keep it private."""
        token, position = self._writer.capture()
        return bytes(token), position

    def discard(self) -> None:
        """Closes the file without an object."""
        if not self.closed:
            self._writer.abort()
            super().close()

    def close(self) -> None:
        if not self.closed:
            self._end = self._writer.position or 0
            try:
                self.written = Written(*self._writer.finish())
            finally:
                super().close()

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is None:
            self.close()
        else:
            self._drop()

    def __del__(self) -> None:
        # A file that nobody closed has no object: its program may have failed.
        self._drop()

    def _drop(self) -> None:
        if not self.closed:
            self._writer = _Dropped(self._end)
            super().close()


class _Dropped:
    """In place of the writer of a discarded file."""

    def __init__(self, position: int):
        self.position = position
