//! Names that come and go: memory has those in use, not all there were.
//!
//! `BYWASH_CHURN_NAMES=N` sets how many names there are in all, `BYWASH_CHURN_LIVE=N` how many at a time, and `BYWASH_SEED=N` repeats
//! one run.

use std::sync::Arc;
use std::time::Instant;

use bywash::origin::folder::FolderStore;
use bywash_mem::{BlockPool, Budget, PoolConfig};
use bywash_series::{Ack, Retention, Row, SeriesDb, SeriesOptions};
use bywash_support::settings::setting;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Names written by one call.
const BATCH: u64 = 1000;
/// Of so many names one stays from the beginning to the end.
const LASTING_PART: u64 = 10;
/// Bytes of memory for each live name: its own, as much again for those that are leaving, and rows.
const BYTES_PER_NAME: u64 = 3000;
/// Max growth of the process between the first half of a run and the second.
const MAX_GROWTH_PERCENT: u64 = 25;

/// Resident memory of this process without pages of files, in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| -> u64 {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    (field("RssAnon:") + field("RssShmem:")) << 10
}

/// Writes one row of each name. Waits while names do not fit in memory.
fn write(db: &SeriesDb, names: &[String], at: i64) {
    let row = |name| Row {
        source: "churn",
        metric: name,
        timestamp: at,
        value: 0.5,
    };
    let rows: Vec<_> = names.iter().map(|name| row(name)).collect();
    db.insert_rows(&rows).unwrap();
}

/// A tenth of the live names are written all the time; the others are replaced by new ones, one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_stays_flat_while_names_come_and_go() {
    let names = setting("BYWASH_CHURN_NAMES", 120_000);
    let live = setting("BYWASH_CHURN_LIVE", 4000).max(BATCH);
    let seed = setting("BYWASH_SEED", 1);
    println!(
        "BYWASH_SEED={seed} BYWASH_CHURN_NAMES={names} BYWASH_CHURN_LIVE={live} \
         cargo test -p bywash-series-proofs --test it memory_stays_flat"
    );
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("store")).unwrap();
    let store = Arc::new(FolderStore::open(folder.path().join("store")).unwrap());
    let limit = live * BYTES_PER_NAME;
    let pool = BlockPool::new(PoolConfig::new((4 * limit).max(64 << 20))).unwrap();
    let options = SeriesOptions {
        ack: Ack::Memory,
        memtable_bytes: Some(limit),
        retention: Retention {
            age: None,
            bytes: Some(64 << 20),
        },
        ..SeriesOptions::default()
    };
    let opened = SeriesDb::open(
        store,
        folder.path().join("log"),
        pool.budget().clone(),
        options,
    );
    let db = opened.await.unwrap();
    let (churning, budget) = (db.clone(), pool.budget().clone());
    let run = tokio::task::spawn_blocking(move || churn(&churning, &budget, (names, live), seed));
    let (settled, most) = run.await.unwrap();
    let stats = db.stats();
    println!(
        "{} MiB in the first half, {} MiB in the second; {stats:?}",
        settled >> 20,
        most >> 20
    );
    assert!(stats.departed_series > names / 2, "{stats:?}");
    assert!(stats.series < names / 4 + 4 * live, "{stats:?}");
    let allowed = settled * (100 + MAX_GROWTH_PERCENT) / 100 + (16 << 20);
    assert!(most <= allowed, "{most} bytes, {allowed} allowed");
    db.close().await.unwrap();
}

/// Returns the most memory in the first half of the names and in the second.
fn churn(db: &SeriesDb, budget: &Budget, (names, live): (u64, u64), seed: u64) -> (u64, u64) {
    let began = Instant::now();
    let mut random = StdRng::seed_from_u64(seed);
    let lasting: Vec<_> = (0..live / LASTING_PART)
        .map(|number| format!("lasting {number}"))
        .collect();
    let short_lived = live - live / LASTING_PART;
    let (mut settled, mut most) = (0, 0);
    for (round, first) in (0..names).step_by(BATCH as usize).enumerate() {
        let at = round as i64;
        let fresh: Vec<_> = (first..first + BATCH)
            .map(|number| format!("short-lived {number}"))
            .collect();
        write(db, &fresh, at);
        // And some again that are not old yet.
        let oldest = first.saturating_sub(short_lived);
        let again: Vec<_> = (0..BATCH)
            .map(|_| random.random_range(oldest..first + BATCH))
            .map(|number| format!("short-lived {number}"))
            .collect();
        write(db, &again, at);
        for part in lasting.chunks(BATCH as usize) {
            write(db, part, at);
        }
        let now = resident();
        if (first / BATCH).is_multiple_of(names / BATCH / 10) {
            let stats = db.stats();
            println!(
                "{:.0} s, {first} names: {} MiB resident, {} series, {} MiB of {} MiB for rows and names, {} MiB of the pool, {} MiB \
                 in {} files, {} flushes",
                began.elapsed().as_secs_f64(),
                now >> 20,
                stats.series,
                stats.memtable_bytes >> 20,
                stats.memtable_limit >> 20,
                budget.used() >> 20,
                stats.file_bytes >> 20,
                stats.files,
                stats.flushes
            );
        }
        if first < names / 2 {
            settled = now.max(settled);
        } else {
            most = now.max(most);
        }
    }
    (settled, most)
}
