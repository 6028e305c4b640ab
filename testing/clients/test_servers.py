"""Servers with TLS, and without credentials."""

import pytest
import requests
from botocore import UNSIGNED
from certificates import certificate
from harness import MIB, payload, s3_client


def test_anonymous_server_accepts_unsigned_requests_and_any_signature(start):
    server = start("--anonymous", credentials=False)
    clients = [server.client(signature_version=UNSIGNED), server.client(access_key="any", secret_key="thing")]
    clients[0].create_bucket(Bucket="open")
    for number, client in enumerate(clients):
        client.put_object(Bucket="open", Key=f"{number}", Body=b"body")
        assert client.get_object(Bucket="open", Key=f"{number}")["Body"].read() == b"body"
    url = clients[1].generate_presigned_url("get_object", {"Bucket": "open", "Key": "0"})
    assert requests.get(url, timeout=30).content == b"body"
    assert requests.get(server.url + "/open/0", timeout=30).content == b"body"


def test_tls_with_chunked_bodies_and_trailers(start, tmp_path):
    """Over TLS boto3 sends an unsigned chunked body without Content-Length, with its checksum in a trailer."""
    cert, key = certificate(tmp_path)
    server = start("--tls-cert", cert, "--tls-key", key)
    assert server.url.startswith("https://")
    s3 = s3_client(server.url, verify=str(cert))
    s3.create_bucket(Bucket="tls")
    for size in (0, 1, MIB + 1, 18 * MIB):
        body = payload(size, size)
        put = s3.put_object(Bucket="tls", Key=f"{size}", Body=body)
        assert put["ChecksumCRC32"]
        got = s3.get_object(Bucket="tls", Key=f"{size}")
        assert got["Body"].read() == body
        assert "aws-chunked" not in got.get("ContentEncoding", "")
    (tmp_path / "large").write_bytes(payload(20 * MIB))
    s3.upload_file(str(tmp_path / "large"), "tls", "large")
    assert s3.get_object(Bucket="tls", Key="large")["Body"].read() == payload(20 * MIB)
    with pytest.raises(requests.exceptions.RequestException):
        requests.get(server.url.replace("https", "http"), timeout=30).raise_for_status()
