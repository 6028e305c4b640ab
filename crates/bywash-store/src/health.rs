//! Counts of an origin's errors by kind, and its last failure.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use object_store::Error;
use parking_lot::Mutex;
use serde::Serialize;

use crate::error::{OriginError, StatusError};
use crate::error_class::{is_lasting_io, is_transient};
use crate::limits::MAX_FAILURE_TEXT_BYTES;

/// Kind of an origin's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OriginErrorKind {
    /// The object does not exist.
    NotFound,
    /// A precondition of the request failed.
    Precondition,
    /// Credentials are missing, wrong or lack a permission.
    Denied,
    /// The origin limits requests (429, 503).
    Throttled,
    /// The origin cannot be reached, or failed.
    Unavailable,
    /// No response came in time.
    Timeout,
    /// The response contradicts the request.
    BadResponse,
    /// The disk of a folder is full, read-only, or not permitted to this user.
    Disk,
    /// Any other refusal.
    Refused,
}

impl OriginErrorKind {
    /// All kinds.
    pub const ALL: [Self; 9] = [
        Self::NotFound,
        Self::Precondition,
        Self::Denied,
        Self::Throttled,
        Self::Unavailable,
        Self::Timeout,
        Self::BadResponse,
        Self::Disk,
        Self::Refused,
    ];

    /// Returns its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Precondition => "precondition",
            Self::Denied => "denied",
            Self::Throttled => "throttled",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::BadResponse => "bad_response",
            Self::Disk => "disk",
            Self::Refused => "refused",
        }
    }

    /// Returns whether the origin is at fault, not the request.
    fn is_failure(self) -> bool {
        !matches!(self, Self::NotFound | Self::Precondition | Self::Refused)
    }

    fn of(error: &Error) -> Self {
        match error {
            Error::NotFound { .. } => return Self::NotFound,
            Error::AlreadyExists { .. } | Error::Precondition { .. } => return Self::Precondition,
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => return Self::Denied,
            _ => {}
        }
        match OriginError::find(error) {
            Some(OriginError::BadResponse { .. } | OriginError::UploadDamaged { .. }) => {
                return Self::BadResponse;
            }
            Some(_) => return Self::Refused,
            None => {}
        }
        match StatusError::find(error).map(|found| found.status.as_u16()) {
            Some(429 | 503) => Self::Throttled,
            Some(401 | 403) => Self::Denied,
            _ if is_lasting_io(error) => Self::Disk,
            _ if is_transient(error) => Self::Unavailable,
            _ => Self::Refused,
        }
    }
}

/// A failure of an origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OriginFailure {
    /// Its kind.
    pub kind: OriginErrorKind,
    /// The error, cut to 256 bytes. Not serialised: it may name keys, and `/stats` requires no key.
    #[serde(skip)]
    pub text: String,
    /// Its time, in seconds since 1970.
    pub at: u64,
}

/// Snapshot of the errors of an origin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct OriginStats {
    /// Errors by kind, without kinds that have none.
    pub errors: Vec<(OriginErrorKind, u64)>,
    /// Consecutive failures. A success ends them, as does an error that is the request's fault.
    pub failures_in_a_row: u64,
    /// The last failure.
    pub last_failure: Option<OriginFailure>,
}

/// Counters of an origin's errors.
///
/// Written by any thread, read by snapshots. They order nothing, hence relaxed.
#[derive(Debug, Default)]
pub struct OriginHealth {
    errors: [AtomicU64; OriginErrorKind::ALL.len()],
    in_a_row: AtomicU64,
    last: Mutex<Option<OriginFailure>>,
}

impl OriginHealth {
    pub(super) fn succeeded(&self) {
        // Read first: a store without need would take the cache line from other threads.
        if self.in_a_row.load(Relaxed) != 0 {
            self.in_a_row.store(0, Relaxed);
        }
    }

    pub(super) fn ended_with(&self, error: &Error) {
        let kind = OriginErrorKind::of(error);
        if kind.is_failure() {
            self.failed(kind, error.to_string(), SystemTime::now());
        } else {
            self.errors[kind as usize].fetch_add(1, Relaxed);
            self.succeeded();
        }
    }

    pub(super) fn failed(&self, kind: OriginErrorKind, mut text: String, at: SystemTime) {
        self.errors[kind as usize].fetch_add(1, Relaxed);
        self.in_a_row.fetch_add(1, Relaxed);
        text.truncate(text.floor_char_boundary(MAX_FAILURE_TEXT_BYTES));
        let at = at.duration_since(SystemTime::UNIX_EPOCH);
        let at = at.unwrap_or_default().as_secs();
        *self.last.lock() = Some(OriginFailure { kind, text, at });
    }

    /// Whether the last request failed.
    pub fn is_failing(&self) -> bool {
        self.in_a_row.load(Relaxed) > 0
    }

    /// The counts so far.
    pub fn snapshot(&self) -> OriginStats {
        let counts = self.errors.iter().map(|count| count.load(Relaxed));
        let errors = OriginErrorKind::ALL.into_iter().zip(counts);
        OriginStats {
            errors: errors.filter(|(_, count)| *count > 0).collect(),
            failures_in_a_row: self.in_a_row.load(Relaxed),
            last_failure: self.last.lock().clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn failures_in_a_row_end_with_any_response_that_is_none() {
        let health = OriginHealth::default();
        let generic = |text: &str| Error::Generic {
            store: "test",
            source: text.into(),
        };
        let status = |status: u16| {
            let status = http::StatusCode::from_u16(status).unwrap();
            StatusError::new(status, "GET k").of("test", "k")
        };
        let missing = Error::NotFound {
            path: "a".to_owned(),
            source: "gone".into(),
        };
        for (error, kind, in_a_row) in [
            (
                generic("connection refused"),
                OriginErrorKind::Unavailable,
                1,
            ),
            (status(500), OriginErrorKind::Unavailable, 2),
            (status(503), OriginErrorKind::Throttled, 3),
            (missing, OriginErrorKind::NotFound, 0),
            (status(403), OriginErrorKind::Denied, 1),
            (status(400), OriginErrorKind::Refused, 0),
        ] {
            assert_eq!(OriginErrorKind::of(&error), kind, "{error}");
            health.ended_with(&error);
            assert_eq!(health.snapshot().failures_in_a_row, in_a_row, "{error}");
        }
        let stats = health.snapshot();
        assert_eq!(stats.errors.len(), 5);
        assert!(stats.errors.contains(&(OriginErrorKind::Unavailable, 2)));
        assert_eq!(
            stats.last_failure.map(|last| last.kind),
            Some(OriginErrorKind::Denied)
        );
        health.failed(
            OriginErrorKind::Timeout,
            "ü".repeat(1000),
            SystemTime::now(),
        );
        let last = health.snapshot().last_failure;
        assert!(last.is_some_and(|last| last.text.len() <= MAX_FAILURE_TEXT_BYTES));
        health.succeeded();
        assert_eq!(health.snapshot().failures_in_a_row, 0);
    }
}
