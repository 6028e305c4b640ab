//! `kill -9` of a process that writes, copies, renames and deletes objects of a folder, at random moments.
//!
//! The process is this program again. Afterwards each key has the object of the last acknowledged operation, whole and with its attributes, or
//! the result of the operation in progress. `BYWASH_KILLS=N` sets the number of kills of a seed, `BYWASH_SEED=N` repeats one.
#![allow(
    clippy::disallowed_methods,
    reason = "threads of a test that pause: a kill comes at a random moment"
)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path as FsPath;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bywash::origin::folder::FolderStore;
use bywash::{Bucket, Consistency, Engine, PutStreamOptions};
use bywash_support::pattern;
use bywash_support::proof::{Proof, Trial};
use bywash_support::settings::setting;
use bywash_support::swarm::Swarm;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use object_store::path::Path;
use object_store::{Attribute, Attributes, Error, ObjectStore as _, ObjectStoreExt as _};
use object_store::{PutMode, PutOptions, Result};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// The folder of the process that is killed, its seed, and its first operation.
const FOLDER: &str = "BYWASH_TEST_FOLDER";
const SEED: &str = "BYWASH_TEST_FOLDER_SEED";
const FIRST: &str = "BYWASH_TEST_FOLDER_FIRST";
const KILLS: u64 = 6;
const KEYS: u64 = 5;
const CHUNK: usize = 256 << 10;
/// Most reports of a process before its kill is due.
const REPORTS: u64 = 60;

/// Kinds of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    Put,
    Create,
    Stream,
    Copy,
    Rename,
    Delete,
}

const DEEDS: [(&str, Deed); 6] = [
    ("kill during put", Deed::Put),
    ("kill during create", Deed::Create),
    ("kill during upload", Deed::Stream),
    ("kill during copy", Deed::Copy),
    ("kill during rename", Deed::Rename),
    ("kill during delete", Deed::Delete),
];

/// An operation: its number, which is its content, and its keys.
#[derive(Debug, Clone, Copy)]
struct Operation {
    number: u64,
    deed: usize,
    key: u64,
    to: u64,
}

impl Operation {
    fn draw(number: u64, rng: &mut StdRng) -> Self {
        let key = rng.random_range(0..KEYS);
        Self {
            number,
            deed: rng.random_range(0..DEEDS.len()),
            key,
            to: (key + rng.random_range(1..KEYS)) % KEYS,
        }
    }

    fn text(self) -> String {
        format!("{} {} {} {}", self.number, self.deed, self.key, self.to)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(' ').map(|number| number.parse::<u64>().ok());
        let mut next = || numbers.next().flatten();
        Some(Self {
            number: next()?,
            deed: usize::try_from(next()?).ok()?,
            key: next()?,
            to: next()?,
        })
    }
}

fn path(key: u64) -> Path {
    // Two of the keys are of one folder of the disk, and a third of a deeper one.
    Path::from(["a/0", "a/1", "b", "c/d/e", "f"][usize::try_from(key).unwrap()])
}

fn body(number: u64) -> Bytes {
    let lengths = [0, 1, 4_000, CHUNK - 1, CHUNK, 2 * CHUNK + 5];
    let length = lengths[usize::try_from(number).unwrap() % lengths.len()];
    pattern(number, length)
}

fn attributes(number: u64) -> Attributes {
    Attributes::from_iter([(Attribute::ContentType, format!("text/{number}"))])
}

fn open(folder: &FsPath) -> Bucket {
    let store = FolderStore::open(folder).unwrap();
    let engine = Engine::builder().memory(16 << 20).chunk_size(CHUNK);
    let engine = engine.build().unwrap();
    let mounted = engine.mount("data", Arc::new(store), Consistency::default());
    mounted.unwrap()
}

/// Runs an operation. The only errors are absence and existence of an object.
async fn run(bucket: &Bucket, operation: Operation) -> Result<()> {
    let (number, from, to) = (operation.number, path(operation.key), path(operation.to));
    match DEEDS[operation.deed].1 {
        deed @ (Deed::Put | Deed::Create) => {
            let mode = match deed {
                Deed::Create => PutMode::Create,
                _ => PutMode::Overwrite,
            };
            let options = PutOptions {
                mode,
                attributes: attributes(number),
                ..PutOptions::default()
            };
            let put = bucket.put_opts(&from, body(number).into(), options);
            put.await.map(drop)
        }
        Deed::Stream => {
            let options = PutStreamOptions {
                attributes: attributes(number),
                ..PutStreamOptions::default()
            };
            let bytes = body(number);
            let pieces: Vec<_> = bytes.chunks(50_000).map(Bytes::copy_from_slice).collect();
            let pieces = stream::iter(pieces.into_iter().map(Ok)).boxed();
            bucket.put_stream(&from, options, pieces).await.map(drop)
        }
        Deed::Copy => bucket.copy(&from, &to).await,
        Deed::Rename => bucket.rename(&from, &to).await,
        Deed::Delete => bucket.delete(&from).await,
    }
}

/// The process that is killed: reports the begin and the end of each operation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the process that the other test kills"]
async fn child() {
    let folder: String = setting(FOLDER, String::new());
    let bucket = open(folder.as_ref());
    let mut rng = StdRng::seed_from_u64(setting(SEED, 0));
    for number in setting(FIRST, 0).. {
        let operation = Operation::draw(number, &mut rng);
        println!("\nbegun {}", operation.text());
        match run(&bucket, operation).await {
            Ok(()) => println!("\ndone {number}"),
            Err(Error::NotFound { .. } | Error::AlreadyExists { .. }) => {
                println!("\nrefused {number}");
            }
            Err(error) => panic!("{operation:?}: {error}"),
        }
    }
}

