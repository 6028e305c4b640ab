//! XML of S3's multipart uploads, which Google's XML API also uses.

use http::StatusCode;
use object_store::path::Path;
use object_store::{Error, Result};
use serde::Deserialize;

use super::requests::{Requests, TextResponse};
use super::{UploadedPart, invalid_part};

#[derive(Debug, Deserialize)]
pub(super) struct ErrorDocument {
    #[serde(rename = "Code")]
    pub(super) code: String,
    #[serde(rename = "Message", default)]
    pub(super) message: String,
}

/// Without an ETag the body is something else: an error with another root, or a proxy's page.
#[derive(Debug, Deserialize)]
struct CompleteDocument {
    #[serde(rename = "ETag")]
    e_tag: String,
}

/// Converts a refused upload request into the matching error.
pub(super) fn refusal(requests: &Requests, path: &Path, response: &TextResponse) -> Error {
    let parsed: Option<ErrorDocument> = quick_xml::de::from_str(&response.body).ok();
    let Some(ErrorDocument { code, message }) = parsed else {
        return requests.refusal(path, response.status, "");
    };
    let text = format!("{code}: {message}");
    match code.as_str() {
        "NoSuchUpload" | "NoSuchKey" | "NoSuchBucket" => {
            requests.refusal(path, StatusCode::NOT_FOUND, &text)
        }
        "PreconditionFailed" => requests.refusal(path, StatusCode::PRECONDITION_FAILED, &text),
        // Another conditional write is in progress; the next attempt returns its outcome.
        "ConditionalRequestConflict" => requests.generic(text),
        _ if response.status.is_success() => requests.generic(text),
        _ => requests.refusal(path, response.status, &text),
    }
}

/// Returns the body of a request that completes an upload.
pub(super) fn complete_body(parts: &[UploadedPart]) -> String {
    let mut xml = String::from("<CompleteMultipartUpload>");
    for part in parts {
        let e_tag = quick_xml::escape::escape(&part.e_tag);
        xml.push_str(&format!(
            "<Part><ETag>{e_tag}</ETag><PartNumber>{}</PartNumber></Part>",
            part.number
        ));
    }
    xml.push_str("</CompleteMultipartUpload>");
    xml
}

/// Returns the ETag of a completed object. A store may respond 200 with an error in the body, since the response
/// begins before the work is done.
pub(super) fn completed(
    requests: &Requests,
    path: &Path,
    parts: &[UploadedPart],
    response: &TextResponse,
) -> Result<String> {
    let error = quick_xml::de::from_str::<ErrorDocument>(&response.body).ok();
    if !response.status.is_success() || error.is_some() {
        if error.is_some_and(|error| error.code == "InvalidPart")
            && let Some(part) = parts.first()
        {
            return Err(invalid_part(path, part));
        }
        return Err(refusal(requests, path, response));
    }
    let response: CompleteDocument =
        quick_xml::de::from_str(&response.body).map_err(|error| requests.generic(error))?;
    Ok(response.e_tag)
}
