//! Stress tests: threads run all operations of a pool at once, on few keys in little memory, with an oracle that knows each
//! correct byte. The same test runs on threads (`cargo test`, Miri, ThreadSanitizer, `cargo xtask soak mem`) and on
//! shuttle's schedules (`--cfg shuttle`).
#![allow(clippy::unwrap_used, reason = "tests")]

mod actor;
mod adversarial;
mod changes;
mod oracle;
#[cfg(not(shuttle))]
mod runs;
#[cfg(shuttle)]
mod schedules;
mod shelf;
mod uploads;

use std::sync::{Arc, Mutex};
// The test's own counters, not the pool's: the tools need not instrument them.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[cfg(shuttle)]
use shuttle::{future::block_on, thread};
#[cfg(not(shuttle))]
use {futures::executor::block_on, std::thread};

use crate::{BlockKey, BlockPool, PoolConfig, Share, Tag};
use actor::Actor;
use shelf::Shelf;

/// Blocks are loaded into the first store or the second, and adopted from the first by the second.
const STORES: u64 = 2;
/// Blocks of an object.
const BLOCKS: u64 = 2;

/// Size of one stress test.
#[derive(Debug, Clone, Copy)]
struct Plan {
    /// Threads that read and load.
    readers: u64,
    /// Threads that take memory for uploads.
    uploaders: u64,
    /// Operations of all threads.
    ops: u64,
    /// Objects of each store.
    objects: u64,
    /// The pool's highest limit, in pages; it moves down to half of it. Three quarters are the blocks'.
    pages: u64,
    /// The longest block, in bytes; every fifth object's. The others are of one page.
    longest: usize,
    /// Samples that the watching thread takes at most.
    samples: u64,
    seed: u64,
}

/// The oracle's knowledge of one key.
#[derive(Debug, Default)]
struct Known {
    /// Loads begun of this block, of any store: kept at the first store's key.
    loads: AtomicU64,
    /// Erasures started.
    erase_started: AtomicU64,
    /// Erasures finished.
    left: AtomicU64,
}

/// The pool and the oracle's knowledge of it.
struct StressWorld {
    plan: Plan,
    pool: Arc<BlockPool>,
    known: Vec<Known>,
    shelf: Arc<Shelf>,
    /// Operations begun. All threads draw from them, so that they end together however fast each is.
    begun: AtomicU64,
    /// Number of blocks compared byte by byte.
    compared: AtomicU64,
    /// Blocks that changed their key or their length, and changes of the limit.
    changed: AtomicU64,
    over: AtomicBool,
    /// Held by the thread that changes the limit.
    limiting: Mutex<()>,
    /// Odd while the limit changes, and then 2 higher.
    limits: AtomicU64,
}

impl StressWorld {
    fn new(plan: Plan) -> Self {
        let pool = BlockPool::new(PoolConfig::new(plan.pages * crate::MIN_FRAME as u64)).unwrap();
        let shelf = Arc::new(Shelf::new(plan.pages as usize / 8));
        pool.set_spill(Arc::clone(&shelf) as _);
        Self {
            plan,
            pool,
            known: std::iter::repeat_with(Known::default)
                .take((STORES * plan.objects * BLOCKS) as usize)
                .collect(),
            shelf,
            begun: AtomicU64::new(0),
            compared: AtomicU64::new(0),
            changed: AtomicU64::new(0),
            over: AtomicBool::new(false),
            limiting: Mutex::new(()),
            limits: AtomicU64::new(0),
        }
    }

    /// All keys.
    fn keys(&self) -> impl Iterator<Item = BlockKey> {
        (0..self.known.len() as u64).map(|number| BlockKey {
            store: (number / (self.plan.objects * BLOCKS)) as u32,
            object: number / BLOCKS % self.plan.objects,
            block: (number % BLOCKS) as u32,
        })
    }

    fn number(&self, key: BlockKey) -> usize {
        let objects = u64::from(key.store) * self.plan.objects + key.object;
        (objects * BLOCKS + u64::from(key.block)) as usize
    }

    fn known(&self, key: BlockKey) -> &Known {
        &self.known[self.number(key)]
    }

    /// Loads begun of this block.
    fn loads(&self, key: BlockKey) -> &AtomicU64 {
        &self.known(BlockKey { store: 0, ..key }).loads
    }

    fn erase_started(&self, key: BlockKey) -> u64 {
        self.known(key).erase_started.load(Ordering::SeqCst)
    }

    fn erase_done(&self, key: BlockKey) -> u64 {
        self.known(key).left.load(Ordering::SeqCst)
    }

    /// Runs an erasure and counts it before and after for the keys it affects.
    fn erasing<R>(&self, goes: impl Fn(BlockKey) -> bool, erase: impl FnOnce() -> R) -> R {
        let known = || {
            self.keys()
                .filter(|key| goes(*key))
                .map(|key| self.known(key))
        };
        for known in known() {
            known.erase_started.fetch_add(1, Ordering::SeqCst);
        }
        let result = erase();
        for known in known() {
            known.left.fetch_add(1, Ordering::SeqCst);
        }
        result
    }

    /// Length of a load of the block.
    fn len(&self, key: BlockKey) -> usize {
        // Two size classes, so that frames of one are decommitted for the other.
        if key.object.is_multiple_of(5) {
            self.plan.longest
        } else {
            64 + key.object as usize * 3 % 1024
        }
    }

