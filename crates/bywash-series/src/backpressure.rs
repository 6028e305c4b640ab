//! Backpressure: a writer that finds no memory or log space waits for a flush (a write stall), at most its write timeout.
//! And what is known of the flushes that it waits for.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use crate::SeriesError;

/// Time after which a flush in progress counts as a failure of the store: longer than the largest file takes on a slow line.
const SLOW_FLUSH: Duration = Duration::from_secs(60);

/// Why rows stay in memory and log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreFailure {
    /// Flushes that failed, one after the other; 0 while the first one waits.
    pub failures: u64,
    /// Time since the first of them began.
    pub since: Duration,
    /// Error of the last one, or what it waits for.
    pub reason: String,
}

/// Lets writers wait for a flush to free memory or log.
#[derive(Debug, Default)]
pub(crate) struct Backpressure {
    /// Wakes the worker.
    pub(crate) flush_needed: Notify,
    state: Mutex<FlushState>,
    /// A flush ended, with or without success.
    change: Condvar,
}

#[derive(Debug, Default)]
struct FlushState {
    /// Number of flushes attempted.
    attempts: u64,
    /// Begin of the flush in progress.
    began: Option<Instant>,
    /// The flushes that failed since the last success.
    failed: Option<Failed>,
}

#[derive(Debug)]
struct Failed {
    count: u64,
    first_began: Instant,
    error: String,
}

impl FlushState {
    fn failure(&self) -> Option<StoreFailure> {
        if let Some(failed) = &self.failed {
            return Some(StoreFailure {
                failures: failed.count,
                since: failed.first_began.elapsed(),
                reason: failed.error.clone(),
            });
        }
        let since = self.began?.elapsed();
        (since >= SLOW_FLUSH).then(|| StoreFailure {
            failures: 0,
            since,
            reason: "a flush waits for the series store".to_owned(),
        })
    }
}

impl Backpressure {
    /// Requests a flush and waits until one ends, with or without success.
    pub(crate) fn wait(
        &self,
        stored: usize,
        since: Instant,
        write_timeout: Duration,
    ) -> Result<(), SeriesError> {
        let mut state = self.state.lock();
        let before = state.attempts;
        self.flush_needed.notify_one();
        while state.attempts == before {
            let timed_out = self
                .change
                .wait_until(&mut state, since + write_timeout)
                .timed_out();
            if timed_out && state.attempts == before || since.elapsed() >= write_timeout {
                return Err(SeriesError::WriteStalled {
                    stored,
                    waited: since.elapsed(),
                    cause: state.failure().map(|failure| failure.reason),
                });
            }
        }
        Ok(())
    }

    pub(crate) fn flush_began(&self) {
        self.state.lock().began = Some(Instant::now());
    }

    pub(crate) fn flush_finished(&self, outcome: &Result<(), SeriesError>) {
        let mut state = self.state.lock();
        state.attempts += 1;
        let began = state.began.take();
        state.failed = outcome.as_ref().err().map(|error| {
            let before = state.failed.take();
            let first_began = before.as_ref().map(|before| before.first_began);
            Failed {
                count: before.map_or(0, |before| before.count) + 1,
                first_began: first_began.or(began).unwrap_or_else(Instant::now),
                error: error.with_causes(),
            }
        });
        self.change.notify_all();
    }

    pub(crate) fn store_failure(&self) -> Option<StoreFailure> {
        self.state.lock().failure()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flush_counts_as_a_failure_when_it_fails_or_takes_long() {
        let backpressure = Backpressure::default();
        backpressure.flush_began();
        assert_eq!(backpressure.store_failure(), None);
        let Some(long_ago) = Instant::now().checked_sub(SLOW_FLUSH) else {
            return;
        };
        backpressure.state.lock().began = Some(long_ago);
        let slow = backpressure.store_failure().expect("it takes long");
        assert_eq!(slow.failures, 0);
        assert!(slow.reason.contains("waits"), "{slow:?}");
        for failures in 1..3 {
            backpressure.flush_finished(&Err(SeriesError::AnotherWriter));
            let failed = backpressure.store_failure().expect("it failed");
            assert_eq!(failed.failures, failures);
            assert!(failed.since >= SLOW_FLUSH, "since the first began");
            backpressure.flush_began();
        }
        backpressure.flush_finished(&Ok(()));
        assert_eq!(backpressure.store_failure(), None);
    }
}
