//! `kill -9` of a process that writes, reads and erases blocks and changes the size of its tier, at random moments.
//!
//! The process is this program again. Afterwards each block that is found must have its bytes, none of a recorded erasure may be found,
//! and of the newest blocks that it reported as written nearly all must be there. The blocks of the file system that the folder takes
//! are sampled all the time. `BYWASH_KILLS=N` sets the number of kills, `BYWASH_SEED=N` repeats a run.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(
    clippy::disallowed_methods,
    reason = "threads of a test that pause: a kill comes at a random moment"
)]

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use std::{env, fs, panic, process, thread};

use bywash_disk::{Block, Tier, TierOptions, VersionKey, VersionRecord};
use bywash_support::proof::Proof;
use bywash_support::settings::setting;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

const PAGE: usize = 4096;
const BLOCK: usize = 64 << 10;
const SEGMENT: u32 = 1 << 20;
/// Blocks of an object.
const OBJECT: u32 = 32;
/// Sizes of the tier in MiB.
const SIZES: std::ops::Range<u64> = 12..33;
/// Newest blocks that must be there: about half of the blocks that the smallest tier holds.
const NEWEST: usize = 120;
/// Newest blocks that are looked for: more than any tier holds.
const CHECKED: usize = 2000;
/// Time between two batches of the process.
const PAUSE: Duration = Duration::from_millis(10);
/// Time between two samples of the folder.
const SAMPLE_EVERY: Duration = Duration::from_millis(5);
/// Time within which a line of the process is read.
const LINE_TIME: Duration = Duration::from_millis(200);

fn open(folder: &Path, size: u64) -> Tier {
    let options = TierOptions {
        path: folder.to_owned(),
        size,
        segment_size: SEGMENT,
        block_size: BLOCK as u32,
        index_memory: 1 << 20,
        max_index_memory: 16 << 20,
    };
    Tier::open(&options, [7; 16]).unwrap()
}

fn record(object: u32) -> VersionRecord {
    VersionRecord {
        url: "s3://data".to_owned(),
        object: format!("object-{object}"),
        validator: "\"1\"".to_owned(),
        size: u64::from(OBJECT) * BLOCK as u64,
        block_size: BLOCK as u32,
    }
}

/// The bytes of a block: its number in each eight bytes, and a length of its own.
fn bytes(number: u32) -> Vec<u8> {
    let length = BLOCK - (number as usize * 7919) % (BLOCK / 2);
    let mut bytes = vec![0; length];
    for (index, word) in bytes.chunks_mut(8).enumerate() {
        let text = ((u64::from(number) << 32) | index as u64).to_le_bytes();
        word.copy_from_slice(&text[..word.len()]);
    }
    bytes
}

/// A buffer for one block, aligned to a page.
struct Buffer(Vec<u8>);

impl Buffer {
    fn new() -> Self {
        Self(vec![0; BLOCK + PAGE])
    }

    /// Returns whether the block is found; panics if it has other bytes.
    fn check(&mut self, tier: &Tier, number: u32) -> bool {
        let start = self.0.as_ptr().align_offset(PAGE);
        let buffer = &mut self.0[start..start + BLOCK];
        let version = VersionKey::of(&record(number / OBJECT));
        let Some(length) = tier.read(version, number % OBJECT, buffer) else {
            return false;
        };
        assert!(
            buffer[..length as usize] == bytes(number),
            "block {number} has other bytes"
        );
        true
    }
}

fn write(tier: &Tier, numbers: std::ops::Range<u32>) -> bool {
    let owned: Vec<_> = numbers
        .map(|number| (record(number / OBJECT), number, bytes(number)))
        .collect();
    let blocks: Vec<_> = owned
        .iter()
        .map(|(record, number, bytes)| Block {
            record,
            version: VersionKey::of(record),
            number: number % OBJECT,
            bytes,
        })
        .collect();
    tier.write(&blocks).is_ok()
}

fn argument<T: std::str::FromStr>(name: &str) -> Option<T> {
    env::var(name).ok()?.parse().ok()
}

