//! `kill -9` of a process that writes, flushes, compacts and deletes its log, at each request to its store and
//! between them.
//!
//! The process is this program again. All rows it reports as written must exist afterwards, once. `BYWASH_KILLS=N`
//! sets the number of random kills, `BYWASH_SEED=N` repeats one run.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use bywash::origin::folder::FolderStore;
use bywash_mem::{BlockPool, PoolConfig};
use bywash_series::{Ack, Clock, Row, SeriesDb, SeriesOptions};
use bywash_series_proofs::Death;
use bywash_support::hooked_store::HookedStore;
use bywash_support::proof::{Proof, Trial};
use bywash_support::settings::setting;
use object_store::ObjectStore;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const HOUR: i64 = 3_600_000_000_000;
/// Timestamps that are rewritten in each round, to expose a lost or duplicated round.
const TIMES: i64 = 6;
/// Rounds of one process.
const ROUNDS: i64 = 2;

/// A clock far after all rows: all days have ended, so all files are compacted.
#[derive(Debug)]
struct LateClock;

impl Clock for LateClock {
    fn now(&self) -> i64 {
        1_000_000 * HOUR
    }
}

async fn open(folder: &Path, death: Option<Death>) -> SeriesDb {
    std::fs::create_dir_all(folder.join("store")).unwrap();
    let files = Arc::new(FolderStore::open(folder.join("store")).unwrap());
    let store: Arc<dyn ObjectStore> = match death {
        Some(death) => Arc::new(HookedStore::new(files, Arc::new(death))),
        None => files,
    };
    let pool = BlockPool::new(PoolConfig::new(64 << 20)).unwrap();
    let options = SeriesOptions {
        clock: Arc::new(LateClock),
        ack: Ack::Written,
        segment_bytes: 512 << 10,
        ..SeriesOptions::default()
    };
    let log = folder.join("log");
    SeriesDb::open(store, log, pool.budget().clone(), options)
        .await
        .unwrap()
}

/// Each round writes all timestamps, half of them twice, over flushed rows of earlier rounds.
fn write(db: &SeriesDb, round: i64) {
    let row = |at: i64, value: f64| Row {
        source: "host",
        metric: "round",
        timestamp: at * HOUR,
        value,
    };
    let early = (0..TIMES / 2).map(|at| row(at, -1.0));
    let all = (0..TIMES).map(|at| row(at, round as f64));
    db.insert_rows(&early.chain(all).collect::<Vec<_>>())
        .unwrap();
}

/// The process that is killed: writes rounds and reports each begin and end.
#[test]
#[ignore = "the process that the other tests kill"]
fn child() {
    let argument = |name: &str| std::env::var(name).unwrap();
    let folder = argument("BYWASH_SERIES_FOLDER");
    let first: i64 = argument("BYWASH_SERIES_ROUND").parse().unwrap();
    let death = Death::parse(&argument("BYWASH_SERIES_DEATH")).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let db = open(folder.as_ref(), Some(death)).await;
        for round in first..first + ROUNDS {
            println!("begun {round}");
            let writer = db.clone();
            tokio::task::spawn_blocking(move || write(&writer, round))
                .await
                .unwrap();
            println!("written {round}");
            db.flush().await.unwrap();
            db.compact().await.unwrap();
        }
        db.close().await.unwrap();
        println!("closed");
    });
}

/// The last rounds that processes reported.
#[derive(Debug, Clone, Default)]
struct Reported {
    begun: i64,
    written: i64,
    closed: bool,
}

/// Runs one more process. Kills it after `lines` reports, unless it dies at its chosen request first.
fn run_process(folder: &Path, reported: &mut Reported, death: Death, lines: usize) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "kills::child",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("BYWASH_SERIES_FOLDER", folder)
        .env("BYWASH_SERIES_ROUND", (reported.begun + 1).to_string())
        .env("BYWASH_SERIES_DEATH", death.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let mut count = 0;
    for line in out.lines().map(Result::unwrap) {
        // The test harness may have begun the line.
        let round = |deed: &str| Some(line.split_once(deed)?.1.parse::<i64>().unwrap());
        if let Some(round) = round("begun ") {
            reported.begun = round;
        } else if let Some(round) = round("written ") {
            reported.written = round;
        } else if line == "closed" {
            reported.closed = true;
        } else {
            continue;
        }
        count += 1;
        if count == lines {
            child.kill().unwrap();
        }
    }
    let end = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&end.stderr);
    assert!(!errors.contains("panicked"), "{errors}");
}

