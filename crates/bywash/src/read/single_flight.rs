//! Single flight: concurrent reads of one path share a request in flight.
//!
//! A read may share a request sent after the last write and no earlier than its bucket's window before the read
//! began, or one yet to be sent. Otherwise it starts its own, which later reads share. So several may be in flight for
//! one path: one more for each window that passes while the origin works. However short the window, there are no more
//! than reads in progress and [`MAX_ABANDONED_FLIGHTS`].

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, OnceLock};

use object_store::Error;
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, broadcast};
use tokio::time::Instant;

use crate::limits::MAX_ABANDONED_FLIGHTS;

/// End of a flight.
#[derive(Debug, Clone)]
pub(super) enum FlightOutcome<T> {
    Resolved(T),
    Failed(Arc<Error>),
    /// All waiters left before the response came.
    Abandoned,
}

/// The newest flight of each path.
#[derive(Debug)]
pub(crate) struct SingleFlight<T> {
    by_path: Mutex<HashMap<Path, Arc<Flight<T>>>>,
    /// Permits of flights without waiters.
    pub(super) abandoned: Semaphore,
}

/// A request in flight.
#[derive(Debug)]
struct Flight<T> {
    sent: SentAt,
    /// Its receivers are the waiters, and are woken in the order in which they began to wait.
    outcome: broadcast::Sender<FlightOutcome<T>>,
}

/// Send time of the first attempt of a flight; empty until then.
#[derive(Debug, Clone, Default)]
struct SentAt(Arc<OnceLock<Instant>>);

impl SentAt {
    /// Returns whether the request was sent at `oldest` or later, or is yet to be sent.
    fn is_since(&self, oldest: Option<Instant>) -> bool {
        let sent = self.0.get().copied();
        sent.is_none_or(|sent| Some(sent) >= oldest)
    }
}

/// One read's reference to a flight. A flight without any is abandoned.
#[derive(Debug)]
pub(super) struct FlightWaiter<T> {
    sent: SentAt,
    outcome: broadcast::Receiver<FlightOutcome<T>>,
}

impl<T: Clone> FlightWaiter<T> {
    fn of(flight: &Flight<T>) -> Self {
        Self {
            sent: flight.sent.clone(),
            outcome: flight.outcome.subscribe(),
        }
    }

    /// Waits for the end of the flight, once. Cancel-safe.
    pub(super) async fn outcome(&mut self) -> FlightOutcome<T> {
        self.outcome.recv().await.unwrap_or_else(|_| {
            let source = "the task that queried the origin ended".into();
            FlightOutcome::Failed(Arc::new(Error::Generic {
                store: "Bywash",
                source,
            }))
        })
    }

    /// Returns whether the request was sent before `began`.
    pub(super) fn sent_before(&self, began: Instant) -> bool {
        !self.sent.is_since(Some(began))
    }
}

impl<T> Default for SingleFlight<T> {
    fn default() -> Self {
        Self {
            by_path: Mutex::default(),
            abandoned: Semaphore::new(MAX_ABANDONED_FLIGHTS),
        }
    }
}

impl<T: Clone> SingleFlight<T> {
    /// Ends sharing of the current flight after a write to `path`: reads that begin from now on do not join it.
    pub(crate) fn forget(&self, path: &Path) {
        self.by_path.lock().remove(path);
    }

    /// Joins the flight of a request sent at `oldest` or later, or at any time (`None`). Without one, starts a flight
    /// and calls `lead` with its guard.
    pub(super) fn join(
        self: &Arc<Self>,
        path: &Path,
        oldest: Option<Instant>,
        lead: impl FnOnce(FlightGuard<T>),
    ) -> FlightWaiter<T> {
        let mut by_path = self.by_path.lock();
        let found = by_path.get(path);
        if let Some(flight) = found.filter(|flight| flight.sent.is_since(oldest)) {
            return FlightWaiter::of(flight);
        }
        let flight = Arc::new(Flight {
            sent: SentAt::default(),
            outcome: broadcast::Sender::new(1),
        });
        by_path.insert(path.clone(), Arc::clone(&flight));
        drop(by_path);
        let waiter = FlightWaiter::of(&flight);
        lead(FlightGuard {
            flights: Arc::clone(self),
            path: path.clone(),
            flight,
        });
        waiter
    }
}

/// The leader's end of a flight. If it is dropped before [`Self::finish`], even by a panic, the flight has failed.
#[derive(Debug)]
pub(super) struct FlightGuard<T> {
    flights: Arc<SingleFlight<T>>,
    path: Path,
    flight: Arc<Flight<T>>,
}

impl<T> FlightGuard<T> {
    /// Records the send time of the first attempt: a retry may return the result of that one.
    pub(super) fn sent(&self, at: Instant) {
        self.flight.sent.0.get_or_init(|| at);
    }

    /// Returns the result of `request`. Once all waiters left, it continues only with a permit, else returns `None`.
    pub(super) async fn unless_abandoned<R, P>(
        &self,
        request: impl Future<Output = R>,
        permit: impl FnOnce() -> Option<P>,
    ) -> Option<R> {
        let mut request = pin!(request);
        tokio::select! {
            biased;
            result = &mut request => return Some(result),
            () = self.flight.outcome.closed() => {}
        }
        let _permit = permit()?;
        Some(request.await)
    }

    /// Removes the flight from the table: reads that begin from now on do not join it.
    pub(super) fn close(&self) {
        let mut by_path = self.flights.by_path.lock();
        // A newer flight may have replaced it, after a write or a window.
        let found = by_path.get(&self.path);
        if found.is_some_and(|found| Arc::ptr_eq(found, &self.flight)) {
            by_path.remove(&self.path);
            // Shrinks the table after a burst of flights.
            let len = by_path.len();
            if by_path.capacity() > 8 * len + 64 {
                by_path.shrink_to(2 * len + 16);
            }
        }
    }

    /// Ends the flight and wakes its waiters.
    pub(super) fn finish(self, outcome: FlightOutcome<T>) {
        self.close();
        // There may be no waiter left.
        let _ = self.flight.outcome.send(outcome);
    }
}

impl<T> Drop for FlightGuard<T> {
    fn drop(&mut self) {
        // Drops the sender too, which ends the wait.
        self.close();
    }
}

#[cfg(test)]
mod tests;
