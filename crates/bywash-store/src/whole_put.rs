//! Objects stored by one request: the digest sent with their bytes, and the one in the response.

use bytes::Bytes;
use http::StatusCode;
use object_store::path::Path;
use object_store::{Error, PutMode, Result};

use super::http_client::Response;
use super::multipart_xml::{ErrorDocument, MultipartOutcome};
use crate::digest::stated_by_put;
use crate::error::OriginError;

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
