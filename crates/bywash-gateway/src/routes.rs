//! Determines the operation of a request before `s3s` routes it.
//!
//! `s3s` ignores unknown sub-resources: it would delete an object for `DELETE ?annotation`. So requests pass only
//! with parameters and headers that are known for their method and level, and only if they are the operation of their
//! `x-id`.

use std::borrow::Cow;

use http::request::Parts;
use http::{HeaderMap, Method, Uri};
use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::errors::{fault, not_implemented};
use crate::host::Target;
use crate::sigv4::parse::is_signature_parameter;

/// Decoded parameters of a query, in order.
pub(crate) struct Query<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Query<'a> {
    pub(crate) fn new(uri: &'a Uri) -> Self {
        let query = uri.query().unwrap_or_default();
        Self(form_urlencoded::parse(query.as_bytes()).collect())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.values(name).next().is_some()
    }

    /// The value of a parameter that occurs once.
    pub(crate) fn one(&self, name: &str) -> Option<&str> {
        let mut values = self.values(name);
        values.next().filter(|_| values.next().is_none())
    }

    /// The first value of a parameter, which counts if it is given several times.
    pub(crate) fn first(&self, name: &str) -> Option<&str> {
        self.values(name).next()
    }

    /// The first value of a parameter; empty without one.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.first(name).unwrap_or_default()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    fn values(&self, name: &str) -> impl Iterator<Item = &str> {
        self.iter()
            .filter(move |(known, _)| *known == name)
            .map(|(_, value)| value)
    }
}

/// Resource that the path of a request addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResourceLevel {
    Service,
    Bucket,
    Object,
}

impl ResourceLevel {
    fn of(target: &Target) -> Self {
        match (target.bucket.is_empty(), target.key.is_empty()) {
            (true, _) => Self::Service,
            (false, true) => Self::Bucket,
            (false, false) => Self::Object,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Service => "the service",
            Self::Bucket => "a bucket",
            Self::Object => "an object",
        }
    }
}

/// Sub-resources of S3 at any level, and their parameters. An unsupported one must not be ignored: without it the
/// request would be another operation.
const SUBRESOURCES: [&str; 47] = [
    "abac",
    "accelerate",
    "acl",
    "analytics",
    "annotation",
    "annotation-prefix",
    "annotationName",
    "attributes",
    "cors",
    "delete",
    "encryption",
    "intelligent-tiering",
    "inventory",
    "legal-hold",
    "lifecycle",
    "list-type",
    "location",
    "logging",
    "max-annotation-results",
    "max-directory-buckets",
    "metadataAnnotationTable",
    "metadataConfiguration",
    "metadataInventoryTable",
    "metadataJournalTable",
    "metadataTable",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "renameObject",
    "replication",
    "requestPayment",
    "restore",
    "retention",
    "select",
    "select-type",
    "session",
    "tagging",
    "torrent",
    "uploadId",
    "uploads",
    "versioning",
    "versions",
    "website",
];

