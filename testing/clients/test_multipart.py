"""boto3: the multipart calls one by one, in and out of order, and invalid ones."""

import hashlib

import pytest
from harness import MIB, error, keys, payload

PART = 5 * MIB


@pytest.fixture
def upload(served, request):
    """An open upload, which is aborted after the test."""
    key = f"multipart/{request.node.originalname}"
    opened = Upload(served, key)
    yield opened
    try:
        opened.abort()
    except served.s3.exceptions.NoSuchUpload:
        pass


class Upload:
    def __init__(self, served, key, **options):
        self.served, self.key, self.options = served, key, options
        self.id = served.s3.create_multipart_upload(Bucket=served.bucket, Key=key, **options)["UploadId"]
        self.where = {"Bucket": served.bucket, "Key": key, "UploadId": self.id}

    def part(self, number, body, **options):
        response = self.served.s3.upload_part(PartNumber=number, Body=body, **self.where, **options)
        return {"PartNumber": number, "ETag": response["ETag"]}

    def complete(self, parts, **options):
        return self.served.s3.complete_multipart_upload(MultipartUpload={"Parts": parts}, **self.where, **options)

    def abort(self):
        return self.served.s3.abort_multipart_upload(**self.where)


def test_parts_in_any_order_and_a_repeated_part(served, upload):
    bodies = {number: payload(PART if number < 9 else 1000, number) for number in (1, 2, 9)}
    upload.part(2, payload(PART, 99))
    parts = {number: upload.part(number, bodies[number]) for number in (9, 2, 1)}
    assert error(served.get, upload.key) == ("NoSuchKey", 404)
    response = upload.complete([parts[number] for number in (1, 2, 9)])
    assert served.head(upload.key)["ETag"] == response["ETag"]
    assert served.read(upload.key) == b"".join(bodies[number] for number in (1, 2, 9))


def test_parts_and_uploads_are_listed(served, upload):
    sent = [upload.part(number, payload(PART, number)) for number in (1, 2, 3)]
    listed = served.s3.list_parts(**upload.where)["Parts"]
    assert [(part["PartNumber"], part["ETag"], part["Size"]) for part in listed] == [
        (part["PartNumber"], part["ETag"], PART) for part in sent
    ]
    page = served.s3.list_parts(**upload.where, MaxParts=2)
    assert page["IsTruncated"] and page["NextPartNumberMarker"] == 2
    rest = served.s3.list_parts(**upload.where, PartNumberMarker=2)
    assert [part["PartNumber"] for part in rest["Parts"]] == [3]
    uploads = served.s3.list_multipart_uploads(Bucket=served.bucket, Prefix=upload.key)["Uploads"]
    assert [(entry["Key"], entry["UploadId"]) for entry in uploads] == [(upload.key, upload.id)]


def test_abort_leaves_nothing(served, upload):
    part = upload.part(1, payload(PART))
    upload.abort()
    assert error(upload.complete, [part]) == ("NoSuchUpload", 404)
    assert error(upload.part, 2, b"x") == ("NoSuchUpload", 404)
    assert error(served.s3.list_parts, **upload.where) == ("NoSuchUpload", 404)
    assert upload.key not in keys(served.s3, served.bucket)
    assert "Uploads" not in served.s3.list_multipart_uploads(Bucket=served.bucket, Prefix=upload.key)


def test_small_part_before_the_last_is_rejected(served, upload):
    parts = [upload.part(1, b"small"), upload.part(2, b"last")]
    assert error(upload.complete, parts) == ("EntityTooSmall", 400)
    assert error(served.get, upload.key) == ("NoSuchKey", 404)


def test_invalid_lists_of_parts_are_rejected(served, upload):
    one, two = upload.part(1, payload(PART, 1)), upload.part(2, b"last")
    assert error(upload.complete, [two, one]) == ("InvalidPartOrder", 400)
    assert error(upload.complete, [one, {"PartNumber": 3, "ETag": two["ETag"]}]) == ("InvalidPart", 400)
    assert error(upload.complete, [one, {"PartNumber": 2, "ETag": '"0123"'}]) == ("InvalidPart", 400)
    assert error(upload.part, 10001, b"x") == ("InvalidArgument", 400)
    assert error(served.get, upload.key) == ("NoSuchKey", 404)
    upload.complete([one, two])
    assert served.head(upload.key)["ContentLength"] == PART + 4


def test_conditional_complete(served):
    key = "multipart/conditional"
    first, second = Upload(served, key), Upload(served, key)
    first.complete([first.part(1, b"first")], IfNoneMatch="*")
    assert error(second.complete, [second.part(1, b"second")], IfNoneMatch="*") == ("PreconditionFailed", 412)
    assert served.read(key) == b"first"


def test_metadata_of_the_creation_is_stored(served):
    upload = Upload(served, "multipart/described", Metadata={"colour": "blue"}, ContentType="text/csv")
    upload.complete([upload.part(1, b"body")])
    head = served.head(upload.key)
    assert (head["Metadata"], head["ContentType"]) == ({"colour": "blue"}, "text/csv")


def test_parts_copied_from_objects(served, upload):
    body = payload(12 * MIB, 12)
    served.put("multipart/source", body)
    source = {"Bucket": served.bucket, "Key": "multipart/source"}
    parts = []
    for number, (start, end) in enumerate([(0, 6 * MIB), (6 * MIB, 12 * MIB)], start=1):
        response = served.s3.upload_part_copy(
            PartNumber=number, CopySource=source, CopySourceRange=f"bytes={start}-{end - 1}", **upload.where
        )
        parts.append({"PartNumber": number, "ETag": response["CopyPartResult"]["ETag"]})
    upload.complete(parts)
    assert hashlib.sha256(served.read(upload.key)).digest() == hashlib.sha256(body).digest()
