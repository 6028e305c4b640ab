//! Seeded runs over a disk tier whose disk tears, loses, stalls, is slow, fills, fails and flips, with kills and restarts: each read
//! has the bytes of one visible version, and none fails because of the disk. A seed has a random half of the disk's faults.
//!
//! In real time, because the threads of the tier spend it: a seed draws the same steps, not the same run. For one seed, or others:
//! `BYWASH_SEED`, `BYWASH_SEEDS`, as for the other runs.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path as FsPath;
use std::thread;
use std::time::Duration;

use bywash::testing::{DiskFault, FakeDisk};
use bywash::{Consistency, ContentDigest, DiskOptions, DiskStats, Verify};
use bywash_sim::{Consume, FaultKind, FaultProfile, Observation, Outcome, SimOrigin};
use bywash_support::pattern;
use bywash_support::proof::{Proof, class};
use bywash_support::swarm::Swarm;
use futures::future::join_all;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStoreExt as _};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use crate::simulation::world::{BLOCK, World};

const SEEDS: Range<u64> = 0..200;
/// More than the processors: runs mostly wait for slow disks.
const RUNS_AT_ONCE: usize = 12;
const MEMORY: u64 = 6 << 20;
/// Small, so that segments are used again.
const SEGMENT: u32 = 16 * BLOCK as u32;
const OBJECTS: usize = 6;
/// Max blocks of an object: all objects together are more than the memory holds.
const BLOCKS: usize = 40;
/// Time after which a read hangs: far above the time that a disk may take.
const HUNG: Duration = Duration::from_secs(60);

/// Totals of the runs.
#[derive(Debug, Default)]
struct Counts {
    reads: u64,
    errors: u64,
    restarts: u64,
    hits: u64,
    spilled: u64,
    mismatches: u64,
    failed: u64,
    slow: u64,
    wrong: Vec<String>,
    /// Faults of each class.
    faults: BTreeMap<String, u64>,
}

impl Counts {
    fn fault(&mut self, class: impl Into<String>) {
        *self.faults.entry(class.into()).or_default() += 1;
    }

    fn note(&mut self, stats: &DiskStats) {
        self.hits += stats.hits;
        self.spilled += stats.written_blocks;
        self.mismatches += stats.mismatches;
        self.failed += stats.failed_reads + stats.failed_writes;
        self.slow += stats.slow_reads;
    }

    fn add(&mut self, other: Self) {
        self.reads += other.reads;
        self.errors += other.errors;
        self.restarts += other.restarts;
        self.hits += other.hits;
        self.spilled += other.spilled;
        self.mismatches += other.mismatches;
        self.failed += other.failed;
        self.slow += other.slow;
        self.wrong.extend(other.wrong);
        for (class, hits) in other.faults {
            *self.faults.entry(class).or_default() += hits;
        }
    }
}

fn crc32c(body: &[u8]) -> ContentDigest {
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, body);
    ContentDigest::Crc32c(u32::try_from(crc).unwrap())
}

/// A run: the world of one engine after another, over one disk.
struct Run {
    rng: StdRng,
    world: World,
    disk: FakeDisk,
    home: TempDir,
    size: u64,
    /// Kinds of the disk's faults, see [`Run::break_disk`].
    faults: Swarm<u8>,
    /// Whether the origin flips bits, and states the digests that show it.
    flips: bool,
    consistency: Consistency,
    /// Reads do not return, or late.
    slow: bool,
    counts: Counts,
    seed: u64,
}

fn open(
    origin: &SimOrigin,
    (disk, home, size): (&FakeDisk, &FsPath, u64),
    (consistency, verify): (Consistency, Verify),
) -> World {
    World::over(origin.clone(), consistency, |builder| {
        let builder = builder.memory(MEMORY).verify(verify);
        builder.fake_disk(disk.clone()).disk(DiskOptions {
            path: home.to_owned(),
            size,
            daily_writes: None,
            min_block_size: None,
        })
    })
}

