//! Errors of the JSON API, in the shape of Google's.

use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use s3s::{Body, S3Error, S3ErrorCode};
use serde_json::json;

use crate::http_server::{self, NO_ROOM};

pub(crate) type GcsResult<T> = Result<T, GcsError>;

const JSON: &str = "application/json; charset=UTF-8";

/// Reason in errors about unsupported requests.
const NOT_IMPLEMENTED: &str = "notImplemented";

/// Google's words of failed conditions and of absent buckets, by which clients know them.
const CONDITION_NOT_MET: &str = "At least one of the pre-conditions you specified did not hold.";
const NO_BUCKET: &str = "The specified bucket does not exist.";

/// Location of conditions in Google's errors, also of conditions in parameters.
const IF_MATCH: (&str, &str) = ("header", "If-Match");

/// An error response.
#[derive(Debug)]
pub(crate) struct GcsError {
    status: StatusCode,
    reason: &'static str,
    message: String,
    /// Part of the request that the error is about: its type and its name.
    location: Option<(&'static str, &'static str)>,
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
            location: None,
            code: None,
            headers: Box::default(),
            is_plain: false,
        }
    }

    /// A request that cannot be served as it is.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid", message)
    }

    /// A parameter of the query whose value is not one of it.
    pub(crate) fn parameter(name: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalidParameter", message).at(("parameter", name))
    }

    /// A parameter of the query that the request lacks.
    pub(crate) fn required(name: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "required", message).at(("parameter", name))
    }

    /// A body that is not the document of its method.
    pub(crate) fn parse(what: &str, error: &serde_json::Error) -> Self {
        let message = format!("Parse Error: {what} is no JSON object: {error}.");
        Self::new(StatusCode::BAD_REQUEST, "parseError", message)
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
        let message = format!("{CONDITION_NOT_MET} ({object})");
        Self::new(StatusCode::PRECONDITION_FAILED, "conditionNotMet", message).at(IF_MATCH)
    }

    /// A version that the client has.
    pub(crate) fn not_modified(object: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_MODIFIED, "notModified", object)
    }

    /// A fault of the server or of the origin that may pass.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "backendError", message)
    }

    /// Returns it with headers of the response.
    pub(crate) fn with_headers(mut self, headers: HeaderMap) -> Self {
        self.headers.extend(headers);
        self
    }

    fn at(self, location: (&'static str, &'static str)) -> Self {
        Self {
            location: Some(location),
            ..self
        }
    }

    /// Returns it with the seconds after which the request is to be repeated.
    pub(crate) fn with_retry_after(mut self, seconds: u64) -> Self {
        self.headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        self
    }

    /// A session that its store has lost.
    pub(crate) fn gone(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "gone", message)
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
        let error = Self::new(StatusCode::UNAUTHORIZED, reason, message);
        let mut error = error.at(("header", "Authorization"));
        error
            .headers
            .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        error
    }

    /// The error of a caller without the right to do it.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    /// A request that may change something and was made by a page in a browser.
    pub(crate) fn other_site() -> Self {
        let message = "A page of another site made this request in a browser (Origin, Sec-Fetch-Site). Pages may not write to an \
                       anonymous server; use a program.";
        Self::forbidden(message)
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// The code of the XML API.
    pub(crate) fn code(&self) -> &str {
        match self.code.as_deref() {
            // Names of Amazon's that Google has others for.
            Some("SlowDown") => "ServiceUnavailable",
            Some("KeyTooLongError") => "KeyTooLong",
            Some("ConditionalRequestConflict") => "OperationAborted",
            Some(code) => code,
            None => self.code_of_status(),
        }
    }

    fn code_of_status(&self) -> &'static str {
        match self.status {
            _ if self.reason == NOT_IMPLEMENTED => "NotImplemented",
            StatusCode::UNAUTHORIZED => "AuthenticationRequired",
            StatusCode::FORBIDDEN => "AccessDenied",
            StatusCode::NOT_FOUND => "NoSuchKey",
            StatusCode::REQUEST_TIMEOUT => "RequestTimeout",
            StatusCode::CONFLICT => "OperationAborted",
            StatusCode::LENGTH_REQUIRED => "MissingContentLength",
            StatusCode::PRECONDITION_FAILED => "PreconditionFailed",
            StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
            status if status.is_server_error() => "InternalError",
            _ => "InvalidArgument",
        }
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
            let kind = if self.is_plain {
                "text/plain; charset=utf-8"
            } else {
                JSON
            };
            let kind = HeaderValue::from_static(kind);
            response.headers_mut().insert(CONTENT_TYPE, kind);
        }
        response
    }

    fn document(&self, status: StatusCode) -> String {
        let mut detail = json!({
            "message": self.message,
            "domain": "global",
            "reason": self.reason,
        });
        if let Some((kind, name)) = self.location {
            detail["locationType"] = kind.into();
            detail["location"] = name.into();
        }
        let error = json!({
            "error": {
                "code": status.as_u16(),
                "message": self.message,
                "errors": [detail],
            }
        });
        error.to_string()
    }
}

