//! Mapping of errors of the engine and of origins to S3 errors.

mod elements;

use bywash::{EngineError, OriginError, StatusError, is_transient};
use http::StatusCode;
use http::header::{CONTENT_RANGE, HeaderMap, HeaderValue, RETRY_AFTER};
use object_store::Error as StoreError;
use s3s::{S3Error, S3ErrorCode};

pub(crate) use elements::{Elements, WithElements, invalid_argument};

/// Seconds a client should wait after SlowDown: about the stall limit of a body.
pub(crate) const RETRY_AFTER_S: &str = "5";

/// Operation and object, for messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperationContext<'a> {
    pub(crate) operation: &'static str,
    pub(crate) bucket: &'a str,
    pub(crate) key: &'a str,
}

impl<'a> OperationContext<'a> {
    pub(crate) fn new(operation: &'static str, bucket: &'a str, key: &'a str) -> Self {
        Self {
            operation,
            bucket,
            key,
        }
    }
}

pub(crate) fn fault(code: S3ErrorCode, message: impl Into<String>) -> S3Error {
    S3Error::with_message(code, message.into())
}

/// An error code without a constant in `s3s`.
pub(crate) fn custom(
    code: &'static str,
    status: StatusCode,
    message: impl Into<String>,
) -> S3Error {
    let mut error = fault(S3ErrorCode::Custom(code.into()), message);
    error.set_status_code(status);
    error
}

pub(crate) fn not_implemented(message: impl Into<String>) -> S3Error {
    fault(S3ErrorCode::NotImplemented, message)
}

pub(crate) fn no_such_bucket(bucket: &str) -> S3Error {
    fault(
        S3ErrorCode::NoSuchBucket,
        format!("The bucket {bucket} does not exist; create it or mount it."),
    )
    .with([("BucketName", bucket)])
}

pub(crate) fn no_such_upload(upload: &str) -> S3Error {
    let message = format!(
        "The upload {upload} does not exist: it was completed, aborted, or never begun here."
    );
    fault(S3ErrorCode::NoSuchUpload, message).with([("UploadId", upload)])
}

pub(crate) fn precondition_failed(doing: OperationContext<'_>) -> S3Error {
    let OperationContext {
        operation,
        bucket,
        key,
    } = doing;
    let message = format!(
        "{operation} {bucket}/{key}: the object does not meet the conditions of the request."
    );
    fault(S3ErrorCode::PreconditionFailed, message)
}

/// The error of a write whose conditions held for a version that has been replaced since.
pub(crate) fn conflict(doing: OperationContext<'_>) -> S3Error {
    let OperationContext {
        operation,
        bucket,
        key,
    } = doing;
    let message = format!(
        "{operation} {bucket}/{key}: another request changed the object at the same time; try again."
    );
    custom("ConditionalRequestConflict", StatusCode::CONFLICT, message).with([("Key", key)])
}

pub(crate) fn no_such_key(doing: OperationContext<'_>) -> S3Error {
    let message = format!(
        "The key {} does not exist in bucket {}.",
        doing.key, doing.bucket
    );
    fault(S3ErrorCode::NoSuchKey, message).with([("Key", doing.key)])
}

pub(crate) fn invalid_range(doing: OperationContext<'_>, length: u64) -> S3Error {
    let message = format!(
        "The range cannot be satisfied: {}/{} has {length} bytes.",
        doing.bucket, doing.key
    );
    let mut error = fault(S3ErrorCode::InvalidRange, message);
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::try_from(format!("bytes */{length}")) {
        headers.insert(CONTENT_RANGE, value);
    }
    error.set_headers(headers);
    error.with([("ActualObjectSize", length.to_string())])
}

/// Converts an error of the engine's storage trait.
pub(crate) fn from_store(doing: OperationContext<'_>, error: &StoreError) -> S3Error {
    let OperationContext {
        operation,
        bucket,
        key,
    } = doing;
    if let Some(engine) = EngineError::find(error) {
        return from_engine(doing, engine);
    }
    if let Some(origin) = OriginError::find(error) {
        return from_origin(doing, origin);
    }
    match error {
        StoreError::NotFound { .. } => no_such_key(doing),
        StoreError::AlreadyExists { .. } | StoreError::Precondition { .. } => {
            precondition_failed(doing)
        }
        StoreError::NotModified { .. } => S3Error::new(S3ErrorCode::NotModified),
        // Of the client's key nothing is listed: the name is one of the origin.
        StoreError::InvalidPath { source } if operation == "list" => fault(
            S3ErrorCode::InternalError,
            format!("list {bucket}/{key}: the origin lists a name that no key can have: {source}"),
        ),
        StoreError::InvalidPath { source } => fault(
            S3ErrorCode::InvalidArgument,
            format!("The key {key} cannot be stored: {source}"),
        ),
        StoreError::NotSupported { source } => not_implemented(format!(
            "{operation} {bucket}/{key}: the origin does not support it: {source}"
        )),
        StoreError::NotImplemented {
            operation: what, ..
        } => not_implemented(format!(
            "{operation} {bucket}/{key}: the origin does not implement {what}."
        )),
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
            credentials_refused(doing)
        }
        // Errors of lists have no variants. Without a key, the absent resource is the bucket.
        other => match StatusError::find(other).map(|found| found.status) {
            Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => credentials_refused(doing),
            Some(StatusCode::NOT_FOUND) => {
                let message = format!(
                    "{operation} {bucket}: the origin has no such bucket or container; check its address, or create it."
                );
                fault(S3ErrorCode::NoSuchBucket, message).with([("BucketName", bucket)])
            }
            // A connection that broke, or a response of the origin that asks for another try.
            _ if is_transient(other) => slow_down(format!(
                "{operation} {bucket}/{key} failed: {other}; try again"
            )),
            _ => internal_error(doing, &other.to_string()),
        },
    }
}

