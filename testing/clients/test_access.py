"""Authentication: credentials in headers and in presigned URLs, valid, wrong, expired and modified."""

import datetime
import re
import urllib.parse

import boto3
import pytest
import requests
from botocore import UNSIGNED
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from harness import ACCESS_KEY, REGION, SECRET_KEY, error


@pytest.fixture(scope="module", autouse=True)
def secret(served):
    served.put("secret/object", b"secret")


def every_kind_of_call(client, bucket):
    return [
        error(client.list_buckets),
        error(client.list_objects_v2, Bucket=bucket),
        error(client.get_object, Bucket=bucket, Key="secret/object"),
        error(client.put_object, Bucket=bucket, Key="secret/object", Body=b"changed"),
        error(client.delete_objects, Bucket=bucket, Delete={"Objects": [{"Key": "secret/object"}]}),
        error(client.create_multipart_upload, Bucket=bucket, Key="secret/object"),
    ]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"secret_key": "wrong"}, "SignatureDoesNotMatch"),
        ({"access_key": "nobody"}, "InvalidAccessKeyId"),
        ({"signature_version": UNSIGNED}, "AccessDenied"),
    ],
    ids=["wrong secret", "unknown key", "unsigned"],
)
def test_invalid_credentials_are_rejected(served, options, code):
    assert every_kind_of_call(served.server.client(**options), served.bucket) == [(code, 403)] * 6
    assert error(served.server.client(**options).head_bucket, Bucket=served.bucket)[1] == 403
    assert served.read("secret/object") == b"secret"


def test_signature_of_an_hour_ago_is_rejected(served, monkeypatch):
    hour_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda remove_tzinfo=True: hour_ago.replace(tzinfo=None))
    # Signed by botocore and sent by requests: boto3 itself would correct its clock and retry.
    request = AWSRequest("GET", f"{served.server.url}/{served.bucket}/secret/object")
    S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", REGION).add_auth(request)
    response = requests.get(request.url, headers=dict(request.headers), timeout=30)
    assert response.status_code == 403
    assert "<Code>RequestTimeTooSkewed</Code>" in response.text


def presigners(served):
    """boto3's two presigned forms; version 2 is its default with only an endpoint."""
    plain = boto3.session.Session().client(
        "s3",
        endpoint_url=served.server.url,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name=REGION,
    )
    return {"v2": plain, "v4": served.server.client(signature_version="s3v4")}


@pytest.mark.parametrize("version", ["v2", "v4"])
def test_presigned_urls(served, version):
    client = presigners(served)[version]
    where = {"Bucket": served.bucket, "Key": f"presigned {version}/ü+&.txt"}
    put = client.generate_presigned_url("put_object", where)
    assert ("X-Amz-Signature" if version == "v4" else "Signature=") in put
    assert requests.put(put, data=b"by url", timeout=30).status_code == 200
    get = client.generate_presigned_url("get_object", where)
    response = requests.get(get, timeout=30)
    assert (response.status_code, response.content) == (200, b"by url")
    assert requests.get(get, headers={"Range": "bytes=3-"}, timeout=30).content == b"url"
    named = client.generate_presigned_url("get_object", where | {"ResponseContentDisposition": "attachment"})
    assert requests.get(named, timeout=30).headers["content-disposition"] == "attachment"
    delete = client.generate_presigned_url("delete_object", where)
    assert requests.delete(delete, timeout=30).status_code == 204
    assert requests.get(get, timeout=30).status_code == 404


def test_content_header_in_utf8_by_a_presigned_url(served):
    name = 'attachment; filename="über ✓.txt"'.encode()
    where = {"Bucket": served.bucket, "Key": "presigned utf8"}
    put = served.s3.generate_presigned_url("put_object", where)
    requests.put(put, data=b"x", headers={"Content-Disposition": name}, timeout=30).raise_for_status()
    read = requests.get(served.s3.generate_presigned_url("get_object", where), timeout=30)
    assert read.headers["Content-Disposition"].encode("latin-1") == name


@pytest.mark.parametrize("version", ["v2", "v4"])
def test_changed_or_expired_presigned_url_is_rejected(served, version):
    client = presigners(served)[version]
    url = client.generate_presigned_url("get_object", {"Bucket": served.bucket, "Key": "secret/object"})
    assert requests.get(url, timeout=30).status_code == 200
    assert requests.put(url, data=b"changed", timeout=30).status_code == 403
    assert requests.get(url.replace("secret/object", "secret/objecu"), timeout=30).status_code == 403
    assert requests.get(url.replace("Expires=3600", "Expires=9999"), timeout=30).status_code == (
        403 if version == "v4" else 200  # version 2 carries a moment, not a duration
    )
    old = client.generate_presigned_url(
        "get_object", {"Bucket": served.bucket, "Key": "secret/object"}, ExpiresIn=-10
    ) if version == "v2" else re.sub(r"%2F\d{8}%2F", "%2F20200101%2F", with_query(url, "X-Amz-Date", "20200101T000000Z"))
    assert requests.get(old, timeout=30).status_code == 403
    if version == "v4":
        # Of another day than its credential.
        mixed = with_query(url, "X-Amz-Date", "20200101T000000Z")
        assert requests.get(mixed, timeout=30).status_code == 400
    assert served.read("secret/object") == b"secret"


def with_query(url, name, value):
    parts = urllib.parse.urlsplit(url)
    query = [(key, value if key == name else old) for key, old in urllib.parse.parse_qsl(parts.query)]
    return parts._replace(query=urllib.parse.urlencode(query)).geturl()


def test_client_needs_only_endpoint_and_keys(served):
    """A client with only an endpoint and keys, as in README: no addressing style, no signature version."""
    client = boto3.client(
        "s3", endpoint_url=served.server.url, aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
        region_name=REGION, config=Config(),
    )
    client.put_object(Bucket=served.bucket, Key="plain-config", Body=b"x")
    assert client.get_object(Bucket=served.bucket, Key="plain-config")["Body"].read() == b"x"