fn profile(flips: bool) -> FaultProfile {
    FaultProfile {
        latency: Duration::ZERO..Duration::ZERO,
        pause: Duration::ZERO..Duration::ZERO,
        piece: 8 << 10..64 << 10,
        faults: if flips {
            vec![(FaultKind::Flip, 0.1)]
        } else {
            vec![]
        },
    }
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let faults = Swarm::draw(&mut rng, &[0, 1, 2, 3, 4, 5, 6, 7]);
        let flips = rng.random_bool(0.5);
        let origin = SimOrigin::new(seed, profile(flips));
        if flips {
            origin.state_digest(crc32c);
        }
        let windows = [
            Duration::ZERO,
            Duration::from_millis(20),
            Duration::from_secs(30),
        ];
        let consistency = Consistency::Revalidate(windows[rng.random_range(0..windows.len())]);
        let disk = FakeDisk::new(SEGMENT);
        let home = tempfile::tempdir().unwrap();
        let size = [3_u64, 8, 64][rng.random_range(0..3)] * u64::from(2 * SEGMENT);
        let verify = if flips { Verify::Always } else { Verify::Whole };
        let world = open(&origin, (&disk, home.path(), size), (consistency, verify));
        for object in 0..OBJECTS {
            let blocks = rng.random_range(1..=BLOCKS);
            let rest = rng.random_range(0..BLOCK);
            origin.write(&path(object), (blocks - 1) * BLOCK + rest + 1);
        }
        Self {
            rng,
            world,
            disk,
            home,
            size,
            faults,
            flips,
            consistency,
            slow: false,
            counts: Counts::default(),
            seed,
        }
    }

    fn path(&mut self) -> Path {
        path(self.rng.random_range(0..OBJECTS))
    }

    fn options(&mut self, path: &Path) -> GetOptions {
        let size = self.world.oracle.current(path).unwrap().meta.size;
        let range = match self.rng.random_range(0..3) {
            0 => None,
            _ => {
                let start = self.rng.random_range(0..size);
                let length = self.rng.random_range(1..=4 * BLOCK as u64);
                Some(GetRange::Bounded(start..start + length))
            }
        };
        GetOptions {
            range,
            ..GetOptions::default()
        }
    }

    /// Reads, several at once, and judges each.
    async fn read(&mut self) {
        let reads = self.rng.random_range(1..4);
        let wanted: Vec<_> = (0..reads)
            .map(|_| {
                let path = self.path();
                let options = self.options(&path);
                (path, options)
            })
            .collect();
        // Loads of a reader that leaves may continue when the engine is killed. A comparison with a digest must not: its marks
        // are not copied at one moment with the disk.
        let leaves = !self.flips && self.rng.random_bool(0.2);
        let consume = match leaves {
            true => Consume::Timeout(Duration::from_millis(self.rng.random_range(0..10))),
            false => Consume::All,
        };
        self.read_all(wanted, consume).await;
    }

    async fn read_all(&mut self, wanted: Vec<(Path, GetOptions)>, consume: Consume) {
        let world = &self.world;
        let see = wanted.into_iter().map(async |(path, options)| {
            let what = format!("{path} {:?}", options.range);
            let seen = bywash_sim::observe(&world.bucket, &world.oracle, &path, options, consume);
            timeout(HUNG, seen).await.map_err(|_| what)
        });
        let all = join_all(see).await;
        for seen in all {
            self.judge(seen);
        }
    }

    fn judge(&mut self, seen: Result<Observation, String>) {
        self.counts.reads += 1;
        let wrong = match seen {
            Err(what) => Some(format!("hung: {what}")),
            Ok(seen) => {
                let failed = matches!(seen.outcome, Outcome::Failed(_));
                self.counts.errors += u64::from(failed);
                // Only flips of the origin, and changes of the object, explain an error.
                self.world.judge(&seen).err().map(|wrong| wrong.to_string())
            }
        };
        if let Some(wrong) = wrong {
            self.counts
                .wrong
                .push(format!("seed {}: {wrong}", self.seed));
        }
    }

    fn break_disk(&mut self) {
        let rng = &mut self.rng;
        let after = rng.random_range(0..6);
        let Some(kind) = self.faults.take(rng) else {
            return;
        };
        let fault = match kind {
            0 => DiskFault::Tear {
                after,
                seed: rng.random(),
            },
            1 => DiskFault::LoseWrite { after },
            2 => DiskFault::StallReads,
            3 => DiskFault::StallWrites,
            4 => DiskFault::SlowReads(Duration::from_millis(rng.random_range(1..150))),
            5 => DiskFault::Full(u64::from(SEGMENT) * rng.random_range(0..4)),
            6 => DiskFault::FailReads(rng.random_range(1..20)),
            _ => DiskFault::FailWrites(rng.random_range(1..20)),
        };
        self.slow |= matches!(fault, DiskFault::StallReads | DiskFault::SlowReads(_));
        self.counts.fault(name_of(&fault));
        self.disk.fail(fault);
    }

    fn flip(&mut self) {
        self.counts.fault(FLIP);
        for _ in 0..self.rng.random_range(1..200) {
            let _ = self.disk.flip(self.rng.random());
        }
    }

    /// Ends the engine, by a kill or after it has written its blocks, and starts the next one.
    async fn restart(&mut self, origin: SimOrigin) {
        let rng = &mut self.rng;
        let closes = rng.random_bool(0.4);
        self.counts.fault(if closes { CLOSE } else { KILL });
        if closes {
            let deadline = Duration::from_millis(rng.random_range(0..50));
            self.world.engine.close_disk(deadline).await;
        }
        self.kill(origin);
    }

    /// Starts the next engine over the disk that a kill now leaves.
    fn kill(&mut self, origin: SimOrigin) {
        self.counts.restarts += 1;
        let stats = self.world.engine.stats().disk.unwrap();
        self.counts.note(&stats);
        // No read runs, so marks are only released from now on: they are copied first.
        let home = tempfile::tempdir().unwrap();
        let marks = "unverified";
        let _ = std::fs::copy(self.home.path().join(marks), home.path().join(marks));
        let disk = self.disk.killed();
        let verify = if self.flips {
            Verify::Always
        } else {
            Verify::Whole
        };
        let place = (&disk, home.path(), self.size);
        self.world = open(&origin, place, (self.consistency, verify));
        // Its threads end.
        self.disk.heal();
        self.slow = false;
        (self.disk, self.home) = (disk, home);
    }

    async fn step(&mut self) {
        match self.rng.random_range(0..25) {
            0..10 => self.read().await,
            10 | 11 => {
                let path = self.path();
                let length = self.rng.random_range(1..BLOCKS * BLOCK);
                let same = self.world.oracle.current(&path).unwrap().body.len();
                let length = if self.rng.random_bool(0.5) {
                    same
                } else {
                    length
                };
                self.world.origin.write(&path, length);
                self.counts.fault(OVERWRITE);
            }
            12 => {
                let path = self.path();
                // It waits for the disk, on the thread of the reads.
                if !self.slow {
                    let _ = self.world.bucket.drop_cached(path.as_ref());
                }
            }
            13..19 => self.break_disk(),
            19 => {
                self.disk.heal();
                self.slow = false;
            }
            20 => self.flip(),
            21 => sleep(Duration::from_millis(self.rng.random_range(0..10))).await,
            _ => self.restart(self.world.origin.clone()).await,
        }
    }

    async fn play(mut self) -> Counts {
        for _ in 0..self.rng.random_range(16..32) {
            self.step().await;
        }
        // The blocks left on the disk are right.
        self.restart(self.world.origin.clone()).await;
        self.world.origin.set_fault_profile(profile(false));
        let all = (0..OBJECTS).map(|object| (path(object), GetOptions::default()));
        self.read_all(all.collect(), Consume::All).await;
        let stats = self.world.engine.stats().disk.unwrap();
        self.counts.note(&stats);
        self.counts
    }
}

