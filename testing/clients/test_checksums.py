"""boto3: the five checksum algorithms, correct and wrong, on objects and parts."""

import base64
import hashlib
import zlib

import pytest
from awscrt import checksums
from harness import MIB, error, payload

ALGORITHMS = {
    "CRC32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "CRC32C": lambda data: checksums.crc32c(data).to_bytes(4, "big"),
    "CRC64NVME": lambda data: checksums.crc64nvme(data).to_bytes(8, "big"),
    "SHA1": lambda data: hashlib.sha1(data).digest(),
    "SHA256": lambda data: hashlib.sha256(data).digest(),
}


def encoded(algorithm, data):
    return base64.b64encode(ALGORITHMS[algorithm](data)).decode()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_checksum_of_the_client_is_returned(served, algorithm):
    key, body = f"sums/{algorithm}", payload(100_000, 5)
    put = served.put(key, body, ChecksumAlgorithm=algorithm)
    expected = encoded(algorithm, body)
    assert put[f"Checksum{algorithm}"] == expected
    head = served.head(key, ChecksumMode="ENABLED")
    assert head[f"Checksum{algorithm}"] == expected
    got = served.get(key, ChecksumMode="ENABLED")
    assert got[f"Checksum{algorithm}"] == expected
    assert got["Body"].read() == body  # boto3 checks the digest against the body as it reads
    assert f"bywash-checksum-{algorithm.lower()}" not in head["Metadata"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_wrong_digest_stores_nothing(served, algorithm):
    key = f"wrong/{algorithm}"
    wrong = {f"Checksum{algorithm}": encoded(algorithm, b"another body")}
    assert error(served.put, key, b"body", **wrong) == ("BadDigest", 400)
    assert error(served.get, key) == ("NoSuchKey", 404)
    served.put(key, b"old")
    assert error(served.put, key, b"body", **wrong) == ("BadDigest", 400)
    assert served.read(key) == b"old"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_wrong_digest_of_a_large_body_stores_nothing(served, algorithm):
    """A body of several chunks is sent to the origin before its digest is known."""
    key, body = f"wrong-large/{algorithm}", payload(18 * MIB, 6)
    served.put(key, b"old")
    wrong = {f"Checksum{algorithm}": encoded(algorithm, b"another body")}
    assert error(served.put, key, body, **wrong) == ("BadDigest", 400)
    assert served.read(key) == b"old"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_part_with_a_wrong_digest_is_not_stored(served, algorithm):
    key = f"wrong-part/{algorithm}"
    where = {"Bucket": served.bucket, "Key": key}
    where["UploadId"] = served.s3.create_multipart_upload(**where, ChecksumAlgorithm=algorithm)["UploadId"]
    wrong = {f"Checksum{algorithm}": encoded(algorithm, b"another body")}
    assert error(served.s3.upload_part, PartNumber=1, Body=b"body", **where, **wrong) == ("BadDigest", 400)
    assert "Parts" not in served.s3.list_parts(**where)
    part = served.s3.upload_part(PartNumber=1, Body=b"body", ChecksumAlgorithm=algorithm, **where)
    checksum = f"Checksum{algorithm}"
    assert part[checksum] == encoded(algorithm, b"body")
    entry = {"PartNumber": 1, "ETag": part["ETag"], checksum: part[checksum]}
    served.s3.complete_multipart_upload(MultipartUpload={"Parts": [entry]}, **where)
    assert served.read(key, ChecksumMode="ENABLED") == b"body"


def test_wrong_md5_stores_nothing(served):
    def put(digest):
        return error(served.put, "wrong/md5", b"body", ContentMD5=digest)

    assert put(base64.b64encode(hashlib.md5(b"another").digest()).decode()) == ("BadDigest", 400)
    assert put("not a digest") == ("InvalidDigest", 400)
    assert error(served.get, "wrong/md5") == ("NoSuchKey", 404)
    right = base64.b64encode(hashlib.md5(b"body").digest()).decode()
    served.put("wrong/md5", b"body", ContentMD5=right)
    assert served.read("wrong/md5") == b"body"


def test_managed_upload_verifies_checksums(served, tmp_path):
    """boto3's defaults: CRC32 of each part, and verified downloads."""
    source = tmp_path / "source"
    source.write_bytes(payload(20 * MIB, 20))
    served.s3.upload_file(str(source), served.bucket, "sums/managed")
    assert served.read("sums/managed", ChecksumMode="ENABLED") == source.read_bytes()
