//! Leases of one connection. They end with a release, or when the client closes the connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use bywash::{Lease, Reservation};
use parking_lot::Mutex;

use crate::limits::MAX_CONNECTION_LEASES;
use crate::stats::{Counters, add, subtract};

/// A lease that a client holds, and the memory of its bookkeeping.
#[derive(Debug)]
struct HeldLease {
    _lease: Lease,
    _charge: Reservation,
    since: Instant,
}

/// Leases of one connection by their number, which increases: the first is the oldest. Locked by the connection's task for a moment,
/// and by snapshots of the statistics.
#[derive(Debug)]
pub(crate) struct Leases {
    held: Mutex<BTreeMap<u32, HeldLease>>,
    counters: Arc<Counters>,
    /// Whether the server is ending. Set once by its end, read by the drop of each connection; the end waits for all connections, so
    /// relaxed orders suffice.
    ending: Arc<AtomicBool>,
}

impl Leases {
    pub(crate) fn new(counters: &Arc<Counters>, ending: &Arc<AtomicBool>) -> Arc<Self> {
        Arc::new(Self {
            held: Mutex::default(),
            counters: Arc::clone(counters),
            ending: Arc::clone(ending),
        })
    }

    /// Whether the connection may have another lease.
    pub(crate) fn has_room(&self) -> bool {
        self.held.lock().len() < MAX_CONNECTION_LEASES
    }

    /// Holds a lease under `number`. A number that is held already ends the lease before: numbers come round after four billion.
    pub(crate) fn hold(&self, number: u32, lease: Lease, charge: Reservation) {
        add(&self.counters.leases, 1);
        let held = HeldLease {
            _lease: lease,
            _charge: charge,
            since: Instant::now(),
        };
        let before = self.held.lock().insert(number, held);
        self.end(before);
    }

    /// Ends leases. Unknown numbers are ignored: a lease may have ended with an error that the client did not wait for.
    pub(crate) fn release(&self, numbers: &[u32]) {
        for number in numbers {
            let next = number.wrapping_add(u32::from(planted!("local-lease-of-another-released")));
            let ended = self.held.lock().remove(&next);
            self.end(ended);
        }
    }

    /// Unpins outside of the lock.
    fn end(&self, ended: Option<HeldLease>) {
        if let Some(ended) = ended {
            drop(ended);
            subtract(&self.counters.leases, 1);
        }
    }

    /// Time of the oldest lease.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        let held = self.held.lock();
        held.first_key_value().map(|(_, lease)| lease.since)
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        let held = std::mem::take(self.held.get_mut());
        if self.ending.load(Relaxed) || planted!("local-leases-outlive-their-client") {
            // The client did not close the connection, so its views continue: the blocks stay as
            // they are until the process has ended.
            std::mem::forget(held);
            return;
        }
        for (_, ended) in held {
            self.end(Some(ended));
        }
    }
}