/// The response to a request whose head has no memory.
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
            S3ErrorCode::NoSuchBucket => format!("{NO_BUCKET} {message}"),
            S3ErrorCode::PreconditionFailed => format!("{CONDITION_NOT_MET} {message}"),
            S3ErrorCode::InvalidRange => format!("Request range not satisfiable: {message}"),
            _ => message.to_owned(),
        };
        Self {
            status,
            reason,
            location: (reason == "conditionNotMet").then_some(IF_MATCH),
            code: Some(error.code().as_str().to_owned()),
            message,
            headers: Box::new(error.headers().cloned().unwrap_or_default()),
            is_plain: false,
        }
    }
}

/// The status and the reason that Google has for an error of the shared modules.
fn class(error: &S3Error) -> (StatusCode, &'static str) {
    let own = error.status_code().or_else(|| error.code().status_code());
    let own = own.unwrap_or(StatusCode::BAD_REQUEST);
    let status = match error.code() {
        S3ErrorCode::NotImplemented => return (StatusCode::BAD_REQUEST, NOT_IMPLEMENTED),
        S3ErrorCode::BucketAlreadyOwnedByYou | S3ErrorCode::BucketNotEmpty => StatusCode::CONFLICT,
        S3ErrorCode::SlowDown => StatusCode::SERVICE_UNAVAILABLE,
        S3ErrorCode::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
        S3ErrorCode::EntityTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        S3ErrorCode::AccessDenied => StatusCode::FORBIDDEN,
        S3ErrorCode::NotModified => StatusCode::NOT_MODIFIED,
        _ => own,
    };
    (status, reason_of(status))
}

