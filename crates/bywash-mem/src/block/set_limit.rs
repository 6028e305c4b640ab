//! Changing the limit at run time.

use super::cache::BlockCache;
use crate::frames::MIN_FRAME;

/// Attempts to evict while other threads allocate the freed memory. Each round evicts the whole excess, so more than one is needed
/// only against allocations as fast as that.
const ROUNDS: usize = 16;

/// Bytes evicted in one pass, and then decommitted: a pass stays far below the time of a slow one.
const EVICT_STEP: u64 = 64 << 20;

/// The limit was not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// The limit is below one frame or above the ceiling, for which address space is reserved.
    #[error(
        "memory limit of {limit} bytes is not between {min} and the ceiling {ceiling}; choose one that is, or restart with a higher ceiling"
    )]
    OutOfRange {
        /// Requested limit, in bytes.
        limit: u64,
        /// Minimum limit, in bytes.
        min: u64,
        /// Maximum limit, in bytes.
        ceiling: u64,
    },
    /// Pinned blocks, loads, writes and reservations hold more than the limit.
    #[error(
        "memory limit of {limit} bytes is less than the {held} bytes that pinned blocks, loads and writes hold; try again after they are released"
    )]
    Held {
        /// Requested limit, in bytes.
        limit: u64,
        /// Bytes that cannot be evicted.
        held: u64,
    },
}

impl BlockCache {
    /// See [`crate::BlockPool::set_limit`].
    pub(crate) fn set_limit(&self, limit: u64) -> Result<(), LimitError> {
        let allocator = self.allocator();
        let config = allocator.config();
        let (min, ceiling) = (MIN_FRAME as u64, config.ceiling);
        if limit < min || limit > ceiling {
            return Err(LimitError::OutOfRange {
                limit,
                min,
                ceiling,
            });
        }
        // Scaled from the configuration: scaling the limits in force would lose a byte each time.
        let limits = config.with_limit(limit);
        let mut held = 0;
        for _ in 0..ROUNDS {
            allocator.decommit_idle(limit);
            let Err(excess) = allocator.try_set_limits(limits) else {
                // Wake waiters: their request may fit now, or may never fit.
                allocator.wait_queue().wake();
                return Ok(());
            };
            let evictable = self.evictable();
            if evictable < excess {
                held = limit + excess - evictable;
                break;
            }
            held = limit + excess;
            self.evict_in_steps(excess, limit);
        }
        Err(LimitError::Held { limit, held })
    }

    /// Evicts `excess` bytes, and decommits the bytes above `limit`. Threads that allocate during it wait for a step at most.
    fn evict_in_steps(&self, excess: u64, limit: u64) {
        let mut left = excess;
        while left > 0 && self.evict(left.min(EVICT_STEP)) {
            left = left.saturating_sub(EVICT_STEP);
            self.allocator().decommit_idle(limit);
        }
    }

    /// Bytes that evicting all unpinned blocks would free.
    fn evictable(&self) -> u64 {
        (0..self.slab().len())
            .filter_map(|slot| {
                let seen = self.load_unprobed(slot);
                let counters = seen.counters();
                let pinned =
                    seen.pins() > 0 || (counters != 0 && !self.sharded_pins().is_empty(counters));
                if pinned {
                    return None;
                }
                self.pin_untracked(slot).map(|pin| pin.reclaimable())
            })
            .sum()
    }
}