/// The origin rejected the server's credentials. The client's signature was valid.
fn credentials_refused(doing: OperationContext<'_>) -> S3Error {
    let OperationContext {
        operation,
        bucket,
        key,
    } = doing;
    let message =
        format!("{operation} {bucket}/{key}: the origin refuses the server's own credentials.");
    fault(S3ErrorCode::AccessDenied, message)
}

/// Converts an error of the engine.
pub(crate) fn from_engine(doing: OperationContext<'_>, error: &EngineError) -> S3Error {
    let text = error.to_string();
    match error {
        EngineError::SlowDown { .. } | EngineError::WriteUnconfirmed { .. } => slow_down(text),
        // The same request can succeed, and clients are to repeat it.
        EngineError::VersionChanged { .. }
        | EngineError::UploadUnproven { .. }
        | EngineError::WriteUnproven { .. } => slow_down(text),
        EngineError::TooManyParts { .. } => fault(S3ErrorCode::EntityTooLarge, text),
        EngineError::RangeNotSatisfiable { length, .. } => invalid_range(doing, *length),
        EngineError::BucketExists(name) => {
            fault(S3ErrorCode::BucketAlreadyOwnedByYou, text).with([("BucketName", name)])
        }
        EngineError::NoSuchBucket(name) => no_such_bucket(name),
        EngineError::BucketNotEmpty(name) => {
            fault(S3ErrorCode::BucketNotEmpty, text).with([("BucketName", name)])
        }
        EngineError::InvalidBucketName { .. } => {
            fault(S3ErrorCode::InvalidBucketName, text).with([("BucketName", doing.bucket)])
        }
        EngineError::NoRoot(_) => not_implemented(text),
        EngineError::KeyWithoutDigest { .. } => fault(S3ErrorCode::InvalidArgument, text),
        // Not BadDigest, which clients take for damage on the way and send again.
        EngineError::WrongContent { .. } => {
            custom("XAmzContentSHA256Mismatch", StatusCode::BAD_REQUEST, text)
        }
        EngineError::NeedsWholeWrite { .. } => fault(S3ErrorCode::InvalidRequest, text),
        _ => internal_error(doing, &text),
    }
}

/// Converts an error of the origin.
fn from_origin(doing: OperationContext<'_>, error: &OriginError) -> S3Error {
    let text = error.to_string();
    match error {
        // The same request can succeed, and clients are to repeat it.
        OriginError::UploadLost { .. } | OriginError::BadResponse { .. } => slow_down(text),
        OriginError::OriginUnavailable { .. } => fault(S3ErrorCode::ServiceUnavailable, text),
        OriginError::LengthMismatch { .. } => fault(S3ErrorCode::IncompleteBody, text),
        OriginError::InvalidPart { number, .. } => {
            fault(S3ErrorCode::InvalidPart, text).with([("PartNumber", number.to_string())])
        }
        OriginError::InvalidTag { .. } => fault(S3ErrorCode::InvalidTag, text),
        OriginError::ReadOnly { .. } => fault(S3ErrorCode::AccessDenied, text),
        _ => internal_error(doing, &text),
    }
}

/// The error of an operation that failed for a reason that is not the client's.
pub(crate) fn internal_error(doing: OperationContext<'_>, reason: &str) -> S3Error {
    let OperationContext {
        operation,
        bucket,
        key,
    } = doing;
    let message = format!("{operation} {bucket}/{key} failed: {reason}");
    fault(S3ErrorCode::InternalError, message)
}

pub(crate) fn slow_down(message: String) -> S3Error {
    let mut error = fault(S3ErrorCode::SlowDown, message);
    error.set_headers(HeaderMap::from_iter([(
        RETRY_AFTER,
        HeaderValue::from_static(RETRY_AFTER_S),
    )]));
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(error: &StoreError) -> (String, Option<StatusCode>) {
        let found = from_store(OperationContext::new("read", "b", "k"), error);
        let status = found.status_code().or_else(|| found.code().status_code());
        (found.code().as_str().to_owned(), status)
    }

    fn generic(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
        StoreError::Generic {
            store: "test",
            source: source.into(),
        }
    }

    #[test]
    fn what_a_client_is_to_repeat_is_slow_down_and_not_internal_error() {
        let object = || "k".to_owned();
        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let unavailable = StatusError::new(StatusCode::BAD_GATEWAY, "a proxy");
        for error in [
            EngineError::VersionChanged { object: object() }.into(),
            OriginError::UploadLost { object: object() }.into(),
            EngineError::UploadUnproven {
                object: object(),
                length: 1,
                crc32c: 2,
            }
            .into(),
            EngineError::WriteUnproven {
                object: object(),
                failure: "503".into(),
            }
            .into(),
            OriginError::BadResponse {
                object: object(),
                detail: "short".to_owned(),
            }
            .into(),
            generic(reset),
            generic(unavailable),
        ] {
            let expected = ("SlowDown".to_owned(), Some(StatusCode::SERVICE_UNAVAILABLE));
            assert_eq!(code(&error), expected, "{error}");
        }
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        let refused = StatusError::new(StatusCode::BAD_REQUEST, "no");
        for error in [generic(full), generic(refused)] {
            assert_eq!(code(&error).0, "InternalError", "{error}");
        }
    }
}