/// The process that is killed: reports its completed steps.
#[test]
#[ignore = "the process that the other test kills"]
fn child() {
    panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        process::abort();
    }));
    let folder: String = argument("BYWASH_DISK_FOLDER").unwrap();
    let mut rng = StdRng::seed_from_u64(argument("BYWASH_DISK_SEED").unwrap());
    let tier = open(folder.as_ref(), argument("BYWASH_DISK_SIZE").unwrap());
    let next = AtomicU32::new(argument("BYWASH_DISK_FIRST").unwrap());
    println!("\nopen");
    thread::scope(|scope| {
        for seed in 0..2 {
            let (tier, next) = (&tier, &next);
            scope.spawn(move || {
                let (mut rng, mut buffer) = (StdRng::seed_from_u64(seed), Buffer::new());
                loop {
                    let back = rng.random_range(1..600);
                    let number = next.load(Ordering::Relaxed).saturating_sub(back);
                    buffer.check(tier, number);
                }
            });
        }
        loop {
            thread::sleep(PAUSE);
            let first = next.load(Ordering::Relaxed);
            let end = first + rng.random_range(1..9);
            if write(&tier, first..end) {
                println!("written {first} {end}");
            }
            next.store(end, Ordering::Relaxed);
            match rng.random_range(0..40) {
                0 => {
                    let object = (end / OBJECT).saturating_sub(rng.random_range(0..8));
                    println!("erasing {object} {end}");
                    tier.erase(VersionKey::of(&record(object)));
                    tier.record_erasures().unwrap();
                    println!("erased {object} {end}");
                }
                1 => {
                    let size = rng.random_range(SIZES) << 20;
                    println!("resizing to {size}");
                    tier.resize(size).unwrap();
                    println!("resized to {size}");
                }
                _ => {}
            }
        }
    });
}

/// The number of the first block of an object that an erasure left, by object.
type Erased = HashMap<u32, u32>;

fn is_in(erased: &Erased, number: u32) -> bool {
    let until = erased.get(&(number / OBJECT));
    until.is_some_and(|until| number < *until)
}

/// Reports of the processes.
#[derive(Debug)]
struct Reported {
    /// Bytes of the tier.
    size: u64,
    /// The newest blocks that were written, and the number of all.
    written: VecDeque<u32>,
    count: usize,
    /// Erasures that were begun, and erasures that were recorded.
    erasing: Erased,
    erased: Erased,
}

impl Reported {
    fn add(&mut self, line: &str, sampled: &Sampled) {
        let words: Vec<_> = line.split(' ').collect();
        let [what, first, second] = words[..] else {
            return;
        };
        let numbers = || -> (u32, u32) { (first.parse().unwrap(), second.parse().unwrap()) };
        match what {
            "written" => {
                let (first, end) = numbers();
                self.written.extend(first..end);
                self.count += (end - first) as usize;
                let surplus = self.written.len().saturating_sub(CHECKED);
                self.written.drain(..surplus);
            }
            "erasing" => self.erasing.extend([numbers()]),
            "erased" => self.erased.extend([numbers()]),
            "resizing" => {
                let size = second.parse().unwrap();
                sampled.limit.fetch_max(size, Ordering::Relaxed);
            }
            "resized" => {
                self.size = second.parse().unwrap();
                sampled.limit.store(self.size, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// The first number of the next process. Unreported blocks may be there as well.
    fn next(&self) -> u32 {
        self.written.back().map_or(0, |last| last + 100)
    }
}

/// The folder as the sampler sees it.
#[derive(Debug, Default)]
struct Sampled {
    limit: AtomicU64,
    samples: AtomicU64,
    above: Mutex<Vec<(u64, u64)>>,
    max_percent: AtomicU64,
    done: AtomicBool,
}

/// Ends the sampler, also when a check fails.
struct Done<'a>(&'a Sampled);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.done.store(true, Ordering::Relaxed);
    }
}

impl Sampled {
    /// Samples the bytes that the file system has allocated for the folder, until it is done.
    fn run(&self, folder: &Path) {
        while !self.done.load(Ordering::Relaxed) {
            let limit = self.limit.load(Ordering::Relaxed);
            let blocks = |meta: std::io::Result<fs::Metadata>| meta.map_or(0, |meta| meta.blocks());
            let files = fs::read_dir(folder).into_iter().flatten().flatten();
            let files: u64 = files.map(|file| blocks(file.metadata())).sum();
            let bytes = (files + blocks(fs::metadata(folder))) * 512;
            if bytes > limit {
                // The process may have raised it, and its line is on the way.
                thread::sleep(LINE_TIME);
            }
            let limit = limit.max(self.limit.load(Ordering::Relaxed));
            self.samples.fetch_add(1, Ordering::Relaxed);
            self.max_percent
                .fetch_max(bytes * 100 / limit, Ordering::Relaxed);
            if bytes > limit {
                self.above.lock().unwrap().push((bytes, limit));
            }
            thread::sleep(SAMPLE_EVERY);
        }
    }
}

/// Runs one process and kills it.
fn live(folder: &Path, rng: &mut StdRng, reported: &mut Reported, sampled: &Sampled) {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "kills::child", "--ignored", "--nocapture"])
        .args(["--test-threads=1"])
        .env("BYWASH_DISK_FOLDER", folder)
        .env("BYWASH_DISK_SIZE", reported.size.to_string())
        .env("BYWASH_DISK_SEED", rng.random::<u32>().to_string())
        .env("BYWASH_DISK_FIRST", reported.next().to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let mut lines = out.lines().map(Result::unwrap);
    let is_open = lines.any(|line| line == "open");
    sampled.limit.store(reported.size, Ordering::Relaxed);
    let time = Duration::from_millis(rng.random_range(50..1500));
    thread::scope(|scope| {
        scope.spawn(|| lines.for_each(|line| reported.add(&line, sampled)));
        thread::sleep(time);
        child.kill().unwrap();
    });
    let status = child.wait().unwrap();
    let mut text = String::new();
    let stderr = child.stderr.take();
    stderr.unwrap().read_to_string(&mut text).unwrap();
    assert!(is_open && status.signal() == Some(9), "{status}: {text}");
}

