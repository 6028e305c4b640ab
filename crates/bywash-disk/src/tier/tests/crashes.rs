//! Crashes, and disks that tear, lose, fill and fail, drawn by a seed. Of a disk tier's 20 hardest cases: 1 (a kill at each step),
//! 5 (a lost write), 6 (no space at each call), 7 (an I/O error at each call), 12 (the clock), 15 (sizes).
//! `BYWASH_SEED=N` repeats one run.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use bywash_support::proof::{Proof, Trial, class};
use rustix::io::Errno;

use super::*;
use crate::health::TierState;
use crate::memory_storage::{Fault, Operation};

const SEEDS: Range<u64> = 0..400;

const ERASURE: &str = "erasure";
const RESIZE: &str = "resize";
const TEAR: &str = "torn write, then a kill";
const CLOSE: &str = "close before the kill";
const FILL: &str = "disk filled by another program";

fn proof(name: &'static str, test: &'static str, seeds: Range<u64>, classes: &[&str]) -> Proof {
    let classes = [classes, &[ERASURE, RESIZE]].concat();
    Proof::new(name, test, seeds, &classes)
}

/// A tier with the expected state of its blocks, across its restarts.
struct World {
    rng: StdRng,
    storage: Arc<MemoryStorage>,
    time: Arc<AtomicU64>,
    tier: Tier,
    segments: u32,
    next: u32,
    /// Blocks that were written, newest last.
    written: Vec<(u32, u32)>,
    /// Blocks that were erased, and later ones were written.
    erased: HashSet<(u32, u32)>,
    steps: u64,
    erasures: u64,
    resizes: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let (storage, time) = (Arc::default(), Arc::default());
        Self {
            rng: StdRng::seed_from_u64(seed),
            tier: open_at(&storage, 4, &time),
            storage,
            time,
            segments: 4,
            next: 0,
            written: Vec::new(),
            erased: HashSet::new(),
            steps: 0,
            erasures: 0,
            resizes: 0,
        }
    }

    /// Counts the steps of a seed, and its erasures and changes of the size.
    fn count(&self, trial: &mut Trial<'_>) {
        trial.operations(self.steps);
        trial.fault(ERASURE, self.erasures);
        trial.fault(RESIZE, self.resizes);
    }

    /// Writes some blocks; returns whether that succeeded.
    fn write(&mut self) -> bool {
        let blocks: Vec<_> = (0..self.rng.random_range(1..5))
            .map(|_| {
                self.next += 1;
                (self.rng.random_range(0..6), self.next)
            })
            .collect();
        let written = write(&self.tier, &blocks).is_ok();
        if written {
            self.written.extend(blocks);
        }
        written
    }

    /// Reads a block that was written lately, so that it is written again.
    fn read(&mut self) {
        let lately = self.written.len().min(30);
        if lately > 0 {
            let back = self.rng.random_range(1..=lately);
            let (object, number) = self.written[self.written.len() - back];
            check(&self.tier, object, number);
        }
    }

    /// Erases a version, and makes that last by a write. Returns whether it did.
    fn erase(&mut self) -> bool {
        let object = self.rng.random_range(0..6);
        self.tier.erase(VersionKey::of(&record(object)));
        self.erasures += 1;
        let before: Vec<_> = self.written.clone();
        let lasts = self.tier.write(&[]).is_ok();
        if lasts {
            self.erased
                .extend(before.into_iter().filter(|block| block.0 == object));
        }
        lasts
    }

    fn resize(&mut self) {
        self.segments = self.rng.random_range(2..7);
        self.resizes += 1;
        let size = size_of(self.segments as usize, u64::from(SEGMENT));
        self.tier.resize(size).unwrap();
    }

    /// One step of a server's life.
    fn step(&mut self) -> bool {
        self.steps += 1;
        match self.rng.random_range(0..40) {
            0 => self.erase(),
            1 => {
                self.resize();
                true
            }
            2..15 => {
                self.read();
                true
            }
            _ => self.write(),
        }
    }

    /// Returns the blocks that are found, and checks their bytes.
    fn found(&self) -> HashSet<(u32, u32)> {
        let blocks = self.written.iter().copied();
        blocks
            .filter(|&(object, number)| check(&self.tier, object, number))
            .collect()
    }

    fn restart(&mut self) {
        // The clock of a process begins at any time.
        self.time
            .store(self.rng.random_range(0..1 << 40), Ordering::Relaxed);
        self.tier = open_at(&self.storage, self.segments, &self.time);
    }

    fn check_size(&self) {
        let limit = u64::from(self.segments * SEGMENT);
        assert!(self.storage.allocated() <= limit);
    }

    fn advance(&self, milliseconds: u64) {
        self.time.fetch_add(milliseconds, Ordering::Relaxed);
    }
}

