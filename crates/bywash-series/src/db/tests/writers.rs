//! Tests of concurrent writers.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Barrier;

use super::*;
use crate::{Aggregate, Row, Selector, SeriesNames};

/// Series that all threads write to.
const SHARED: usize = 100;
/// Concurrent writers, and batches of a round.
const WRITERS: i64 = 16;
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
    let catalog = db.0.memtable.directory.current();
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
            // Holds the middle series, so that both writers are past their first half before either
            // continues.
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
                let names =
                    SeriesNames::in_memory(memtable, &Selector::all(), &ALL, &db.read_charge());
                let names = names.unwrap();
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

/// Bits of the values of all series by a query, which must return no timestamp twice.
async fn rows(db: &SeriesDb) -> Content {
    let all = Selector::all();
    let series = db.query(&all, ALL, None, Aggregate::Last).await.unwrap();
    let mut rows = Content::new();
    for of in series.iter() {
        for point in &of.points {
            let key = (
                of.source.to_string(),
                of.metric.to_string(),
                point.timestamp,
            );
            let before = rows.insert(key.clone(), point.value.to_bits());
            assert_eq!(before, None, "{key:?} is there twice");
        }
    }
    rows
}

/// All rows are in memory, each in the chunk of its partition, and once in a generation.
fn assert_stored_once(db: &SeriesDb, metric: &str) {
    let memtable = &db.0.memtable;
    let mut stored = BTreeSet::new();
    for run in memtable.runs("host", metric, &ALL) {
        for point in run.blocks.iter().flat_map(|block| block.iter()) {
            let at = point.timestamp;
            assert_eq!(memtable.width.partition(at), run.partition, "of {at}");
            let is_new = stored.insert((run.generation, at));
            assert!(is_new, "{metric} at {at} is twice in {}", run.generation);
        }
    }
}

/// Timestamps of batch `number`, out of order. At each border, before and after 1970 and with gaps
/// between them, the last of one partition and the first of the next, which all batches write, and
/// some next to each, which the batches of one round write. Then one that no other batch writes.
fn timestamps(number: i64) -> Vec<i64> {
    /// First hours of partitions.
    const BORDERS: [i64; 5] = [-12, 6, -2, 12, 0];
    const BESIDE: i64 = 20;
    let first = 1 + number / WRITERS * BESIDE;
    let beside = (first..first + BESIDE).flat_map(|at| [at, -1 - at]);
    let at_border: Vec<i64> = [-1, 0].into_iter().chain(beside).collect();
    let borders = BORDERS
        .iter()
        .flat_map(|hour| at_border.iter().map(move |at| hour * HOUR + at));
    borders.chain([HOUR + number]).collect()
}

#[tokio::test]
async fn case_6_concurrent_batches_over_partitions_are_stored_once() {
    const ROUNDS: i64 = 20;
    const METRICS: [&str; 3] = ["a", "b", "c"];
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    assert_eq!(db.0.memtable.width.nanos(), 2 * HOUR);
    let barrier = Barrier::new(WRITERS as usize);
    let write = |writer: i64| {
        for round in 0..ROUNDS {
            let number = round * WRITERS + writer;
            let row = |metric, at| row("host", metric, at, number as f64);
            let mut rows: Vec<_> = timestamps(number)
                .into_iter()
                .flat_map(|at| METRICS.map(|metric| row(metric, at)))
                .collect();
            // Every second writer begins at the other end, so that frames are logged in another order than rows are
            // written.
            if writer % 2 == 1 {
                rows.reverse();
            }
            barrier.wait();
            db.insert_rows(&rows).unwrap();
            for metric in METRICS {
                db.insert_rows(&[row(metric, i64::MAX - round)]).unwrap();
            }
        }
    };
    std::thread::scope(|threads| {
        for writer in 0..WRITERS {
            let write = &write;
            threads.spawn(move || write(writer));
        }
        threads.spawn(|| {
            for _ in 0..50 {
                db.0.gate.close();
                std::thread::yield_now();
            }
        });
    });
    for metric in METRICS {
        assert_stored_once(&db, metric);
    }
    let written = rows(&db).await;
    // By timestamp, the batches of the last round that wrote it: no row replaces a later one of its own writer.
    let mut winners: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for number in 0..ROUNDS * WRITERS {
        let round = number / WRITERS;
        for at in timestamps(number).into_iter().chain([i64::MAX - round]) {
            let numbers = winners.entry(at).or_default();
            numbers.retain(|earlier| earlier / WRITERS == round);
            numbers.push(number);
        }
    }
    assert_eq!(written.len(), METRICS.len() * winners.len());
    for ((_, metric, at), value) in &written {
        let number = f64::from_bits(*value) as i64;
        assert!(winners[at].contains(&number), "{metric} at {at}: {number}");
    }
    let again = database.copy().open().await.unwrap();
    for metric in METRICS {
        assert_stored_once(&again, metric);
    }
    assert!(rows(&again).await == written, "other rows after a replay");
    db.flush().await.unwrap();
    assert_eq!(content(&db).len(), 0);
    assert!(rows(&db).await == written, "other rows in files");
}

/// Rows of a batch are stored by series, so the rows of the last frame are not stored from its
/// first on.
#[tokio::test]
async fn stalled_batch_reports_leading_rows_that_are_all_stored() {
    let mut database = TestDatabase::new();
    database.options.memtable_bytes = Some(1 << 20);
    let db = database.open().await.unwrap();
    let handle = |n: usize| db.handle("host", &format!("{n:02}")).unwrap();
    let handles: Vec<SeriesHandle> = (0..SHARED).map(handle).collect();
    let batch: Vec<_> = (0..200_000)
        .map(|at| (handles[at % SHARED], at as i64, 0.5))
        .collect();
    let stalled = db.append_batch(&batch);
    let Err(SeriesError::WriteStalled { stored, .. }) = stalled else {
        panic!("{stalled:?}");
    };
    assert!(stored > 0);
    let found = rows(&db).await;
    let all = found.len();
    assert!(stored <= all && all < batch.len(), "{stored} of {all}");
    for at in 0..stored {
        let row = ("host".to_owned(), format!("{:02}", at % SHARED), at as i64);
        assert!(found.contains_key(&row), "row {at} of {stored}");
    }
}
