//! Completion of the responses of `s3s`, the only place that changes them.
//!
//! `s3s` writes a response without calling back, so these are done on the written response:
//! - error documents lack the message of some codes, the resource, the ids, and the elements of their code;
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
use serde::Deserialize;

use crate::body::RequestRecorder;
use crate::errors::{Elements, fault};
use crate::http_server::{self, NO_ROOM};
use crate::limits::MAX_KEY_BYTES;
use crate::record::RequestId;
use crate::xml;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");
const HOST_ID: HeaderName = HeaderName::from_static("x-amz-id-2");

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
        response = complete_error(response, recorder)?;
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

/// The response to a request whose head has no memory.
pub(crate) fn no_room(id: RequestId) -> Vec<u8> {
    let document = ErrorDocument {
        code: S3ErrorCode::SlowDown.as_str().to_owned(),
        message: Some(NO_ROOM.to_owned()),
    };
    let (id, host) = (id.as_str(), id.process());
    let document = document.to_xml([("RequestId", id), ("HostId", host)].into_iter());
    let headers =
        format!("{CONTENT_TYPE}: application/xml\r\n{REQUEST_ID}: {id}\r\n{HOST_ID}: {host}\r\n");
    http_server::no_room(&headers, &document)
}

/// Completes the document of an error, and its headers.
fn complete_error(
    mut response: Response<Body>,
    recorder: &RequestRecorder,
) -> Result<Response<Body>, S3Error> {
    let context = &recorder.context;
    let status = response.status();
    let mut elements = context.elements();
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
        let error = context.fault().unwrap_or_else(incomplete);
        elements = Elements::of(&error).cloned().unwrap_or_default();
        response = error.to_http_response()?;
        document = ErrorDocument::of(&response);
    }
    if let Some(document) = document {
        let name = &recorder.meter.name;
        document.add_elements(&mut elements, recorder);
        let resource = match (name.bucket(), name.key()) {
            (bucket, "") => format!("/{bucket}"),
            (bucket, key) => format!("/{bucket}/{key}"),
        };
        let resource = resource.replace(char::is_control, REPLACEMENT);
        let (id, host) = (context.id.as_str(), context.id.process());
        let ids = [
            ("Resource", &*resource),
            ("RequestId", id),
            ("HostId", host),
        ];
        *response.body_mut() = Body::from(document.to_xml(elements.iter().chain(ids)));
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    headers.remove(CONTENT_LENGTH);
    if let Ok(host) = HeaderValue::from_str(context.id.process()) {
        headers.insert(HOST_ID, host);
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

/// Whether XML 1.0 represents all characters of a successful, buffered response.
pub(crate) fn is_representable(response: &Response<Body>) -> bool {
    let is_document = |bytes: bytes::Bytes| xml::is_document(&bytes);
    !response.status().is_success() || response.body().bytes().is_none_or(is_document)
}

/// The error of a response with a character that XML cannot represent.
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

/// The document of an error as `s3s` writes it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ErrorDocument {
    code: String,
    message: Option<String>,
}

impl ErrorDocument {
    /// Parses the body of a response, its unrepresentable characters replaced. Returns `None` if it is no error
    /// document, such as the empty body of a response to `HEAD`.
    fn of(response: &Response<Body>) -> Option<Self> {
        let bytes = response.body().bytes()?;
        let text = String::from_utf8_lossy(&bytes).replace(is_unfit, REPLACEMENT);
        quick_xml::de::from_str(&text).ok()
    }

    /// Whether this is the only error that `s3s` returns as 500 without a message.
    fn is_unread_body(&self, status: StatusCode) -> bool {
        status == StatusCode::INTERNAL_SERVER_ERROR
            && self.code == S3ErrorCode::InternalError.as_str()
            && self.message.is_none()
    }

    /// Adds the elements that are known of the request alone.
    fn add_elements(&self, elements: &mut Elements, recorder: &RequestRecorder) {
        let (context, name) = (&recorder.context, &recorder.meter.name);
        match (&*self.code, context.condition) {
            ("PreconditionFailed" | "ConditionalRequestConflict", Some(condition)) => {
                elements.put_first("Condition", condition);
            }
            ("InvalidRange", _) => {
                let range = context.range.as_ref().map(HeaderValue::as_bytes);
                let range = range.map(String::from_utf8_lossy).unwrap_or_default();
                elements.put_first("RangeRequested", range);
            }
            ("InvalidBucketName", _) => elements.put_first("BucketName", name.bucket()),
            ("KeyTooLongError", _) => {
                elements.put_first("MaxSizeAllowed", MAX_KEY_BYTES.to_string());
                elements.put_first("Size", name.key().len().to_string());
            }
            ("MethodNotAllowed" | "AccessForbidden", _) => {
                let resource = if name.key().is_empty() {
                    "BUCKET"
                } else {
                    "OBJECT"
                };
                let method = elements.take("Method");
                let method = method.unwrap_or_else(|| recorder.meter.method.to_string());
                elements.put_first("ResourceType", resource);
                elements.put_first("Method", method);
            }
            _ => {}
        }
    }

    /// The document with a message where `s3s` has none, and with `elements`.
    fn to_xml<'e>(&'e self, elements: impl Iterator<Item = (&'static str, &'e str)>) -> String {
        let message = self.message.as_deref();
        let message = message.unwrap_or_else(|| default_message(&self.code));
        let own = [("Code", &*self.code), ("Message", message)];
        let all = own.into_iter().chain(elements);
        xml::error_document(all.map(|(name, text)| (name, text.replace(is_unfit, REPLACEMENT))))
    }
}

fn is_unfit(character: char) -> bool {
    !xml::fits(character)
}
