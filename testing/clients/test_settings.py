"""boto3: what programs ask of a bucket before they begin is answered as S3 answers of a bucket that nobody set anything on."""

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
def test_what_is_not_set_is_absent(served, operation):
    call = getattr(served.s3, operation)
    assert error(call, Bucket=served.bucket) == (ABSENT[operation], 404)
    assert error(call, Bucket="no-such-bucket-here") == ("NoSuchBucket", 404)


@pytest.mark.parametrize("operation", EMPTY)
def test_what_is_not_set_is_empty(served, operation):
    call = getattr(served.s3, operation)
    assert set(call(Bucket=served.bucket)) == {"ResponseMetadata"}
    assert error(call, Bucket="no-such-bucket-here") == ("NoSuchBucket", 404)


def test_who_owns_and_pays(served):
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
        ("put_bucket_acl", {"ACL": "public-read"}),
        ("put_bucket_cors", {"CORSConfiguration": {"CORSRules": [{"AllowedMethods": ["GET"], "AllowedOrigins": ["*"]}]}}),
        ("put_bucket_lifecycle_configuration", {"LifecycleConfiguration": {"Rules": [{"Status": "Enabled", "Prefix": "", "Expiration": {"Days": 1}}]}}),
        ("delete_bucket_policy", {}),
    ],
)
def test_settings_cannot_be_set(served, operation, given):
    assert error(getattr(served.s3, operation), Bucket=served.bucket, **given) == ("NotImplemented", 501)


# By method and query, for not all of them are in every client; PUTs with an empty body, which is not read.
REST = [
    *[("PUT", query) for query in (
        "accelerate", "acl", "analytics&id=a", "cors", "encryption", "intelligent-tiering&id=a", "inventory&id=a", "lifecycle",
        "logging", "metrics&id=a", "notification", "ownershipControls", "policy", "replication", "requestPayment", "tagging",
        "versioning", "website", "object-lock", "publicAccessBlock",
    )],
    *[("DELETE", query) for query in (
        "analytics&id=a", "cors", "encryption", "intelligent-tiering&id=a", "inventory&id=a", "lifecycle", "metadataTable",
        "metrics&id=a", "ownershipControls", "policy", "replication", "tagging", "website", "publicAccessBlock",
    )],
    *[("GET", query) for query in (
        "analytics&id=a", "intelligent-tiering&id=a", "inventory&id=a", "metadataTable", "metrics&id=a", "analytics",
        "intelligent-tiering", "inventory", "metrics", "session",
    )],
    *[(method, query, "object") for method, query in (
        ("PUT", "acl"), ("PUT", "legal-hold"), ("PUT", "retention"), ("GET", "legal-hold"), ("GET", "retention"), ("GET", "torrent"),
        ("POST", "restore"), ("POST", "select&select-type=2"),
    )],
]


def test_the_rest_is_not_implemented(served):
    """And never taken for another operation: the object stays, and no object is made."""
    served.put("object", b"body")
    for method, query, *key in REST:
        request = AWSRequest(method, f"{served.server.url}/{served.bucket}{'/' if key else ''}{''.join(key)}?{query}")
        S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", REGION).add_auth(request)
        answer = served.server.raw(method, request.url, headers=dict(request.headers))
        # The body that some of them need is missing here, which may be said first.
        assert (answer.status, answer.code) in (
            (501, "NotImplemented"), (400, "MissingRequestBodyError"), (400, "MalformedXML"),
        ), (method, query, answer)
    assert served.read("object") == b"body"


@pytest.mark.parametrize(
    ("given", "named"), [({"IfNoneMatch": "*"}, "If-None-Match"), ({"IfMatch": '"0123"'}, "If-Match")]
)
def test_a_failed_condition_is_named(served, given, named):
    """s3fs tells by it that the object exists."""
    served.put("conditional", b"one")
    with pytest.raises(served.s3.exceptions.ClientError) as failure:
        served.put("conditional", b"two", **given)
    told = failure.value.response["Error"]
    assert (told["Code"], told["Condition"]) == ("PreconditionFailed", named)
