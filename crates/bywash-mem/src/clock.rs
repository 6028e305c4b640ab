//! Eviction: a hand that goes round the slots.
//!
//! An unpinned block loses one use each time the hand passes and leaves when it has none, so a block read once goes at the
//! first pass and one read often survives [`MAX_FREQ`] more. No list to keep in order, no node a hit or an unpin.

use crate::pool::BlockPool;
use crate::sync::Ordering;
use crate::word::MAX_FREQ;

impl BlockPool {
    /// Evicts until `bytes` came free, but only blocks that were not used since the hand last passed. Ages none. Answers whether
    /// anything came free.
    pub(crate) fn evict_cold(&self, bytes: u64) -> bool {
        let mut gained = None;
        for slot in 0..self.slab().len() {
            if let Some(freed) = self.evict_slot(slot, self.settled(slot)) {
                let sum = gained.unwrap_or(0) + freed;
                gained = Some(sum);
                if sum >= bytes {
                    break;
                }
            }
        }
        gained.is_some()
    }

    /// Evicts until `bytes` came free or nothing more can be had. Answers whether anything came free.
    ///
    /// Effort: at most `MAX_FREQ + 1` rounds over the slots, fewer once a round saw only pinned blocks. A caller in line may
    /// sleep on a `false`: every slot was looked at by this caller itself, and whatever was pinned then will be unpinned, which
    /// wakes it; whatever resisted for all rounds was pinned during them.
    pub(crate) fn evict(&self, bytes: u64) -> bool {
        let mut gained = 0;
        let mut any = false;
        for _ in 0..=MAX_FREQ {
            let slots = self.slab().len();
            // Relaxed: two hands from the same place age a little faster, no more.
            let start = self.hand.load(Ordering::Relaxed);
            let mut hope = false;
            for step in 0..slots {
                let slot = start.wrapping_add(step) % slots;
                let seen = self.settled(slot);
                if !seen.resident() || seen.pins() != 0 {
                    continue;
                }
                hope = true;
                match self.evict_slot(slot, seen) {
                    Some(freed) => {
                        any = true;
                        gained += freed;
                    }
                    None => self.age(slot, seen),
                }
                if gained >= bytes {
                    // Relaxed: as the load above.
                    self.hand.store((slot + 1) % slots, Ordering::Relaxed);
                    return true;
                }
            }
            if !hope {
                break;
            }
        }
        any
    }
}
