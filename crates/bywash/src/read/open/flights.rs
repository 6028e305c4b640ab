//! Requests in flight for the version of an object, and which reads may wait for them.
//!
//! A read may join a request that was sent after the last write and no earlier than its bucket's window before the read began, or
//! that is yet to be sent; otherwise it sends its own, which later reads join. Several may thus be in flight for one path: one
//! more for each window that passes while the origin works, and, however short the window, no more than reads in progress and
//! [`MAX_ABANDONED_OPENS`].

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

use super::Opened;
use crate::bucket::Shared;
use crate::limits::{MAX_ABANDONED_MEMORY_DIVISOR, MAX_ABANDONED_OPENS};
use crate::versions::Asked;

/// How a flight ended.
#[derive(Debug, Clone)]
pub(super) enum Outcome {
    /// The origin has the object.
    Opened(Arc<Opened>),
    Failed(Arc<Error>),
    /// All readers had left before the response came.
    Abandoned,
}

/// When the request of a flight was sent, once it was.
#[derive(Debug, Clone, Default)]
pub(super) struct Sent(Arc<OnceLock<Instant>>);

impl Sent {
    /// Notes that the request is sent now.
    pub(super) fn asking(&self, bucket: &Shared, path: &Path) -> Asked {
        let asked = bucket.versions.asking(path);
        // The first attempt counts: a retry may find what that one would have.
        self.0.get_or_init(|| asked.at);
        asked
    }

    /// Whether a request sent at `oldest` or later, or at any time (`None`), can be joined.
    fn is_since(&self, oldest: Option<Instant>) -> bool {
        let sent = self.0.get();
        sent.is_none_or(|sent| oldest.is_none_or(|oldest| *sent >= oldest))
    }
}

/// A request in flight, as its readers see it.
#[derive(Debug, Clone)]
pub(super) struct Flight {
    id: u64,
    sent: Sent,
    outcome: SharedFuture<BoxFuture<'static, Outcome>>,
    /// Cancelled with the last reader.
    readers: Weak<DropGuard>,
    /// The first reader's part in `readers`, until it takes it.
    first: Option<Arc<DropGuard>>,
}

/// A reader's part in a flight.
#[derive(Debug)]
pub(super) struct Joined {
    flight: Flight,
    /// `None` if all other readers had left.
    _reader: Option<Arc<DropGuard>>,
}

impl Joined {
    pub(super) async fn outcome(&self) -> Outcome {
        self.flight.outcome.clone().await
    }

    /// Whether the request was sent before `began`.
    pub(super) fn sent_before(&self, began: Instant) -> bool {
        !self.flight.sent.is_since(Some(began))
    }
}

/// Bytes held by flights that go on without readers, of all buckets of an engine.
#[derive(Debug, Default)]
pub(crate) struct AbandonedMemory(Mutex<u64>);

/// The part of one flight in [`AbandonedMemory`].
struct AbandonedBytes<'a> {
    memory: &'a AbandonedMemory,
    bytes: u64,
}

impl AbandonedMemory {
    /// Counts `bytes` more until the result is dropped; `None` if all would be more than `max`.
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

/// The newest flight of each path that has any.
#[derive(Debug)]
pub(crate) struct Opens {
    by_path: Mutex<HashMap<Path, Flight>>,
    /// Numbers flights; only uniqueness matters, hence relaxed.
    next_id: AtomicU64,
    /// Permits of flights that go on without readers.
    abandoned: Semaphore,
}

impl Default for Opens {
    fn default() -> Self {
        Self {
            by_path: Mutex::default(),
            next_id: AtomicU64::default(),
            abandoned: Semaphore::new(MAX_ABANDONED_OPENS),
        }
    }
}

impl Opens {
    /// A write to `path` ended: reads that begin from now on do not join a request sent before it.
    pub(crate) fn forget(&self, path: &Path) {
        self.by_path.lock().remove(path);
    }

