"""Values that calls return."""

from __future__ import annotations

from typing import Any, NamedTuple

# Begins the names of user metadata among attributes.
USER_METADATA = "x-amz-meta-"


class Metadata(NamedTuple):
    """An object without its bytes."""

    key: str
    size: int
    modified_ns: int
    """Time of the last change, in nanoseconds since 1970."""
    etag: str | None
    version: str | None
    attributes: dict[str, str]
    """Content headers, and user metadata below `x-amz-meta-`. Empty in listings."""

    @property
    def metadata(self) -> dict[str, str]:
        """User metadata."""
        ours = self.attributes.items()
        return {name.removeprefix(USER_METADATA): value for name, value in ours if name.startswith(USER_METADATA)}

    @property
    def content_type(self) -> str | None:
        """Content type, if the object has one."""
        return self.attributes.get("content-type")


class Written(NamedTuple):
    """Result of a write."""

    etag: str | None
    version: str | None


def metadata_of(native: tuple[Any, ...]) -> Metadata:
    """Returns the metadata that the extension has."""
    *fields, attributes = native
    return Metadata(*fields, dict(attributes))