/// Supported sub-resources with their operations.
fn served(method: &Method, level: ResourceLevel) -> &'static [(&'static str, &'static str)] {
    match (method.as_str(), level) {
        ("GET", ResourceLevel::Bucket) => &[
            ("accelerate", "GetBucketAccelerateConfiguration"),
            ("acl", "GetBucketAcl"),
            ("cors", "GetBucketCors"),
            ("encryption", "GetBucketEncryption"),
            ("lifecycle", "GetBucketLifecycleConfiguration"),
            ("list-type", "ListObjectsV2"),
            ("location", "GetBucketLocation"),
            ("logging", "GetBucketLogging"),
            ("notification", "GetBucketNotificationConfiguration"),
            ("object-lock", "GetObjectLockConfiguration"),
            ("ownershipControls", "GetBucketOwnershipControls"),
            ("policy", "GetBucketPolicy"),
            ("policyStatus", "GetBucketPolicyStatus"),
            ("publicAccessBlock", "GetPublicAccessBlock"),
            ("replication", "GetBucketReplication"),
            ("requestPayment", "GetBucketRequestPayment"),
            ("tagging", "GetBucketTagging"),
            ("uploads", "ListMultipartUploads"),
            ("versioning", "GetBucketVersioning"),
            ("versions", "ListObjectVersions"),
            ("website", "GetBucketWebsite"),
        ],
        ("GET", ResourceLevel::Object) => &[
            ("acl", "GetObjectAcl"),
            ("attributes", "GetObjectAttributes"),
            ("tagging", "GetObjectTagging"),
            ("uploadId", "ListParts"),
        ],
        ("PUT", ResourceLevel::Bucket) => &[("acl", "PutBucketAcl"), ("cors", "PutBucketCors")],
        ("PUT", ResourceLevel::Object) => &[
            ("acl", "PutObjectAcl"),
            ("tagging", "PutObjectTagging"),
            ("uploadId", "UploadPart"),
        ],
        ("POST", ResourceLevel::Bucket) => &[("delete", "DeleteObjects")],
        ("POST", ResourceLevel::Object) => &[
            ("uploadId", "CompleteMultipartUpload"),
            ("uploads", "CreateMultipartUpload"),
        ],
        ("DELETE", ResourceLevel::Bucket) => &[("cors", "DeleteBucketCors")],
        ("DELETE", ResourceLevel::Object) => &[
            ("tagging", "DeleteObjectTagging"),
            ("uploadId", "AbortMultipartUpload"),
        ],
        _ => &[],
    }
}

/// The operation of a method and level without a sub-resource.
fn plain(method: &Method, level: ResourceLevel) -> Option<&'static str> {
    match (method.as_str(), level) {
        ("GET", ResourceLevel::Service) => Some("ListBuckets"),
        ("HEAD", ResourceLevel::Bucket) => Some("HeadBucket"),
        ("GET", ResourceLevel::Bucket) => Some("ListObjects"),
        ("PUT", ResourceLevel::Bucket) => Some("CreateBucket"),
        ("DELETE", ResourceLevel::Bucket) => Some("DeleteBucket"),
        ("HEAD", ResourceLevel::Object) => Some("HeadObject"),
        ("GET", ResourceLevel::Object) => Some("GetObject"),
        ("PUT", ResourceLevel::Object) => Some("PutObject"),
        ("DELETE", ResourceLevel::Object) => Some("DeleteObject"),
        _ => None,
    }
}

/// Parameters allowed for a write in addition to its sub-resource.
fn allowed(operation: &str) -> &'static [&'static str] {
    match operation {
        "DeleteObject" | "PutObjectAcl" | "PutObjectTagging" | "DeleteObjectTagging" => {
            &["versionId"]
        }
        "UploadPart" | "UploadPartCopy" => &["partNumber"],
        _ => &[],
    }
}

/// Parameters that clients add to any request, in lower case. Other `x-amz-` parameters stand for headers, which are not
/// read from a query here.
const COMMON: [&str; 6] = [
    "x-id",
    "x-amz-content-sha256",
    "x-amz-expected-bucket-owner",
    "x-amz-request-payer",
    "x-amz-sdk-checksum-algorithm",
    "x-amz-user-agent",
];

fn is_common(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    COMMON.contains(&&*name) || is_signature_parameter(&name) || name.starts_with("x-amz-checksum-")
}

