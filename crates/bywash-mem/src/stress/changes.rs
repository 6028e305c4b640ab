//! Operations that change or remove a block (erasure, adoption, resizing) or the pool (readahead, the limit).

use rand::RngExt;

use super::actor::Actor;
use super::{BLOCKS, Ordering};
use crate::{BlockKey, LimitError, Load, OwnedPin, RefusedReason};

impl Actor<'_> {
    pub(super) fn erase(&mut self, key: BlockKey) {
        let begun = self.world.loads(key).load(Ordering::SeqCst);
        let pool = &self.world.pool;
        match self.rng.random_range(0..16) {
            0 => {
                let same = |other: BlockKey| other.store == key.store;
                self.world.erasing(same, || pool.erase_store(key.store));
            }
            1..4 => {
                let same = |other: BlockKey| (other.store, other.object) == (key.store, key.object);
                self.world
                    .erasing(same, || pool.erase_object(key.store, key.object));
            }
            _ => {
                self.world.erasing(|other| other == key, || pool.erase(key));
                let by_name = pool.get(key);
                // Other threads may hold pins of the erased block.
                let in_hand = self.handle(key).and_then(|handle| pool.try_pin(&handle));
                for pin in [by_name, in_hand].into_iter().flatten() {
                    let load = self.world.verify(key, &pin);
                    // Blocks adopted by the second store may be older.
                    assert!(
                        load > begun || key.store != 0,
                        "an erased block is found again"
                    );
                }
            }
        }
    }

    /// Returns a pin of the block after dropping this thread's other ones, and the number of its load.
    fn sole(&mut self, key: BlockKey) -> Option<(OwnedPin, u64)> {
        self.held.retain(|held| held.key != key);
        let pool = &self.world.pool;
        let pin = pool.get(key)?.into_owned();
        let load = self.world.verify(key, &pin);
        Some((pin, load))
    }

    /// Moves a block from the first store to the second.
    pub(super) fn adopt(&mut self, from: BlockKey) {
        let from = BlockKey { store: 0, ..from };
        let to = BlockKey { store: 1, ..from };
        let Some((pin, load)) = self.sole(from) else {
            return;
        };
        let place = pin.as_ptr();
        let adopt = || self.world.pool.adopt(pin, to);
        match self.world.erasing(|other| other == from, adopt) {
            Ok(pin) => {
                assert_eq!((pin.key(), pin.as_ptr()), (to, place), "adopted in place");
                assert_eq!(self.world.verify(to, &pin), load);
                if let Some(other) = self.world.pool.get(from) {
                    let other = self.world.verify(from, &other);
                    assert_ne!(other, load, "one block under two keys");
                }
                self.world.changed.fetch_add(1, Ordering::Relaxed);
            }
            Err(refused) => {
                assert_ne!(refused.reason, RefusedReason::Memory);
                assert_eq!(refused.pin.key(), from);
                assert_eq!(self.world.verify(from, &refused.pin), load);
            }
        }
    }

    /// Truncates a block, or extends it with zeros.
    pub(super) fn resize(&mut self, key: BlockKey) {
        if !self.world.is_resized(key) {
            return;
        }
        let Some((pin, load)) = self.sole(key) else {
            return;
        };
        let before = pin.len();
        let len = self
            .rng
            .random_range(size_of::<u64>()..=self.world.plan.longest);
        match self.world.pool.resize(pin, len) {
            Ok(pin) => {
                assert_eq!((pin.key(), pin.len()), (key, len));
                assert_eq!(self.world.verify(key, &pin), load);
                self.world.changed.fetch_add(1, Ordering::Relaxed);
            }
            Err(refused) => {
                assert_eq!((refused.pin.key(), refused.pin.len()), (key, before));
                assert_eq!(self.world.verify(key, &refused.pin), load);
            }
        }
    }

    /// Reads both blocks of an object ahead, if there is memory for it.
    pub(super) fn readahead(&mut self, key: BlockKey) {
        let wanted = (0..BLOCKS as u32).map(|block| BlockKey { block, ..key });
        let wanted: Vec<_> = wanted.map(|key| (key, self.world.len(key))).collect();
        let runs = self.world.pool.start_readahead(wanted, BLOCKS as usize);
        // Numbered before the first is published, in the order of the claims.
        let number = |load: Load| {
            let loads = self.world.loads(load.key());
            (loads.fetch_add(1, Ordering::SeqCst) + 1, load)
        };
        let loads: Vec<_> = runs.into_iter().flatten().map(number).collect();
        for (number, load) in loads {
            self.fill(load, number);
        }
    }

    /// Moves the limit, one thread at a time.
    pub(super) fn limit(&mut self) {
        let world = self.world;
        let Ok(_limiting) = world.limiting.try_lock() else {
            return;
        };
        let budget = world.pool.budget();
        let before = budget.limit();
        let limit = self.rng.random_range(world.ceiling() / 2..=world.ceiling());
        world.limits.fetch_add(1, Ordering::SeqCst);
        let outcome = world.pool.set_limit(limit);
        world.limits.fetch_add(1, Ordering::SeqCst);
        match outcome {
            Ok(()) => {
                let used = budget.used();
                assert!(
                    used <= limit,
                    "{used} bytes are used of a new limit of {limit}"
                );
                assert_eq!(budget.limit(), limit);
                world.changed.fetch_add(1, Ordering::Relaxed);
            }
            Err(LimitError::Held { held, .. }) => {
                assert!(held > limit && limit < before);
                assert_eq!(budget.limit(), before, "a refused limit changes nothing");
            }
            Err(error) => panic!("{error}"),
        }
    }
}
