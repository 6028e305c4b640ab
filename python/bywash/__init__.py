"""Object storage at memory speed: one cache for all processes of a machine.

    import bywash

    bucket = bywash.connect().bucket("s3://data")
    table = bucket.get("a.parquet")          # bytes in the server's memory, uncopied

`connect()` finds the server of this user, or starts one. The package has no thread and no runtime of its own; its objects go through a
fork and through pickle.
"""

from __future__ import annotations

from . import errors
from ._files import ReadFile, WriteFile
from ._native import Object
from ._store import Bucket, Store, connect
from ._values import Metadata, Written
from ._version import __version__
from .errors import Error

__all__ = [
    "Bucket",
    "Error",
    "Metadata",
    "Object",
    "ReadFile",
    "Store",
    "WriteFile",
    "Written",
    "__version__",
    "connect",
    "errors",
]
