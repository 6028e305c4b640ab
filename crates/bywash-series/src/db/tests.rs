//! Tests of a database and its log: close, crash, truncation and damage.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use bywash_mem::{BlockPool, PoolConfig};
use object_store::ObjectStore;
use object_store::memory::InMemory;

use super::*;
use crate::MAX_NAME;
use crate::wal::{FileSystemStorage, LogFolder, LogStorage};

mod departures;
mod full;
mod log;
mod machines;
mod memory;
mod model;
mod partitions;
mod store;
mod writers;

const ALL: RangeInclusive<i64> = i64::MIN..=i64::MAX;

/// A clock at `i64::MIN`, so that no partition ever expires.
#[derive(Debug)]
struct Beginning;

impl crate::Clock for Beginning {
    fn now(&self) -> i64 {
        i64::MIN
    }
}

/// Store, log folder and options of a database that can be reopened.
struct TestDatabase {
    folder: tempfile::TempDir,
    store: Arc<InMemory>,
    options: SeriesOptions,
}

impl TestDatabase {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            store: Arc::new(InMemory::new()),
            options: SeriesOptions {
                segment_bytes: 512 << 10,
                wal_bytes: 16 << 20,
                memtable_bytes: Some(32 << 20),
                write_timeout: std::time::Duration::ZERO,
                clock: Arc::new(Beginning),
                ..SeriesOptions::default()
            },
        }
    }

    async fn open(&self) -> Result<SeriesDb, SeriesError> {
        self.open_on(Box::new(FileSystemStorage)).await
    }

    async fn open_on(&self, disk: Box<dyn LogStorage>) -> Result<SeriesDb, SeriesError> {
        let pool = BlockPool::new(PoolConfig::new(64 << 20)).unwrap();
        let store = Arc::clone(&self.store) as Arc<dyn ObjectStore>;
        let (folder, budget) = (self.folder.path().to_owned(), pool.budget().clone());
        let db = SeriesDb::open_on(disk, store, folder, budget, self.options.clone()).await?;
        // The background worker closes one generation and deletes log segments when it starts, which would race with
        // tests that list or copy them. With this clock it does nothing more by itself.
        while db.stats().flushes == 0 {
            tokio::task::yield_now().await;
        }
        Ok(db)
    }

    /// Copies log and store as a crash would leave them.
    fn copy(&self) -> Self {
        let copy = Self {
            options: self.options.clone(),
            store: Arc::new(self.store.fork()),
            ..Self::new()
        };
        for segment in self.segments() {
            fs::copy(
                &segment,
                copy.folder.path().join(segment.file_name().unwrap()),
            )
            .unwrap();
        }
        copy
    }

    fn segments(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|kind| kind == "wal"));
        paths.sort();
        paths
    }
}

/// Bits of the values in memory by source, metric and timestamp; the newest generation wins.
type Content = BTreeMap<(String, String, i64), u64>;

fn content(db: &SeriesDb) -> Content {
    let memtable = &db.0.memtable;
    let mut content = Content::new();
    let catalog = memtable.directory.current();
    for series in catalog.iter() {
        let (source, metric) = catalog.names(series);
        let mut runs = memtable.runs(source, metric, &ALL);
        runs.sort_by_key(|run| run.generation);
        for point in runs
            .iter()
            .flat_map(|run| run.blocks.iter().flat_map(|block| block.iter()))
        {
            let key = (source.to_string(), metric.to_string(), point.timestamp);
            content.insert(key, point.value.to_bits());
        }
    }
    content
}

fn row<'a>(source: &'a str, metric: &'a str, timestamp: i64, value: f64) -> Row<'a> {
    Row {
        source,
        metric,
        timestamp,
        value,
    }
}

#[tokio::test]
async fn name_above_the_limit_is_rejected() {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    let long = "m".repeat(MAX_NAME + 1);
    for (source, metric) in [(&*long, "m"), ("s", &*long)] {
        let result = db.insert_rows(&[row(source, metric, 1, 1.0)]);
        assert!(matches!(result, Err(SeriesError::NameTooLong { .. })));
    }
    assert_eq!(content(&db).len(), 0);
}

#[tokio::test]
async fn rows_survive_close_and_crash() {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    assert!(!db.stats().unclean_stop);
    let long = "m".repeat(MAX_NAME);
    let rows = [
        row("", "", i64::MIN, f64::NAN),
        row("a", &long, i64::MAX, -0.0),
        row("日本/\0", "x", -1, f64::from_bits(0x7ff0_0000_0000_0001)),
        row("a", &long, 0, f64::INFINITY),
    ];
    db.insert_rows(&rows).unwrap();
    let written = content(&db);
    assert_eq!(written.len(), 4);

    let crashed = database.copy();
    let again = crashed.open().await.unwrap();
    assert_eq!(content(&again), written);
    assert!(again.stats().unclean_stop);
    assert_eq!(again.stats().replayed_rows, 4);
    // Of a row written before and after a restart, the later one wins, also after the next restart.
    again.insert_rows(&[row("a", &long, 0, 1.5)]).unwrap();
    let written_again = content(&again);
    assert_ne!(written_again, written);
    again.close().await.unwrap();
    drop(again);
    let third = crashed.open().await.unwrap();
    assert_eq!(content(&third), written_again);
    assert!(!third.stats().unclean_stop);

    db.close().await.unwrap();
    drop(db);
    let closed = database.open().await.unwrap();
    assert_eq!(content(&closed), written);
    assert!(!closed.stats().unclean_stop);
}

