"""boto3: ETags as S3's, conditions with them, and the parts of an object."""

import base64
import datetime
import hashlib
import zlib

import pytest
from harness import MIB, S3_ORIGINS, Bywash, error, payload


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A server over folders, and one of its buckets."""
    server = Bywash(tmp_path_factory.mktemp("kept"))
    server.s3.create_bucket(Bucket="kept")
    yield server
    assert server.stop() == 0


def md5(body):
    return hashlib.md5(body).hexdigest()


def etag(server, key):
    """Returns the ETag of an object without quotes; listings show the same."""
    found = server.s3.head_object(Bucket="kept", Key=key)["ETag"]
    listed = server.s3.list_objects_v2(Bucket="kept", Prefix=key)["Contents"][0]
    assert listed["ETag"] == found
    return found.strip('"')


def upload(server, key, pieces, **options):
    """Uploads an object in parts; returns its ETag without quotes."""
    name = {"Bucket": "kept", "Key": key}
    begun = server.s3.create_multipart_upload(**name, **options)
    name["UploadId"] = begun["UploadId"]
    parts = []
    for number, piece in enumerate(pieces, 1):
        part = server.s3.upload_part(**name, PartNumber=number, Body=piece)
        assert part["ETag"].strip('"') == md5(piece)
        parts.append({"PartNumber": number, "ETag": part["ETag"]})
        if "ChecksumCRC32" in part and options:
            parts[-1]["ChecksumCRC32"] = part["ChecksumCRC32"]
    done = server.s3.complete_multipart_upload(**name, MultipartUpload={"Parts": parts})
    again = server.s3.complete_multipart_upload(**name, MultipartUpload={"Parts": parts})
    assert again["ETag"] == done["ETag"]
    return done["ETag"].strip('"')


def test_etags_are_md5s(kept):
    for size in (0, 1000, 20 * MIB):
        body = payload(size)
        put = kept.s3.put_object(Bucket="kept", Key="whole", Body=body)
        assert put["ETag"].strip('"') == etag(kept, "whole") == md5(body)
    kept.s3.copy_object(Bucket="kept", Key="copy", CopySource="kept/whole")
    assert etag(kept, "copy") == md5(body)
    kept.kill()
    kept.start()
    assert etag(kept, "whole") == etag(kept, "copy") == md5(body)
    # A file that another program changes.
    file = kept.data_dir / "buckets" / "kept" / "whole"
    with open(file, "r+b") as changed:
        changed.write(b"changed")
    kept.stop()
    kept.start()
    assert "-" in etag(kept, "whole")


def test_parts_are_read_by_their_numbers(kept):
    pieces = [payload(5 * MIB, 1), payload(6 * MIB, 2), b"last"]
    found = upload(kept, "parts", pieces)
    digests = b"".join(hashlib.md5(piece).digest() for piece in pieces)
    assert found == etag(kept, "parts") == f"{md5(digests)}-3"
    for number, piece in enumerate(pieces, 1):
        part = kept.s3.get_object(Bucket="kept", Key="parts", PartNumber=number)
        assert (part["PartsCount"], part["Body"].read()) == (3, piece)
        head = kept.s3.head_object(Bucket="kept", Key="parts", PartNumber=number)
        assert (head["PartsCount"], head["ContentLength"]) == (3, len(piece))
    assert error(kept.s3.get_object, Bucket="kept", Key="parts", PartNumber=4) == ("InvalidPartNumber", 416)


def test_attributes_list_the_parts(kept):
    pieces = [payload(5 * MIB, 3), payload(5 * MIB, 4), b"last"]
    found = upload(kept, "attributes", pieces, ChecksumAlgorithm="CRC32")
    wanted = {"Bucket": "kept", "Key": "attributes", "ObjectAttributes": ["ETag", "Checksum", "ObjectParts", "ObjectSize"]}
    page = kept.s3.get_object_attributes(**wanted, MaxParts=2)
    assert page["ETag"] == found, "without quotes"
    assert page["Checksum"]["ChecksumType"] == "COMPOSITE"
    parts = page["ObjectParts"]
    assert (parts["TotalPartsCount"], parts["IsTruncated"], parts["NextPartNumberMarker"]) == (3, True, 2)
    listed = parts["Parts"] + kept.s3.get_object_attributes(**wanted, PartNumberMarker=2)["ObjectParts"]["Parts"]
    assert [(part["PartNumber"], part["Size"]) for part in listed] == [(1, 5 * MIB), (2, 5 * MIB), (3, 4)]
    crcs = [base64.b64encode(zlib.crc32(piece).to_bytes(4)).decode() for piece in pieces]
    assert [part["ChecksumCRC32"] for part in listed] == crcs


def test_conditional_deletes(kept):
    name = {"Bucket": "kept", "Key": "delete"}
    delete = kept.s3.delete_object
    assert error(delete, **name, IfMatch="*") == ("NoSuchKey", 404)
    delete(**name, IfMatchSize=1)
    found = kept.s3.put_object(**name, Body=b"data")["ETag"]
    modified = kept.s3.head_object(**name)["LastModified"]
    wrong = [{"IfMatch": '"0123"'}, {"IfMatchSize": 5}, {"IfMatchLastModifiedTime": datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)}]
    for condition in wrong:
        assert error(delete, **name, **condition) == ("PreconditionFailed", 412), condition
    delete(**name, IfMatch=found, IfMatchSize=4, IfMatchLastModifiedTime=modified)
    assert error(kept.s3.head_object, **name) == ("404", 404)
    for key in ("a", "b"):
        kept.s3.put_object(Bucket="kept", Key=key, Body=b"data")
    objects = [{"Key": "a", "ETag": md5(b"data"), "Size": 4}, {"Key": "b", "ETag": md5(b"other")}]
    response = kept.s3.delete_objects(Bucket="kept", Delete={"Objects": objects})
    assert [entry["Key"] for entry in response["Deleted"]] == ["a"]
    assert [(entry["Key"], entry["Code"]) for entry in response["Errors"]] == [("b", "PreconditionFailed")]


@pytest.mark.parametrize("kind", S3_ORIGINS)
def test_conditional_deletes_over_s3_are_decided_there_or_refused(request, start, kind):
    """versitygw heeds conditions of deletes, moto ignores them."""
    origin = request.getfixturevalue(kind)
    origin.s3.create_bucket(Bucket="suite-deletes")
    heeded = kind == "versitygw"
    setting = {"AWS_CONDITIONAL_DELETE": "etag"} if heeded else {}
    server = start("s3://suite-deletes", env=origin.environment() | setting)
    name = {"Bucket": "suite-deletes", "Key": "key"}
    found = server.s3.put_object(**name, Body=b"data")["ETag"]
    delete = server.s3.delete_object
    assert error(delete, **name, IfMatch='"0123"') == (("PreconditionFailed", 412) if heeded else ("NotImplemented", 501))
    assert origin.s3.head_object(**name)["ETag"] == found
    if heeded:
        delete(**name, IfMatch=found)
        assert error(origin.s3.head_object, **name) == ("404", 404)


def test_conditional_writes_in_all_combinations(kept):
    name = {"Bucket": "kept", "Key": "write"}
    put = kept.s3.put_object
    assert error(put, **name, Body=b"x", IfMatch="*") == ("NoSuchKey", 404)
    found = put(**name, Body=b"data", IfNoneMatch="0123")["ETag"]
    assert found.strip('"') == md5(b"data")
    for refused in ({"IfNoneMatch": found}, {"IfNoneMatch": "*"}, {"IfMatch": "0123"}, {"IfMatch": found, "IfNoneMatch": found}):
        assert error(put, **name, Body=b"x", **refused) == ("PreconditionFailed", 412), refused
    for accepted in ({"IfMatch": md5(b"data")}, {"IfMatch": found}, {"IfMatch": "*"}, {"IfMatch": found, "IfNoneMatch": "0123"}):
        put(**name, Body=b"data", **accepted)
