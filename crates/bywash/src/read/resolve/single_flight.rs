//! Single flight: requests in flight for the version of an object, and the reads that may share them.
//!
//! A read may share a request sent after the last write and no earlier than its bucket's window before the read
//! began, or one yet to be sent. Otherwise it sends its own, which later reads share. So several may be in flight for
//! one path: one more for each window that passes while the origin works. However short the window, there are no more
//! than reads in progress and [`MAX_ABANDONED_FLIGHTS`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared as SharedFuture};
use object_store::Error;
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::FlightResult;
use crate::bucket::Shared;
use crate::limits::{MAX_ABANDONED_FLIGHTS, MAX_ABANDONED_MEMORY_DIVISOR};
use crate::versions::RequestStamp;

/// Result of a flight.
#[derive(Debug, Clone)]
pub(super) enum FlightOutcome {
    /// The origin has the object.
    Resolved(Arc<FlightResult>),
    Failed(Arc<Error>),
    /// All readers left before the response came.
    Abandoned,
}

/// Time at which the request of a flight was sent; empty until then.
#[derive(Debug, Clone, Default)]
pub(super) struct SentAt(Arc<OnceLock<Instant>>);

impl SentAt {
    /// Records that the request is sent now, and returns the stamp to record its response with.
    pub(super) fn stamp(&self, bucket: &Shared, path: &Path) -> RequestStamp {
        let stamp = bucket.versions.stamp(path);
        // The time of the first attempt: a retry may return what that one would have.
        self.0.get_or_init(|| stamp.at);
        stamp
    }

    /// Returns whether a request sent at `oldest` or later, or at any time (`None`), can be shared.
    fn is_since(&self, oldest: Option<Instant>) -> bool {
        let sent = self.0.get();
        sent.is_none_or(|sent| oldest.is_none_or(|oldest| *sent >= oldest))
    }
}

/// A request in flight, as its readers see it.
#[derive(Debug, Clone)]
pub(super) struct Flight {
    id: u64,
    sent: SentAt,
    outcome: SharedFuture<BoxFuture<'static, FlightOutcome>>,
    /// Cancelled with the last reader.
    readers: Weak<DropGuard>,
    /// The first reader's reference to `readers`, until it takes it.
    first: Option<Arc<DropGuard>>,
}

/// One reader's reference to a flight.
#[derive(Debug)]
pub(super) struct FlightWaiter {
    flight: Flight,
    /// `None` if all other readers had left.
    _reader: Option<Arc<DropGuard>>,
}

impl FlightWaiter {
    pub(super) async fn outcome(&self) -> FlightOutcome {
        self.flight.outcome.clone().await
    }

    /// Returns whether the request was sent before `began`.
    pub(super) fn sent_before(&self, began: Instant) -> bool {
        !self.flight.sent.is_since(Some(began))
    }
}

/// Bytes held by flights without readers, of all buckets of an engine.
#[derive(Debug, Default)]
pub(crate) struct AbandonedMemory(Mutex<u64>);

/// The share of one flight in [`AbandonedMemory`].
struct AbandonedBytes<'a> {
    memory: &'a AbandonedMemory,
    bytes: u64,
}

impl AbandonedMemory {
    /// Counts `bytes` more until the result is dropped; `None` if the sum would exceed `max`.
    fn try_add(&self, bytes: u64, max: u64) -> Option<AbandonedBytes<'_>> {
        let mut held = self.0.lock();
        let sum = held.checked_add(bytes).filter(|sum| *sum <= max)?;
        *held = sum;
        Some(AbandonedBytes {
            memory: self,
            bytes,
        })
    }
}

impl Drop for AbandonedBytes<'_> {
    fn drop(&mut self) {
        *self.memory.0.lock() -= self.bytes;
    }
}

/// The newest flight of each path.
#[derive(Debug)]
pub(crate) struct SingleFlight {
    by_path: Mutex<HashMap<Path, Flight>>,
    /// Flight ids; only uniqueness matters, hence relaxed.
    next_id: AtomicU64,
    /// Permits of flights without readers.
    abandoned: Semaphore,
}

impl Default for SingleFlight {
    fn default() -> Self {
        Self {
            by_path: Mutex::default(),
            next_id: AtomicU64::default(),
            abandoned: Semaphore::new(MAX_ABANDONED_FLIGHTS),
        }
    }
}

impl SingleFlight {
    /// Ends sharing of the current flight after a write to `path`: reads that begin from now on do not join it.
    pub(crate) fn forget(&self, path: &Path) {
        self.by_path.lock().remove(path);
    }