#[tokio::test]
async fn log_in_use_is_rejected() {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    assert!(matches!(
        database.open().await,
        Err(SeriesError::Locked { .. })
    ));
    drop(db);
    database.open().await.unwrap();
}

fn sealed_rows(db: &SeriesDb) -> u64 {
    let version = db.0.files.version();
    version.files().iter().map(|file| file.entry().rows).sum()
}

#[tokio::test]
async fn flushed_rows_are_in_files_once_and_not_replayed() {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    let span = 2 * 3600 * 1_000_000_000;
    let rows: Vec<Row<'_>> = (-3..3).map(|n| row("a", "b", n * span, 1.0)).collect();
    db.insert_rows(&rows).unwrap();
    db.flush().await.unwrap();
    assert_eq!((content(&db).len(), sealed_rows(&db)), (0, 6));
    db.insert_rows(&rows[..2]).unwrap();
    let crashed = database.copy();
    drop(db);
    let again = crashed.open().await.unwrap();
    assert_eq!((content(&again).len(), sealed_rows(&again)), (2, 6));
    again.flush().await.unwrap();
    again.flush().await.unwrap();
    assert_eq!((content(&again).len(), sealed_rows(&again)), (0, 8));
}

#[tokio::test]
async fn writers_wait_for_memory_and_log_without_loss() {
    let mut database = TestDatabase::new();
    database.options.memtable_bytes = Some(1 << 20);
    database.options.wal_bytes = 2 << 20;
    database.options.write_timeout = std::time::Duration::from_secs(60);
    let db = database.open().await.unwrap();
    const ROWS: i64 = 400_000;
    std::thread::scope(|threads| {
        for writer in 0..2 {
            let db = &db;
            threads.spawn(move || {
                let series = db.handle("host", &format!("{writer}")).unwrap();
                let rows: Vec<_> = (0..ROWS / 2).map(|n| (series, n, n as f64)).collect();
                for rows in rows.chunks(10_000) {
                    db.append_batch(rows).unwrap();
                    assert!(db.stats().memtable_bytes <= 1 << 20);
                }
            });
        }
    });
    assert!(db.stats().flushes > 2, "{:?}", db.stats());
    db.flush().await.unwrap();
    assert_eq!(sealed_rows(&db), ROWS as u64);
    assert!(db.stats().wal_bytes < 2 << 20);
}

#[tokio::test]
async fn closed_database_rejects_writes() {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    let series = db.handle("a", "b").unwrap();
    db.close().await.unwrap();
    db.close().await.unwrap();
    assert!(matches!(
        db.append(series, 1, 1.0),
        Err(SeriesError::Closed)
    ));
    assert!(matches!(db.flush().await, Err(SeriesError::Closed)));
    assert!(matches!(
        db.append(SeriesHandle(7, 0), 1, 1.0),
        Err(SeriesError::UnknownHandle(7))
    ));
}

#[tokio::test]
async fn close_without_a_log_flushes() {
    let mut database = TestDatabase::new();
    database.options.log = false;
    let db = database.open().await.unwrap();
    db.insert_rows(&[row("a", "b", 1, 1.0)]).unwrap();
    db.close().await.unwrap();
    assert_eq!(sealed_rows(&db), 1);
    assert!(database.segments().is_empty());
}

#[tokio::test]
async fn first_names_are_those_of_the_list_and_sort_no_new_series() {
    const MAX: usize = 7;
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    let add = |from: usize, to: usize| {
        for number in from..to {
            // Name order differs from insertion order.
            let source = format!("source {:02}", number * 37 % 100);
            let handle = db.handle(&source, "metric").unwrap();
            db.append(handle, 1, 0.5).unwrap();
        }
    };
    let catalog = db.0.memtable.directory.current();
    add(0, 40);
    let names = async |max| {
        let names = db.list_first(max, ALL).await.unwrap().0;
        let owned = names.iter().map(|(source, _)| source.to_owned());
        owned.collect::<Vec<_>>()
    };
    // Far more than listed: sorted once, so that the next listing need not visit all.
    assert_eq!(names(MAX).await.len(), MAX);
    assert_eq!(catalog.ordered(), 40);
    add(40, 60);
    let first = names(MAX).await;
    assert_eq!(catalog.ordered(), 40, "sorted again");
    let all = names(usize::MAX).await;
    assert_eq!(first[..], all[..MAX]);
    assert_eq!(all.len(), 60);
    // The same with some rows in files.
    db.flush().await.unwrap();
    add(60, 70);
    let sources = db.sources(ALL).await.unwrap();
    assert_eq!(sources.len(), 70);
    assert_eq!(names(MAX).await[..], sources[..MAX]);
    assert!(db.list_first(MAX, 5..=9).await.unwrap().0.is_empty());
}
