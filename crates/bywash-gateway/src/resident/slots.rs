//! A direct-mapped cache: a fixed number of slots, and the newest value of each. No call scans or evicts anything else.

use std::sync::Arc;

use parking_lot::RwLock;

/// Values by a number. The caller checks that a value is the one it wants: several numbers share a slot.
#[derive(Debug)]
pub(crate) struct Slots<T>(Box<[RwLock<Option<Arc<T>>>]>);

impl<T> Slots<T> {
    pub(crate) fn new(count: usize) -> Self {
        Self((0..count).map(|_| RwLock::new(None)).collect())
    }

    fn slot(&self, number: u64) -> Option<&RwLock<Option<Arc<T>>>> {
        let count = self.0.len() as u64;
        // Numbers in use may all be even, so their bits are mixed (Fibonacci hashing).
        let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        self.0.get(mixed.checked_rem(count)? as usize)
    }

    /// The value in the slot of `number`.
    pub(crate) fn get(&self, number: u64) -> Option<Arc<T>> {
        self.slot(number)?.read().clone()
    }

    /// Replaces the value in the slot of `number`.
    pub(crate) fn put(&self, number: u64, value: Arc<T>) {
        let replaced = self
            .slot(number)
            .and_then(|slot| slot.write().replace(value));
        // Freed after the lock.
        drop(replaced);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_value_of_a_slot_stays() {
        let slots = Slots::new(1);
        assert!(slots.get(1).is_none());
        for value in ["a", "b"] {
            slots.put(1, Arc::new(value));
        }
        assert_eq!(slots.get(2).as_deref(), Some(&"b"));
    }

    #[test]
    fn even_numbers_use_most_slots() {
        let slots = Slots::new(64);
        for number in 0..64 {
            slots.put(2 * number, Arc::new(number));
        }
        let is_kept = |number: &u64| slots.get(2 * number).as_deref() == Some(number);
        assert!((0..64).filter(is_kept).count() > 32);
    }

    #[test]
    fn cache_without_slots_keeps_nothing() {
        let slots = Slots::new(0);
        slots.put(1, Arc::new("a"));
        assert!(slots.get(1).is_none());
    }
}
