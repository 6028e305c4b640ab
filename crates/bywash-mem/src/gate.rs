//! Generations of writers.
//!
//! Writers enter the current generation and leave it; closing it begins the next, and waits until all who entered have left.
//! Then what they wrote is complete, and nobody writes there any more. Writers of different lanes share no line they write.
//!
//! A count a generation would do, but there are only two: while one drains, all enter the other, and the next is not closed
//! before that one is empty.

use crossbeam_utils::CachePadded;

use crate::sync::{
    AtomicU64, Mutex, Ordering, Step, lane, order, skipped, store_load_fence, yield_now,
};

/// Writers of one lane share a count.
#[cfg(not(any(loom, shuttle)))]
const LANES: usize = 16;
/// Models sum two.
#[cfg(any(loom, shuttle))]
const LANES: usize = 2;

/// Where writers enter generations, which are numbered upwards.
#[derive(Debug)]
pub struct Gate {
    /// The generation to enter. Read by every writer, written by whoever closes one, under `closing`.
    current: CachePadded<AtomicU64>,
    lanes: [CachePadded<Lane>; LANES],
    closing: Mutex<()>,
}

/// Writers inside, of the even and of the odd generation. Written by the lane's writers, read by whoever closes.
#[derive(Debug)]
struct Lane([AtomicU64; 2]);

/// A writer inside a generation; dropping it leaves.
#[derive(Debug)]
#[must_use = "dropping it leaves the generation"]
pub struct Entered<'a> {
    gate: &'a Gate,
    generation: u64,
    lane: usize,
}

impl Gate {
    /// With this generation to enter.
    #[must_use]
    pub fn new(generation: u64) -> Self {
        Self {
            current: CachePadded::new(AtomicU64::new(generation)),
            lanes: std::array::from_fn(|_| {
                CachePadded::new(Lane(std::array::from_fn(|_| AtomicU64::new(0))))
            }),
            closing: Mutex::new(()),
        }
    }

    /// The generation that writers enter now.
    #[must_use]
    pub fn current(&self) -> u64 {
        // Acquire: with `close`.
        self.current.load(Ordering::Acquire)
    }

    /// Enters the current generation. Never waits; tries again if it is closed at this moment.
    #[inline]
    pub fn enter(&self) -> Entered<'_> {
        let lane = lane() % LANES;
        loop {
            let generation = self.current();
            let inside = &self.lanes[lane].0[(generation % 2) as usize];
            // SeqCst: a store, and below a load of another word; `close` has them the other way round. One of the two sees the
            // other.
            inside.fetch_add(1, Ordering::SeqCst);
            store_load_fence(Step::Entry);
            // SeqCst: as above, with `close`.
            if skipped(Step::Entry) || self.current.load(Ordering::SeqCst) == generation {
                return Entered {
                    gate: self,
                    generation,
                    lane,
                };
            }
            // Relaxed: nothing was written inside.
            inside.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Begins the next generation and waits until all have left the one before, whose number is the answer: what they wrote
    /// happened before. Who enters is not delayed. Writers must not wait inside for whoever calls this.
    pub fn close(&self) -> u64 {
        let _alone = self.closing.lock();
        // Relaxed: written under the lock alone.
        let closed = self.current.load(Ordering::Relaxed);
        // SeqCst: a store, and below loads of other words, as in `enter`.
        self.current.store(closed + 1, Ordering::SeqCst);
        store_load_fence(Step::Entry);
        for lane in &self.lanes {
            // SeqCst: with `enter`, as above; and, as an acquire, with `Entered::drop`.
            while lane.0[(closed % 2) as usize].load(Ordering::SeqCst) != 0 {
                yield_now();
            }
        }
        closed
    }
}

impl Entered<'_> {
    /// Its number.
    #[inline]
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        let inside = &self.gate.lanes[self.lane].0[(self.generation % 2) as usize];
        // Release: to `close`, what was written inside.
        inside.fetch_sub(1, order(Step::Exit, Ordering::Release));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn what_is_closed_changes_no_more() {
        const GENERATIONS: u64 = 2000;
        let gate = Gate::new(1);
        let written: Vec<AtomicU64> = (0..GENERATIONS + 2).map(|_| AtomicU64::new(0)).collect();
        let closed: Vec<u64> = std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    while gate.current() <= GENERATIONS {
                        let inside = gate.enter();
                        // Relaxed: the gate orders it.
                        written[inside.generation() as usize].fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let count = |_| {
                let generation = gate.close();
                // Relaxed: the gate orders it.
                written[generation as usize].load(Ordering::Relaxed)
            };
            (0..GENERATIONS).map(count).collect()
        });
        for (closed, written) in closed.iter().zip(&written[1..]) {
            assert_eq!(*closed, written.load(Ordering::Relaxed));
        }
        assert_eq!(gate.current(), GENERATIONS + 1);
    }
}
