//! Storms: threads that do everything a pool can do, at once, over few keys in little memory, beside an oracle that knows what
//! each byte must be. The same storm runs on threads (`cargo test`, Miri, ThreadSanitizer, `cargo xtask soak mem`) and on
//! shuttle's schedules (`--cfg shuttle`).
#![allow(clippy::unwrap_used, reason = "tests")]

mod actor;
mod oracle;
#[cfg(not(shuttle))]
mod runs;
#[cfg(shuttle)]
mod schedules;
mod uploads;

use std::sync::Arc;
// The storm's own counters, not the pool's: no tool needs to see them.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[cfg(shuttle)]
use shuttle::{future::block_on, thread};
#[cfg(not(shuttle))]
use {futures::executor::block_on, std::thread};

use crate::{BlockKey, BlockPool, PoolConfig, Share};
use actor::Actor;

/// One storm's size.
#[derive(Debug, Clone, Copy)]
struct Plan {
    /// Threads that read and load.
    readers: u64,
    /// Threads that take memory for uploads.
    uploaders: u64,
    /// Operations of them all.
    ops: u64,
    keys: u64,
    /// The pool's limit, in pages. Three quarters are the blocks'.
    pages: u64,
    /// The longest block, in bytes; every fifth key's. The others are of one page.
    longest: usize,
    /// Samples that the watching thread takes at most.
    samples: u64,
    seed: u64,
}

/// What is known of one key.
#[derive(Debug, Default)]
struct Known {
    /// Loads begun.
    loads: AtomicU64,
    /// Times its block was made to go, counted before it was.
    erasures: AtomicU64,
}

/// The pool and the truth about it.
struct World {
    plan: Plan,
    pool: Arc<BlockPool>,
    known: Vec<Known>,
    /// Operations done.
    done: AtomicU64,
    /// Blocks whose every byte was compared.
    compared: AtomicU64,
    over: AtomicBool,
}

fn key(object: u64) -> BlockKey {
    BlockKey {
        store: 0,
        object,
        block: 0,
    }
}

impl World {
    fn new(plan: Plan) -> Self {
        Self {
            plan,
            pool: BlockPool::new(PoolConfig::new(plan.pages * crate::MIN_FRAME as u64)).unwrap(),
            known: std::iter::repeat_with(Known::default)
                .take(plan.keys as usize)
                .collect(),
            done: AtomicU64::new(0),
            compared: AtomicU64::new(0),
            over: AtomicBool::new(false),
        }
    }

    fn known(&self, key: BlockKey) -> &Known {
        &self.known[key.object as usize]
    }

    fn len(&self, key: BlockKey) -> usize {
        // Two classes, so that frames of one are given up for the other.
        if key.object.is_multiple_of(5) {
            self.plan.longest
        } else {
            64 + key.object as usize * 3 % 1024
        }
    }

    /// The load that a block's bytes came from; all of them are compared.
    #[track_caller]
    fn verify(&self, key: BlockKey, bytes: &[u8]) -> u64 {
        assert_eq!(bytes.len(), self.len(key), "{key:?} is whole");
        let Some(load) = oracle::read(key, bytes) else {
            panic!(
                "{key:?} holds bytes that are not its own, from {:x?}",
                &bytes[..8]
            );
        };
        let begun = self.known(key).loads.load(Ordering::SeqCst);
        assert!(
            load >= 1 && load <= begun,
            "{key:?} shows load {load} of {begun}"
        );
        self.compared.fetch_add(1, Ordering::Relaxed);
        load
    }

    /// What holds at every moment.
    fn sample(&self) {
        let budget = self.pool.budget();
        let (used, limit) = (budget.used(), budget.limit());
        assert!(used <= limit, "{used} bytes are used of {limit}");
        let (uploads, most) = (budget.held(Share::Upload), limit * 3 / 4);
        assert!(
            uploads <= most,
            "uploads hold {uploads} bytes; blocks are guaranteed all above {most}"
        );
    }

    /// What holds when all is quiet: after erasing every block, nothing is left.
    fn settle(&self) {
        let begun: u64 = self
            .known
            .iter()
            .map(|known| known.loads.load(Ordering::SeqCst))
            .sum();
        assert_eq!(
            self.pool.stats().loads,
            begun,
            "loads the pool knows of, and those the oracle does"
        );
        for object in 0..self.plan.keys {
            self.pool.erase(key(object));
        }
        assert_eq!(self.pool.names(), 0, "keys that lead somewhere");
        let (stats, budget) = (self.pool.stats(), self.pool.budget());
        assert_eq!((stats.resident_blocks, stats.resident_bytes), (0, 0));
        assert_eq!((stats.flights, budget.waiting()), (0, 0));
        let held = [Share::Download, Share::Upload].map(|share| budget.held(share));
        assert_eq!(held, [0, 0], "memory charged to downloads and uploads");
        assert_eq!(budget.used(), budget.idle());
    }
}

/// Says how to repeat a storm that failed.
struct Repeat(Plan);

impl Drop for Repeat {
    fn drop(&mut self) {
        if thread_panics() {
            eprintln!("the storm that failed: {:?}", self.0);
        }
    }
}

fn thread_panics() -> bool {
    std::thread::panicking()
}

/// One storm, from an empty pool to an empty pool. `watch` is called between samples.
fn storm(plan: Plan, mut watch: impl FnMut(&World) + Send) -> World {
    let _repeat = Repeat(plan);
    let world = World::new(plan);
    let each = plan.ops / (plan.readers + plan.uploaders);
    thread::scope(|scope| {
        let world = &world;
        let watching = scope.spawn(move || {
            for _ in 0..plan.samples {
                if world.over.load(Ordering::SeqCst) {
                    break;
                }
                world.sample();
                watch(world);
                thread::yield_now();
            }
        });
        let readers = (0..plan.readers)
            .map(|number| scope.spawn(move || Actor::new(world, number).read(each)));
        let mut threads: Vec<_> = readers.collect();
        threads.extend((0..plan.uploaders).map(|number| {
            let number = plan.readers + number;
            scope.spawn(move || uploads::run(world, number, each))
        }));
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        world.over.store(true, Ordering::SeqCst);
        watching.join().unwrap();
        for outcome in outcomes {
            outcome.unwrap();
        }
    });
    world.settle();
    world
}
