//! Encryption at rest, as clients of S3 ask for it and are told of it.
//!
//! An S3 origin encrypts by itself. Folders and memory do not: the operator states that their disks are encrypted.

use bywash::Bucket;
use bywash::origin::{self, WANTED_ENCRYPTION};
use http::{HeaderMap, HeaderName, HeaderValue};
use object_store::Attributes;
use s3s::S3Result;

use crate::errors::{WithElements, invalid_argument, not_implemented};
use crate::gateway::Gateway;
use crate::meta::text;

pub(crate) const ENCRYPTION: HeaderName = HeaderName::from_static("x-amz-server-side-encryption");
/// The only method that is not the client's or a key service's.
pub(crate) const AES256: &str = "AES256";
/// Operations whose responses state the encryption of the object.
const STATING: [&str; 8] = [
    "CompleteMultipartUpload",
    "CopyObject",
    "CreateMultipartUpload",
    "GetObject",
    "HeadObject",
    "PutObject",
    "UploadPart",
    "UploadPartCopy",
];

/// Returns whether a write asks for encryption.
fn is_wanted(headers: &HeaderMap) -> S3Result<bool> {
    match text(headers, ENCRYPTION.as_str()) {
        None => Ok(false),
        Some(AES256) => Ok(true),
        Some(method) if method.starts_with("aws:") => Err(refused(&format!(
            "Encryption by {method} is not supported here; use {AES256}, or leave it out."
        ))),
        Some(other) => {
            let message = "The encryption method specified is not supported";
            Err(invalid_argument(ENCRYPTION.as_str(), other, message))
        }
    }
}

fn refused(message: &str) -> s3s::S3Error {
    not_implemented(message).with([("Header", ENCRYPTION.as_str())])
}

/// The error of a bucket that nothing encrypts.
pub(crate) fn not_encrypted(bucket: &str) -> s3s::S3Error {
    refused(&format!(
        "The bucket {bucket} does not encrypt its objects. If its disk is encrypted, set at-rest-encryption = \"disk\" for it in the \
         server's settings; otherwise leave {ENCRYPTION} out."
    ))
}

/// Passes the encryption that a write asks for on to an S3 origin, and returns headers of the response that state it.
///
/// # Errors
/// If it asks for one that the bucket does not have.
pub(crate) fn keep(
    gateway: &Gateway,
    bucket: &Bucket,
    headers: &HeaderMap,
    attributes: &mut Attributes,
) -> S3Result<HeaderMap> {
    let mut response = HeaderMap::new();
    if !is_wanted(headers)? {
        return Ok(response);
    }
    if bucket.origin_kind() == "s3" {
        attributes.insert(WANTED_ENCRYPTION, AES256.into());
        response.insert(ENCRYPTION, HeaderValue::from_static(AES256));
    } else if !gateway.rules.is_encrypted(bucket) {
        return Err(not_encrypted(bucket.name()));
    }
    Ok(response)
}

/// Refuses the header where S3 does not take it.
pub(crate) fn refuse(headers: &HeaderMap) -> S3Result<()> {
    text(headers, ENCRYPTION.as_str()).map_or(Ok(()), |value| {
        let message = format!("{ENCRYPTION} header is not supported for this operation.");
        Err(invalid_argument(ENCRYPTION.as_str(), value, message))
    })
}

/// Refuses to encrypt.
pub(crate) fn refuse_wish(headers: &HeaderMap) -> S3Result<()> {
    text(headers, ENCRYPTION.as_str()).map_or(Ok(()), |_| {
        let message = format!("The header {ENCRYPTION} is not supported here; leave it out.");
        Err(refused(&message))
    })
}

/// Adds the encryption that a store states of an object to the headers of a response.
pub(crate) fn state_kept(attributes: &Attributes, headers: &mut HeaderMap) {
    let stated = attributes.get(&origin::ENCRYPTION);
    if let Some(value) = stated.and_then(|value| HeaderValue::from_str(value).ok()) {
        headers.insert(ENCRYPTION, value);
    }
}

/// Adds the encryption of a bucket on an encrypted disk to the headers of a response.
pub(crate) fn state(operation: &str, headers: &mut HeaderMap) {
    if STATING.contains(&operation) {
        headers.insert(ENCRYPTION, HeaderValue::from_static(AES256));
    }
}
