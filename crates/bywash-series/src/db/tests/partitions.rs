//! Tests of rows in very many partitions: the writes of one client cost others nothing.

use std::time::Instant;

use bywash_support::faulty_store::{Fault, FaultyStore};

use super::machines::open_over;
use super::*;
use crate::{Aggregate, Point, Selector};

const HOUR: i64 = 3_600_000_000_000;

/// Writes a row in each of `count` partitions from `first` on, `step` hours apart.
fn insert_apart(db: &SeriesDb, source: &str, first: i64, count: i64, step: i64) {
    let rows: Vec<_> = (0..count)
        .map(|n| row(source, "x", (first + n * step) * HOUR, n as f64))
        .collect();
    db.insert_rows(&rows).unwrap();
}

async fn points(db: &SeriesDb, source: &str) -> Vec<Point> {
    let selector = Selector::parse(source, "*");
    let found = db
        .query(&selector, ALL, None, Aggregate::Last)
        .await
        .unwrap();
    found
        .iter()
        .flat_map(|series| series.points.iter().copied())
        .collect()
}

#[tokio::test]
async fn rows_two_hours_apart_share_a_few_files() {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    insert_apart(&db, "odd", 0, 70_000, 2);
    let begun = Instant::now();
    db.flush().await.unwrap();
    println!("flushed in {:?}", begun.elapsed());
    let version = db.0.files.version();
    assert!(
        version.files().len() < 20,
        "{} files",
        version.files().len()
    );
    assert!(version.manifest().flushed.is_empty());
    assert_eq!(db.0.memtable.row_bytes(), 0);
    let found = points(&db, "odd").await;
    assert_eq!(found.len(), 70_000);
    assert!(
        (0..)
            .zip(&found)
            .all(|(n, point)| point.timestamp == n * 2 * HOUR && point.value == n as f64)
    );
    drop((version, db));
    let again = database.open().await.unwrap();
    assert_eq!(points(&again, "odd").await.len(), 70_000);
}

#[tokio::test]
async fn rows_years_apart_share_files_of_their_windows() {
    for (first, count, step) in [
        (-40_000, 9_000, 24),
        (0, 2_000, 24 * 7),
        (-100, 700, 24 * 30),
    ] {
        let database = TestDatabase::new();
        let db = database.open().await.unwrap();
        insert_apart(&db, "odd", first, count, step);
        db.flush().await.unwrap();
        let files = db.0.files.version().files().len();
        assert!(files < 30, "{files} files of rows {step} hours apart");
        assert_eq!(points(&db, "odd").await.len(), count as usize);
    }
}

/// Files of a window with other files have rows of one day each, so that each expires and is compacted by itself.
#[tokio::test]
async fn small_partitions_between_files_of_days_share_files_of_a_day() {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    let own: Vec<_> = (0..70_000)
        .map(|n| row("own", "x", 24 * 10 * HOUR + n, 1.0))
        .collect();
    db.insert_rows(&own).unwrap();
    db.flush().await.unwrap();
    insert_apart(&db, "odd", 0, 480, 1);
    db.flush().await.unwrap();
    let version = db.0.files.version();
    let days = version.files().iter().map(|file| {
        let (first, last) = file.entry().partitions;
        (first / 12, last / 12)
    });
    let days: Vec<_> = days.collect();
    assert_eq!(days.len(), 21, "{days:?}");
    assert!(days.iter().all(|(first, last)| first == last), "{days:?}");
}

/// Few partitions have a file each, as before.
#[tokio::test]
async fn few_partitions_have_a_file_each() {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    insert_apart(&db, "a", 0, 16, 2);
    db.flush().await.unwrap();
    assert_eq!(db.0.files.version().files().len(), 16);
}

#[tokio::test]
async fn last_written_row_wins_whatever_files_share_partitions() {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    let write = |count: i64, value: f64| {
        let rows: Vec<_> = (0..count)
            .map(|n| row("a", "x", n * 2 * HOUR, value))
            .collect();
        db.insert_rows(&rows).unwrap();
    };
    // Files of one partition, of a day, of a window, before and after each other.
    for (value, count) in [(1.0, 3), (2.0, 600), (3.0, 2), (4.0, 500), (5.0, 1)] {
        write(count, value);
        db.flush().await.unwrap();
    }
    let expected = |n: i64| match n {
        0 => 5.0,
        1..500 => 4.0,
        _ => 2.0,
    };
    let check = async || {
        let found = points(&db, "a").await;
        assert_eq!(found.len(), 600);
        for (n, point) in (0..).zip(&found) {
            assert_eq!(point.value, expected(n), "row {n}");
        }
    };
    check().await;
    for now in [0, 30 * 24 * HOUR, i64::MAX] {
        let keys = crate::compaction::Unflushed {
            keys: db.0.memtable.unflushed(),
            from: db.0.gate.oldest_open(),
        };
        db.0.files.compact(now, &keys).await.unwrap();
        check().await;
    }
}

/// Of a flush that fails in the middle, the files before stay named; no row is lost or written twice.
#[tokio::test]
async fn flush_that_fails_in_the_middle_is_continued() {
    for fault in [Fault::Fail, Fault::LoseResponse] {
        for object in ["files/", "manifest"] {
            let database = TestDatabase::new();
            let store = FaultyStore::over(Arc::clone(&database.store) as Arc<dyn ObjectStore>);
            let db = open_over(store.shared(), &database).await.unwrap();
            while db.stats().flushes == 0 {
                tokio::task::yield_now().await;
            }
            insert_apart(&db, "near", 0, 1, 1);
            db.flush().await.unwrap();
            insert_apart(&db, "odd", 0, 1_200, 1);
            let mut failures = 0;
            for number in 0..40 {
                store.fault("put", object, fault);
                failures += u32::from(db.flush().await.is_err());
                insert_apart(&db, "odd", number * 31, 40, 24);
            }
            store.clear_faults();
            db.flush().await.unwrap();
            println!("{failures} failures of {object}");
            let rows: u64 =
                db.0.files
                    .version()
                    .files()
                    .iter()
                    .map(|file| file.entry().rows)
                    .sum();
            let written = 1 + 1_200 + 40 * 40;
            assert!(rows <= written, "{rows} rows, {written} written");
            let found = points(&db, "odd").await;
            let mut expected: Vec<i64> = (0..1_200).collect();
            expected.extend((0..40).flat_map(|number| (0..40).map(move |n| number * 31 + n * 24)));
            expected.sort_unstable();
            expected.dedup();
            let found: Vec<_> = found.iter().map(|point| point.timestamp / HOUR).collect();
            assert_eq!(found, expected);
        }
    }
}
