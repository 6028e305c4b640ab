//! Eviction of blocks that were not used for a time.
//!
//! A use writes no time, because reading a clock would slow every hit. It sets a bit, in the compare-and-swap that counts the use
//! anyway. Each call clears the bits that are set and takes its own time for the last use of those slots. So ages are exact to the
//! time between two calls.

use std::time::{Duration, Instant};

use super::cache::BlockCache;

/// Blocks and bytes that an eviction by age removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes that came free. A frame that readers or the spill hook still hold is freed later and not counted.
    pub bytes: u64,
}

/// Time at which each slot's block was last known to be in use, by slot. As long as the slab was at the last call.
#[derive(Debug, Default)]
pub(super) struct LastUses(Vec<Option<Instant>>);

impl BlockCache {
    /// See [`crate::BlockPool::evict_unused`].
    pub(crate) fn evict_unused(&self, min_age: Duration, now: Instant) -> Evicted {
        let mut evicted = Evicted::default();
        let mut last_uses = self.last_uses.lock();
        let slots = self.slab().len();
        last_uses.0.resize(slots as usize, None);
        for slot in 0..slots {
            let seen = self.load_unprobed(slot);
            let last = &mut last_uses.0[slot as usize];
            if !seen.is_resident() {
                *last = None;
                continue;
            }
            // The bit is set for a block that is new in its slot.
            let Some(since) = last.filter(|_| !seen.is_used() && seen.pins() == 0) else {
                *last = Some(now);
                self.slab().header(slot).word.clear_used(seen);
                continue;
            };
            if now.saturating_duration_since(since) >= min_age
                && let Some(bytes) = self.evict_even_if_used(slot, seen)
            {
                *last = None;
                evicted.blocks += 1;
                evicted.bytes += bytes;
            }
        }
        evicted
    }
}