    /// Joins the flight of a request sent at `oldest` or later, or at any time (`None`); without one, starts `begin`.
    pub(super) fn join(
        &self,
        path: &Path,
        oldest: Option<Instant>,
        begin: impl FnOnce() -> Flight,
    ) -> FlightWaiter {
        let mut by_path = self.by_path.lock();
        let found = by_path.get(path);
        if let Some(flight) = found.filter(|flight| flight.sent.is_since(oldest)) {
            return FlightWaiter {
                _reader: flight.readers.upgrade(),
                flight: flight.clone(),
            };
        }
        let mut flight = begin();
        let reader = flight.first.take();
        by_path.insert(path.clone(), flight.clone());
        FlightWaiter {
            flight,
            _reader: reader,
        }
    }
}

impl Flight {
    /// Returns a flight and the guard of the task that carries it out.
    pub(super) fn new(bucket: &Arc<Shared>, path: &Path) -> (Self, FlightGuard) {
        let (sender, receiver) = oneshot::channel();
        let abandoned = CancellationToken::new();
        let first = Arc::new(abandoned.clone().drop_guard());
        let outcome = receiver.map(|received| {
            received.unwrap_or_else(|_| {
                let source = "the task that stamp the origin ended".into();
                FlightOutcome::Failed(Arc::new(Error::Generic {
                    store: "Bywash",
                    source,
                }))
            })
        });
        let sent = SentAt::default();
        let id = bucket.flights.next_id.fetch_add(1, Relaxed);
        let guard = FlightGuard {
            bucket: Arc::clone(bucket),
            path: path.clone(),
            id,
            sent: sent.clone(),
            abandoned,
            sender: Some(sender),
        };
        let flight = Self {
            id,
            sent,
            outcome: outcome.boxed().shared(),
            readers: Arc::downgrade(&first),
            first: Some(first),
        };
        (flight, guard)
    }
}

/// The task's end of a flight. Removes the flight from the table when dropped, even by a panic.
pub(super) struct FlightGuard {
    bucket: Arc<Shared>,
    path: Path,
    id: u64,
    sent: SentAt,
    /// Cancelled when the last reader left.
    abandoned: CancellationToken,
    sender: Option<oneshot::Sender<FlightOutcome>>,
}

impl FlightGuard {
    pub(super) fn bucket(&self) -> &Arc<Shared> {
        &self.bucket
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn sent(&self) -> SentAt {
        self.sent.clone()
    }

    /// Returns the result of `request`, which holds `bytes` of memory. Returns `None`, and the flight has ended, if
    /// all readers left and enough flights without readers go on already.
    pub(super) async fn unless_abandoned<T>(
        &mut self,
        bytes: u64,
        request: impl Future<Output = T>,
    ) -> Option<T> {
        let mut request = std::pin::pin!(request);
        tokio::select! {
            biased;
            result = &mut request => return Some(result),
            () = self.abandoned.cancelled() => {}
        }
        let bucket = Arc::clone(&self.bucket);
        let engine = &bucket.engine;
        let max = engine.pool.budget().limit() / MAX_ABANDONED_MEMORY_DIVISOR;
        if let Ok(_permit) = bucket.flights.abandoned.try_acquire()
            && let Some(_held) = engine.abandoned.try_add(bytes, max)
        {
            return Some(request.await);
        }
        self.remove();
        // For a reader that joined meanwhile.
        let _ = self
            .sender
            .take()
            .map(|sender| sender.send(FlightOutcome::Abandoned));
        None
    }

    /// Removes the flight from the table; the caller sends its outcome.
    pub(super) fn end(mut self) -> oneshot::Sender<FlightOutcome> {
        self.remove();
        self.sender.take().expect("a flight ends once")
    }

    fn remove(&self) {
        let mut by_path = self.bucket.flights.by_path.lock();
        // A newer flight may have replaced it, after a write or a window.
        if by_path
            .get(&self.path)
            .is_some_and(|flight| flight.id == self.id)
        {
            by_path.remove(&self.path);
            // Shrinks the table after a burst of flights.
            let len = by_path.len();
            if by_path.capacity() > 8 * len + 64 {
                by_path.shrink_to(2 * len + 16);
            }
        }
    }
}

impl Drop for FlightGuard {
    fn drop(&mut self) {
        if self.sender.is_some() {
            self.remove();
        }
    }
}