/// Checks the blocks. Returns the share of the newest that is found.
fn warm_share(folder: &Path, reported: &Reported) -> f64 {
    let (tier, mut buffer) = (open(folder, reported.size), Buffer::new());
    let newest = reported.written.len().saturating_sub(NEWEST);
    let (mut found, mut wanted) = (0, 0);
    for (index, &number) in reported.written.iter().enumerate() {
        let is_found = buffer.check(&tier, number);
        if is_in(&reported.erased, number) {
            assert!(!is_found, "block {number} was erased");
        } else if index >= newest && !is_in(&reported.erasing, number) {
            (found, wanted) = (found + u32::from(is_found), wanted + 1);
        }
    }
    f64::from(found) / f64::from(wanted.max(1))
}

#[test]
fn killed_processes_leave_right_bytes_and_stay_within_the_size() {
    let kills: u32 = setting("BYWASH_KILLS", 3);
    let repeat = "cargo test -p bywash-disk --test it killed_processes";
    let proof = Proof::new("disk-kills", repeat, 1..2, &["kill", "erasure"]);
    while let Some(mut trial) = proof.next() {
        let erased = kill_processes(trial.seed(), kills);
        trial.operations(u64::from(kills));
        trial.fault("kill", u64::from(kills));
        trial.fault("erasure", erased);
    }
}

/// Runs `kills` processes over one folder, each until it is killed. Hands back how many objects they erased.
fn kill_processes(seed: u64, kills: u32) -> u64 {
    let mut rng = StdRng::seed_from_u64(seed);
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("tier");
    let mut reported = Reported {
        size: 24 << 20,
        written: VecDeque::new(),
        count: 0,
        erasing: Erased::new(),
        erased: Erased::new(),
    };
    let sampled = Sampled::default();
    sampled.limit.store(reported.size, Ordering::Relaxed);
    let (mut least, mut sum) = (1.0_f64, 0.0);
    thread::scope(|scope| {
        scope.spawn(|| sampled.run(&folder));
        let _done = Done(&sampled);
        for _ in 0..kills {
            live(&folder, &mut rng, &mut reported, &sampled);
            let share = warm_share(&folder, &reported);
            (least, sum) = (least.min(share), sum + share);
        }
    });
    println!(
        "seed {seed}: {kills} kills, {} blocks written, {} objects erased; {} samples of the folder, at most {} % of its size; warm after a \
         kill: {:.2} % on average, {:.2} % at least",
        reported.count,
        reported.erased.len(),
        sampled.samples.load(Ordering::Relaxed),
        sampled.max_percent.load(Ordering::Relaxed),
        100.0 * sum / f64::from(kills),
        100.0 * least,
    );
    assert_eq!(*sampled.above.lock().unwrap(), [], "bytes above the size");
    assert!(least >= 0.99, "{least}");
    reported.erased.len() as u64
}
