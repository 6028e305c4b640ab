//! Completion of the responses of `s3s`, the only place that changes them.
//!
//! `s3s` writes a response without calling back, so these are done on what it wrote:
//! - error documents lack the message of some codes, the resource, the request id and the failed condition;
//! - the reason for which a request's body could not be read is not passed on;
//! - names with characters that XML 1.0 cannot represent are written unchanged;
//! - the ETag of GetObjectAttributes is quoted;
//! - 206 is the status of GetObject only, and 304 has a body.
//!
//! A hook of `s3s` that receives the `S3Error` before it becomes a document would do for the first two.

use std::sync::atomic::Ordering::Relaxed;

use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use s3s::{Body, S3Error, S3ErrorCode};
use serde::{Deserialize, Serialize};

use crate::body::RequestRecorder;
use crate::errors::fault;
use crate::signature::REGION;
use crate::xml;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");

/// Adds the request id. Completes errors with a message where `s3s` has none, the resource, and the fault of the body
/// if that is the cause.
pub(crate) fn complete(
    mut response: Response<Body>,
    recorder: &RequestRecorder,
) -> Result<Response<Body>, S3Error> {
    let context = &recorder.context;
    let status = response.status();
    if status == StatusCode::OK && response.headers().contains_key(CONTENT_RANGE) {
        // s3s sets 206 by a field of GetObject only. The header also serves HeadObject.
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    } else if status == StatusCode::NOT_MODIFIED {
        *response.body_mut() = Body::empty();
        response.headers_mut().remove(CONTENT_TYPE);
    } else if status.is_client_error() || status.is_server_error() {
        let mut document = ErrorDocument::of(&response);
        if document
            .as_ref()
            .is_some_and(|document| document.is_unread_body(status))
        {
            // s3s could not buffer the body and does not report why.
            let incomplete = || {
                fault(
                    S3ErrorCode::IncompleteBody,
                    "The body is not as its headers announce.",
                )
            };
            response = context
                .fault()
                .unwrap_or_else(incomplete)
                .to_http_response()?;
            document = ErrorDocument::of(&response);
        }
        if let Some(document) = document {
            let name = &recorder.meter.name;
            let (bucket, key) = (name.bucket(), name.key());
            let resource = match key.is_empty() {
                true => format!("/{bucket}"),
                false => format!("/{bucket}/{key}"),
            };
            let mut document = document.complete(context.condition, &resource, context.id.as_str());
            if document.code == "AuthorizationHeaderMalformed" {
                let region = response.headers().get(REGION);
                let region = region.and_then(|region| region.to_str().ok());
                document.region = region.map(str::to_owned);
            }
            *response.body_mut() = Body::from(document.to_xml());
        }
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        headers.remove(CONTENT_LENGTH);
    }
    if context.body_open.load(Relaxed) {
        // The rest of the body is indistinguishable from the next request.
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if let Ok(id) = HeaderValue::from_str(context.id.as_str()) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    Ok(response)
}

/// Removes the quotes of the ETag in a response to GetObjectAttributes, the one operation where S3 has none.
pub(crate) fn unquote_e_tag(response: &mut Response<Body>) {
    let Some(bytes) = response.body().bytes() else {
        return;
    };
    let Ok(text) = std::str::from_utf8(&bytes) else {
        return;
    };
    let Some((head, (value, tail))) = text
        .split_once("<ETag>")
        .and_then(|(head, rest)| Some((head, rest.split_once("</ETag>")?)))
    else {
        return;
    };
    let value = value.replace("&quot;", "\"");
    let unquoted = format!("{head}<ETag>{}</ETag>{tail}", value.trim_matches('"'));
    *response.body_mut() = Body::from(unquoted);
    response.headers_mut().remove(CONTENT_LENGTH);
}

/// Returns whether XML 1.0 represents all characters of a successful, buffered response.
pub(crate) fn is_representable(response: &Response<Body>) -> bool {
    let is_document = |bytes: bytes::Bytes| xml::is_document(&bytes);
    !response.status().is_success() || response.body().bytes().is_none_or(is_document)
}

/// Returns the error of a response with a character that XML cannot represent.
pub(crate) fn unrepresentable() -> S3Error {
    let message = "The response has a name with a character that XML cannot represent; send the request with encoding-type=url.";
    fault(S3ErrorCode::InvalidArgument, message)
}

/// A message for codes that `s3s` returns without one.
fn default_message(code: &str) -> &'static str {
    match code {
        "SignatureDoesNotMatch" => {
            "The signature does not match the request; check the secret key, and that nothing on the way changes the request."
        }
        "InvalidBucketName" => {
            "The bucket name is not valid: 3 to 63 lower-case letters, digits, dots and hyphens."
        }
        "KeyTooLongError" => "The key is longer than 1024 bytes.",
        "InvalidURI" => "The request's path cannot be decoded as UTF-8.",
        "NotImplemented" => "This endpoint does not implement the operation.",
        "MissingContentLength" => "The request needs a Content-Length.",
        "MethodNotAllowed" => "The method is not allowed on this resource.",
        "MalformedXML" => "The request's XML cannot be read.",
        "MissingRequestBodyError" => "The request needs a body.",
        "MaxMessageLengthExceeded" => "The request's body is too long.",
        _ => "The request cannot be served.",
    }
}

/// Stands for a character that XML cannot represent.
const REPLACEMENT: &str = "\u{FFFD}";
const XML_DECLARATION: &str = r#"<?xml version="1.0" encoding="UTF-8"?>"#;

/// The document of an error, as `s3s` writes it and as clients receive it.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
struct ErrorDocument {
    code: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// Region to sign for.
    #[serde(skip_serializing_if = "Option::is_none")]
    region: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    condition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
}

impl ErrorDocument {
    /// Parses the body of a response, its unrepresentable characters replaced. Returns `None` if it is no error
    /// document, such as the empty body of a response to `HEAD`.
    fn of(response: &Response<Body>) -> Option<Self> {
        let bytes = response.body().bytes()?;
        let text = String::from_utf8_lossy(&bytes).replace(is_unfit, REPLACEMENT);
        quick_xml::de::from_str(&text).ok()
    }

    /// Returns whether this is the only error that `s3s` returns as 500 without a message.
    fn is_unread_body(&self, status: StatusCode) -> bool {
        status == StatusCode::INTERNAL_SERVER_ERROR
            && self.code == S3ErrorCode::InternalError.as_str()
            && self.message.is_none()
    }

    /// Adds a message where there is none, the failed condition, the resource and the request id.
    fn complete(self, condition: Option<&str>, resource: &str, request_id: &str) -> Self {
        let default = || default_message(&self.code).to_owned();
        let condition = condition.filter(|_| self.code == "PreconditionFailed");
        Self {
            message: Some(self.message.unwrap_or_else(default)),
            region: self.region,
            condition: condition.map(str::to_owned),
            resource: Some(resource.replace(
                |character: char| character.is_control() || is_unfit(character),
                REPLACEMENT,
            )),
            request_id: Some(request_id.to_owned()),
            code: self.code,
        }
    }

    fn to_xml(&self) -> String {
        let mut document = XML_DECLARATION.to_owned();
        quick_xml::se::to_writer_with_root(&mut document, "Error", self).expect("strings are XML");
        document
    }
}

fn is_unfit(character: char) -> bool {
    !xml::fits(character)
}