/// After any write, with any of its pages on the disk: found blocks are right, and blocks that were
/// found before are found.
#[test]
fn kill_at_any_step_loses_at_most_what_was_being_written() {
    let repeat = "cargo test -p bywash-disk --lib kill_at_any_step";
    let proof = proof("disk-crashes", repeat, SEEDS, &[TEAR, CLOSE]);
    while let Some(mut trial) = proof.next() {
        let seed = trial.seed();
        let mut world = World::new(seed);
        for _ in 0..3 {
            let writes = world.rng.random_range(0..40);
            world.storage.tear_after(writes, seed);
            trial.fault(TEAR, 1);
            while world.step() && world.tier.state().state == TierState::On {}
            let before = world.found();
            if world.rng.random() {
                trial.fault(CLOSE, 1);
                world.storage.heal();
                // An error means that the segment was lost to the torn write.
                let _ = world.tier.close();
            }
            world.storage.heal();
            world.restart();
            world.check_size();
            let after = world.found();
            let lost: Vec<_> = before.difference(&after).collect();
            assert!(lost.is_empty(), "seed {seed}: lost {lost:?}");
            let back: Vec<_> = world.erased.intersection(&after).collect();
            assert!(back.is_empty(), "seed {seed}: {back:?} were erased");
        }
        world.count(&mut trial);
    }
}

#[test]
fn lost_write_is_a_miss() {
    let mut mismatches = 0;
    for seed in SEEDS {
        let mut world = World::new(seed);
        let writes = world.rng.random_range(0..40);
        world.storage.lose_after(writes);
        // The same blocks again and again, so that old bytes of a block are where its new ones should be.
        for round in 0..60 {
            write(&world.tier, &[(1, round % 7), (2, round % 5)]).unwrap();
            let _ = (
                check(&world.tier, 1, round % 7),
                check(&world.tier, 2, round % 5),
            );
        }
        let all = (0..7).flat_map(|number| [(1, number), (2, number)]);
        world.written.extend(all);
        world.found();
        mismatches += world.tier.stats().mismatches;
        world.restart();
        world.found();
    }
    assert!(mismatches > 0, "no lost write was noticed");
}

/// Each call in turn fails once or for a while.
#[test]
fn failure_of_any_call_costs_no_read_and_ends_with_the_failure() {
    let operations = [
        Operation::Create,
        Operation::Write,
        Operation::Read,
        Operation::Sync,
        Operation::Remove,
    ];
    let classes = operations.map(|operation| format!("failed {}", class(operation)));
    let classes: Vec<&str> = classes.iter().map(String::as_str).collect();
    let repeat = "cargo test -p bywash-disk --lib failure_of_any_call";
    let proof = proof("disk-errors", repeat, SEEDS, &classes);
    while let Some(mut trial) = proof.next() {
        let seed = trial.seed();
        let mut world = World::new(seed);
        let error = [Errno::NOSPC, Errno::IO, Errno::ROFS, Errno::NOENT][seed as usize % 4];
        for _ in 0..3 {
            let operation = operations[world.rng.random_range(0..operations.len())];
            trial.fault(format!("failed {}", class(operation)), 1);
            world.storage.fail(Fault {
                operation,
                segment: None,
                after: world.rng.random_range(0..30),
                times: world.rng.random_range(1..4),
                error,
            });
        }
        for _ in 0..150 {
            world.step();
            world.advance(200);
        }
        world.storage.heal();
        world.advance(60_000);
        assert!(world.write(), "seed {seed}: {:?}", world.tier.state());
        assert_eq!(world.tier.state().state, TierState::On);
        world.check_size();
        let stats = world.tier.stats();
        assert_eq!(world.found().len() as u64, stats.blocks, "seed {seed}");
        world.restart();
        world.found();
        world.count(&mut trial);
    }
}

/// Another program fills the disk and empties it.
#[test]
fn other_tenant_filling_the_disk_stops_writes_only() {
    let repeat = "cargo test -p bywash-disk --lib other_tenant_filling_the_disk";
    let proof = proof("disk-full", repeat, 0..100, &[FILL]);
    while let Some(mut trial) = proof.next() {
        let seed = trial.seed();
        let mut world = World::new(seed);
        world.resize();
        let mut states = HashMap::new();
        for _ in 0..300 {
            if world.rng.random_range(0..10) == 0 {
                let free = world.rng.random_range(0..3) * u64::from(SEGMENT);
                world.storage.set_capacity(world.storage.allocated() + free);
                trial.fault(FILL, 1);
            }
            world.step();
            world.advance(500);
            let state = world.tier.state().state.to_string();
            *states.entry(state).or_insert(0) += 1;
        }
        assert!(!states.contains_key("off"), "seed {seed}: {states:?}");
        let stats = world.tier.stats();
        assert_eq!(world.found().len() as u64, stats.blocks, "seed {seed}");
        world.count(&mut trial);
    }
}
