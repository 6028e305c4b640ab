//! Counters of the local door.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bywash::LocalStats;

/// The counters behind [`LocalStats`]. Added to by connections, read by snapshots; they order nothing, hence relaxed.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) clients: AtomicU64,
    pub(crate) leases: AtomicU64,
    pub(crate) shared_bytes: AtomicU64,
    pub(crate) copied_bytes: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) rejected: AtomicU64,
}

impl Counters {
    pub(crate) fn snapshot(&self) -> LocalStats {
        LocalStats {
            clients: self.clients.load(Relaxed),
            leases: self.leases.load(Relaxed),
            shared_bytes: self.shared_bytes.load(Relaxed),
            copied_bytes: self.copied_bytes.load(Relaxed),
            refused: self.refused.load(Relaxed),
            requests: self.requests.load(Relaxed),
            failures: self.failures.load(Relaxed),
            rejected: self.rejected.load(Relaxed),
            ..LocalStats::default()
        }
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Relaxed);
}

/// Subtracts from a gauge.
pub(crate) fn subtract(counter: &AtomicU64, amount: u64) {
    counter.fetch_sub(amount, Relaxed);
}