    /// Whether the test changes this block's length.
    fn is_resized(&self, key: BlockKey) -> bool {
        key.object % 3 == 1
    }

    /// Returns the load that these first bytes of a block came from, if it is one.
    fn load_of(&self, key: BlockKey, bytes: &[u8]) -> Option<u64> {
        if self.is_resized(key) {
            oracle::read_resized(key, bytes)
        } else {
            oracle::read(key, bytes)
        }
    }

    /// Returns the load that a block's bytes came from, after comparing all bytes.
    #[track_caller]
    fn verify(&self, key: BlockKey, bytes: &[u8]) -> u64 {
        if !self.is_resized(key) {
            assert_eq!(bytes.len(), self.len(key), "{key:?} is whole");
        }
        let Some(load) = self.load_of(key, bytes) else {
            let start = &bytes[..bytes.len().min(16)];
            panic!("{key:?} holds bytes of another block, from {start:x?}");
        };
        let begun = self.loads(key).load(Ordering::SeqCst);
        assert!(
            load >= 1 && load <= begun,
            "{key:?} shows load {load} of {begun}"
        );
        self.compared.fetch_add(1, Ordering::Relaxed);
        load
    }

    /// Checks the invariants of every moment.
    fn sample(&self) {
        let budget = self.pool.budget();
        let limits = self.limits.load(Ordering::SeqCst);
        let (used, limit) = (budget.used(), budget.limit());
        let settled = limits.is_multiple_of(2) && limits == self.limits.load(Ordering::SeqCst);
        let limit = if settled { limit } else { self.ceiling() };
        assert!(used <= limit, "{used} bytes are used of {limit}");
        let (uploads, max) = (budget.held(Share::Upload), self.ceiling() * 3 / 4);
        assert!(
            uploads <= max,
            "uploads hold {uploads} bytes; blocks are guaranteed all above {max}"
        );
    }

    fn check_places(&self) {
        let slots = self.pool.cache.resident_slots();
        assert_eq!(
            self.pool.cache.evictor.slots(),
            slots,
            "a place for each block"
        );
        let blocks = (
            self.pool.cache.evictor.len(),
            self.pool.stats().resident_blocks,
        );
        let all = slots.len() as u64;
        assert_eq!(blocks, (all, all), "blocks that are counted");
    }

    /// The highest limit, in bytes.
    fn ceiling(&self) -> u64 {
        self.plan.pages * crate::MIN_FRAME as u64
    }

    /// Whether a thread is to run another operation.
    fn another(&self) -> bool {
        self.begun.fetch_add(1, Ordering::Relaxed) < self.plan.ops
    }

    /// Checks the invariants without operations in progress: the policy has one place a block; after erasing every block,
    /// nothing is left.
    fn check_quiescent(&self) {
        self.check_places();
        for key in self.keys() {
            if let Some(pin) = self.pool.get(key) {
                self.verify(key, &pin);
            }
            self.pool.erase(key);
        }
        self.check_places();
        assert_eq!(self.pool.cache.registered_keys(), 0, "keys in the registry");
        let (stats, budget) = (self.pool.stats(), self.pool.budget());
        assert_eq!((stats.resident_blocks, stats.resident_bytes), (0, 0));
        assert_eq!((stats.flights, budget.waiting()), (0, 0));
        assert_eq!(stats.sharded_blocks, 0);
        let held = [Share::Download, Share::Upload].map(|share| budget.held(share));
        assert_eq!(held, [0, 0], "memory charged to downloads and uploads");
        assert_eq!(budget.used(), budget.idle());
        let mut evicted = 0;
        for number in 0..Tag::COUNT as u8 {
            let tag = self.pool.tag_stats(Tag::new(number).unwrap());
            assert_eq!((tag.used_blocks, tag.used_bytes), (0, 0), "of tag {number}");
            evicted += tag.evicted_blocks;
        }
        assert_eq!(evicted, stats.evictions, "evictions of all tags");
    }
}

/// Prints how to repeat a test that failed.
struct Repeat(Plan);

impl Drop for Repeat {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the stress test that failed: {:?}", self.0);
        }
    }
}

/// Runs one stress test, from an empty pool to an empty pool. `watch` is called between samples.
fn run_stress(plan: Plan, mut watch: impl FnMut(&StressWorld) + Send) -> StressWorld {
    let _repeat = Repeat(plan);
    let world = StressWorld::new(plan);
    thread::scope(|scope| {
        let world = &world;
        let watching = scope.spawn(move || {
            for _ in 0..plan.samples {
                if world.over.load(Ordering::SeqCst) {
                    break;
                }
                world.sample();
                world.shelf.clear(world);
                watch(world);
                thread::yield_now();
            }
            world.shelf.close();
            world.shelf.clear(world);
        });
        let readers =
            (0..plan.readers).map(|number| scope.spawn(move || Actor::new(world, number).read()));
        let mut threads: Vec<_> = readers.collect();
        threads.extend((0..plan.uploaders).map(|number| {
            let number = plan.readers + number;
            scope.spawn(move || uploads::run(world, number))
        }));
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        world.over.store(true, Ordering::SeqCst);
        watching.join().unwrap();
        for outcome in outcomes {
            outcome.unwrap();
        }
    });
    world.check_quiescent();
    world
}
