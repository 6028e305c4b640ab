"""Servers of another kind than the suite's usual one: with TLS, and without credentials."""

import datetime
import ipaddress

import pytest
import requests
from botocore import UNSIGNED
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from harness import MIB, payload, s3_client


def test_an_anonymous_server_takes_unsigned_requests_and_any_signature(start):
    server = start("--anonymous", credentials=False)
    clients = [server.client(signature_version=UNSIGNED), server.client(access_key="any", secret_key="thing")]
    clients[0].create_bucket(Bucket="open")
    for number, client in enumerate(clients):
        client.put_object(Bucket="open", Key=f"{number}", Body=b"body")
        assert client.get_object(Bucket="open", Key=f"{number}")["Body"].read() == b"body"
    url = clients[1].generate_presigned_url("get_object", {"Bucket": "open", "Key": "0"})
    assert requests.get(url, timeout=30).content == b"body"
    assert requests.get(server.url + "/open/0", timeout=30).content == b"body"


def certificate(folder):
    """A self-signed certificate for 127.0.0.1 and its key, as files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return folder / "cert.pem", folder / "key.pem"


def test_tls_with_chunked_bodies_and_trailers(start, tmp_path):
    """Over TLS boto3 sends no Content-Length: an unsigned chunked body with its checksum in a trailer."""
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
