//! When an operation on an origin is tried again, and how long we wait in between.

use std::future::Future;
use std::time::Duration;

use object_store::path::Path;
use object_store::{Error, Result};
use rand::RngExt;
use tokio::time::Instant;

use crate::EngineError;

/// How failed requests to an origin are repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The first pause; each next one is up to twice as long.
    pub first_pause: Duration,
    /// No pause is longer.
    pub longest_pause: Duration,
    /// We give up when this much time passed without progress. Progress (a byte read) starts it
    /// anew, so a slow line with hiccups is not a failure.
    pub deadline: Duration,
    /// A request that shows no sign of life (no answer, no byte) for this long has failed.
    pub stall: Duration,
}

/// How much longer an origin may work on a request that moves data within it (a copy, the
/// completion of an upload): minutes for the largest objects, in which it may say nothing.
const SERVER_WORK: Duration = Duration::from_secs(600);

impl RetryPolicy {
    /// For requests that keep the origin at work.
    pub(crate) fn with_server_work(self) -> Self {
        Self {
            stall: self.stall + SERVER_WORK,
            ..self
        }
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            first_pause: Duration::from_millis(50),
            longest_pause: Duration::from_secs(5),
            deadline: Duration::from_secs(60),
            stall: Duration::from_secs(20),
        }
    }
}

/// The state of one operation's retries.
#[derive(Debug)]
pub(crate) struct Retries {
    policy: RetryPolicy,
    since_progress: Instant,
    pause: Duration,
}

impl Retries {
    pub(crate) fn new(policy: RetryPolicy) -> Self {
        Self {
            policy,
            since_progress: Instant::now(),
            pause: policy.first_pause,
        }
    }

    /// Bytes came: the deadline and the pauses start anew.
    pub(crate) fn progress(&mut self) {
        self.since_progress = Instant::now();
        self.pause = self.policy.first_pause;
    }

    /// Waits before the next try; `false` when there shall be none.
    pub(crate) async fn again(&mut self) -> bool {
        // Full jitter: clients that failed together do not come back together.
        let pause = self.pause.mul_f64(rand::rng().random_range(0.5..=1.0));
        if self.since_progress.elapsed() + pause > self.policy.deadline {
            return false;
        }
        self.pause = (self.pause * 2).min(self.policy.longest_pause);
        tokio::time::sleep(pause).await;
        true
    }
}

/// Whether the same request may succeed later. Everything object_store names precisely is final;
/// a wrong or short answer may be right the next time.
pub(crate) fn is_transient(error: &Error) -> bool {
    match (error, EngineError::find(error)) {
        (_, Some(EngineError::BadAnswer { .. })) => true,
        (Error::Generic { .. }, None) => {
            !is_refusal(error) && !is_out_of_range(error) && !is_lasting_io(error)
        }
        _ => false,
    }
}

/// The HTTP status in an error of object_store, whose type for it is private.
///
/// Its text has the URL first, in which a blank cannot occur, so a key cannot imitate this.
fn http_status(text: &str) -> Option<u16> {
    let (_, status) = text.split_once("status code: ")?;
    status.get(..3)?.parse().ok()
}

/// Whether the origin refused the request for good: a client error, but for those that ask for
/// patience (408 Request Timeout, 425 Too Early, 429 Too Many Requests).
fn is_refusal(error: &Error) -> bool {
    let status = http_status(&error.to_string());
    status.is_some_and(|status| (300..500).contains(&status) && ![408, 425, 429].contains(&status))
}

/// Whether a file system said no for a reason that does not pass in seconds.
fn is_lasting_io(error: &Error) -> bool {
    use std::io::ErrorKind::{
        FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull,
    };
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = next {
        if let Some(io) = current.downcast_ref::<std::io::Error>() {
            let lasting = [
                StorageFull,
                QuotaExceeded,
                FileTooLarge,
                ReadOnlyFilesystem,
                PermissionDenied,
            ];
            return lasting.contains(&io.kind());
        }
        next = current.source();
    }
    false
}

/// Whether the origin says that a range begins beyond the object's end.
///
/// object_store has no variant for it, so its two spellings are recognised: the HTTP status and
/// the message of its own range check. Callers confirm by asking for the length.
pub(crate) fn is_out_of_range(error: &Error) -> bool {
    let text = error.to_string();
    http_status(&text) == Some(416) || text.contains("Wanted range starting at ")
}

/// Runs `attempt` until it succeeds, fails for good, or the deadline passes.
///
/// Only for operations that may run twice. Cancel by dropping.
pub(crate) async fn with_retries<T, F>(
    policy: RetryPolicy,
    operation: &'static str,
    object: &Path,
    mut attempt: impl FnMut() -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut retries = Retries::new(policy);
    loop {
        let error = match tokio::time::timeout(policy.stall, attempt()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) if !is_transient(&error) => return Err(error),
            Ok(Err(error)) => error,
            Err(_) => stalled(policy),
        };
        tracing::debug!(operation, %object, %error, "origin failed, trying again");
        if !retries.again().await {
            return Err(unavailable(operation, object, error));
        }
    }
}

/// Runs an operation that must not run twice, for at most `limit`.
pub(crate) async fn once<T>(
    limit: Duration,
    operation: &'static str,
    object: &Path,
    attempt: impl Future<Output = Result<T>>,
) -> Result<T> {
    let answer = tokio::time::timeout(limit, attempt).await;
    answer.unwrap_or_else(|_| {
        let text = format!("no answer for {} ms", limit.as_millis());
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

/// The error for a request that showed no sign of life.
pub(crate) fn stalled(policy: RetryPolicy) -> Error {
    let text = format!("no sign of life for {} ms", policy.stall.as_millis());
    Error::Generic {
        store: "Bywash",
        source: text.into(),
    }
}

/// The error for an origin that kept failing.
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
    fn tells_what_may_pass_from_what_will_not() {
        let io = |kind| generic(std::io::Error::from(kind));
        assert!(is_transient(&generic("503 Service Unavailable")));
        assert!(is_transient(&io(std::io::ErrorKind::ConnectionReset)));
        assert!(!is_transient(&io(std::io::ErrorKind::StorageFull)));
        let answered = |status| {
            let url = "http://127.0.0.1/logs/InvalidRange%20416.txt";
            let text = format!(
                "Error performing GET {url} in 1ms - Server returned non-2xx status code: {status}: "
            );
            generic(text)
        };
        assert!(is_transient(&answered("503 Service Unavailable")));
        assert!(is_transient(&answered("429 Too Many Requests")));
        assert!(!is_transient(&answered("400 Bad Request")));
        assert!(!is_transient(&answered("416 Range Not Satisfiable")));
        assert!(is_out_of_range(&answered("416 Range Not Satisfiable")));
        assert!(!is_out_of_range(&answered("503 Service Unavailable")));
        let missing = Error::NotFound {
            path: "a".to_owned(),
            source: "gone".into(),
        };
        assert!(!is_transient(&missing));
        let bad = EngineError::BadAnswer {
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
