//! Retry policy: which failed operations are retried, and their backoff.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bywash_store::{DEFAULT_STALL, OriginError};
use object_store::path::Path;
use object_store::{Error, Result};
use rand::RngExt;
use tokio::time::Instant;

use crate::EngineError;
use crate::stats::RetryCount;

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
/// objects take minutes, without a response until the end.
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
            stall: DEFAULT_STALL,
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

/// Returns whether the same request may succeed later: as [`bywash_store::is_transient`], and an error of the engine is final.
#[must_use]
pub fn is_transient(error: &Error) -> bool {
    EngineError::find(error).is_none() && bywash_store::is_transient(error)
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
    OriginError::OriginUnavailable {
        operation,
        object: object.to_string(),
        source: Box::new(source),
    }
    .into()
}
