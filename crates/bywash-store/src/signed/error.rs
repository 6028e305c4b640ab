//! Errors of addresses that do not allow a request that an upload needs, or allow it no longer.

use chrono::{DateTime, SecondsFormat, Utc};
use http::StatusCode;
use object_store::Error;
use object_store::path::Path;

use crate::error::{OriginError, StatusError, not_supported_error};

/// Name of this kind of store in errors.
pub(super) const STORE: &str = "signed URL";

/// Returns the error of an address that does not allow a request that the upload needs.
pub(super) fn misuse(object: &Path, reason: &str) -> Error {
    OriginError::SignedAddress {
        object: object.to_string(),
        reason: reason.to_owned(),
    }
    .into()
}

/// The error of an operation that no address is signed for.
pub(super) fn not_supported(operation: &str, path: &Path) -> Error {
    let text = format!("{path}: it can only be uploaded here, and not be {operation}");
    not_supported_error(text)
}

/// Explains the refusal of an address that is valid no longer; returns other errors as they are.
pub(super) fn explained(name: &str, expires: Option<DateTime<Utc>>, error: Error) -> Error {
    let status = StatusError::find(&error).map(|found| found.status);
    let refused = matches!(
        error,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. }
    ) || status == Some(StatusCode::BAD_REQUEST);
    let Some(at) = expires.filter(|at| refused && *at <= Utc::now()) else {
        return error;
    };
    let until = at.to_rfc3339_opts(SecondsFormat::Secs, true);
    let detail = format!(
        "upload of {name}: its address was valid until {until}; have another one signed, as by bywash presign"
    );
    let status = status.unwrap_or(StatusCode::FORBIDDEN);
    Error::PermissionDenied {
        path: name.to_owned(),
        source: Box::new(StatusError::new(status, detail)),
    }
}
