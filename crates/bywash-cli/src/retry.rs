//! Retries of the verbs' requests: how long the engine, which makes them, repeats one.

use std::time::Duration;

use bywash::RetryPolicy;

/// A copy fails after this time without progress. It can be continued later.
pub(crate) const COPY_DEADLINE: Duration = Duration::from_secs(30);
/// A verb that only looks or deletes fails after this time without progress: a person waits.
pub(crate) const SHORT_DEADLINE: Duration = Duration::from_secs(5);
/// Max silence of a request; several fit the deadline of a copy.
const STALL: Duration = Duration::from_secs(10);

/// The engine's retries until `deadline`.
pub(crate) fn policy(deadline: Duration) -> RetryPolicy {
    RetryPolicy {
        deadline,
        stall: STALL,
        ..RetryPolicy::default()
    }
}
