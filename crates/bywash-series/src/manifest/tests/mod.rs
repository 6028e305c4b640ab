//! Tests of data files and manifests in an in-memory store.

mod model;
mod sizes;
mod swaps;

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bywash_mem::{BlockPool, PoolConfig, Share};
use bywash_support::faulty_store::FaultyStore;
use futures::TryStreamExt;
use object_store::ObjectStore;
use object_store::memory::InMemory;

use super::*;
use crate::compaction::Unflushed;
use crate::memtable::{ImmutableMemtable, SeriesColumns};
use crate::query::{MergeIterator, SortedRun};
use crate::{Point, Retention};

fn span() -> PartitionWidth {
    PartitionWidth::new(Duration::from_secs(7200)).unwrap()
}

fn budget() -> Budget {
    BlockPool::new(PoolConfig::new(64 << 20))
        .unwrap()
        .budget()
        .clone()
}

async fn open(store: &Arc<dyn ObjectStore>) -> DataFiles {
    open_as(store, Profile::Portable).await
}

async fn open_as(store: &Arc<dyn ObjectStore>, profile: Profile) -> DataFiles {
    DataFiles::open(
        Arc::clone(store),
        budget(),
        (span(), profile),
        new_writer(),
        None,
    )
    .await
    .unwrap()
}

fn series(source: &str, metric: &str, points: &[(i64, f64)]) -> SeriesColumns {
    SeriesColumns {
        source: source.into(),
        metric: metric.into(),
        timestamps: points.iter().map(|point| point.0).collect(),
        values: points.iter().map(|point| point.1).collect(),
    }
}

fn immutable(
    partition: i64,
    generation: u64,
    series: Vec<SeriesColumns>,
) -> Arc<ImmutableMemtable> {
    Arc::new(ImmutableMemtable {
        partitions: vec![partition],
        generation,
        series,
    })
}

/// Reads the rows of one series in a range, merged from all files.
async fn rows(files: &DataFiles, names: (&str, &str), range: RangeInclusive<i64>) -> Vec<Point> {
    let version = files.version();
    read_version(&version, names, range).await.unwrap()
}

async fn read_version(
    version: &Version,
    (source, metric): (&str, &str),
    range: RangeInclusive<i64>,
) -> Result<Vec<Point>, SeriesError> {
    let runs: Vec<_> = version.files().iter().map(SortedRun::in_file).collect();
    let names = (&source.into(), &metric.into());
    let mut merge = MergeIterator::new(names, &runs, range, &Arc::default());
    let (mut points, mut buffer) = (Vec::new(), Vec::new());
    loop {
        let next = merge.next(&mut buffer).await?;
        if next.is_empty() {
            return Ok(points);
        }
        points.extend_from_slice(next);
    }
}

fn bits(points: &[Point]) -> Vec<(i64, u64)> {
    points
        .iter()
        .map(|point| (point.timestamp, point.value.to_bits()))
        .collect()
}

#[tokio::test]
async fn end_of_finds_the_position_after_present_and_absent_names() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let files = open(&store).await;
    let points = |count: i64| (0..count).map(|n| (n, 0.5)).collect::<Vec<_>>();
    let rows = vec![
        series("a", "x", &points(3)),
        series("a", "z", &points(4)),
        series("c", "y", &points(5)),
    ];
    files.flush(vec![immutable(0, 1, rows)], 1).await.unwrap();
    let reader = files.version().files()[0].open(false).await.unwrap();
    for (source, metric, end) in [
        ("", "z", 0),
        ("a", "w", 0),
        ("a", "x", 3),
        ("a", "y", 3),
        ("a", "z", 7),
        ("b", "x", 7),
        ("c", "x", 7),
        ("c", "y", 12),
        ("d", "", 12),
    ] {
        let found = reader.layout.index.end_of(source, metric);
        assert_eq!(found, end, "of {source:?} {metric:?}");
    }
}