/// Checks that each timestamp exists once, with a value of the last round written or of a later one begun. Returns
/// the number of files.
async fn check(folder: &Path, reported: &Reported) -> u64 {
    let db = open(folder, None).await;
    let mut rows = db.iterator("host", "round");
    let mut next = 0;
    while let Some(point) = rows.next().await.unwrap() {
        assert_eq!(
            point.timestamp,
            next * HOUR,
            "a row is missing or twice: {reported:?}"
        );
        let round = point.value as i64;
        // A batch is not atomic: rows of a batch that was begun may exist, including the first of two writes to a
        // timestamp.
        let known = (reported.written..=reported.begun).contains(&round);
        let half = round == -1 && reported.begun > reported.written;
        assert!(
            known || half,
            "row {next} is of round {round}: {reported:?}"
        );
        next += 1;
    }
    assert!(
        next == TIMES || reported.written == 0,
        "{next} of {TIMES} rows: {reported:?}"
    );
    let files = db.stats().files;
    db.close().await.unwrap();
    files
}

/// Kills a process at each request to the store: before even ones, after odd ones, until none is left. Each is
/// followed by one that dies during recovery, then all rows are checked.
#[tokio::test]
async fn case_5_kill_at_each_request_loses_and_duplicates_no_row() {
    for request in 0.. {
        let folder = tempfile::tempdir().unwrap();
        let mut reported = Reported::default();
        let after = request % 2 == 1;
        run_process(
            folder.path(),
            &mut reported,
            Death { request, after },
            usize::MAX,
        );
        let closed = reported.closed;
        let again = Death {
            request: request % 5,
            after: !after,
        };
        run_process(folder.path(), &mut reported, again, usize::MAX);
        check(folder.path(), &reported).await;
        if closed {
            assert!(request > 20, "there were only {request} requests");
            break;
        }
    }
}

/// One folder and many processes, each killed at random: at a request, or at the begin or end of a round. Some run to
/// their end, because files would become too many to be compacted before the next kill.
#[tokio::test]
async fn case_5_random_kills_lose_and_duplicate_no_row() {
    let repeat = "cargo test -p bywash-series-proofs --test it case_5_random_kills";
    let proof = Proof::new("series-kills", repeat, 1..2, &[KILL, AFTER]);
    while let Some(mut trial) = proof.next() {
        kill_at_random(&mut trial).await;
    }
}

const KILL: &str = "kill before a request or a report";
const AFTER: &str = "kill after a request or a report";

async fn kill_at_random(trial: &mut Trial<'_>) {
    let mut random = StdRng::seed_from_u64(trial.seed());
    let folder = tempfile::tempdir().unwrap();
    let mut reported = Reported::default();
    for kills in 1..=setting("BYWASH_KILLS", 10) {
        let death = Death {
            request: random.random_range(0..80),
            after: random.random(),
        };
        trial.operations(1);
        trial.fault(if death.after { AFTER } else { KILL }, 1);
        run_process(
            folder.path(),
            &mut reported,
            death,
            random.random_range(1..6),
        );
        check(folder.path(), &reported).await;
        if kills % 5 == 0 {
            let none = Death {
                request: u64::MAX,
                after: false,
            };
            reported.closed = false;
            run_process(folder.path(), &mut reported, none, usize::MAX);
            assert!(
                reported.closed,
                "a process that was not killed ended early: {reported:?}"
            );
            assert_eq!(
                check(folder.path(), &reported).await,
                1,
                "all files are merged"
            );
            println!("{kills} kills, {} rounds begun", reported.begun);
        }
    }
}
