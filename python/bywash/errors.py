"""Exceptions of the package.

Each has a text that names bucket, key, operation and next step. Where Python has an exception of the same meaning, it is a base class: a
missing object is a `FileNotFoundError`.
"""

from __future__ import annotations

__all__ = [
    "ConditionError",
    "ConnectionLostError",
    "DamagedError",
    "DeadlineError",
    "Error",
    "ExistsError",
    "InvalidArgumentError",
    "InvalidRangeError",
    "LimitError",
    "NoSuchBucketError",
    "NotFoundError",
    "NotModifiedError",
    "PermissionDeniedError",
    "SlowDownError",
    "TransientError",
    "UnavailableError",
    "UnsupportedError",
    "UploadLostError",
    "VersionChangedError",
    "VersionMismatchError",
]


class Error(Exception):
    """Base of all exceptions of the package."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class NotFoundError(Error, FileNotFoundError):
    """There is no such object."""


class NoSuchBucketError(NotFoundError):
    """There is no such bucket."""


class ConditionError(Error):
    """A condition of the request does not hold."""


class NotModifiedError(ConditionError):
    """The object has the ETag that the caller knows."""


class ExistsError(ConditionError, FileExistsError):
    """There is such an object, or bucket, already."""


class InvalidArgumentError(Error, ValueError):
    """The request is wrong in itself."""


class InvalidRangeError(InvalidArgumentError):
    """The range is beyond the object's end."""


class PermissionDeniedError(Error, PermissionError):
    """The store refuses the server's credentials, or the server refuses this process."""


class UnsupportedError(Error, NotImplementedError):
    """The store, or the bucket, has no such operation."""


class TransientError(Error):
    """The same call may succeed later."""


class SlowDownError(TransientError):
    """The server had no memory in time."""


class DeadlineError(TransientError, TimeoutError):
    """The deadline of the call passed."""


class UnavailableError(TransientError, OSError):
    """The store failed."""


class VersionChangedError(TransientError):
    """The object changed while it was read."""


class ConnectionLostError(TransientError, ConnectionError):
    """There is no server, or the connection to it broke. A write may be carried out or not."""


class DamagedError(Error, OSError):
    """The bytes do not have the digest that was stated for them."""


class UploadLostError(Error):
    """The upload cannot be continued: begin again."""


class LimitError(Error):
    """A limit of the server is exceeded: connections, or objects of one request."""


class VersionMismatchError(Error):
    """The server is of another release than this package."""


_CLASSES = {
    "NotFound": NotFoundError,
    "NoSuchBucket": NoSuchBucketError,
    "Precondition": ConditionError,
    "NotModified": NotModifiedError,
    "AlreadyExists": ExistsError,
    "InvalidArgument": InvalidArgumentError,
    "InvalidRange": InvalidRangeError,
    "PermissionDenied": PermissionDeniedError,
    "Unsupported": UnsupportedError,
    "SlowDown": SlowDownError,
    "Deadline": DeadlineError,
    "Unavailable": UnavailableError,
    "VersionChanged": VersionChangedError,
    "Damaged": DamagedError,
    "UploadLost": UploadLostError,
    "Limit": LimitError,
    "Protocol": VersionMismatchError,
    "Connection": ConnectionLostError,
    "Io": UnavailableError,
}


def of(code: str, message: str) -> Error:
    """Returns the exception of an error code of the client."""
    return _CLASSES.get(code, Error)(message)
