//! What changes a block or takes it out: erasure, adoption, resizing.

use std::sync::Arc;

use rand::RngExt;

use super::Ordering;
use super::actor::Actor;
use crate::{BlockKey, OwnedPin, RefusedReason};

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
                // What the second store adopts may be older.
                if key.store == 0
                    && let Some(pin) = pool.get(key)
                {
                    let load = self.world.verify(key, &pin);
                    assert!(load > begun, "what was erased is found again");
                }
            }
        }
    }

    /// A pin of the block that may be this thread's only one, and the load it is of.
    fn sole(&mut self, key: BlockKey) -> Option<(OwnedPin, u64)> {
        self.held.retain(|held| held.key != key);
        let pool = &self.world.pool;
        let pin = pool.get(key)?.into_owned(Arc::clone(pool));
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

    /// Cuts a block, or continues it with zeros.
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
}
