//! Backpressure: a writer that finds no memory or log space waits for a flush (a write stall), at most its write timeout.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use crate::SeriesError;

/// Lets writers wait for a flush to free memory or log.
#[derive(Debug, Default)]
pub(crate) struct Backpressure {
    /// Wakes the worker.
    pub(crate) flush_needed: Notify,
    state: Mutex<BackpressureState>,
    /// A flush ended, with or without success.
    change: Condvar,
}

#[derive(Debug, Default)]
struct BackpressureState {
    /// Number of flushes attempted.
    attempts: u64,
    /// Error of the last flush, if it failed.
    last_error: Option<String>,
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
                    cause: state.last_error.clone(),
                });
            }
        }
        Ok(())
    }

    pub(crate) fn flush_finished(&self, outcome: &Result<(), SeriesError>) {
        let mut state = self.state.lock();
        state.attempts += 1;
        state.last_error = outcome.as_ref().err().map(ToString::to_string);
        self.change.notify_all();
    }
}
