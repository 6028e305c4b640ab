//! What the head has taken from the budget.

use std::sync::atomic::{AtomicU64, Ordering};

use bywash_mem::{Budget, Reservation, Share};
use parking_lot::Mutex;

/// Taken from the budget at a time, so that its lock is met once in some thousand blocks.
const STEP: u64 = 1 << 20;

/// An account below the budget: reserved in steps, spent by the block.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Budget,
    /// The most that may be spent.
    limit: u64,
    step: u64,
    /// Spent.
    used: AtomicU64,
    /// Reserved.
    held: AtomicU64,
    reservations: Mutex<Vec<Reservation>>,
}

impl Charge {
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

    /// Spends so many bytes. False, and nothing is spent, if there is no room.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        // Relaxed: the count alone matters.
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

    /// Gives so many bytes back that were spent.
    pub(crate) fn give(&self, bytes: u64) {
        // Relaxed: the count alone matters.
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        let mut reservations = self.reservations.lock();
        // A step stays in hand for those who spend meanwhile.
        // Relaxed: `held` is written under the lock; of `used` the count alone matters.
        while let Some(last) = reservations.last()
            && self.used() + self.step + last.bytes() <= self.held.load(Ordering::Relaxed)
        {
            // Relaxed: as above.
            self.held.fetch_sub(last.bytes(), Ordering::Relaxed);
            reservations.pop();
        }
    }

    /// Takes so many bytes from the budget beside the account, for as long as the answer lives.
    pub(crate) fn reserve_copy(&self, bytes: u64) -> Option<Reservation> {
        self.budget.try_reserve(Share::Upload, bytes)
    }

    /// Bytes spent.
    pub(crate) fn used(&self) -> u64 {
        // Relaxed: the count alone matters.
        self.used.load(Ordering::Relaxed)
    }

    /// The most that may be spent.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }
}