/// Returns the operation of a request, or why it is not supported.
pub(crate) fn operation(
    parts: &Parts,
    target: &Target,
    query: &Query<'_>,
) -> S3Result<&'static str> {
    let (method, level) = (&parts.method, ResourceLevel::of(target));
    let served = served(method, level);
    let find = |name: &str| served.iter().find(|(known, _)| *known == name);
    let mut found: Option<&(&str, &str)> = None;
    for (name, value) in query.iter() {
        if let Some(selected) = find(name) {
            if let Some((other, _)) = found {
                let message =
                    format!("The parameters {other} and {name} name two operations; send one.");
                return Err(fault(S3ErrorCode::InvalidArgument, message));
            }
            if name == "list-type" && value != "2" {
                let message = format!("The list-type is 2 or absent, not {value:?}.");
                return Err(fault(S3ErrorCode::InvalidArgument, message));
            }
            found = Some(selected);
        } else if is_subresource(name) {
            return Err(unknown(method, level, name));
        }
    }
    let operation = match found {
        Some((_, operation)) => Some(*operation),
        None => plain(method, level),
    };
    let Some(operation) = operation else {
        let message = format!(
            "{method} of {} is no operation that is served here.",
            level.name()
        );
        return Err(not_implemented(message));
    };
    let operation = with_headers(operation, &parts.headers)?;
    check_parameters(method, level, operation, query)?;
    match query.iter().find(|(name, _)| *name == "x-id") {
        Some((_, id)) if id != operation => {
            let message = format!(
                "The request is {operation} by its method and parameters, but {id} by its x-id, which is not served here."
            );
            Err(not_implemented(message))
        }
        _ => Ok(operation),
    }
}

/// The query by which `s3s` knows an operation of this method and level, without values.
pub(crate) fn selector(method: &Method, target: &Target, operation: &str) -> String {
    let operation = match operation {
        "UploadPartCopy" => "UploadPart",
        other => other,
    };
    let mut served = served(method, ResourceLevel::of(target)).iter();
    match served.find(|(_, known)| *known == operation) {
        None => String::new(),
        Some((name, "ListObjectsV2")) => format!("{name}=2"),
        Some((name, "UploadPart")) => format!("{name}=-&partNumber=1"),
        Some((name, _)) => format!("{name}=-"),
    }
}

fn is_subresource(name: &str) -> bool {
    SUBRESOURCES
        .iter()
        .any(|known| known.eq_ignore_ascii_case(name))
}

/// Reads ignore unknown parameters, as S3 does. Writes reject them: they may belong to an operation newer than this
/// server.
fn check_parameters(
    method: &Method,
    level: ResourceLevel,
    operation: &str,
    query: &Query<'_>,
) -> S3Result<()> {
    if matches!(
        operation,
        "PutObject" | "CopyObject" | "UploadPart" | "UploadPartCopy"
    ) {
        let (part, upload) = (query.has("partNumber"), query.has("uploadId"));
        if part != upload {
            let name = if part { "partNumber" } else { "uploadId" };
            let message = format!("A part needs partNumber and uploadId; only {name} was given.");
            return Err(fault(S3ErrorCode::InvalidArgument, message));
        }
    }
    if matches!(*method, Method::GET | Method::HEAD) {
        return Ok(());
    }
    let is_known = |name: &str| {
        served(method, level)
            .iter()
            .any(|(known, _)| *known == name)
            || allowed(operation).contains(&name)
            || is_common(name)
    };
    match query.iter().find(|(name, _)| !is_known(name)) {
        Some((name, _)) => Err(unknown(method, level, name)),
        None => Ok(()),
    }
}

fn unknown(method: &Method, level: ResourceLevel, name: &str) -> S3Error {
    not_implemented(format!(
        "{method} of {} with the parameter {name:?} is not served here.",
        level.name()
    ))
}

/// Returns the operation that headers select among those with the same method and parameters.
fn with_headers(operation: &'static str, headers: &HeaderMap) -> S3Result<&'static str> {
    let names = || headers.keys().map(http::HeaderName::as_str);
    let renames = |name: &&str| name.starts_with("x-amz-rename-source");
    if let Some(name) = names().find(renames) {
        let message =
            format!("RenameObject, by header {name}, is not served here; copy and delete.");
        return Err(not_implemented(message));
    }
    let copies = headers.contains_key("x-amz-copy-source");
    match (operation, copies) {
        ("PutObject", true) => Ok("CopyObject"),
        ("UploadPart", true) => Ok("UploadPartCopy"),
        _ => match names().find(|name| name.starts_with("x-amz-copy-source")) {
            None => Ok(operation),
            Some(name) => {
                let message = format!(
                    "The header {name} belongs to a copy, but the request is {operation}; leave it out, or send x-amz-copy-source with PUT."
                );
                Err(fault(S3ErrorCode::InvalidRequest, message))
            }
        },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
