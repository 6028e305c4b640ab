//! Retry policy: which failed operations are retried, and with what backoff.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use object_store::path::Path;
use object_store::{Error, Result};
use rand::RngExt;
use tokio::time::Instant;

use crate::error::source_of;
use crate::stats::RetryCount;
use crate::{EngineError, StatusError};

/// Limits and backoff of retries of failed requests to an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Backoff before the first retry; each further one is up to twice as long.
    pub initial_backoff: Duration,
    /// Maximum backoff.
    pub max_backoff: Duration,
    /// Time without progress after which an operation fails. Progress (a byte received) resets it, so a slow,
    /// unreliable line is not a failure.
    pub deadline: Duration,
    /// Time without any response or byte after which a request has failed.
    pub stall: Duration,
}

/// Extra time for a request that moves data within the origin (a copy, the completion of an upload). The largest
/// objects take minutes, without a response meanwhile.
const SERVER_WORK: Duration = Duration::from_secs(600);

/// Minimum throughput of an origin while it takes a body, in bytes a second.
const MIN_BYTES_PER_S: u64 = 64 << 10;

impl RetryPolicy {
    /// Returns the time limit of a request with a body of `bytes` bytes.
    pub(crate) fn limit(self, bytes: u64) -> Duration {
        self.stall + Duration::from_secs(bytes / MIN_BYTES_PER_S)
    }

    /// Returns the policy for requests that move data within the origin.
    pub(crate) fn with_server_work(self) -> Self {
        Self {
            stall: self.stall + SERVER_WORK,
            ..self
        }
    }
}

/// The retry policy of one bucket's requests, and the count of its retries.
#[derive(Debug, Clone)]
pub(crate) struct BucketRetry {
    pub(crate) policy: RetryPolicy,
    pub(crate) count: Arc<RetryCount>,
}

impl BucketRetry {
    /// As [`RetryPolicy::with_server_work`].
    pub(crate) fn with_server_work(self) -> Self {
        Self {
            policy: self.policy.with_server_work(),
            ..self
        }
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            initial_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(5),
            deadline: Duration::from_secs(60),
            stall: Duration::from_secs(20),
        }
    }
}

/// Retry state of one operation.
#[derive(Debug)]
pub(crate) struct Retries {
    policy: RetryPolicy,
    count: Arc<RetryCount>,
    since_progress: Instant,
    pause: Duration,
}

impl Retries {
    pub(crate) fn new(retry: BucketRetry) -> Self {
        let BucketRetry { policy, count } = retry;
        Self {
            policy,
            count,
            since_progress: Instant::now(),
            pause: policy.initial_backoff,
        }
    }

    /// Resets deadline and backoff after bytes were received.
    pub(crate) fn progress(&mut self) {
        self.since_progress = Instant::now();
        self.pause = self.policy.initial_backoff;
    }

    /// Waits before the next attempt; returns `false` if the deadline leaves time for none.
    pub(crate) async fn back_off(&mut self) -> bool {
        // Equal jitter: clients that failed together do not retry together.
        let pause = self.pause.mul_f64(rand::rng().random_range(0.5..=1.0));
        if self.since_progress.elapsed() + pause > self.policy.deadline {
            return false;
        }
        self.pause = (self.pause * 2).min(self.policy.max_backoff);
        tokio::time::sleep(pause).await;
        self.count.add();
        true
    }
}

/// Returns whether the same request may succeed later. Every error that object_store classifies is final; an invalid
/// response may be valid the next time.
#[must_use]
pub fn is_transient(error: &Error) -> bool {
    match (error, EngineError::find(error)) {
        (_, Some(EngineError::BadResponse { .. })) => true,
        (Error::Generic { .. }, None) => {
            !is_refusal(error) && !is_out_of_range(error) && !is_lasting_io(error)
        }
        _ => false,
    }
}

/// Returns whether the origin refused the request for good: a client error, except those that request a retry (408
/// Request Timeout, 425 Too Early, 429 Too Many Requests).
pub(crate) fn is_refusal(error: &Error) -> bool {
    let status = StatusError::find(error).map_or(0, |found| found.status.as_u16());
    (300..500).contains(&status) && ![408, 425, 429].contains(&status)
}

/// Returns whether a file system error does not pass in seconds.
pub(crate) fn is_lasting_io(error: &Error) -> bool {
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
pub(crate) fn is_out_of_range(error: &Error) -> bool {
    let status = StatusError::find(error).map(|found| found.status);
    status == Some(StatusCode::RANGE_NOT_SATISFIABLE)
        || error.to_string().contains("Wanted range starting at ")
}

/// Runs `attempt` until it succeeds, fails for good, or the deadline passes.
///
/// Only for idempotent operations. Cancelled by dropping.
pub(crate) async fn with_retries<T, F>(
    retry: BucketRetry,
    operation: &'static str,
    object: &Path,
    mut attempt: impl FnMut() -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let policy = retry.policy;
    let mut retries = Retries::new(retry);
    loop {
        let error = match tokio::time::timeout(policy.stall, attempt()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) if !is_transient(&error) => return Err(error),
            Ok(Err(error)) => error,
            Err(_) => stalled(policy),
        };
        tracing::debug!(operation, %object, %error, "origin request failed, retrying");
        if !retries.back_off().await {
            return Err(unavailable(operation, object, error));
        }
    }
}

/// Runs an operation that must not be repeated, for at most `limit`.
pub(crate) async fn once<T>(
    limit: Duration,
    operation: &'static str,
    object: &Path,
    attempt: impl Future<Output = Result<T>>,
) -> Result<T> {
    let result = tokio::time::timeout(limit, attempt).await;
    result.unwrap_or_else(|_| {
        let text = format!("no response for {} ms", limit.as_millis());
        Err(unavailable(
            operation,
            object,
            Error::Generic {
                store: "Bywash",
                source: text.into(),
            },
        ))
    })
}

/// Returns the error of a stalled request.
pub(crate) fn stalled(policy: RetryPolicy) -> Error {
    let text = format!("no byte moved for {} ms", policy.stall.as_millis());
    Error::Generic {
        store: "Bywash",
        source: text.into(),
    }
}

/// Returns the error of an origin that failed until the retry deadline.
pub(crate) fn unavailable(operation: &'static str, object: &Path, source: Error) -> Error {
    EngineError::OriginUnavailable {
        operation,
        object: object.to_string(),
        source: Box::new(source),
    }
    .into()
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
        let bad = EngineError::BadResponse {
            object: "a".to_owned(),
            detail: "short".to_owned(),
        };
        assert!(is_transient(&bad.into()));
        assert!(!is_transient(
            &EngineError::VersionChanged {
                object: "a".to_owned()
            }
            .into()
        ));
    }
}
