//! Keys of the blocks of other nodes' stripes, oldest first, each once. Their memory is charged.
//!
//! The pool evicts blocks of its own accord, so keys of evicted blocks are in the queue as well. A block that is loaded again moves to
//! the end. Keys of the others are forgotten, a few with each new block, once they are more than the blocks in memory.

use std::collections::BTreeMap;

use bywash_mem::{BlockKey, BlockPool, Reservation, Share};
use parking_lot::Mutex;

use crate::block_kind::BlockKind;

/// Keys of evicted blocks that may be in the queue, in addition to as many as there are blocks in memory.
const STALE_KEYS: u64 = 64;
/// Keys looked at with each new block, if there are too many.
const LOOKS: usize = 16;
/// Memory of one key in both maps, with nodes that are half full.
const KEY_MEMORY: u64 = 128;
/// The charge grows by so much.
const CHARGE_STEP: u64 = 4 << 10;

#[derive(Debug, Default)]
struct State {
    /// The keys by their place.
    order: BTreeMap<u64, BlockKey>,
    /// The place of each key.
    places: BTreeMap<BlockKey, u64>,
    /// Place of the next key that is added.
    next: u64,
    /// Place up to which evicted blocks were looked for.
    looked_at: u64,
    charge: Option<Reservation>,
}

impl State {
    fn charged(&self) -> u64 {
        self.charge.as_ref().map_or(0, Reservation::bytes)
    }

    /// Makes a key the newest. Returns whether it is; `false` if its memory is not charged.
    fn push(&mut self, key: BlockKey) -> bool {
        let old = self.places.get(&key).copied();
        if old.is_none() && (self.places.len() as u64 + 1) * KEY_MEMORY > self.charged() {
            return false;
        }
        if let Some(old) = old {
            self.order.remove(&old);
        }
        self.order.insert(self.next, key);
        self.places.insert(key, self.next);
        self.next += 1;
        true
    }

    fn remove(&mut self, place: u64) -> Option<BlockKey> {
        let key = self.order.remove(&place)?;
        self.places.remove(&key);
        let needed = self.places.len() as u64 * KEY_MEMORY;
        if let Some(charge) = &mut self.charge
            && charge.bytes() > 2 * needed + 2 * CHARGE_STEP
        {
            charge.shrink_to(needed + CHARGE_STEP);
        }
        Some(key)
    }
}

/// The queue.
#[derive(Debug, Default)]
pub(super) struct ForeignQueue {
    state: Mutex<State>,
}

impl ForeignQueue {
    /// Makes a key the newest. Without memory for it the key is left out: then the pool alone evicts its block.
    pub(super) fn push(&self, pool: &BlockPool, key: BlockKey) {
        if self.state.lock().push(key) {
            return;
        }
        // Without the lock: it may evict blocks.
        let Some(more) = pool.try_reserve(Share::Download, CHARGE_STEP) else {
            return;
        };
        let mut state = self.state.lock();
        match &mut state.charge {
            Some(charge) => charge.merge(more),
            None => state.charge = Some(more),
        }
        state.push(key);
    }

    /// As [`Self::push`], but a key that is in the queue stays where it is.
    pub(super) fn push_if_absent(&self, pool: &BlockPool, key: BlockKey) {
        let is_absent = !self.state.lock().places.contains_key(&key);
        if is_absent {
            self.push(pool, key);
        }
    }

    /// Removes the oldest key.
    pub(super) fn pop(&self) -> Option<BlockKey> {
        let mut state = self.state.lock();
        let (&place, _) = state.order.first_key_value()?;
        state.remove(place)
    }

    /// Looks at a few keys, and forgets those whose block was evicted or has become an own one, if there are too many. The others stay
    /// where they are.
    ///
    /// It continues where it ended, and begins again after the last key. Most keys are forgotten in one round, which takes far fewer new blocks
    /// than there are keys.
    pub(super) fn forget_others(&self, pool: &BlockPool) {
        let held = pool.tag_stats(BlockKind::Foreign.tag()).used_blocks;
        let mut state = self.state.lock();
        if state.order.len() as u64 <= 2 * held + STALE_KEYS {
            return;
        }
        for _ in 0..LOOKS {
            let found = state.order.range(state.looked_at..).next();
            let Some((&place, &key)) = found else {
                state.looked_at = 0;
                return;
            };
            state.looked_at = place + 1;
            // A block that is published now is added after that.
            if pool
                .peek(key)
                .is_none_or(|pin| !BlockKind::Foreign.is_of(pin.options()))
            {
                state.remove(place);
            }
        }
    }

    /// The keys, oldest first.
    #[cfg(test)]
    pub(super) fn keys(&self) -> Vec<BlockKey> {
        self.state.lock().order.values().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use bywash_mem::PoolConfig;

    use super::*;

    fn key(object: u64) -> BlockKey {
        BlockKey {
            store: 0,
            object,
            block: 0,
        }
    }

    #[test]
    fn memory_of_keys_is_charged_and_keys_beyond_it_are_left_out() {
        let pool = BlockPool::new(PoolConfig::new(1 << 20)).unwrap();
        let queue = ForeignQueue::default();
        let held = || pool.budget().held(Share::Download);
        for object in 0..1000 {
            queue.push(&pool, key(object));
        }
        assert!(held() >= 1000 * KEY_MEMORY);
        while queue.pop() != Some(key(900)) {}
        assert!(held() <= 3 * 99 * KEY_MEMORY + 3 * CHARGE_STEP);
        let rest = queue.keys().len();
        // No memory is left after the charge.
        let mut all = Vec::new();
        while let Some(more) = pool.try_reserve(Share::Download, CHARGE_STEP) {
            all.push(more);
        }
        let full = held();
        for object in 1000..3000 {
            queue.push(&pool, key(object));
        }
        assert_eq!(held(), full);
        let keys = queue.keys();
        assert!(keys.len() > rest && keys.len() < 2000, "{}", keys.len());
        // One that is in the queue needs no more.
        queue.push(&pool, keys[0]);
        assert_eq!(queue.keys().last(), Some(&keys[0]));
        drop(all);
        queue.push(&pool, key(5000));
        assert_eq!(queue.keys().last(), Some(&key(5000)));
    }

    #[test]
    fn key_that_is_in_the_queue_is_not_moved_unless_it_is_the_newest() {
        let pool = BlockPool::new(PoolConfig::new(1 << 20)).unwrap();
        let queue = ForeignQueue::default();
        for object in [1, 2, 3, 1] {
            queue.push(&pool, key(object));
        }
        queue.push_if_absent(&pool, key(2));
        queue.push_if_absent(&pool, key(4));
        assert_eq!(queue.keys(), [2, 3, 1, 4].map(key));
    }
}