fn path(object: usize) -> Path {
    Path::from(format!("dir/{object}"))
}

fn block_on<T>(run: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(run)
}

/// Classes of faults that are not of the disk.
const FLIP: &str = "flipped bits on the disk";
const FLIPS: &str = "flipped bits of the origin";
const CLOSE: &str = "close within a deadline";
const KILL: &str = "kill";
const OVERWRITE: &str = "overwrite";

const CLASSES: [&str; 13] = [
    "tear",
    "lose write",
    "stall reads",
    "stall writes",
    "slow reads",
    "full",
    "fail reads",
    "fail writes",
    FLIP,
    FLIPS,
    CLOSE,
    KILL,
    OVERWRITE,
];

/// The class of a fault of the disk.
fn name_of(fault: &DiskFault) -> String {
    let name = format!("{fault:?}");
    let end = name.find([' ', '(']).unwrap_or(name.len());
    class(format_args!("{}", &name[..end]))
}

fn play(proof: &Proof) -> Counts {
    let mut total = Counts::default();
    while let Some(mut trial) = proof.next() {
        let run = Run::new(trial.seed());
        let flips = run.flips;
        let counts = block_on(run.play());
        trial.operations(counts.reads);
        trial.fault(FLIPS, u64::from(flips));
        for (class, hits) in &counts.faults {
            trial.fault(class, *hits);
        }
        if !counts.wrong.is_empty() {
            trial.fail();
        }
        total.add(counts);
    }
    total
}

