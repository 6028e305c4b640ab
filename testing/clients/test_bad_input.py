"""Invalid requests: the correct S3 error, and no partial object is ever visible."""

import base64
import urllib.parse
import zlib

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from harness import ACCESS_KEY, MIB, REGION, SECRET_KEY, error, head_of_put, keys, payload, read_response, until


def presigned(served, operation, key, **more):
    return served.server.presigned(operation, served.bucket, key, **more)


def nothing_in_flight(served):
    """Checks that neither the server nor its origin has an open upload."""
    stats = served.server.stats()
    if stats["pool"]["flights"] or stats["budget"]["waiting"]:
        return False
    if served.store:
        return "Uploads" not in served.store.list_multipart_uploads(Bucket=served.bucket)
    own = served.server.data_dir / "buckets" / served.bucket / ".bywash"
    return not [path for name in ("staging", "uploads") for path in own.glob(f"{name}/*")]


@pytest.mark.parametrize("header", ["bytes=", "bytes=abc", "bytes=5-2", "chars=0-1", "bytes=1", "bytes=--1", "5-9"])
def test_malformed_ranges(served, header):
    """RFC 9110: an invalid Range is ignored. An error is permitted as well, a partial body is not."""
    served.put("range", b"0123456789")
    response = served.server.raw("GET", presigned(served, "get_object", "range"), headers={"Range": header})
    assert (response.status, response.body) == (200, b"0123456789") or (response.status, response.code) in (
        (400, "InvalidArgument"), (400, "InvalidRequest"), (416, "InvalidRange"),
    )


def test_several_ranges_are_ignored_and_an_empty_suffix_is_rejected(served):
    served.put("range", b"0123456789")
    url = presigned(served, "get_object", "range")
    response = served.server.raw("GET", url, headers={"Range": "bytes=0-1,4-5"})
    assert (response.status, response.body) == (200, b"0123456789")
    response = served.server.raw("GET", url, headers={"Range": "bytes=-0"})
    assert (response.status, response.code) == (416, "InvalidRange")
    assert response.headers["content-range"] == "bytes */10"


@pytest.mark.parametrize(
    "key", ["../up", "a/../../up", "a/..", "./a", "a/./b", "a//b", "/a", "a//", "a\0b", "a\nb", "..", "a\x7fb"]
)
def test_keys_that_cannot_be_stored_unchanged_are_rejected(served, key):
    before = keys(served.s3, served.bucket)
    outside = set(served.server.folder.iterdir()), set(served.server.data_dir.iterdir())
    for operation, method in (("put_object", "PUT"), ("get_object", "GET")):
        url = presigned(served, operation, key)
        path = f"{served.server.url}/{served.bucket}/{urllib.parse.quote(key, safe='/')}"
        response = served.server.raw(method, f"{path}?{urllib.parse.urlsplit(url).query}", b"x" if method == "PUT" else None)
        # Other programs may have written such keys to an S3 origin: they are read if its client reaches them, and else refused by name.
        read = (400, 404) if served.origin == "folder" else (400, 404, 501)
        assert response.status in read if method == "GET" else response.status == 400, response
        assert response.code in ("InvalidArgument", "InvalidURI", "InvalidRequest", "NoSuchKey", "NotImplemented"), response
    assert keys(served.s3, served.bucket) == before
    assert (set(served.server.folder.iterdir()), set(served.server.data_dir.iterdir())) == outside


def test_long_names(served):
    if not served.nests:
        pytest.skip("the origin keeps objects as files, whose names have parts of at most 255 bytes")
    longest = "/".join(["n" * 127] * 8)[:1024].rstrip("/")
    single = "s" * 1024
    wide = "ü" * 512
    for key in (longest, single, wide):
        served.put(key, key[:10].encode())
        assert served.read(key) == key[:10].encode()
    listed = keys(served.s3, served.bucket)
    assert {longest, single, wide} <= set(listed)
    assert error(served.put, "s" * 1025, b"x") == ("KeyTooLongError", 400)
    assert error(served.put, "ü" * 513, b"x") == ("KeyTooLongError", 400)
    assert keys(served.s3, served.bucket) == listed


def signed(served, key, body, trailer=False):
    """Returns headers that sign a PUT of `body`; with `trailer`, of an unsigned chunked body with trailers."""
    request = AWSRequest("PUT", f"{served.server.url}/{served.bucket}/{key}", data=body)
    if trailer:
        request.context["checksum"] = {"request_algorithm": {"in": "trailer"}}
        request.headers["Content-Encoding"] = "aws-chunked"
        request.headers["X-Amz-Trailer"] = "x-amz-checksum-crc32"
        request.headers["X-Amz-Decoded-Content-Length"] = str(len(body))
    S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", REGION).add_auth(request)
    return request.url, dict(request.headers)


