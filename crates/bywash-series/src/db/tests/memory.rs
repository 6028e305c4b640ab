//! Tests of the memory that reads take: charged before it is taken, and released.

use bywash_mem::{Budget, Reservation, Share};

use super::*;
use crate::{Aggregate, Point, Selector};

const SERIES: usize = 3000;

/// A database with this many series in each of some files, which are not compacted.
async fn database_of_files(files: usize) -> (TestDatabase, SeriesDb) {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    for file in 0..files as i64 {
        let names: Vec<String> = (0..SERIES).map(|n| format!("metric {n:05}")).collect();
        let rows: Vec<_> = names
            .iter()
            .map(|name| row("source", name, file, 1.0))
            .collect();
        db.insert_rows(&rows).unwrap();
        db.flush().await.unwrap();
    }
    (database, db)
}

/// Takes all that is left to reads.
fn exhaust(budget: &Budget) -> Vec<Reservation> {
    let mut held = Vec::new();
    for bytes in [1 << 20, 1 << 10, 1] {
        while let Some(reservation) = budget.try_reserve(Share::Upload, bytes) {
            held.push(reservation);
        }
    }
    held
}

#[tokio::test]
async fn reads_without_memory_fail_before_they_read() {
    let (_database, db) = database_of_files(2).await;
    let budget = db.0.files.0.budget.clone();
    let held = exhaust(&budget);
    let all = Selector::all();
    let listed = db.list(&all, ALL).await;
    assert!(
        matches!(listed, Err(SeriesError::NoMemory { .. })),
        "{listed:?}"
    );
    let found = db.query(&all, ALL, None, Aggregate::Last).await;
    assert!(
        matches!(found, Err(SeriesError::NoMemory { .. })),
        "{found:?}"
    );
    assert!(db.0.files.version().files()[0].open(false).await.is_err());
    drop(held);
    assert_eq!(db.list(&all, ALL).await.unwrap().len(), SERIES);
}

#[tokio::test]
async fn names_points_and_tails_are_charged_until_they_are_dropped() {
    let (_database, db) = database_of_files(2).await;
    let budget = db.0.files.0.budget.clone();
    let before = budget.held(Share::Upload);
    let all = Selector::all();
    let names = db.list(&all, ALL).await.unwrap();
    let of_names = budget.held(Share::Upload) - before;
    assert!(of_names > (SERIES * 64) as u64, "{of_names}");
    drop(names);
    assert_eq!(budget.held(Share::Upload), before);
    let found = db.query(&all, ALL, None, Aggregate::Last).await.unwrap();
    let points: usize = found.iter().map(|series| series.points.len()).sum();
    assert_eq!(points, 2 * SERIES);
    let of_points = budget.held(Share::Upload) - before;
    assert!(
        of_points > (2 * SERIES * size_of::<Point>()) as u64,
        "{of_points}"
    );
    drop(found);
    assert_eq!(budget.held(Share::Upload), before);
}

/// A query of one series needs the tails of its files one after the other, however many they are.
#[tokio::test]
async fn series_of_many_files_is_read_in_little_memory() {
    let (_database, db) = database_of_files(6).await;
    let budget = db.0.files.0.budget.clone();
    let largest = db.0.files.version();
    let largest = largest
        .files()
        .iter()
        .map(|file| crate::parquet::Layout::decoding_bytes(file.entry()));
    let mut held = exhaust(&budget);
    // Room for two tails.
    let mut free = 0;
    while free < 2 * largest.clone().max().unwrap() {
        free += held.remove(0).bytes();
    }
    let one = Selector::series("source", "metric 00007");
    let found = db.query(&one, ALL, None, Aggregate::Last).await.unwrap();
    assert_eq!(found[0].points.len(), 6);
}

#[tokio::test]
async fn readers_at_once_share_one_decoded_tail() {
    let (_database, db) = database_of_files(1).await;
    let version = db.0.files.version();
    let file = &version.files()[0];
    let opened = futures::future::join_all((0..16).map(|_| file.open(false))).await;
    let layouts: Vec<_> = opened
        .into_iter()
        .map(|reader| reader.unwrap().layout)
        .collect();
    assert!(
        layouts
            .iter()
            .all(|layout| Arc::ptr_eq(layout, &layouts[0]))
    );
}

#[tokio::test]
async fn query_selects_at_most_as_many_series_as_points() {
    let (_database, db) = database_of_files(1).await;
    let all = Selector::all();
    let query = |max| db.query_limited(max, &all, ALL, Some(10), Aggregate::Count);
    assert_eq!(query(SERIES).await.unwrap().len(), SERIES);
    let failed = query(SERIES - 1).await.unwrap_err();
    assert!(
        matches!(failed, SeriesError::TooManySelected { max } if max == SERIES - 1),
        "{failed}"
    );
}
