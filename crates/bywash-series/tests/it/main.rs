//! The series engine through its public interface: rows in memory and in files, across flushes, compactions, retention,
//! restarts and a full disk.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod damaged;
#[cfg(target_os = "linux")]
mod full_disk;
mod iterators;
mod queries;
mod values;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bywash_mem::{BlockPool, PoolConfig};
use bywash_series::{
    Clock, Point, Profile, Retention, Row, SeriesDb, SeriesIterator, SeriesOptions,
};
use object_store::ObjectStore;
use object_store::memory::InMemory;

const ALL: RangeInclusive<i64> = i64::MIN..=i64::MAX;
const HOUR: i64 = 3_600_000_000_000;

/// A clock that only moves when set.
#[derive(Debug)]
struct Stopped(AtomicI64);

impl Clock for Stopped {
    fn now(&self) -> i64 {
        // Relaxed: a test sets it before it depends on it.
        self.0.load(Ordering::Relaxed)
    }
}

struct TestDatabase {
    folder: tempfile::TempDir,
    store: Arc<dyn ObjectStore>,
    clock: Arc<Stopped>,
    profile: Profile,
    retention: Retention,
}

impl TestDatabase {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            store: Arc::new(InMemory::new()),
            // At the beginning of time no partition expires: nothing is flushed automatically.
            clock: Arc::new(Stopped(AtomicI64::new(i64::MIN))),
            profile: Profile::Portable,
            retention: Retention::default(),
        }
    }

    fn set_clock(&self, now: i64) {
        self.clock.0.store(now, Ordering::Relaxed);
    }

    async fn open(&self) -> SeriesDb {
        let pool = BlockPool::new(PoolConfig::new(64 << 20)).unwrap();
        let options = SeriesOptions {
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            profile: self.profile,
            retention: self.retention,
            segment_bytes: 1 << 20,
            ..SeriesOptions::default()
        };
        let store = Arc::clone(&self.store);
        SeriesDb::open(store, self.folder.path(), pool.budget().clone(), options)
            .await
            .unwrap()
    }
}

fn insert(db: &SeriesDb, source: &str, metric: &str, points: &[(i64, f64)]) {
    let row = |&(timestamp, value): &(i64, f64)| Row {
        source,
        metric,
        timestamp,
        value,
    };
    db.insert_rows(&points.iter().map(row).collect::<Vec<_>>())
        .unwrap();
}

fn bits(point: Point) -> (i64, u64) {
    (point.timestamp, point.value.to_bits())
}

/// Collects the remaining points of an iterator.
async fn rest(iterator: &mut SeriesIterator) -> Vec<(i64, u64)> {
    let mut points = Vec::new();
    while let Some(point) = iterator.next().await.unwrap() {
        points.push(bits(point));
    }
    points
}

async fn all(db: &SeriesDb, source: &str, metric: &str) -> Vec<(i64, u64)> {
    rest(&mut db.iterator(source, metric)).await
}

fn expected(points: &[(i64, f64)]) -> Vec<(i64, u64)> {
    points
        .iter()
        .map(|&(timestamp, value)| (timestamp, value.to_bits()))
        .collect()
}

fn age(hours: u64) -> Retention {
    Retention {
        age: Some(Duration::from_secs(hours * 3600)),
        bytes: None,
    }
}
