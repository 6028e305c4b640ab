//! Writers side by side.

use std::cmp::Ordering;

use super::*;
use crate::{Row, Selector, SeriesNames};

/// Series that all threads name.
const SHARED: usize = 100;
const HOUR: i64 = 3_600_000_000_000;

/// Two writers meet in the middle of the same series, from both ends: of those before the middle the second one comes last, of
/// those behind it the first one. Whichever frame the log has first, rows in the order of frames would be other ones.
#[tokio::test]
async fn case_7_of_writers_side_by_side_the_same_one_wins_before_and_after_a_start() {
    const MIDDLE: usize = 16;
    const ROUNDS: i64 = 20;
    let world = World::new();
    let db = world.open().await.unwrap();
    let name = |n: usize| db.handle("host", &format!("{n:02}")).unwrap();
    let ascending: Vec<SeriesHandle> = (0..=2 * MIDDLE).map(name).collect();
    let descending: Vec<SeriesHandle> = ascending.iter().rev().copied().collect();
    let catalog = &db.0.head.catalog;
    let has = |n: usize, at: i64| {
        let runs = db.0.head.runs("host", &format!("{n:02}"), &(at..=at));
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
            // Only looked at: a round is one turn of each writer.
            let held = middle.turn(0);
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
    let again = content(&world.copy().open().await.unwrap());
    assert_eq!(again, written);
}

/// Names are looked up sixteen rows at a time; those like the row before are not.
#[tokio::test]
async fn rows_with_the_names_of_the_row_before_are_its_series_across_groups_too() {
    let world = World::new();
    let db = world.open().await.unwrap();
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
async fn case_1_64_threads_name_the_same_and_other_series_while_others_list_them() {
    let world = World::new();
    let db = world.open().await.unwrap();
    let handles: Vec<Vec<SeriesHandle>> = std::thread::scope(|threads| {
        let lister = threads.spawn(|| {
            let mut seen = 0;
            while seen < SHARED + 64 {
                let head = &db.0.head;
                let names = SeriesNames::in_memory(head, &Selector::all(), &ALL);
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
    assert_eq!(content(&world.copy().open().await.unwrap()), written);
}

#[tokio::test]
async fn case_6_batches_over_partitions_raced_by_16_writers_are_stored_once() {
    let world = World::new();
    let db = world.open().await.unwrap();
    std::thread::scope(|threads| {
        for writer in 0..16 {
            let db = &db;
            threads.spawn(move || {
                let metric = format!("{writer}");
                for batch in 0..20 {
                    // Several partitions, with gaps between them, on both sides of 1970, early and late; then one row alone.
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
    assert_eq!(content(&world.copy().open().await.unwrap()), written);
    db.flush().await.unwrap();
    assert_eq!(content(&db).len(), 0);
}
