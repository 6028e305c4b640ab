//! A value that is replaced as a whole, read by writers of a [`Gate`] without a count of references.
//!
//! Writers enter a generation and read the value of that generation, by one load. A replacement is the value of the next
//! generation: it begins when that does, and the one before is dropped once the writers of its generations have left. Two
//! places suffice, as two generations of writers do: while one generation drains, writers enter the other.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use super::{Gate, GateGuard};
use crate::sync::{AtomicPtr, Mutex, Ordering};

/// A [`Gate`] with a value for its writers.
pub struct Gated<T> {
    gate: Gate,
    /// Values of the even and of the odd generation, each from `Arc::into_raw`. A place is written only while no writer is in a
    /// generation of its parity, by the thread that holds `closing`.
    values: [AtomicPtr<T>; 2],
    /// Held to close a generation, so that a replacement knows which one follows.
    closing: Mutex<()>,
    /// Owns two counts of values.
    _values: PhantomData<Arc<T>>,
}

/// A writer inside a generation, with the value of that. Dropping it leaves.
#[must_use = "dropping it leaves the generation"]
pub struct GatedGuard<'a, T> {
    /// Before `inside`, so that the reference ends first.
    value: &'a T,
    inside: GateGuard<'a>,
}

impl<T> Gated<T> {
    /// Creates a gate with this generation to enter, and this value.
    #[must_use]
    pub fn new(generation: u64, value: Arc<T>) -> Self {
        let places = [Arc::clone(&value), value];
        Self {
            gate: Gate::new(generation),
            values: places.map(|value| AtomicPtr::new(Arc::into_raw(value).cast_mut())),
            closing: Mutex::new(()),
            _values: PhantomData,
        }
    }

    /// Generation that writers enter now.
    #[must_use]
    pub fn current(&self) -> u64 {
        self.gate.current()
    }

    /// Returns the oldest generation that may have writers: the one before the current while that is being closed. Does not wait.
    #[must_use]
    pub fn oldest_open(&self) -> u64 {
        // A close holds the lock until the writers of the closed generation have left.
        match self.closing.try_lock() {
            Some(_closing) => self.gate.current(),
            None => self.gate.current().saturating_sub(1),
        }
    }

    /// Enters the current generation, as [`Gate::enter`] does.
    #[inline]
    pub fn enter(&self) -> GatedGuard<'_, T> {
        let inside = self.gate.enter();
        let place = &self.values[(inside.generation() % 2) as usize];
        // Acquire: with `replace`, the value itself. Which value it is follows from the generation: the store to this place came
        // before the generation began, and the next one follows after this writer has left.
        let value = place.load(Ordering::Acquire);
        // SAFETY: from `Arc::into_raw`, and owned by the place until it is written again, which is after `inside` is dropped. The
        // reference lives as long as the guard, which `self` outlives.
        let value = unsafe { &*value };
        GatedGuard { value, inside }
    }

    /// Begins the next generation with the same value, as [`Gate::close`] does.
    pub fn close(&self) -> u64 {
        let _closing = self.closing.lock();
        self.gate.close()
    }

    /// Begins the next generation with another value, and waits until all writers of the previous one have left. Then no writer
    /// has the value before, and `self` holds it no more. Returns the number of the closed generation. Writers inside must not
    /// wait for the caller.
    pub fn close_with(&self, next: Arc<T>) -> u64 {
        let _closing = self.closing.lock();
        let current = self.gate.current();
        let [own, other] = [current, current + 1].map(|generation| (generation % 2) as usize);
        // The generation before has left: `close` waited for it.
        self.replace(other, Arc::clone(&next));
        let closed = self.gate.close();
        debug_assert_eq!(closed, current, "closed under `closing` only");
        self.replace(own, next);
        closed
    }

    /// Replaces the value of a place whose generations have no writers.
    fn replace(&self, place: usize, next: Arc<T>) {
        let next = Arc::into_raw(next).cast_mut();
        // AcqRel: the value, to `enter`; and, from an earlier call of `replace`, the one before, which is dropped below.
        let before = self.values[place].swap(next, Ordering::AcqRel);
        // SAFETY: from `Arc::into_raw`, and nothing else gives up this count; no writer of this place has the reference.
        drop(unsafe { Arc::from_raw(before) });
    }
}

impl<T> Drop for Gated<T> {
    fn drop(&mut self) {
        for place in &self.values {
            // Relaxed: no other thread has `self` any more.
            let value = place.load(Ordering::Relaxed);
            // SAFETY: as in `replace`; guards borrow `self`, so there are none.
            drop(unsafe { Arc::from_raw(value) });
        }
    }
}

impl<T> fmt::Debug for Gated<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gated")
            .field("gate", &self.gate)
            .finish_non_exhaustive()
    }
}

impl<T> GatedGuard<'_, T> {
    /// Number of the generation.
    #[inline]
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.inside.generation()
    }
}

impl<T> Deref for GatedGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> fmt::Debug for GatedGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatedGuard")
            .field("inside", &self.inside)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64};

    use super::*;

    /// Counts its drops, and knows the first and last generation of its writers.
    struct Value<'a> {
        number: u64,
        dropped: &'a AtomicU64,
    }

    impl Drop for Value<'_> {
        fn drop(&mut self) {
            // Relaxed: the gate orders it.
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn writers_have_the_value_of_their_generation_and_others_are_dropped() {
        const ROUNDS: u64 = if cfg!(miri) { 30 } else { 3000 };
        let dropped = AtomicU64::new(0);
        let value = |number| {
            let dropped = &dropped;
            Arc::new(Value { number, dropped })
        };
        let gated = Gated::new(0, value(0));
        // Each third generation has another value.
        let expected = |generation: u64| generation / 3 * 3;
        let done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        let inside = gated.enter();
                        assert_eq!(inside.number, expected(inside.generation()));
                    }
                });
            }
            for closed in 0..ROUNDS {
                let next = closed + 1;
                let was = match next % 3 {
                    0 => gated.close_with(value(next)),
                    _ => gated.close(),
                };
                assert_eq!(was, closed);
                assert_eq!(dropped.load(Ordering::Relaxed), next / 3, "one is left");
            }
            done.store(true, Ordering::Relaxed);
        });
        drop(gated);
        assert_eq!(dropped.load(Ordering::Relaxed), ROUNDS / 3 + 1);
    }

    #[test]
    fn generation_that_is_being_closed_is_the_oldest_open_one() {
        let gated = Gated::new(3, Arc::new(()));
        assert_eq!(gated.oldest_open(), 3);
        let inside = gated.enter();
        std::thread::scope(|threads| {
            threads.spawn(|| gated.close());
            while gated.current() == 3 {
                std::thread::yield_now();
            }
            assert_eq!(gated.oldest_open(), 3);
            drop(inside);
        });
        assert_eq!((gated.current(), gated.oldest_open()), (4, 4));
    }

    #[test]
    fn value_outlives_the_gate_with_another_reference() {
        let value = Arc::new(7);
        let gated = Gated::new(5, Arc::clone(&value));
        assert_eq!(Arc::strong_count(&value), 3);
        let next = Arc::new(8);
        assert_eq!(gated.close_with(Arc::clone(&next)), 5);
        assert_eq!(Arc::strong_count(&value), 1);
        assert_eq!((*gated.enter(), gated.current()), (8, 6));
        drop(gated);
        assert_eq!(Arc::strong_count(&next), 1);
    }
}
