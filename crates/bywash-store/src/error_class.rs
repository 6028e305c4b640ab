//! Classes of errors: which requests may succeed when they are repeated.

use http::StatusCode;
use object_store::Error;

use crate::error::source_of;
use crate::error::{OriginError, StatusError};

/// Returns whether the same request may succeed later. Every error that object_store classifies is final; an invalid
/// response may be valid the next time.
#[must_use]
pub fn is_transient(error: &Error) -> bool {
    match (error, OriginError::find(error)) {
        (_, Some(OriginError::BadResponse { .. })) => true,
        (Error::Generic { .. }, None) => {
            !is_refusal(error) && !is_out_of_range(error) && !is_lasting_io(error)
        }
        _ => false,
    }
}

/// Whether the origin refused the request for good: a client error, except statuses that ask for a retry (408
/// Request Timeout, 425 Too Early, 429 Too Many Requests).
#[must_use]
pub fn is_refusal(error: &Error) -> bool {
    let status = StatusError::find(error).map_or(0, |found| found.status.as_u16());
    (300..500).contains(&status) && ![408, 425, 429].contains(&status)
}

/// Returns whether a file system error does not pass in seconds.
#[must_use]
pub fn is_lasting_io(error: &Error) -> bool {
    use std::io::ErrorKind::{
        FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull,
    };
    let lasting = [
        StorageFull,
        QuotaExceeded,
        FileTooLarge,
        ReadOnlyFilesystem,
        PermissionDenied,
    ];
    source_of::<std::io::Error>(error).is_some_and(|found| lasting.contains(&found.kind()))
}

/// Returns whether a range begins beyond the object's end.
///
/// object_store has no variant for it, and a private type for the error of its own range check, which is recognised by
/// its message. Callers confirm it by requesting the length.
#[must_use]
pub fn is_out_of_range(error: &Error) -> bool {
    let status = StatusError::find(error).map(|found| found.status);
    status == Some(StatusCode::RANGE_NOT_SATISFIABLE)
        || error.to_string().contains("Wanted range starting at ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Generic {
            store: "test",
            source: source.into(),
        }
    }

    #[test]
    fn distinguishes_transient_from_permanent_errors() {
        let io = |kind| generic(std::io::Error::from(kind));
        assert!(is_transient(&generic("503 Service Unavailable")));
        assert!(is_transient(&io(std::io::ErrorKind::ConnectionReset)));
        assert!(!is_transient(&io(std::io::ErrorKind::StorageFull)));
        let response = |status: u16| {
            let status = StatusCode::from_u16(status).expect("a status");
            generic(StatusError::new(status, "logs/status 416.txt"))
        };
        assert!(is_transient(&response(503)));
        assert!(is_transient(&response(429)));
        assert!(!is_transient(&response(400)));
        assert!(!is_transient(&response(416)));
        assert!(is_out_of_range(&response(416)));
        assert!(!is_out_of_range(&response(503)));
        let missing = Error::NotFound {
            path: "a".to_owned(),
            source: "gone".into(),
        };
        assert!(!is_transient(&missing));
        let bad = OriginError::BadResponse {
            object: "a".to_owned(),
            detail: "short".to_owned(),
        };
        assert!(is_transient(&bad.into()));
        assert!(!is_transient(
            &OriginError::UploadLost {
                object: "a".to_owned()
            }
            .into()
        ));
    }
}
