"""boto3: settings of a bucket, which programs read at their start, are those of a new bucket on S3."""

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from harness import ACCESS_KEY, REGION, SECRET_KEY, error

ABSENT = {
    "get_bucket_cors": "NoSuchCORSConfiguration",
    "get_bucket_encryption": "ServerSideEncryptionConfigurationNotFoundError",
    "get_bucket_lifecycle_configuration": "NoSuchLifecycleConfiguration",
    "get_bucket_ownership_controls": "OwnershipControlsNotFoundError",
    "get_bucket_policy": "NoSuchBucketPolicy",
    "get_bucket_policy_status": "NoSuchBucketPolicy",
    "get_bucket_replication": "ReplicationConfigurationNotFoundError",
    "get_bucket_tagging": "NoSuchTagSet",
    "get_bucket_website": "NoSuchWebsiteConfiguration",
    "get_object_lock_configuration": "ObjectLockConfigurationNotFoundError",
    "get_public_access_block": "NoSuchPublicAccessBlockConfiguration",
}
EMPTY = [
    "get_bucket_accelerate_configuration", "get_bucket_logging", "get_bucket_notification_configuration", "get_bucket_versioning",
]


@pytest.mark.parametrize("operation", ABSENT)
def test_unset_settings_are_absent(served, operation):
    call = getattr(served.s3, operation)
    assert error(call, Bucket=served.bucket) == (ABSENT[operation], 404)
    assert error(call, Bucket="no-such-bucket-here") == ("NoSuchBucket", 404)


@pytest.mark.parametrize("operation", EMPTY)
def test_unset_settings_are_empty(served, operation):
    call = getattr(served.s3, operation)
    assert set(call(Bucket=served.bucket)) == {"ResponseMetadata"}
    assert error(call, Bucket="no-such-bucket-here") == ("NoSuchBucket", 404)


def test_owner_and_payer(served):
    served.put("owned", b"x")
    for acl in (served.s3.get_bucket_acl(Bucket=served.bucket), served.s3.get_object_acl(Bucket=served.bucket, Key="owned")):
        assert [grant["Permission"] for grant in acl["Grants"]] == ["FULL_CONTROL"]
        assert acl["Grants"][0]["Grantee"]["ID"] == acl["Owner"]["ID"]
    assert error(served.s3.get_object_acl, Bucket=served.bucket, Key="absent") == ("NoSuchKey", 404)
    assert served.s3.get_bucket_request_payment(Bucket=served.bucket)["Payer"] == "BucketOwner"
    assert "LocationConstraint" in served.s3.get_bucket_location(Bucket=served.bucket)


@pytest.mark.parametrize(
    ("operation", "given"),
    [
        ("put_bucket_versioning", {"VersioningConfiguration": {"Status": "Enabled"}}),
        ("put_bucket_policy", {"Policy": "{}"}),
        ("put_bucket_lifecycle_configuration", {"LifecycleConfiguration": {"Rules": [{"Status": "Enabled", "Prefix": "", "Expiration": {"Days": 1}}]}}),
        ("delete_bucket_policy", {}),
    ],
)
def test_settings_cannot_be_set(served, operation, given):
    assert error(getattr(served.s3, operation), Bucket=served.bucket, **given) == ("NotImplemented", 501)


def test_public_read_lets_unsigned_requests_read(served):
    if served.origin == "s3":
        assert error(served.put, "public", b"x", ACL="public-read") == ("AccessControlListNotSupported", 400)
        return
    served.put("public", b"for all", ACL="public-read")
    served.put("private", b"for some")
    url = f"/{served.bucket}/"
    assert served.server.raw("GET", url + "public").body == b"for all"
    assert served.server.raw("GET", url + "private").status == 403
    for acl, status in (("public-read", 200), ("private", 403)):
        served.s3.put_object_acl(Bucket=served.bucket, Key="private", ACL=acl)
        assert served.server.raw("GET", url + "private").status == status
        served.s3.put_bucket_acl(Bucket=served.bucket, ACL=acl)
        assert served.server.raw("GET", url + "?list-type=2").status == status
    assert error(served.s3.put_bucket_acl, Bucket=served.bucket, ACL="authenticated-read") == ("AccessControlListNotSupported", 400)


