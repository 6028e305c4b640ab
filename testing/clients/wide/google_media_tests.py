"""A plugin of pytest that points the system tests of Google's media library for Python, unmodified, at the GCS endpoint in `GCS_ENDPOINT`.

They have Google's addresses as constants, look for its credentials, and import a helper that is in no distribution of theirs.
"""

import os
import sys
import types
from urllib.parse import urlsplit

import google.auth
import requests
from google.auth.credentials import AnonymousCredentials

ENDPOINT = os.environ["GCS_ENDPOINT"]
BUCKET_HOSTS = ".storage.googleapis.com"


class Credentials(AnonymousCredentials):
    project_id = "p"


def moved(url):
    """The address here of one at Google. Addresses of sessions are from here."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    if host == "www.googleapis.com":
        return ENDPOINT + path
    if host.endswith(BUCKET_HOSTS):
        return f"{ENDPOINT}/{host.removesuffix(BUCKET_HOSTS)}{path}"
    return url


class RetryResult:
    """Calls once: the server is there, and its bucket has one user."""

    def __init__(self, predicate):
        pass

    def __call__(self, function):
        return function


def pytest_configure():
    request = requests.Session.request
    requests.Session.request = lambda session, method, url, *args, **named: request(session, method, moved(url), *args, **named)
    google.auth.default = lambda **_: (Credentials(), "p")
    retry = types.ModuleType("test_utils.retry")
    retry.RetryResult = RetryResult
    sys.modules |= {"test_utils": types.ModuleType("test_utils"), "test_utils.retry": retry}
