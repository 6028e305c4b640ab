//! Errors of the JSON API, in the shape of Google's.

use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use s3s::{Body, S3Error, S3ErrorCode};
use serde_json::json;

use crate::http_server::{self, NO_ROOM};

pub(crate) type GcsResult<T> = Result<T, GcsError>;

const JSON: &str = "application/json; charset=UTF-8";

/// The reason of an error about what is not served.
const NOT_IMPLEMENTED: &str = "notImplemented";

/// An error response.
#[derive(Debug)]
pub(crate) struct GcsError {
    status: StatusCode,
    reason: &'static str,
    message: String,
    /// The code of the shared modules' error.
    code: Option<String>,
    headers: Box<HeaderMap>,
    /// Whether the response is plain text.
    is_plain: bool,
}

impl GcsError {
    pub(crate) fn new(
        status: StatusCode,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            status,
            reason,
            message: message.into(),
            code: None,
            headers: Box::default(),
            is_plain: false,
        }
    }

    /// A request that cannot be served as it is.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid", message)
    }

    /// Something of Google's API that this endpoint does not serve. Not a 501: Google's Go client repeats requests after any
    /// status from 500 on, for as long as its caller waits.
    pub(crate) fn not_served(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, NOT_IMPLEMENTED, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "notFound", message)
    }

    /// A condition of the request that does not hold.
    pub(crate) fn condition(object: &str) -> Self {
        let message = format!("{object} does not meet the conditions of the request.");
        Self::new(StatusCode::PRECONDITION_FAILED, "conditionNotMet", message)
    }

    /// A fault of the server or of the origin that may pass.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "backendError", message)
    }

    /// Returns it with the seconds after which the request is to be repeated.
    pub(crate) fn with_retry_after(mut self, seconds: u64) -> Self {
        self.headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        self
    }

    /// A session that its store has lost.
    pub(crate) fn gone(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "backendError", message)
    }

    /// An object that does not exist, in words by which gcsfs and Google's own tests know it.
    pub(crate) fn no_such_object(object: &str) -> Self {
        Self::not_found(format!("No such object: {object}"))
    }

    /// Returns it as plain text, as errors of the bytes of objects are: clients print the body.
    pub(crate) fn into_plain_text(self) -> Self {
        Self {
            is_plain: true,
            ..self
        }
    }

    /// A chunk of `length` bytes of a session, shorter than `granule` and not the last, in the words of Google's server.
    pub(crate) fn short_chunk(length: u64, granule: u64) -> Self {
        let message = format!(
            "Invalid request.  The number of bytes uploaded is required to be equal or greater than {granule}, except for the \
             final request (it's recommended to be the exact multiple of {granule}).  The received request contained \
             {length} bytes, which does not meet this requirement."
        );
        Self::invalid(message).into_plain_text()
    }

    /// Bytes of a session that begin after those it has. Clients know the response by its text and its type.
    pub(crate) fn gap(first: u64, length: u64) -> Self {
        let message = format!(
            "Invalid request.  According to the Content-Range header, the upload offset is {first} byte(s), which exceeds \
             already uploaded size of {length} byte(s)."
        );
        Self::unavailable(message).into_plain_text()
    }

    /// A request without a token on a server that is not anonymous.
    pub(crate) fn login() -> Self {
        let message = "This server is not anonymous: send a token of a service account (bywash keys create --gcs), or sign the \
                       request.";
        Self::challenge("required", message)
    }

    /// A token that is not good.
    pub(crate) fn unauthenticated(message: impl Into<String>) -> Self {
        Self::challenge("authError", message)
    }

    fn challenge(reason: &'static str, message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::UNAUTHORIZED, reason, message);
        error
            .headers
            .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        error
    }

    /// The error of a caller without the right to do it.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    /// A request that may change something and comes from a page in a browser.
    pub(crate) fn other_site() -> Self {
        let message = "A page of another site made this request in a browser (Origin, Sec-Fetch-Site). Pages may not write to an \
                       anonymous server; use a program.";
        Self::forbidden(message)
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the code of the XML API.
    pub(crate) fn code(&self) -> &str {
        let of_status = match self.status {
            _ if self.reason == NOT_IMPLEMENTED => "NotImplemented",
            StatusCode::UNAUTHORIZED => "AuthenticationRequired",
            StatusCode::FORBIDDEN => "AccessDenied",
            StatusCode::NOT_FOUND => "NoSuchKey",
            StatusCode::LENGTH_REQUIRED => "MissingContentLength",
            StatusCode::PRECONDITION_FAILED => "PreconditionFailed",
            StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
            status if status.is_server_error() => "InternalError",
            _ => "InvalidArgument",
        };
        self.code.as_deref().unwrap_or(of_status)
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn response(self) -> Response<Body> {
        let body = match self.status {
            StatusCode::NOT_MODIFIED => Body::empty(),
            _ if self.is_plain => Body::from(self.message.clone()),
            status => Body::from(self.document(status)),
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        *response.headers_mut() = *self.headers;
        if self.status != StatusCode::NOT_MODIFIED {
            let kind = match self.is_plain {
                true => "text/plain; charset=utf-8",
                false => JSON,
            };
            let kind = HeaderValue::from_static(kind);
            response.headers_mut().insert(CONTENT_TYPE, kind);
        }
        response
    }

    fn document(&self, status: StatusCode) -> String {
        let error = json!({
            "error": {
                "code": status.as_u16(),
                "message": self.message,
                "errors": [{
                    "message": self.message,
                    "domain": "global",
                    "reason": self.reason,
                }],
            }
        });
        error.to_string()
    }
}

/// Returns the response to a request whose head has no memory.
pub(crate) fn no_room() -> Vec<u8> {
    let error = GcsError::unavailable(NO_ROOM);
    let headers = format!("{CONTENT_TYPE}: {JSON}\r\n");
    http_server::no_room(&headers, &error.document(error.status))
}

impl From<S3Error> for GcsError {
    fn from(error: S3Error) -> Self {
        let (status, reason) = class(&error);
        let message = error.message().unwrap_or("The request failed.");
        let message = match error.code() {
            // gcsfs knows the absence of an object by these words of Google's.
            S3ErrorCode::NoSuchKey => format!("No such object: {message}"),
            S3ErrorCode::InvalidRange => format!("Request range not satisfiable: {message}"),
            _ => message.to_owned(),
        };
        Self {
            status,
            reason,
            code: Some(error.code().as_str().to_owned()),
            message,
            headers: Box::new(error.headers().cloned().unwrap_or_default()),
            is_plain: false,
        }
    }
}

/// Returns the status and the reason that Google has for an error of the shared modules.
fn class(error: &S3Error) -> (StatusCode, &'static str) {
    let own = error.status_code().or_else(|| error.code().status_code());
    let own = own.unwrap_or(StatusCode::BAD_REQUEST);
    match error.code() {
        S3ErrorCode::NoSuchKey | S3ErrorCode::NoSuchBucket => (StatusCode::NOT_FOUND, "notFound"),
        S3ErrorCode::PreconditionFailed => (StatusCode::PRECONDITION_FAILED, "conditionNotMet"),
        S3ErrorCode::BucketAlreadyOwnedByYou | S3ErrorCode::BucketNotEmpty => {
            (StatusCode::CONFLICT, "conflict")
        }
        S3ErrorCode::SlowDown | S3ErrorCode::ServiceUnavailable => {
            (StatusCode::SERVICE_UNAVAILABLE, "backendError")
        }
        S3ErrorCode::RequestTimeout => (StatusCode::REQUEST_TIMEOUT, "requestTimeout"),
        S3ErrorCode::InvalidRange => (own, "requestedRangeNotSatisfiable"),
        S3ErrorCode::NotImplemented => (StatusCode::BAD_REQUEST, NOT_IMPLEMENTED),
        S3ErrorCode::AccessDenied => (StatusCode::FORBIDDEN, "forbidden"),
        S3ErrorCode::NotModified => (StatusCode::NOT_MODIFIED, "notModified"),
        _ if own.is_server_error() => (own, "backendError"),
        _ => (own, "invalid"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::{fault, slow_down};

    #[test]
    fn errors_have_the_status_and_reason_of_google() {
        for (error, status, reason) in [
            (fault(S3ErrorCode::NoSuchKey, "k"), 404, "notFound"),
            (
                fault(S3ErrorCode::PreconditionFailed, "p"),
                412,
                "conditionNotMet",
            ),
            (fault(S3ErrorCode::BucketNotEmpty, "b"), 409, "conflict"),
            (slow_down("s".to_owned()), 503, "backendError"),
            (fault(S3ErrorCode::InvalidArgument, "i"), 400, "invalid"),
            (
                fault(S3ErrorCode::NotImplemented, "n"),
                400,
                NOT_IMPLEMENTED,
            ),
            (fault(S3ErrorCode::InternalError, "e"), 500, "backendError"),
        ] {
            let error = GcsError::from(error);
            assert_eq!((error.status.as_u16(), error.reason), (status, reason));
            let document: serde_json::Value =
                serde_json::from_str(&error.document(error.status)).expect("it is JSON");
            assert_eq!(document["error"]["code"], status);
            assert_eq!(document["error"]["errors"][0]["reason"], reason);
        }
    }
}
