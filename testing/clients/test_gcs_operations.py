"""Every method of Google's storage API has the response that docs/gcs-compatibility.md lists, and changes only the object or bucket that it names.

BYWASH_UPDATE_MATRIX=1 writes that page's table.
"""

import re
from pathlib import Path

import pytest
import requests
from harness import Bywash, compare_table

METHODS = Path(__file__).parent / "google-storage-methods.txt"
MATRIX = Path(__file__).parents[2] / "docs/gcs-compatibility.md"
# What stands for a part of a path, or a parameter.
VALUES = {
    "bucket": "full", "sourceBucket": "full", "destinationBucket": "full", "object": "key", "sourceObject": "other", "destinationObject": "made",
    "entity": "allUsers", "permissions": "storage.objects.get", "project": "p", "projectId": "p", "generation": "1",
    "ifMetagenerationMatch": "1", "serviceAccountEmail": "a@p.iam.gserviceaccount.com",
}
BODIES = {
    "buckets.insert": {"name": "new"},
    "buckets.patch": {"labels": {"a": "b"}},
    "objects.compose": {"sourceObjects": [{"name": "key"}, {"name": "other"}]},
    "objects.patch": {"metadata": {"a": "c"}},
    "objects.update": {"metadata": {"a": "c"}},
}
# Methods that change an object or a bucket when they succeed.
CHANGES = {
    "buckets.insert", "objects.compose", "objects.copy", "objects.delete", "objects.insert", "objects.move", "objects.patch",
    "objects.rewrite", "objects.update",
}


def methods():
    for line in METHODS.read_text().splitlines()[1:]:
        name, verb, path, *query = line.split()
        yield name, verb, path, query


def filled(name):
    return VALUES.get(name, "none")


@pytest.fixture
def server(tmp_path):
    started = Bywash(tmp_path, "--anonymous", "--no-history", credentials=False)
    yield started
    assert started.stop() == 0


def call(server, name, verb, path, query):
    url = f"{server.gcs}/storage/v1/" + re.sub(r"{(\w+)}", lambda part: filled(part.group(1)), path)
    parameters = {name: filled(name) for name in query}
    if name == "objects.insert":
        url = url.replace("/storage/", "/upload/storage/")
        return requests.post(url, params={"uploadType": "media", "name": "made"}, data=b"bytes", timeout=60)
    body = None if verb in ("GET", "DELETE") else BODIES.get(name, {})
    return requests.request(verb, url, params=parameters, json=body, timeout=60)


def state(server):
    """All that a method could change: buckets, and the objects of one."""
    kept = lambda item: {name: item.get(name) for name in ("name", "generation", "metageneration", "md5Hash", "metadata", "labels")}
    listed = lambda path: requests.get(f"{server.gcs}/storage/v1/{path}", timeout=60).json().get("items", [])
    buckets = [kept(item) for item in listed("b?project=p")]
    has_bucket = any(bucket["name"] == "full" for bucket in buckets)
    return buckets, [kept(item) for item in listed("b/full/o")] if has_bucket else None


def restore(server):
    for bucket in ("full", "new"):
        for item in requests.get(f"{server.gcs}/storage/v1/b/{bucket}/o", timeout=60).json().get("items", []):
            requests.delete(f"{server.gcs}/storage/v1/b/{bucket}/o/{item['name']}", timeout=60)
        requests.delete(f"{server.gcs}/storage/v1/b/{bucket}", timeout=60)
    requests.post(f"{server.gcs}/storage/v1/b?project=p", json={"name": "full"}, timeout=60).raise_for_status()
    for key in ("key", "other"):
        url = f"{server.gcs}/upload/storage/v1/b/full/o?uploadType=media&name={key}"
        requests.post(url, data=key.encode(), timeout=60).raise_for_status()


def outcome(response):
    if response.ok:
        return "success"
    error = response.json()["error"]
    assert error["code"] == response.status_code and error["message"], response.text
    return f"{response.status_code} {error['errors'][0]['reason']}"


def test_methods_change_only_what_they_name(server):
    rows = []
    restore(server)
    for name, verb, path, query in methods():
        before = state(server)
        response = call(server, name, verb, path, query)
        result = outcome(response)
        if name in CHANGES:
            assert response.ok and state(server) != before, f"{name}: {result}"
            restore(server)
        else:
            assert state(server) == before, f"{name}: {result}"
        served = "no" if "notImplemented" in result else "yes"
        rows.append(f"| {name} | {verb} {path} | {served} | {result} |")
    assert len(rows) > 70
    lines = ["| method | request | served | response |", "|---|---|---|---|", *rows]
    compare_table(MATRIX, "methods", lines, "BYWASH_UPDATE_MATRIX")
