"""obstore (Rust's object_store for Python): conditional puts, uploads in parts, many ranges, bulk deletes."""

import datetime

import obstore
import pytest
from harness import ACCESS_KEY, MIB, ODD_KEYS, REGION, SECRET_KEY, payload
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import S3Store


@pytest.fixture(scope="module")
def store(served):
    return S3Store(
        served.bucket,
        endpoint=served.server.url,
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
        region=REGION,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


@pytest.mark.parametrize("size", [0, 1, MIB + 1, 23 * MIB])
def test_objects_read_back(served, store, size):
    """Above 5 MiB obstore uploads in parts."""
    body, key = payload(size, size), f"sizes/{size}"
    put = store.put(key, body)
    head = store.head(key)
    assert (head["size"], head["e_tag"]) == (size, put["e_tag"])
    assert store.get(key).bytes().to_bytes() == body
    assert b"".join(bytes(chunk) for chunk in store.get(key).stream(min_chunk_size=MIB)) == body


def test_ranges(store):
    body = payload(3 * MIB + 10, 3)
    store.put("ranged", body)
    assert store.get_range("ranged", start=MIB - 1, end=MIB + 1).to_bytes() == body[MIB - 1 : MIB + 1]
    assert store.get("ranged", options={"range": {"suffix": 10}}).bytes().to_bytes() == body[-10:]
    assert store.get("ranged", options={"range": {"offset": 3 * MIB}}).bytes().to_bytes() == body[3 * MIB :]
    starts = [0, 5000, MIB - 3, 2 * MIB, 3 * MIB]
    found = store.get_ranges("ranged", starts=starts, lengths=[10] * 5)
    assert [bytes(piece) for piece in found] == [body[start : start + 10] for start in starts]


def test_conditional_puts(store):
    first = store.put("conditional", b"one", mode="create")
    with pytest.raises(AlreadyExistsError):
        store.put("conditional", b"two", mode="create")
    second = store.put("conditional", b"two", mode={"e_tag": first["e_tag"]}, use_multipart=False)
    with pytest.raises(PreconditionError):
        store.put("conditional", b"three", mode={"e_tag": first["e_tag"]}, use_multipart=False)
    assert store.get("conditional").bytes() == b"two"
    assert store.get("conditional", options={"if_match": second["e_tag"]}).bytes() == b"two"
    with pytest.raises(PreconditionError):
        store.get("conditional", options={"if_match": first["e_tag"]})


def test_attributes(store):
    given = {"Content-Type": "text/csv", "Cache-Control": "max-age=60", "Content-Language": "de", "colour": "blue"}
    store.put("described", b"body", attributes=given)
    assert store.get("described").attributes == given


@pytest.mark.parametrize("key", ODD_KEYS)
def test_odd_keys(served, store, key):
    store.put(f"odd/{key}", key.encode())
    assert store.get(f"odd/{key}").bytes() == key.encode()
    assert served.read(f"odd/{key}") == key.encode()
    assert f"odd/{key}" in [entry["path"] for entry in store.list("odd").collect()]


def test_copy_rename_and_delete_many(served, store):
    names = [f"many/{number:04}" for number in range(1200)]
    for name in names[:3]:
        store.put(name, name.encode())
    store.copy(names[0], names[3])
    store.rename(names[1], names[4])
    assert [entry["path"] for entry in store.list("many").collect()] == [names[0], names[2], names[3], names[4]]
    assert store.get(names[3]).bytes() == names[0].encode()
    before = served.stats()["origin_requests"]
    store.delete(names)  # two DeleteObjects; most of these keys are absent
    assert served.stats()["origin_requests"] - before <= 4, "deletes at the origin are bulk requests as well"
    assert store.list("many").collect() == []


def test_listing(store):
    for name in ("list/a/1", "list/a/2", "list/b", "list/c/d/e"):
        store.put(name, b"x")
    level = store.list_with_delimiter("list")
    assert level["common_prefixes"] == ["list/a", "list/c"]
    assert [entry["path"] for entry in level["objects"]] == ["list/b"]
    after = store.list("list", offset="list/a/1").collect()
    assert [entry["path"] for entry in after] == ["list/a/2", "list/b", "list/c/d/e"]


def test_presigned_urls(served, store):
    url = obstore.sign(store, "PUT", "signed", expires_in=datetime.timedelta(minutes=5))
    assert served.server.raw("PUT", url, b"by address").status == 200
    assert store.get("signed").bytes() == b"by address"
