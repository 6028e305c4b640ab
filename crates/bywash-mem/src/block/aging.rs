//! Eviction by age: blocks nobody has used for a while.
//!
//! A use writes no time: that would cost every hit a look at a clock. A use sets a bit, in the compare-and-swap that counts it
//! anyway, and each call notes for the slots whose bit is set that they were used until now. So an age is exact to the time
//! between two calls.

use std::time::{Duration, Instant};

use crate::pool::BlockPool;

/// What an eviction took out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Blocks.
    pub blocks: u64,
    /// Memory that came free, in bytes: none of a block whose frame followers or the spill hook still hold.
    pub bytes: u64,
}

/// When each slot's block was last known to be in use, by slot. Only as long as the slots there were at the last call.
#[derive(Debug, Default)]
pub(crate) struct LastUses(Vec<Option<Instant>>);

impl BlockPool {
    /// Evicts the blocks that nobody has used for at least so long, pinned ones aside. `now` is the caller's clock. A block's age
    /// counts from the last call that found it used, so call this a few times within `at_least`. Looks at every slot, some
    /// 10 ns each; calls exclude each other.
    pub fn evict_unused(&self, at_least: Duration, now: Instant) -> Evicted {
        let mut evicted = Evicted::default();
        let mut last_uses = self.last_uses.lock();
        let slots = self.slab().len();
        last_uses.0.resize(slots as usize, None);
        for slot in 0..slots {
            let seen = self.settled(slot);
            let last = &mut last_uses.0[slot as usize];
            if !seen.resident() {
                *last = None;
                continue;
            }
            // A block that is new in its slot has the bit set.
            let Some(since) = last.filter(|_| !seen.used() && seen.pins() == 0) else {
                *last = Some(now);
                self.slab().header(slot).word.forget_use(seen);
                continue;
            };
            if now.saturating_duration_since(since) >= at_least
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
