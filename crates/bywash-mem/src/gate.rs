//! Generations of writers.
//!
//! Writers enter the current generation and leave it. Closing a generation begins the next one, and waits until all writers of the
//! closed one have left. Then everything they wrote is complete, and no thread writes there any more. Writers of different shards
//! write no common cache line.
//!
//! One count a generation would do, but two suffice in all: while one generation drains, writers enter the other, and the next is
//! not closed before the first is empty.

mod gated;

use crossbeam_utils::CachePadded;

use crate::sync::{
    AtomicU64, Mutex, Ordering, Step, order, skipped, store_load_fence, thread_number, yield_now,
};

pub use gated::{Gated, GatedGuard};

/// Number of shards. Writers of one shard share a count.
#[cfg(not(any(loom, shuttle)))]
const SHARDS: usize = 16;
/// Models have two.
#[cfg(any(loom, shuttle))]
const SHARDS: usize = 2;

/// Admits writers to numbered generations.
#[derive(Debug)]
pub struct Gate {
    /// Generation to enter. Read by every writer, written by the closing thread, under `closing`.
    current: CachePadded<AtomicU64>,
    shards: [CachePadded<GateShard>; SHARDS],
    closing: Mutex<()>,
}

/// Writers inside the even and the odd generation. Written by the shard's writers, read by the closing thread.
#[derive(Debug)]
struct GateShard([AtomicU64; 2]);

/// A writer inside a generation. Dropping it leaves.
#[derive(Debug)]
#[must_use = "dropping it leaves the generation"]
pub struct GateGuard<'a> {
    gate: &'a Gate,
    generation: u64,
    shard: usize,
}

impl Gate {
    /// Creates a gate with this generation to enter.
    #[must_use]
    pub fn new(generation: u64) -> Self {
        Self {
            current: CachePadded::new(AtomicU64::new(generation)),
            shards: std::array::from_fn(|_| {
                CachePadded::new(GateShard(std::array::from_fn(|_| AtomicU64::new(0))))
            }),
            closing: Mutex::new(()),
        }
    }

    /// Generation that writers enter now.
    #[must_use]
    pub fn current(&self) -> u64 {
        // Acquire: with `close`.
        self.current.load(Ordering::Acquire)
    }

    /// Enters the current generation. Never waits; retries if the generation is closed at this moment.
    #[inline]
    pub fn enter(&self) -> GateGuard<'_> {
        let shard = thread_number() % SHARDS;
        loop {
            let generation = self.current();
            let inside = &self.shards[shard].0[(generation % 2) as usize];
            // SeqCst: a store, and below a load of another word; `close` has them the other way round. One of the two sees the
            // other's store.
            inside.fetch_add(1, Ordering::SeqCst);
            store_load_fence(Step::Entry);
            // SeqCst: as above, with `close`.
            if skipped(Step::Entry) || self.current.load(Ordering::SeqCst) == generation {
                return GateGuard {
                    gate: self,
                    generation,
                    shard,
                };
            }
            // Relaxed: nothing was written inside.
            inside.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Begins the next generation, waits until all writers have left the previous one, and returns its number. Their writes happen
    /// before the return. Entering writers are not delayed. Writers inside must not wait for the caller.
    pub fn close(&self) -> u64 {
        let _alone = self.closing.lock();
        // Relaxed: written only under the lock.
        let closed = self.current.load(Ordering::Relaxed);
        // SeqCst: a store, and below loads of other words, as in `enter`.
        self.current.store(closed + 1, Ordering::SeqCst);
        store_load_fence(Step::Entry);
        for shard in &self.shards {
            // SeqCst: with `enter`, as above; and, as an acquire, with `GateGuard::drop`.
            while shard.0[(closed % 2) as usize].load(Ordering::SeqCst) != 0 {
                yield_now();
            }
        }
        closed
    }
}

impl GateGuard<'_> {
    /// Number of the generation.
    #[inline]
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

impl Drop for GateGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        let inside = &self.gate.shards[self.shard].0[(self.generation % 2) as usize];
        // Release: the writes made inside, to `close`.
        inside.fetch_sub(1, order(Step::Exit, Ordering::Release));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn closed_generation_is_not_written() {
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
