//! Backpressure: a writer that finds no memory or log space waits for a flush, or for names to leave (a write stall), at most its
//! write timeout. And what is known of the flushes that it waits for.

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
    /// A flush ended, with or without success, or a sweep of names did.
    change: Condvar,
}

#[derive(Debug, Default)]
struct FlushState {
    /// Number of flushes attempted.
    attempts: u64,
    /// Number of those, and of sweeps of names.
    ended: u64,
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
            self.change.wait_until(&mut state, since + write_timeout);
            if since.elapsed() >= write_timeout {
                return Err(SeriesError::WriteStalled {
                    stored,
                    waited: since.elapsed(),
                    cause: state.failure().map(|failure| failure.reason),
                });
            }
        }
        Ok(())
    }

    /// Number of flushes and sweeps that have ended.
    pub(crate) fn ended(&self) -> u64 {
        self.state.lock().ended
    }

    /// Waits until another flush or sweep ends than the `seen` ones, after the refusal `full` of a new series. Returns their number.
    ///
    /// Requests neither: a refused series makes a sweep due, which comes after a flush. `seen` is read before the attempt that was
    /// refused, so that a sweep between the two is not waited for.
    pub(crate) fn wait_for_names(
        &self,
        seen: u64,
        (since, write_timeout): (Instant, Duration),
        full: &SeriesError,
    ) -> Result<u64, SeriesError> {
        let mut state = self.state.lock();
        while state.ended == seen && since.elapsed() < write_timeout {
            self.change.wait_until(&mut state, since + write_timeout);
        }
        if since.elapsed() < write_timeout {
            return Ok(state.ended);
        }
        let failure = state.failure().map(|failure| failure.reason);
        Err(SeriesError::WriteStalled {
            stored: 0,
            waited: since.elapsed(),
            cause: Some(failure.unwrap_or_else(|| full.to_string())),
        })
    }

    /// A sweep of names has ended.
    pub(crate) fn sweep_finished(&self) {
        self.state.lock().ended += 1;
        self.change.notify_all();
    }

    /// Wakes all writers: the database is closed.
    pub(crate) fn closed(&self) {
        let mut state = self.state.lock();
        state.attempts += 1;
        state.ended += 1;
        self.change.notify_all();
    }

    pub(crate) fn flush_began(&self) {
        self.state.lock().began = Some(Instant::now());
    }

    pub(crate) fn flush_finished(&self, outcome: &Result<(), SeriesError>) {
        let mut state = self.state.lock();
        state.attempts += 1;
        state.ended += 1;
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