def test_body_that_differs_from_the_signed_one_is_rejected(served):
    url, headers = signed(served, "tampered", b"signed body")
    assert served.server.raw("PUT", url, b"signed body", headers).status == 200
    response = served.server.raw("PUT", url, b"other  body", headers)
    assert (response.status, response.code) == (400, "XAmzContentSHA256Mismatch")
    assert served.read("tampered") == b"signed body"


def chunked(body, checksum, end=True):
    text = b"%x\r\n%b\r\n" % (len(body), body)
    return text + (b"0\r\nx-amz-checksum-crc32:%b\r\n\r\n" % checksum if end else b"")


def test_checksums_in_trailers(served):
    body = b"hello trailers"
    right = base64.b64encode(zlib.crc32(body).to_bytes(4, "big"))
    url, headers = signed(served, "trailers", body, trailer=True)
    response = served.server.raw("PUT", url, chunked(body, right), headers)
    assert response.status == 200, response
    assert served.read("trailers") == body
    assert served.head("trailers").get("ContentEncoding", "") == ""
    response = served.server.raw("PUT", url, chunked(body, b"AAAAAA=="), headers)
    assert (response.status, response.code) == (400, "BadDigest")
    response = served.server.raw("PUT", url, chunked(body[:-1], right), headers)
    assert response.status == 400, response
    response = served.server.raw("PUT", url, chunked(body, right, end=False), headers)
    assert response.status == 400, response
    assert served.read("trailers") == body


@pytest.mark.parametrize(("size", "sent"), [(1000, 0), (MIB, MIB - 1), (40 * MIB, 30 * MIB)])
def test_truncated_bodies(served, size, sent):
    """The client announces more than it sends and closes the connection, for a new key and over an old object."""
    served.put("truncated/old", b"old")
    body = payload(sent)
    for key in ("truncated/new", "truncated/old"):
        with served.server.connect() as bare:
            bare.sendall(head_of_put(presigned(served, "put_object", key), size))
            bare.sendall(body)
            bare.shutdown(1)
            response = bare.recv(1000)
            assert not response.startswith(b"HTTP/1.1 2"), response
    until("the half-sent bodies are forgotten", lambda: nothing_in_flight(served), 30)
    assert keys(served.s3, served.bucket, Prefix="truncated/") == ["truncated/old"]
    assert served.read("truncated/old") == b"old"


def test_truncated_part_is_not_stored(served):
    where = {"Bucket": served.bucket, "Key": "truncated/part"}
    where["UploadId"] = served.s3.create_multipart_upload(**where)["UploadId"]
    url = served.server.presigned("upload_part", PartNumber=1, bucket=where["Bucket"], key=where["Key"], UploadId=where["UploadId"])
    with served.server.connect() as bare:
        bare.sendall(head_of_put(url, MIB) + payload(MIB // 2))
        bare.shutdown(1)
        assert not bare.recv(1000).startswith(b"HTTP/1.1 2")
    assert "Parts" not in served.s3.list_parts(**where)
    served.s3.abort_multipart_upload(**where)


def test_oversized_heads_and_invalid_http_are_rejected(served):
    with served.server.connect() as bare:
        bare.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n")
        try:
            for number in range(4096):
                bare.sendall(b"X-%d: %b\r\n" % (number, b"v" * 1000))
            bare.sendall(b"\r\n")
            response = bare.recv(1000)
        except (BrokenPipeError, ConnectionResetError):
            response = b""
        assert response == b"" or response.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400")), response
    with served.server.connect() as bare:
        bare.sendall(b"\x16\x03\x01\x02\x00 this is not HTTP\r\n\r\n")
        response = bare.recv(1000)
        assert response == b"" or response.startswith(b"HTTP/1.1 400"), response
    served.s3.head_bucket(Bucket=served.bucket)


def test_bodies_that_are_not_xml_are_rejected(served):
    url = f"{served.server.url}/{served.bucket}?delete"
    for body in (b"", b"not xml", b"<Delete><Object></Delete>", b"<a>" * 5000, b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'):
        request = AWSRequest("POST", url, data=body)
        S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", REGION).add_auth(request)
        response = served.server.raw("POST", url, body, dict(request.headers))
        assert response.status == 400, (body[:40], response)
        assert response.code in ("MalformedXML", "InvalidRequest", "MissingRequestBodyError"), (body[:40], response)


def test_responses_have_cache_version_and_request_id_headers(served):
    served.put("explained", payload(MIB))
    url = presigned(served, "get_object", "explained")
    first, second = (served.server.raw("GET", url) for _ in range(2))
    assert second.headers["x-bywash-cache"] == "hit"
    assert first.headers["x-bywash-cache"] in ("hit", "miss", "partial")
    assert first.headers["x-bywash-version"] == second.headers["x-bywash-version"]
    assert first.headers["x-amz-request-id"] != second.headers["x-amz-request-id"]
    with served.server.connect() as bare:
        parts = urllib.parse.urlsplit(presigned(served, "get_object", "absent"))
        bare.sendall(f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        response = read_response(bare)
    assert (response.status, response.code) == (404, "NoSuchKey")
    assert response.headers["x-amz-request-id"]
