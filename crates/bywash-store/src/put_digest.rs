//! Objects stored by one request: the digest sent with their bytes, and the one in the response.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::StatusCode;
use object_store::path::Path;
use object_store::{Error, PutMode, Result};

use super::http_client::Response;
use super::multipart_xml::{ErrorDocument, MultipartOutcome};
use super::stated_digest::stated_by_put;
use crate::content_digest::ContentDigest;
use crate::error::OriginError;

/// Returns the CRC32C of a whole object, in the encoding of S3 and Google.
pub(super) fn crc32c_text(pieces: &[Bytes]) -> String {
    match ContentDigest::Crc32c(0).same_of(pieces) {
        ContentDigest::Crc32c(crc) => BASE64_STANDARD.encode(crc.to_be_bytes()),
        _ => String::new(),
    }
}

/// Returns the MD5 of a body, as `Content-MD5` has it.
pub(super) fn md5_text(pieces: &[Bytes]) -> String {
    match ContentDigest::Md5([0; 16]).same_of(pieces) {
        ContentDigest::Md5(md5) => BASE64_STANDARD.encode(md5),
        _ => String::new(),
    }
}

/// Compares the digest that the response to a PUT states, if there is one, with the bytes that were sent.
///
/// # Errors
/// [`OriginError::UploadDamaged`]: the store verified the digest sent with the bytes, or knows none, and has others now.
pub(super) fn compare(
    host: &str,
    object: &Path,
    response: &Response,
    pieces: &[Bytes],
) -> Result<()> {
    let Some(stored) = stated_by_put(host, &response.headers) else {
        return Ok(());
    };
    let sent = stored.same_of(pieces);
    if sent == stored {
        return Ok(());
    }
    Err(OriginError::upload_damaged(
        object,
        format!("the store has an object with {stored}, and {sent} was sent"),
    ))
}

/// Returns the error of a PUT of S3 or Google's XML API that was refused.
pub(super) fn refused(
    store: &'static str,
    object: &Path,
    response: &Response,
    mode: &PutMode,
) -> Error {
    let is_create = matches!(mode, PutMode::Create);
    let outcome = match ErrorDocument::parse(&response.body) {
        Some(_) => MultipartOutcome::of_failure(response),
        // A proxy's page, or none: the status decides.
        None => MultipartOutcome::Refused(String::new()),
    };
    match (
        mode,
        outcome.into_error((store, "write"), object, response, is_create),
    ) {
        (PutMode::Create, Error::NotModified { path, source }) => {
            Error::AlreadyExists { path, source }
        }
        // S3 compares no ETag with an object that does not exist.
        (PutMode::Update(_), Error::NotFound { path, source }) => {
            Error::Precondition { path, source }
        }
        (_, error) => error,
    }
}

/// Returns whether a store does not know the header with the checksum.
pub(super) fn is_unknown_header(response: &Response) -> bool {
    response.status == StatusCode::NOT_IMPLEMENTED
}
