//! Memory reserved from the budget for rows and names.

use std::sync::atomic::{AtomicU64, Ordering};

use bywash_mem::{Budget, Reservation, Share};
use parking_lot::Mutex;

/// Bytes reserved from the budget at a time, so that its lock is taken once in some thousand blocks.
const STEP: u64 = 1 << 20;

/// Charges against the budget: reserved in steps, charged by the block.
#[derive(Debug)]
pub(crate) struct MemoryReservation {
    budget: Budget,
    /// Max bytes charged.
    limit: u64,
    step: u64,
    /// Bytes charged.
    used: AtomicU64,
    /// Bytes reserved.
    held: AtomicU64,
    reservations: Mutex<Vec<Reservation>>,
}

impl MemoryReservation {
    pub(crate) fn new(budget: Budget, limit: u64) -> Self {
        Self {
            budget,
            limit,
            step: STEP.min((limit / 16).max(1)),
            used: AtomicU64::new(0),
            held: AtomicU64::new(0),
            reservations: Mutex::new(Vec::new()),
        }
    }

    /// Charges bytes. Returns false, and charges nothing, if the limit or the budget does not allow it.
    pub(crate) fn try_charge(&self, bytes: u64) -> bool {
        // Relaxed: only the count matters.
        let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // Relaxed: as above.
        if used <= self.held.load(Ordering::Relaxed) || self.reserve(used) {
            return true;
        }
        // Relaxed: as above.
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        false
    }

    #[cold]
    fn reserve(&self, used: u64) -> bool {
        if used > self.limit {
            return false;
        }
        let mut reservations = self.reservations.lock();
        // Relaxed: written under the lock.
        let held = self.held.load(Ordering::Relaxed);
        if used <= held {
            return true;
        }
        let missing = (used - held).div_ceil(self.step) * self.step;
        let Some(reservation) = self.budget.try_reserve(Share::Upload, missing) else {
            return false;
        };
        reservations.push(reservation);
        // Relaxed: as above.
        self.held.store(held + missing, Ordering::Relaxed);
        true
    }

    /// Releases charged bytes.
    pub(crate) fn release(&self, bytes: u64) {
        // Relaxed: only the count matters.
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        let mut reservations = self.reservations.lock();
        // Keep one step for concurrent charges.
        // Relaxed: `held` is written under the lock; of `used` only the count matters.
        while let Some(last) = reservations.last()
            && self.used() + self.step + last.bytes() <= self.held.load(Ordering::Relaxed)
        {
            // Relaxed: as above.
            self.held.fetch_sub(last.bytes(), Ordering::Relaxed);
            reservations.pop();
        }
    }

    /// Reserves bytes for a temporary copy, outside of the limit.
    pub(crate) fn reserve_copy(&self, bytes: u64) -> Option<Reservation> {
        self.budget.try_reserve(Share::Upload, bytes)
    }

    /// Bytes charged.
    pub(crate) fn used(&self) -> u64 {
        // Relaxed: only the count matters.
        self.used.load(Ordering::Relaxed)
    }

    /// Max bytes charged.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }
}