/// Contents by key: the number of the write.
type Objects = BTreeMap<u64, u64>;

fn apply(objects: &mut Objects, operation: Operation) {
    let Operation {
        number, key, to, ..
    } = operation;
    match DEEDS[operation.deed].1 {
        Deed::Put | Deed::Create | Deed::Stream => drop(objects.insert(key, number)),
        Deed::Copy => {
            let content = objects.get(&key).copied();
            objects.extend(content.map(|content| (to, content)));
        }
        Deed::Rename => {
            let content = objects.remove(&key);
            objects.extend(content.map(|content| (to, content)));
        }
        Deed::Delete => drop(objects.remove(&key)),
    }
}

/// Reports of the processes.
#[derive(Debug, Default)]
struct Reported {
    /// After the last acknowledged operation.
    objects: Objects,
    begun: Option<Operation>,
    next: u64,
}

impl Reported {
    fn line(&mut self, line: &str) -> bool {
        if let Some(text) = line.strip_prefix("begun ") {
            self.begun = Operation::parse(text);
            self.next = self.begun.expect("a line is written whole").number + 1;
            true
        } else if line.starts_with("done ") {
            let begun = self.begun.take().expect("it was begun");
            apply(&mut self.objects, begun);
            true
        } else if line.starts_with("refused ") {
            self.begun = None;
            true
        } else {
            false
        }
    }
}

/// Runs a process and kills it during an operation of the kind `deed`, or soon after one.
fn live(folder: &FsPath, deed: Option<usize>, rng: &mut StdRng, reported: &mut Reported) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "folder_kills::child", "--ignored"])
        .args(["--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        .env(SEED, rng.random::<u64>().to_string())
        .env(FIRST, reported.next.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let (last, within) = (rng.random_range(1..REPORTS), rng.random_range(0..1500));
    let (mut count, mut is_killed) = (0, false);
    for line in out.lines().map(std::result::Result::unwrap) {
        count += u64::from(reported.line(&line));
        let begun = reported.begun.map(|begun| begun.deed);
        if count >= last && !is_killed && (deed.is_none() || begun == deed) {
            is_killed = true;
            std::thread::sleep(Duration::from_micros(within));
            child.kill().unwrap();
        }
    }
    let end = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&end.stderr);
    assert!(!errors.contains("panicked"), "{errors}");
}

/// The number of the write that each key has; whole, with its own attributes.
async fn found(folder: &FsPath) -> Objects {
    let bucket = open(folder);
    let mut objects = Objects::new();
    for key in 0..KEYS {
        let got = match bucket.get(&path(key)).await {
            Err(Error::NotFound { .. }) => continue,
            got => got.unwrap(),
        };
        let content_type = got.attributes.get(&Attribute::ContentType);
        let content_type = content_type.expect("each object has a type").to_string();
        let number = content_type.strip_prefix("text/").unwrap().parse().unwrap();
        let bytes = got.bytes().await.unwrap();
        assert!(
            bytes == body(number),
            "{} has the attributes of write {number}, and {} other bytes",
            path(key),
            bytes.len()
        );
        objects.insert(key, number);
    }
    let listed: Vec<_> = bucket.list(None).try_collect().await.unwrap();
    assert_eq!(listed.len(), objects.len(), "{listed:?}");
    objects
}

/// Checks the objects after a kill; the next process continues with them.
async fn check(folder: &FsPath, reported: &mut Reported) {
    let found = found(folder).await;
    let mut after = reported.objects.clone();
    let begun = reported.begun.take();
    if let Some(begun) = begun {
        apply(&mut after, begun);
    }
    for key in 0..KEYS {
        let is = found.get(&key);
        let known = [reported.objects.get(&key), after.get(&key)];
        assert!(
            known.contains(&is),
            "{} is of write {is:?}, not of {known:?}; in progress: {begun:?}",
            path(key)
        );
    }
    // A rename that was cut leaves the object under one of its keys at least.
    if let Some(begun) = begun.filter(|begun| DEEDS[begun.deed].1 == Deed::Rename) {
        let content = reported.objects.get(&begun.key);
        let kept = [found.get(&begun.key), found.get(&begun.to)];
        assert!(content.is_none() || kept.contains(&content), "{begun:?}");
    }
    reported.objects = found;
}

async fn kill_writers(trial: &mut Trial<'_>) {
    let mut rng = StdRng::seed_from_u64(trial.seed());
    let home = tempfile::tempdir().unwrap();
    let mut reported = Reported::default();
    let deeds: Vec<_> = (0..DEEDS.len()).collect();
    let mut swarm = Swarm::draw(&mut rng, &deeds);
    for _ in 0..setting("BYWASH_KILLS", KILLS) {
        let before = reported.next;
        let deed = swarm.take(&mut rng);
        live(home.path(), deed, &mut rng, &mut reported);
        if let Some(begun) = reported.begun {
            trial.fault(DEEDS[begun.deed].0, 1);
        }
        check(home.path(), &mut reported).await;
        trial.operations(reported.next - before);
    }
}

#[tokio::test]
async fn killed_writers_of_a_folder_lose_no_acknowledged_operation() {
    let repeat = "cargo test -p bywash --test it killed_writers_of_a_folder";
    let classes = DEEDS.map(|(class, _)| class);
    let proof = Proof::new("folder-kills", repeat, 1..3, &classes);
    while let Some(mut trial) = proof.next() {
        kill_writers(&mut trial).await;
    }
}
