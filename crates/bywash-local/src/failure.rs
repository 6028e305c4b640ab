//! Errors as clients get them.

use bywash_client::message::{ErrorCode, Failure};
use bywash_gateway::objects::ObjectError;

/// Creates a failure.
pub(crate) fn failure(code: ErrorCode, message: impl Into<String>) -> Failure {
    Failure {
        code,
        message: message.into(),
    }
}

/// Converts the error of an operation: the action for the caller follows from its S3 code.
pub(crate) fn from_object(error: ObjectError) -> Failure {
    let code = match error.code.as_str() {
        "NoSuchKey" | "NoSuchVersion" => ErrorCode::NotFound,
        "NoSuchBucket" => ErrorCode::NoSuchBucket,
        "PreconditionFailed" | "ConditionalRequestConflict" | "BucketNotEmpty" => {
            ErrorCode::Precondition
        }
        "NotModified" => ErrorCode::NotModified,
        "InvalidRange" => ErrorCode::InvalidRange,
        "AccessDenied" | "MethodNotAllowed" => ErrorCode::PermissionDenied,
        "NotImplemented" => ErrorCode::Unsupported,
        "SlowDown" => ErrorCode::SlowDown,
        "NoSuchUpload" => ErrorCode::UploadLost,
        "BadDigest" | "IncompleteBody" | "XAmzContentSHA256Mismatch" => ErrorCode::Damaged,
        "InvalidArgument" | "InvalidRequest" | "KeyTooLongError" | "MetadataTooLarge"
        | "InvalidBucketName" | "EntityTooLarge" | "InvalidPart" => ErrorCode::InvalidArgument,
        // InternalError, ServiceUnavailable, and codes that an origin adds.
        _ => ErrorCode::Unavailable,
    };
    failure(code, error.message)
}
