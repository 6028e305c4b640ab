"""Every operation of boto3 has the effect that docs/behaviour.md documents, and the response that docs/s3-compatibility.md lists.

BYWASH_UPDATE_MATRIX=1 writes that page's table.
"""

import re
import socket
import urllib.parse
from pathlib import Path

import boto3
import pytest
import requests
from botocore.exceptions import ClientError
from harness import compare_table, s3_client

MODEL = boto3.session.Session()._session.get_service_model("s3")
DOCUMENT = Path(__file__).parents[2] / "docs/behaviour.md"
MATRIX = Path(__file__).parents[2] / "docs/s3-compatibility.md"
# Operations that may change an object, and those that may change an empty bucket.
WRITES = {"PutObject", "CopyObject", "DeleteObject", "DeleteObjects", "PutObjectTagging", "DeleteObjectTagging"}
REMOVES = {"DeleteBucket"}
FOREIGN = {"ListDirectoryBuckets", "CreateSession", "WriteGetObjectResponse"}


def listed(responses, table):
    """Compares the responses with the page's table, or writes it."""
    row = "| {} | {} | {} |".format
    rows = [row(name, table[name], f"{code[1]} {code[0]}" if code else "success") for name, code in sorted(responses.items())]
    lines = ["| operation | served | response |", "|---|---|---|", *rows]
    compare_table(MATRIX, "operations", lines, "BYWASH_UPDATE_MATRIX")


def documented():
    """Returns the support of each operation: yes or partly, as the table says, or no for all that it does not name."""
    section = DOCUMENT.read_text().split("| id | operation | served |", 1)[1].split("\n#", 1)[0]
    table = dict.fromkeys(MODEL.operation_names, "no")
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 5:
            table |= {name: re.match(r"\w*", cells[3]).group() for name in re.findall(r"\b[A-Z][a-z]+[A-Z]\w*", cells[2])}
    return table


def test_only_operations_of_s3_are_documented_and_the_page_has_each():
    assert set(documented()) == set(MODEL.operation_names)
    page = re.findall(r"^\| ([A-Z]\w+) \|", MATRIX.read_text(), re.MULTILINE)
    assert page == sorted(MODEL.operation_names)


def minimal(shape, name, known):
    """Returns a minimal value of a shape."""
    if name in known:
        return known[name]
    kind = shape.type_name
    if kind == "structure":
        members = shape.members
        wanted = shape.required_members or list(members)[: 1 if shape.metadata.get("union") else 0]
        return {member: minimal(members[member], member, known) for member in wanted}
    if kind == "list":
        return [minimal(shape.member, name, known)]
    if kind == "map":
        return {}
    if kind == "string":
        return (getattr(shape, "enum", None) or ["a"])[0]
    return {"integer": 1, "long": 1, "boolean": True, "blob": b"x", "timestamp": 0, "float": 1.0, "double": 1.0}[kind]


def state(s3, bucket):
    """Returns all state of a bucket that an operation could change."""
    buckets = [entry["Name"] for entry in s3.list_buckets()["Buckets"]]
    objects = {}
    for entry in s3.list_objects_v2(Bucket=bucket).get("Contents", []) if bucket in buckets else []:
        where = {"Bucket": bucket, "Key": entry["Key"]}
        found = s3.get_object(**where)
        tags = s3.get_object_tagging(**where)["TagSet"]
        objects[entry["Key"]] = found["Body"].read(), found["Metadata"], found["ContentType"], found["ETag"], tags
    return buckets, objects


def restore(s3, bucket):
    if bucket not in [entry["Name"] for entry in s3.list_buckets()["Buckets"]]:
        s3.create_bucket(Bucket=bucket)
    if bucket == "full":
        s3.put_object(Bucket=bucket, Key="key", Body=b"body", Metadata={"a": "b"}, Tagging="t=1")
        s3.put_object(Bucket=bucket, Key="other", Body=b"other")


