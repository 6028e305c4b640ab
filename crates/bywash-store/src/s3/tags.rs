//! Tags of objects, which S3 keeps separate from them.

use http::{Method, StatusCode};
use object_store::path::Path;
use object_store::{Error, Result};

use super::S3Store;
use super::client::STORE;
use crate::digest::pieces_md5;
use crate::error::StatusError;
use crate::http_client::{Request, Response};
use crate::interface::lacks;
use crate::multipart_xml::{ErrorDocument, MultipartOutcome, invalid_tag};
use crate::object_tags::ObjectTags;
use crate::tag_document::{document, parse};

/// Sub-resource of an object that has its tags.
const TAGGING: &str = "tagging";
const NO_DOCUMENT: &str =
    "tags of objects (it sent no document of tags; set aws_disable_tagging to leave tags out)";

impl S3Store {
    pub(super) async fn read_tags(&self, path: &Path) -> Result<ObjectTags> {
        let request = Request::new(Method::GET).query(TAGGING, "");
        let response = self.send(path, request).await?;
        if has_none(&response) {
            return Ok(ObjectTags::new());
        }
        if !response.status.is_success() {
            return Err(refused("read the tags of", path, &response));
        }
        // A server that knows no tags may send the object itself.
        parse(&response.body).map_err(|_| lacks(&self.address(), NO_DOCUMENT))
    }

    /// Replaces all tags; none deletes them.
    pub(super) async fn write_tags(&self, path: &Path, tags: &ObjectTags) -> Result<()> {
        let request = if tags.is_empty() {
            Request::new(Method::DELETE)
        } else {
            let body = vec![document(tags).into()];
            // S3 refuses a document without a digest.
            let digest = pieces_md5(&body);
            Request::new(Method::PUT)
                .text("content-md5", &digest)
                .body(body)
        };
        let response = self.send(path, request.query(TAGGING, "")).await?;
        if response.status.is_success() || (tags.is_empty() && has_none(&response)) {
            Ok(())
        } else {
            Err(refused("tag", path, &response))
        }
    }
}

/// Returns the error of a request about tags that was refused.
fn refused(operation: &str, path: &Path, response: &Response) -> Error {
    if is_unknown(response.status) {
        return no_tags();
    }
    outcome_of(response).into_error((STORE, operation), path, response, false)
}

/// Returns the outcome of a request for an object or its tags that was refused.
pub(super) fn outcome_of(response: &Response) -> MultipartOutcome {
    match ErrorDocument::parse(&response.body) {
        // Without a document too, the object does not exist: there is no upload that may have ended.
        None if response.status == StatusCode::NOT_FOUND => {
            MultipartOutcome::Refused(String::new())
        }
        _ => MultipartOutcome::of_failure(response),
    }
}

/// Returns whether a server refused a request because the object has no tags.
fn has_none(response: &Response) -> bool {
    let code = ErrorDocument::parse(&response.body).map(|document| document.code);
    response.status == StatusCode::NOT_FOUND && code.as_deref() == Some("NoSuchTagSet")
}

/// Returns whether a server does not know the operation.
pub(super) fn is_unknown(status: StatusCode) -> bool {
    [StatusCode::NOT_IMPLEMENTED, StatusCode::METHOD_NOT_ALLOWED].contains(&status)
}

/// Returns the error of a server without tags.
pub(super) fn no_tags() -> Error {
    lacks(STORE, "tags of objects")
}

/// Converts an error of object_store's own request that carried tags.
pub(super) fn of_client(path: &Path, error: Error) -> Error {
    let status = StatusError::find(&error).map(|found| found.status);
    match status {
        Some(status) if is_unknown(status) => no_tags(),
        _ => invalid_tag(path, &error).unwrap_or(error),
    }
}