/// The reason that Google states with a status, where it states only one.
fn reason_of(status: StatusCode) -> &'static str {
    match status {
        StatusCode::NOT_MODIFIED => "notModified",
        StatusCode::UNAUTHORIZED => "authError",
        StatusCode::FORBIDDEN => "forbidden",
        StatusCode::NOT_FOUND => "notFound",
        StatusCode::METHOD_NOT_ALLOWED => "methodNotAllowed",
        StatusCode::REQUEST_TIMEOUT => "uploadBrokenConnection",
        StatusCode::CONFLICT => "conflict",
        StatusCode::GONE => "gone",
        StatusCode::LENGTH_REQUIRED => "required",
        StatusCode::PRECONDITION_FAILED => "conditionNotMet",
        StatusCode::PAYLOAD_TOO_LARGE => "uploadTooLarge",
        StatusCode::RANGE_NOT_SATISFIABLE => "requestedRangeNotSatisfiable",
        StatusCode::TOO_MANY_REQUESTS => "rateLimitExceeded",
        status if status.is_server_error() => "backendError",
        _ => "invalid",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::{fault, slow_down};

    fn document_of(error: &GcsError) -> serde_json::Value {
        serde_json::from_str(&error.document(error.status)).expect("it is JSON")
    }

    #[test]
    fn errors_have_the_status_and_reason_of_google() {
        use S3ErrorCode as Code;
        // Each with the reason of the JSON API.
        for (code, status, reason) in [
            (Code::NoSuchKey, 404, "notFound"),
            (Code::NoSuchBucket, 404, "notFound"),
            (Code::NoSuchUpload, 404, "notFound"),
            (Code::AccessDenied, 403, "forbidden"),
            (Code::PreconditionFailed, 412, "conditionNotMet"),
            (Code::BucketNotEmpty, 409, "conflict"),
            (Code::SlowDown, 503, "backendError"),
            (Code::InternalError, 500, "backendError"),
            (Code::InvalidArgument, 400, "invalid"),
            (Code::KeyTooLongError, 400, "invalid"),
            (Code::NotImplemented, 400, NOT_IMPLEMENTED),
            (Code::EntityTooLarge, 413, "uploadTooLarge"),
            (Code::RequestTimeout, 408, "uploadBrokenConnection"),
            (Code::InvalidRange, 416, "requestedRangeNotSatisfiable"),
        ] {
            // The code of the XML API is Amazon's but for these.
            let xml = match code {
                Code::SlowDown => "ServiceUnavailable",
                Code::KeyTooLongError => "KeyTooLong",
                ref code => code.as_str(),
            };
            let xml = xml.to_owned();
            let error = GcsError::from(fault(code, "m"));
            assert_eq!((error.status.as_u16(), error.reason), (status, reason));
            assert_eq!(error.code(), xml);
            assert_eq!(document_of(&error)["error"]["code"], status);
        }
        let conflict = crate::errors::conflict(crate::errors::OperationContext::new("o", "b", "k"));
        let conflict = GcsError::from(conflict);
        assert_eq!(
            (conflict.status.as_u16(), conflict.reason),
            (409, "conflict")
        );
        assert_eq!(conflict.code(), "OperationAborted");
        assert!(
            GcsError::from(slow_down("s".to_owned()))
                .headers
                .contains_key(RETRY_AFTER)
        );
    }

    /// The elements of Google's published documents, and no others.
    #[test]
    fn documents_have_the_elements_of_googles() {
        let located = |code: u16, reason: &str, kind: &str, location: &str, message: &str| {
            json!({"error": {
                "code": code,
                "message": message,
                "errors": [{
                    "domain": "global",
                    "reason": reason,
                    "message": message,
                    "locationType": kind,
                    "location": location,
                }],
            }})
        };
        let error = GcsError::parameter("maxResults", "m");
        let expected = located(400, "invalidParameter", "parameter", "maxResults", "m");
        assert_eq!(document_of(&error), expected);
        let expected = located(400, "required", "parameter", "name", "m");
        assert_eq!(document_of(&GcsError::required("name", "m")), expected);
        let expected = located(401, "authError", "header", "Authorization", "m");
        assert_eq!(document_of(&GcsError::unauthenticated("m")), expected);
        let login = GcsError::login();
        let expected = located(401, "required", "header", "Authorization", login.message());
        assert_eq!(document_of(&login), expected);
        let unmet = fault(S3ErrorCode::PreconditionFailed, "m");
        for error in [GcsError::condition("b/k"), unmet.into()] {
            let expected = located(
                412,
                "conditionNotMet",
                "header",
                "If-Match",
                error.message(),
            );
            assert_eq!(document_of(&error), expected);
            assert!(error.message().starts_with(CONDITION_NOT_MET));
        }
        let error = GcsError::from(crate::errors::no_such_bucket("b"));
        assert!(error.message().contains("bucket does not exist"));
        let expected = json!({"error": {
            "code": 404,
            "message": error.message(),
            "errors": [{"domain": "global", "reason": "notFound", "message": error.message()}],
        }});
        assert_eq!(document_of(&error), expected);
    }
}
