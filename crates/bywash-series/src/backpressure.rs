//! Backpressure: a writer that finds no memory or log space waits for a flush, or for names to leave (a write stall), at most its
//! write timeout. Also the state of flushes: how many ended, and why they fail.

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
    /// Time since the first failure began.
    pub since: Duration,
    /// Error of the last failure, or the resource that a flush waits for.
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
    /// Number of flushes that ended.
    attempts: u64,
    /// Number of flushes and sweeps that ended.
    ended: u64,
    /// Whether the database is closed: no flush ends any more.
    closed: bool,
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

/// Waits of one batch for memory or log. They take at most the write timeout together.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// Begin of the first one.
    began: Option<Instant>,
    /// Max time of the wait for one new name, which is also refused at once while the store fails. `None`: the write timeout only.
    pub(crate) name_timeout: Option<Duration>,
    /// Begin of the wait for the next new name, and the number of flushes and sweeps that had ended
    /// when the last attempt to make its series began.
    for_name: Option<(Instant, u64)>,
}

impl Waits {
    /// Returns the begin of the first wait, which is now if there was none.
    fn begin(&mut self) -> Instant {
        *self.began.get_or_insert_with(Instant::now)
    }

    /// Ends the wait for a new name: rows are written before the next one.
    pub(crate) fn name_fits(&mut self) {
        self.for_name = None;
    }
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
        waits: &mut Waits,
        write_timeout: Duration,
    ) -> Result<(), SeriesError> {
        let since = waits.begin();
        let mut state = self.state.lock();
        let before = state.attempts;
        self.flush_needed.notify_one();
        let mut timed_out = false;
        while state.attempts == before && !timed_out && !state.closed {
            let woken = self.change.wait_until(&mut state, since + write_timeout);
            timed_out = woken.timed_out();
        }
        if state.closed {
            return Err(SeriesError::Closed);
        }
        // A flush that ended in time counts, however late this thread runs again.
        if state.attempts != before {
            return Ok(());
        }
        Err(SeriesError::WriteStalled {
            stored,
            waited: since.elapsed(),
            cause: state.failure().map(|failure| failure.reason),
        })
    }

    /// Waits until a flush or sweep ends that had not ended before the last attempt to make a new series, which was refused by
    /// `full`. The first call does not wait: the writer has not seen yet which sweep ended last.
    ///
    /// Requests neither: a refused series makes a sweep due, which follows a flush. The number of
    /// ended ones is read before the attempt that was refused, so that a sweep between the two is
    /// not waited for.
    pub(crate) fn wait_for_names(
        &self,
        waits: &mut Waits,
        write_timeout: Duration,
        full: &SeriesError,
    ) -> Result<(), SeriesError> {
        let began = waits.begin();
        let mut state = self.state.lock();
        let Some((since, seen)) = waits.for_name else {
            waits.for_name = Some((Instant::now(), state.ended));
            return Ok(());
        };
        let name_timeout = waits.name_timeout.unwrap_or(write_timeout);
        let deadline = (began + write_timeout).min(since + name_timeout);
        let mut timed_out = false;
        while state.ended == seen && !timed_out && !state.closed {
            // Names leave after a flush only.
            if waits.name_timeout.is_some() && state.failure().is_some() {
                break;
            }
            timed_out = self.change.wait_until(&mut state, deadline).timed_out();
        }
        if state.closed {
            return Err(SeriesError::Closed);
        }
        // As in `wait`.
        if state.ended != seen {
            waits.for_name = Some((since, state.ended));
            return Ok(());
        }
        let failure = state.failure().map(|failure| failure.reason);
        Err(SeriesError::WriteStalled {
            stored: 0,
            waited: began.elapsed(),
            cause: Some(failure.unwrap_or_else(|| full.to_string())),
        })
    }

    /// A sweep of names has ended.
    pub(crate) fn sweep_finished(&self) {
        self.state.lock().ended += 1;
        self.change.notify_all();
    }

    /// Wakes all writers, and refuses later waits: the database is closed.
    ///
    /// A writer that found it open before may begin to wait after this.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
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
    fn writer_that_begins_to_wait_after_the_close_is_refused_at_once() {
        const LIMIT: Duration = Duration::from_secs(1);
        let backpressure = Backpressure::default();
        let full = SeriesError::AnotherWriter;
        let mut waits = Waits::default();
        let first = backpressure.wait_for_names(&mut waits, LIMIT, &full);
        assert!(first.is_ok(), "{first:?}");
        backpressure.close();
        let refused = [
            backpressure.wait(0, &mut Waits::default(), LIMIT),
            backpressure.wait_for_names(&mut waits, LIMIT, &full),
        ];
        for refused in refused {
            assert!(matches!(refused, Err(SeriesError::Closed)), "{refused:?}");
        }
    }

    /// A thread may run late after its wake-up.
    #[test]
    fn sweep_that_ended_counts_also_after_the_time_limit() {
        let backpressure = Backpressure::default();
        let full = SeriesError::AnotherWriter;
        let mut waits = Waits::default();
        for _ in 0..2 {
            let tried = backpressure.wait_for_names(&mut waits, Duration::ZERO, &full);
            assert!(tried.is_ok(), "{tried:?}");
            backpressure.sweep_finished();
        }
        let tried = backpressure.wait_for_names(&mut waits, Duration::ZERO, &full);
        assert!(tried.is_ok(), "{tried:?}");
        let late = backpressure.wait_for_names(&mut waits, Duration::ZERO, &full);
        assert!(
            matches!(late, Err(SeriesError::WriteStalled { .. })),
            "{late:?}"
        );
    }

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
