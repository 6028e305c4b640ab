"""The fixture of `bywash.testing`, which pytest finds by its entry point."""

import pytest


@pytest.fixture
def bywash_server():
    """A server with a bucket `test` on free ports, for one test."""
    from .testing import server

    with server() as running:
        yield running