def test_operations_change_only_what_is_documented(start):
    server = start()
    s3 = server.client(inject_host_prefix=False, s3={"addressing_style": "path"}, parameter_validation=False)
    table = documented()
    responses = {}
    for bucket in ("full", "empty"):
        restore(s3, bucket)
    for name in MODEL.operation_names:
        operation = MODEL.operation_model(name)
        for bucket in ("full", "empty"):
            known = {
                "Bucket": bucket, "Key": "key", "CopySource": "full/other", "RenameSource": "full/other", "UploadId": "none",
                "Body": b"changed", "Delete": {"Objects": [{"Key": "key"}]}, "Tagging": {"TagSet": [{"Key": "k", "Value": "v"}]},
            }
            before = state(s3, bucket)
            parameters = minimal(operation.input_shape, "", known) if operation.input_shape else {}
            if name == "PutObject":
                parameters["Body"] = b"changed"
            try:
                s3._make_api_call(name, parameters)
                code = None
            except ClientError as failure:
                code = failure.response["Error"]["Code"], failure.response["ResponseMetadata"]["HTTPStatusCode"]
            if bucket == "full":
                responses[name] = code
            message = f"{name} of {bucket}: {code}"
            after = state(s3, bucket)
            if table[name] == "no":
                # boto3 signs operations of directory buckets and object lambdas for another service.
                refusals = [("NotImplemented", 501), ("AuthorizationHeaderMalformed", 400)]
                assert code in refusals[: 2 if name in FOREIGN else 1], message
            elif bucket == "full":
                assert code is None or code[0] != "NotImplemented", message
            changes = name in (WRITES if bucket == "full" else REMOVES)
            if changes:
                assert code is None and after != before, message
                restore(s3, bucket)
            elif not (bucket == "empty" and name in WRITES):
                assert after == before, message
            else:
                for key in after[1]:
                    s3.delete_object(Bucket=bucket, Key=key)
    listed(responses, table)


@pytest.mark.parametrize("version", ["s3v4", "s3"])
@pytest.mark.parametrize("domain", ["localhost", "s3.example.test"])
def test_virtual_hosted_style(start, monkeypatch, version, domain):
    """Names below a domain resolve to the server by a DNS record; here a patch resolves them."""
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo",
        lambda host, *more, **named: resolve("127.0.0.1" if str(host).endswith(domain) else host, *more, **named),
    )
    server = start(*([] if domain == "localhost" else ["--domain", domain]))
    port = urllib.parse.urlsplit(server.url).port
    s3 = s3_client(f"http://{domain}:{port}", signature_version=version, s3={"addressing_style": "virtual"})
    hosts = []
    s3.meta.events.register("before-send.s3", lambda request, **_: hosts.append(urllib.parse.urlsplit(request.url).hostname))
    s3.create_bucket(Bucket="bucket")
    s3.put_object(Bucket="bucket", Key="a/key", Body=b"body")
    # With a path-style request, an empty body would have created a bucket.
    s3.put_object(Bucket="bucket", Key="empty", Body=b"")
    assert server.s3.get_object(Bucket="bucket", Key="a/key")["Body"].read() == b"body"
    assert s3.get_object(Bucket="bucket", Key="a/key")["Body"].read() == b"body"
    assert [entry["Key"] for entry in s3.list_objects_v2(Bucket="bucket")["Contents"]] == ["a/key", "empty"]
    url = s3.generate_presigned_url("get_object", {"Bucket": "bucket", "Key": "a/key"})
    assert urllib.parse.urlsplit(url).hostname == f"bucket.{domain}"
    assert requests.get(url, timeout=30).content == b"body"
    for key in ("empty", "a/key"):
        s3.delete_object(Bucket="bucket", Key=key)
    assert {entry["Name"] for entry in server.s3.list_buckets()["Buckets"]} == {"bucket", "bywash-history"}
    s3.delete_bucket(Bucket="bucket")
    assert set(hosts) == {f"bucket.{domain}"}