/// Names of the objects among the data files.
async fn objects(store: &Arc<dyn ObjectStore>) -> BTreeSet<String> {
    let list = store.list(Some(&format::FILES.into()));
    let names = list.map_ok(|object| object.location.filename().unwrap().to_owned());
    names.try_collect().await.unwrap()
}

/// Reads all rows of one series in one file.
async fn read_all(file: &DataFile, source: &str, metric: &str) -> Vec<(i64, f64)> {
    let reader = file.open(false).await.unwrap();
    let Some(found) = reader.layout.index.find(source, metric) else {
        return Vec::new();
    };
    let mut rows = found.rows.clone();
    let mut points = Vec::new();
    while !rows.is_empty() {
        let (read, places) = reader.read(&rows).await.unwrap();
        rows.start += places.len() as u64;
        points.extend(
            read[places]
                .iter()
                .map(|point| (point.timestamp, point.value)),
        );
    }
    points
}

#[tokio::test]
async fn flushed_rows_are_read_bit_for_bit() {
    flushed_rows_are_read(Profile::Portable).await;
    flushed_rows_are_read(Profile::Compact).await;
}

async fn flushed_rows_are_read(profile: Profile) {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let files = open_as(&store, profile).await;
    let odd = [
        f64::from_bits(0x7ff8_0000_dead_beef),
        f64::from_bits(0x7ff0_0000_0000_0001),
        f64::from_bits(0x7ff0_0000_0000_0002),
        -0.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::MIN_POSITIVE / 2.0,
        9_007_199_254_740_993.0,
    ];
    let odd: Vec<_> = (0..).zip(odd).collect();
    let long: Vec<_> = (0..50_000).map(|at| (at, at as f64 / 3.0)).collect();
    // Deltas of all bit widths.
    let steps = (0..4000)
        .map(|n: u32| u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (n / 64 % 60 + 4));
    let mut timestamp = i64::MIN;
    let wide = steps.map(|step| {
        timestamp = timestamp
            .saturating_add_unsigned(step >> 8)
            .saturating_add(1);
        (timestamp, 1.0)
    });
    let wide: Vec<_> = wide.collect();
    let rows = vec![
        series("", "", &odd),
        series("a", "x", &[(i64::MIN, 1.0), (0, 2.0), (i64::MAX, 3.0)]),
        series("ä/b", "long", &long),
        series("ä/b", &"m".repeat(65_536), &[(7, 7.0)]),
        series("ä/b", "wide", &wide),
    ];
    files.flush(vec![immutable(0, 0, rows)], 0).await.unwrap();

    let again = open(&store).await;
    let version = again.version();
    assert!(version.is_flushed(0, 0) && !version.is_flushed(0, 1) && !version.is_flushed(1, 0));
    let [file] = version.files() else {
        panic!("one file")
    };
    let bits = |points: &[(i64, f64)]| {
        points
            .iter()
            .map(|p| (p.0, p.1.to_bits()))
            .collect::<Vec<_>>()
    };
    assert_eq!(bits(&read_all(file, "", "").await), bits(&odd));
    assert_eq!(
        read_all(file, "a", "x").await,
        [(i64::MIN, 1.0), (0, 2.0), (i64::MAX, 3.0)]
    );
    assert_eq!(read_all(file, "ä/b", "long").await, long);
    assert_eq!(read_all(file, "ä/b", "wide").await, wide);
    assert_eq!(read_all(file, "ä/b", &"m".repeat(65_536)).await, [(7, 7.0)]);
    assert_eq!(read_all(file, "ä/b", "o").await, []);
}

/// No rows in memory.
fn no_rows() -> Unflushed {
    Unflushed {
        keys: BTreeSet::new(),
        from: u64::MAX,
    }
}

/// Nanoseconds of `days` and `hours`.
fn at(days: i64, hours: i64) -> i64 {
    (days * 24 + hours) * 3_600_000_000_000
}

