//! Tests of concurrent writers.

use std::cmp::Ordering;

use super::*;
use crate::{Row, Selector, SeriesNames};

/// Series that all threads write to.
const SHARED: usize = 100;
const HOUR: i64 = 3_600_000_000_000;

/// Two writers traverse the same series from both ends. The second one is later before the middle, the first one
/// after it. Replaying frames in log order would give other winners.
#[tokio::test]
async fn case_7_concurrent_writers_have_one_winner_before_and_after_replay() {
    const MIDDLE: usize = 16;
    const ROUNDS: i64 = 20;
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    let name = |n: usize| db.handle("host", &format!("{n:02}")).unwrap();
    let ascending: Vec<SeriesHandle> = (0..=2 * MIDDLE).map(name).collect();
    let descending: Vec<SeriesHandle> = ascending.iter().rev().copied().collect();
    let catalog = &db.0.memtable.catalog;
    let has = |n: usize, at: i64| {
        let runs = db.0.memtable.runs("host", &format!("{n:02}"), &(at..=at));
        let mut blocks = runs.iter().flat_map(|run| &run.blocks);
        blocks.any(|block| block.iter().any(|point| point.timestamp == at))
    };
    for round in 0..ROUNDS {
        let generation = || db.0.gate.enter().generation();
        let before = generation();
        let write = |order: &[SeriesHandle], value: f64| {
            let rows: Vec<_> = order.iter().map(|&of| (of, round, value)).collect();
            db.append_batch(&rows).unwrap();
        };
        std::thread::scope(|threads| {
            let middle = catalog.series(ascending[MIDDLE]).unwrap();
            // Holds the middle series, so that both writers are past their first half before either goes on.
            let held = middle.lock(0);
            threads.spawn(|| write(&ascending, 1.0));
            threads.spawn(|| write(&descending, 2.0));
            while !has(MIDDLE - 1, round) || !has(MIDDLE + 1, round) {
                std::thread::yield_now();
            }
            drop(held);
        });
        assert_eq!(generation(), before, "else the later one's rows stay");
        if round % 5 == 4 {
            db.0.gate.close();
        }
    }
    let written = content(&db);
    for ((_, metric, at), value) in &written {
        let expected = match metric.parse::<usize>().unwrap().cmp(&MIDDLE) {
            Ordering::Less => 2.0,
            Ordering::Greater => 1.0,
            Ordering::Equal => continue,
        };
        assert_eq!(f64::from_bits(*value), expected, "series {metric} at {at}");
    }
    let again = content(&database.copy().open().await.unwrap());
    assert_eq!(again, written);
}

/// Names are looked up sixteen rows at a time; repeated names are not looked up again.
#[tokio::test]
async fn repeated_names_resolve_to_one_series_across_lookup_batches() {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    for run in 1..40 {
        let names: Vec<String> = (0..100).map(|n| format!("{}", n / run % 3)).collect();
        let rows: Vec<_> = (0..)
            .zip(&names)
            .map(|(n, metric)| Row {
                source: "host",
                metric,
                timestamp: 100 * run as i64 + n,
                value: n as f64,
            })
            .collect();
        db.insert_rows(&rows).unwrap();
    }
    let written = content(&db);
    assert_eq!(written.len(), 39 * 100);
    for (_, metric, at) in written.keys() {
        let (run, n) = (at / 100, at % 100);
        assert_eq!(
            *metric,
            format!("{}", n / run % 3),
            "row {n} of runs of {run}"
        );
    }
}

#[tokio::test]
async fn case_1_64_threads_create_series_during_listing() {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    let handles: Vec<Vec<SeriesHandle>> = std::thread::scope(|threads| {
        let lister = threads.spawn(|| {
            let mut seen = 0;
            while seen < SHARED + 64 {
                let memtable = &db.0.memtable;
                let names = SeriesNames::in_memory(memtable, &Selector::all(), &ALL);
                assert!(names.len() >= seen, "what was listed stays");
                assert!(names.iter().all(|(source, _)| source.len() < 9));
                seen = names.len();
            }
        });
        let threads: Vec<_> = (0..64)
            .map(|thread| {
                let db = &db;
                threads.spawn(move || {
                    let name = |n| db.handle("shared", &format!("{n}")).unwrap();
                    let mut handles: Vec<_> = (0..SHARED).map(name).collect();
                    handles.push(db.handle(&format!("own {thread}"), "").unwrap());
                    for (n, handle) in (0..).zip(&handles) {
                        db.append(*handle, thread * 1000 + n, 1.0).unwrap();
                    }
                    handles
                })
            })
            .collect();
        let handles = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        lister.join().unwrap();
        handles
    });
    assert!(
        handles
            .iter()
            .all(|of| of[..SHARED] == handles[0][..SHARED]),
        "one id a name"
    );
    assert_eq!(db.stats().series, SHARED as u64 + 64);
    let written = content(&db);
    assert_eq!(written.len(), 64 * (SHARED + 1), "no row is lost");
    assert_eq!(content(&database.copy().open().await.unwrap()), written);
}

#[tokio::test]
async fn case_6_concurrent_batches_over_partitions_are_stored_once() {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    std::thread::scope(|threads| {
        for writer in 0..16 {
            let db = &db;
            threads.spawn(move || {
                let metric = format!("{writer}");
                for batch in 0..20 {
                    // Several partitions with gaps between them, before and after 1970, early and late; then one
                    // single row.
                    let at = |n: i64| (n * 7 % 5 - 2) * 6 * HOUR + batch * 10 + n;
                    let rows: Vec<_> = (0..9)
                        .map(|n| row("host", &metric, at(n), n as f64))
                        .collect();
                    db.insert_rows(&rows).unwrap();
                    db.insert_rows(&[row("host", &metric, i64::MAX - batch, 1.0)])
                        .unwrap();
                }
            });
        }
        threads.spawn(|| {
            for _ in 0..50 {
                db.0.gate.close();
                std::thread::yield_now();
            }
        });
    });
    let written = content(&db);
    assert_eq!(written.len(), 16 * 20 * 10);
    assert_eq!(content(&database.copy().open().await.unwrap()), written);
    db.flush().await.unwrap();
    assert_eq!(content(&db).len(), 0);
}