#[test]
fn seeded_runs_over_a_bad_disk() {
    let repeat = "cargo test -p bywash --test it seeded_runs_over_a_bad_disk";
    let proof = Proof::new("engine-disk", repeat, SEEDS, &CLASSES);
    let mut total = Counts::default();
    thread::scope(|scope| {
        let runs: Vec<_> = (0..RUNS_AT_ONCE)
            .map(|_| scope.spawn(|| play(&proof)))
            .collect();
        for run in runs {
            total.add(run.join().unwrap());
        }
    });
    println!("{total:#?}");
    assert!(total.wrong.is_empty(), "{}", total.wrong.join("\n"));
    if proof.is_fixed() {
        // A change of the generator that empties the runs must not pass.
        assert!(total.reads > 3_000 && total.restarts > 600);
        assert!(total.hits > 300 && total.errors < total.reads / 4);
        assert!(total.mismatches > 30 && total.failed > 30 && total.slow > 30);
    }
}

/// Makes a twin of an origin: another store at the same address, whose objects have the same ETags and lengths and other bytes.
async fn twin(origin: &SimOrigin, seed: u64) -> SimOrigin {
    let twin = SimOrigin::new(seed, profile(false));
    let oracle = origin.oracle();
    for object in 0..OBJECTS {
        let version = oracle.current(&path(object)).unwrap();
        let other = pattern(!version.number, version.body.len());
        let put = twin.put(&path(object), other.into()).await.unwrap();
        assert_eq!(put.e_tag, version.meta.e_tag);
    }
    twin
}

/// The control: if the disk has bytes of another object, the judge notices.
#[test]
fn wrong_bytes_on_the_disk_are_detected_by_the_judge() {
    for seed in 0..10 {
        let wrong = block_on(async {
            let mut run = Run::new(seed);
            run.flips = false;
            run.world.origin.set_fault_profile(profile(false));
            let all = || {
                (0..OBJECTS)
                    .map(|object| (path(object), GetOptions::default()))
                    .collect()
            };
            run.read_all(all(), Consume::All).await;
            assert!(run.counts.wrong.is_empty(), "{:?}", run.counts.wrong);
            assert!(run.world.engine.close_disk(Duration::from_secs(20)).await);
            let twin = twin(&run.world.origin, seed).await;
            run.restart(twin).await;
            run.read_all(all(), Consume::All).await;
            run.counts.wrong.len()
        });
        assert!(wrong > 0, "seed {seed}");
    }
}

#[test]
fn blocks_that_were_written_are_found_after_a_kill() {
    for seed in 0..10 {
        block_on(async {
            let mut run = Run::new(seed);
            for _ in 0..10 {
                run.read().await;
            }
            let stats = |run: &Run| run.world.engine.stats().disk.unwrap();
            // The last batch may still be in flight: blocks that count are in the index, so written.
            while stats(&run).queued_blocks > 0 || stats(&run).blocks == 0 {
                sleep(Duration::from_millis(1)).await;
            }
            let before = stats(&run).blocks;
            let origin = run.world.origin.clone();
            run.kill(origin);
            let after = stats(&run).blocks;
            assert!(
                before > 0 && after * 100 >= before * 99,
                "{after} of {before}"
            );
        });
    }
}