#[tokio::test]
async fn compacted_files_have_the_same_rows_and_the_newest_generation_wins() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let files = open(&store).await;
    for partition in 0..12 {
        let start = at(0, 2 * partition);
        let points: Vec<_> = (0..500).map(|n| (start + n, n as f64)).collect();
        let rows = vec![series("a", "x", &points), series("b", "x", &[(start, 1.0)])];
        files
            .flush(vec![immutable(partition, 1, rows)], 1)
            .await
            .unwrap();
    }
    for generation in 2..4 {
        let late = vec![series(
            "a",
            "x",
            &[(at(0, 4) + 1, f64::from_bits(generation))],
        )];
        files
            .flush(vec![immutable(2, generation, late)], generation)
            .await
            .unwrap();
    }
    let held = files.version();
    let before = bits(&rows(&files, ("a", "x"), i64::MIN..=i64::MAX).await);
    assert_eq!(before.len(), 12 * 500);
    assert_eq!(before[1001], (at(0, 4) + 1, 3));

    let removed = files.compact(at(1, 0), &no_rows()).await.unwrap();
    assert_eq!(removed, 2, "rows of the day may still come late");
    assert_eq!(files.compact(at(1, 1), &no_rows()).await.unwrap(), 11);
    assert_eq!(files.version().files().len(), 1);
    assert_eq!(
        bits(&rows(&files, ("a", "x"), i64::MIN..=i64::MAX).await),
        before
    );
    let last_hours = rows(&files, ("b", "x"), at(0, 20)..=at(0, 22)).await;
    assert_eq!(
        bits(&last_hours),
        [(at(0, 20), 1f64.to_bits()), (at(0, 22), 1f64.to_bits())]
    );

    assert_eq!(
        objects(&store).await.len(),
        15,
        "a version that is held keeps its files"
    );
    let of_held = read_version(&held, ("a", "x"), i64::MIN..=i64::MAX)
        .await
        .unwrap();
    assert_eq!(bits(&of_held), before);
    drop(held);
    files.delete_obsolete().await;
    assert_eq!(objects(&store).await.len(), 1);
}

#[tokio::test]
async fn compactions_are_charged_to_the_budget_and_deferred_without_memory() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let budget = budget();
    let opened = DataFiles::open(
        store,
        budget.clone(),
        (span(), Profile::Portable),
        new_writer(),
        None,
    );
    let files = opened.await.unwrap();
    let points: Vec<_> = (0..1000).map(|n| (at(0, 0) + n, n as f64)).collect();
    for generation in 1..4 {
        let rows = vec![series("a", "x", &points)];
        let rows = immutable(0, generation, rows);
        files.flush(vec![rows], generation).await.unwrap();
    }
    // Merging a few thousand rows needs more than the rest of the budget.
    let exhaust_budget = |bytes: u64| {
        let mut held = Vec::new();
        while let Some(reservation) = budget.try_reserve(Share::Upload, bytes) {
            held.push(reservation);
        }
        held
    };
    let held = exhaust_budget(32 << 10);
    assert_eq!(files.compact(at(0, 1), &no_rows()).await.unwrap(), 0);
    assert_eq!(files.version().files().len(), 3);
    drop(held);
    let before = budget.held(Share::Upload);
    assert_eq!(files.compact(at(0, 1), &no_rows()).await.unwrap(), 2);
    assert_eq!(
        budget.held(Share::Upload),
        before,
        "the reservation is released"
    );
}