def test_pages_of_other_sites(served):
    rule = {"AllowedMethods": ["GET", "PUT"], "AllowedOrigins": ["https://example.com"], "AllowedHeaders": ["*"], "MaxAgeSeconds": 60}
    served.s3.put_bucket_cors(Bucket=served.bucket, CORSConfiguration={"CORSRules": [rule]})
    assert served.s3.get_bucket_cors(Bucket=served.bucket)["CORSRules"] == [rule]
    asked = {"Origin": "https://example.com", "Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "content-type"}
    response = served.server.raw("OPTIONS", f"/{served.bucket}/page", headers=asked)
    assert (response.status, response.headers["access-control-allow-origin"]) == (200, "https://example.com")
    assert served.server.raw("OPTIONS", f"/{served.bucket}/page", headers=asked | {"Origin": "https://example.org"}).status == 403
    url = served.server.presigned("put_object", served.bucket, "page")
    response = served.server.raw("PUT", url, b"from a page", {"Origin": "https://example.com"})
    assert (response.status, response.headers["access-control-allow-origin"]) == (200, "https://example.com")
    served.s3.delete_bucket_cors(Bucket=served.bucket)
    assert error(served.s3.get_bucket_cors, Bucket=served.bucket) == ("NoSuchCORSConfiguration", 404)


# By method and query, as not every client has all of them; PUTs have an empty body, which is not read.
REST = [
    *[("PUT", query) for query in (
        "accelerate", "analytics&id=a", "encryption", "intelligent-tiering&id=a", "inventory&id=a", "lifecycle",
        "logging", "metrics&id=a", "notification", "ownershipControls", "policy", "replication", "requestPayment", "tagging",
        "versioning", "website", "object-lock", "publicAccessBlock",
    )],
    *[("DELETE", query) for query in (
        "analytics&id=a", "encryption", "intelligent-tiering&id=a", "inventory&id=a", "lifecycle", "metadataTable",
        "metrics&id=a", "ownershipControls", "policy", "replication", "tagging", "website", "publicAccessBlock",
    )],
    *[("GET", query) for query in (
        "analytics&id=a", "intelligent-tiering&id=a", "inventory&id=a", "metadataTable", "metrics&id=a", "analytics",
        "intelligent-tiering", "inventory", "metrics", "session",
    )],
    *[(method, query, "object") for method, query in (
        ("PUT", "legal-hold"), ("PUT", "retention"), ("GET", "legal-hold"), ("GET", "retention"), ("GET", "torrent"),
        ("POST", "restore"), ("POST", "select&select-type=2"),
    )],
]


def test_other_operations_are_not_implemented(served):
    """They are not taken for other operations: the object is unchanged, and no object is created."""
    served.put("object", b"body")
    for method, query, *key in REST:
        request = AWSRequest(method, f"{served.server.url}/{served.bucket}{'/' if key else ''}{''.join(key)}?{query}")
        S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", REGION).add_auth(request)
        response = served.server.raw(method, request.url, headers=dict(request.headers))
        # The error may be that of the missing body, which some of them need.
        assert (response.status, response.code) in (
            (501, "NotImplemented"), (400, "MissingRequestBodyError"), (400, "MalformedXML"),
        ), (method, query, response)
    assert served.read("object") == b"body"


@pytest.mark.parametrize(
    ("given", "named"), [({"IfNoneMatch": "*"}, "If-None-Match"), ({"IfMatch": '"0123"'}, "If-Match")]
)
def test_failed_condition_is_named_in_the_error(served, given, named):
    """s3fs detects an existing object by it."""
    served.put("conditional", b"one")
    with pytest.raises(served.s3.exceptions.ClientError) as failure:
        served.put("conditional", b"two", **given)
    details = failure.value.response["Error"]
    assert (details["Code"], details["Condition"]) == ("PreconditionFailed", named)