    /// Joins the flight of a request sent at `oldest` or later, or at any time (`None`); without one, that which `begin` begins.
    pub(super) fn join(
        &self,
        path: &Path,
        oldest: Option<Instant>,
        begin: impl FnOnce() -> Flight,
    ) -> Joined {
        let mut by_path = self.by_path.lock();
        let found = by_path.get(path);
        if let Some(flight) = found.filter(|flight| flight.sent.is_since(oldest)) {
            return Joined {
                _reader: flight.readers.upgrade(),
                flight: flight.clone(),
            };
        }
        let mut flight = begin();
        let reader = flight.first.take();
        by_path.insert(path.clone(), flight.clone());
        Joined {
            flight,
            _reader: reader,
        }
    }
}

impl Flight {
    /// A flight, and the part of the task that is to carry it.
    pub(super) fn new(bucket: &Arc<Shared>, path: &Path) -> (Self, Landing) {
        let (tell, told) = oneshot::channel();
        let abandoned = CancellationToken::new();
        let first = Arc::new(abandoned.clone().drop_guard());
        let outcome = told.map(|told| {
            told.unwrap_or_else(|_| {
                let source = "the task that asked the origin ended".into();
                Outcome::Failed(Arc::new(Error::Generic {
                    store: "Bywash",
                    source,
                }))
            })
        });
        let sent = Sent::default();
        let id = bucket.opens.next_id.fetch_add(1, Relaxed);
        let landing = Landing {
            bucket: Arc::clone(bucket),
            path: path.clone(),
            id,
            sent: sent.clone(),
            abandoned,
            tell: Some(tell),
        };
        let flight = Self {
            id,
            sent,
            outcome: outcome.boxed().shared(),
            readers: Arc::downgrade(&first),
            first: Some(first),
        };
        (flight, landing)
    }
}

/// The task's part in a flight. Takes the flight out of the table when it ends, even by a panic.
pub(super) struct Landing {
    bucket: Arc<Shared>,
    path: Path,
    id: u64,
    sent: Sent,
    /// Cancelled when the last reader left.
    abandoned: CancellationToken,
    tell: Option<oneshot::Sender<Outcome>>,
}

impl Landing {
    pub(super) fn bucket(&self) -> &Arc<Shared> {
        &self.bucket
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn sent(&self) -> Sent {
        self.sent.clone()
    }

    /// Returns what `asking` comes to, which holds `bytes` of memory; `None`, and the flight has ended, if all readers left before
    /// and enough flights go on without readers already.
    pub(super) async fn unless_abandoned<T>(
        &mut self,
        bytes: u64,
        asking: impl Future<Output = T>,
    ) -> Option<T> {
        let mut asking = std::pin::pin!(asking);
        tokio::select! {
            biased;
            answer = &mut asking => return Some(answer),
            () = self.abandoned.cancelled() => {}
        }
        let bucket = Arc::clone(&self.bucket);
        let engine = &bucket.engine;
        let max = engine.pool.budget().limit() / MAX_ABANDONED_MEMORY_DIVISOR;
        if let Ok(_going_on) = bucket.opens.abandoned.try_acquire()
            && let Some(_held) = engine.abandoned.try_add(bytes, max)
        {
            return Some(asking.await);
        }
        self.take_out();
        // Of a reader that joined meanwhile.
        let _ = self.tell.take().map(|tell| tell.send(Outcome::Abandoned));
        None
    }

    /// Takes the flight out of the table; its outcome is still to be sent.
    pub(super) fn end(mut self) -> oneshot::Sender<Outcome> {
        self.take_out();
        self.tell.take().expect("a flight ends once")
    }

    fn take_out(&self) {
        let mut opens = self.bucket.opens.by_path.lock();
        // A newer flight may be there, after a write or a window.
        if opens
            .get(&self.path)
            .is_some_and(|flight| flight.id == self.id)
        {
            opens.remove(&self.path);
            // As far as requests in flight come and go, the table does.
            let len = opens.len();
            if opens.capacity() > 8 * len + 64 {
                opens.shrink_to(2 * len + 16);
            }
        }
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if self.tell.is_some() {
            self.take_out();
        }
    }
}
