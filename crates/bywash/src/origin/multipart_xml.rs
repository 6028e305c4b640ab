//! The multipart uploads of S3, which Google's XML API speaks as well.

use http::StatusCode;
use object_store::path::Path;
use object_store::{Error, Result};
use serde::Deserialize;

use super::requests::{Answer, Requests};
use super::{UploadedPart, invalid_part};

#[derive(Debug, Deserialize)]
pub(super) struct ErrorAnswer {
    #[serde(rename = "Code")]
    pub(super) code: String,
    #[serde(rename = "Message", default)]
    pub(super) message: String,
}

/// Without an ETag it is something else: an error with another root, or a page of a proxy.
#[derive(Debug, Deserialize)]
struct CompleteAnswer {
    #[serde(rename = "ETag")]
    e_tag: String,
}

/// Turns a refused upload request into the error that says what to do.
pub(super) fn refusal(requests: &Requests, path: &Path, answer: &Answer) -> Error {
    let parsed: Option<ErrorAnswer> = quick_xml::de::from_str(&answer.body).ok();
    let Some(ErrorAnswer { code, message }) = parsed else {
        return requests.refusal(path, answer.status, "");
    };
    let text = format!("{code}: {message}");
    match code.as_str() {
        "NoSuchUpload" | "NoSuchKey" | "NoSuchBucket" => {
            requests.refusal(path, StatusCode::NOT_FOUND, &text)
        }
        "PreconditionFailed" => requests.refusal(path, StatusCode::PRECONDITION_FAILED, &text),
        // Another conditional write was under way; the next attempt will know its outcome.
        "ConditionalRequestConflict" => requests.generic(text),
        _ if answer.status.is_success() => requests.generic(text),
        _ => requests.refusal(path, answer.status, &text),
    }
}

/// The body of a request that completes an upload.
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

/// The ETag of a completed object. A store may answer 200 and put an error into the body, since the answer begins before
/// the work is done.
pub(super) fn completed(
    requests: &Requests,
    path: &Path,
    parts: &[UploadedPart],
    answer: &Answer,
) -> Result<String> {
    let error = quick_xml::de::from_str::<ErrorAnswer>(&answer.body).ok();
    if !answer.status.is_success() || error.is_some() {
        if error.is_some_and(|error| error.code == "InvalidPart")
            && let Some(part) = parts.first()
        {
            return Err(invalid_part(path, part));
        }
        return Err(refusal(requests, path, answer));
    }
    let answer: CompleteAnswer =
        quick_xml::de::from_str(&answer.body).map_err(|error| requests.generic(error))?;
    Ok(answer.e_tag)
}