/// Indexes and lists of names were not charged.
#[tokio::test]
async fn files_of_many_names_are_compacted_in_parts_that_fit_the_budget() {
    const FILES: u64 = 24;
    const NAMES: usize = 1000;
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let pool = BlockPool::new(PoolConfig::new(8 << 20)).unwrap();
    let budget = pool.budget().clone();
    let opened = DataFiles::open(
        store,
        budget.clone(),
        (span(), Profile::Portable),
        new_writer(),
        None,
    );
    let files = opened.await.unwrap();
    for generation in 1..=FILES {
        let names = (0..NAMES).map(|name| format!("{generation} {name:03}"));
        let rows = names.map(|name| series("a", &name, &[(at(0, 0), 1.0)]));
        let rows = immutable(0, generation, rows.collect());
        files.flush(vec![rows], generation).await.unwrap();
    }
    let fewer = files.compact(at(0, 1), &no_rows()).await.unwrap();
    let left = files.version().files().len();
    assert_eq!(left + fewer, FILES as usize);
    assert!((2..FILES as usize).contains(&left), "{left} files");
    let first = rows(&files, ("a", "1 000"), i64::MIN..=i64::MAX).await;
    let last = rows(&files, ("a", "24 999"), i64::MIN..=i64::MAX).await;
    assert_eq!((first.len(), last.len()), (1, 1));
    let version = files.version();
    let all = version.files().iter().map(|file| file.entry().series);
    assert_eq!(all.sum::<u64>(), FILES * NAMES as u64);
}

#[tokio::test]
async fn row_from_the_future_expires_no_other_file() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let files = open(&store).await;
    for (day, partition) in [(0, 0), (1, 12), (2, 24)] {
        let rows = vec![series("a", "x", &[(at(day, 0), 1.0), (at(day, 1), 2.0)])];
        files
            .flush(vec![immutable(partition, 1, rows)], 1)
            .await
            .unwrap();
    }
    let far = vec![series("a", "x", &[(i64::MAX, 9.0)])];
    files
        .flush(vec![immutable(span().partition(i64::MAX), 2, far)], 2)
        .await
        .unwrap();
    let retention = Retention {
        age: Some(Duration::from_secs(36 * 3600)),
        bytes: None,
    };
    files.apply_retention(retention, at(1, 13)).await.unwrap();
    assert_eq!(
        files.version().files().len(),
        4,
        "a row of the first file is young enough"
    );
    files.apply_retention(retention, at(1, 14)).await.unwrap();
    let kept = bits(&rows(&files, ("a", "x"), i64::MIN..=i64::MAX).await);
    assert_eq!(kept.len(), 5);
    assert_eq!(objects(&store).await.len(), 3);
    let version = files.version();
    assert!(
        version.is_flushed(0, 1),
        "a log must not bring back what has expired"
    );

    let by_size = Retention {
        age: None,
        bytes: Some(version.bytes() - 1),
    };
    drop(version);
    files.apply_retention(by_size, 0).await.unwrap();
    let kept = rows(&files, ("a", "x"), i64::MIN..=i64::MAX).await;
    assert_eq!(kept[0].timestamp, at(2, 0), "the oldest goes first");
    assert_eq!(kept.len(), 3);
}

#[tokio::test]
async fn cold_series_costs_three_gets_and_a_cached_tail_saves_one() {
    let store = FaultyStore::default();
    let shared = store.shared();
    let files = open(&shared).await;
    let long: Vec<_> = (0..100_000).map(|n| (n, (n as f64).sin())).collect();
    let of = |name: &str| series(name, "x", &long);
    files
        .flush(
            vec![immutable(0, 1, vec![of("a"), of("b"), of("c"), of("d")])],
            1,
        )
        .await
        .unwrap();
    store.gets();
    let points = rows(&files, ("c", "x"), 10..=99).await;
    assert_eq!(points.len(), 90);
    let cold = store.gets();
    assert!(cold.len() <= 3, "{cold:?}");
    let points = rows(&files, ("c", "x"), 50_000..=50_001).await;
    assert_eq!(points.len(), 2);
    let warm = store.gets();
    assert!(warm.len() <= 2, "{warm:?}");
    let bytes: u64 = warm
        .iter()
        .map(|(_, range)| range.as_ref().map_or(0, |r| r.end - r.start))
        .sum();
    let all = files.version().bytes();
    assert!(bytes < all / 4, "{bytes} of {all} bytes for two rows");
}
