//! A database and its log: closed, killed, cut and damaged.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bywash_mem::{BlockPool, PoolConfig};
use object_store::memory::InMemory;

use super::*;
use crate::MAX_NAME;

const ALL: RangeInclusive<i64> = i64::MIN..=i64::MAX;

/// A clock that stands at the beginning of time, where no partition is over.
#[derive(Debug)]
struct Beginning;

impl crate::Clock for Beginning {
    fn now(&self) -> i64 {
        i64::MIN
    }
}

/// Where a database lives, so that it can be opened again.
struct World {
    folder: tempfile::TempDir,
    store: Arc<InMemory>,
    options: SeriesOptions,
}

impl World {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            store: Arc::new(InMemory::new()),
            options: SeriesOptions {
                segment_bytes: 512 << 10,
                wal_bytes: 16 << 20,
                head_bytes: Some(32 << 20),
                patience: std::time::Duration::ZERO,
                clock: Arc::new(Beginning),
                ..SeriesOptions::default()
            },
        }
    }

    async fn open(&self) -> Result<SeriesDb, SeriesError> {
        let pool = BlockPool::new(PoolConfig::new(64 << 20)).unwrap();
        let store = Arc::clone(&self.store) as Arc<dyn ObjectStore>;
        SeriesDb::open(
            store,
            self.folder.path(),
            pool.budget().clone(),
            self.options.clone(),
        )
        .await
    }

    /// Another world with the same log as it is now, as a crash would leave it.
    fn copy(&self) -> Self {
        let copy = Self {
            options: self.options.clone(),
            store: Arc::clone(&self.store),
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

/// By source, metric and timestamp: the bits of the values in memory, whose highest generation holds.
type Content = BTreeMap<(String, String, i64), u64>;

fn content(db: &SeriesDb) -> Content {
    let head = &db.0.head;
    let mut content = Content::new();
    for series in head.catalog.iter() {
        let (source, metric) = head.catalog.names(series);
        let mut runs = head.runs(source, metric, &ALL);
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

/// The bytes of a segment up to the last that is not zero.
fn used(path: &Path) -> usize {
    let bytes = fs::read(path).unwrap();
    bytes
        .iter()
        .rposition(|&byte| byte != 0)
        .map_or(0, |at| at + 1)
}

fn truncate(path: &Path, bytes: u64) {
    OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(bytes)
        .unwrap();
}

#[tokio::test]
async fn rows_are_there_after_a_close_and_after_a_crash() {
    let world = World::new();
    let db = world.open().await.unwrap();
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

    let crashed = world.copy();
    let again = crashed.open().await.unwrap();
    assert_eq!(content(&again), written);
    assert!(again.stats().unclean_stop);
    assert_eq!(again.stats().replayed_rows, 4);
    // Of a row written before and after a start, the later holds, and still does after the next.
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
    let closed = world.open().await.unwrap();
    assert_eq!(content(&closed), written);
    assert!(!closed.stats().unclean_stop);
}

#[tokio::test]
async fn a_log_in_use_is_refused() {
    let world = World::new();
    let db = world.open().await.unwrap();
    assert!(matches!(
        world.open().await,
        Err(SeriesError::Locked { .. })
    ));
    drop(db);
    world.open().await.unwrap();
}

#[tokio::test]
async fn case_3_a_tail_torn_at_every_byte_is_cut_and_all_rows_before_it_stay() {
    let world = World::new();
    let db = world.open().await.unwrap();
    let host = db.handle("host", "cpu").unwrap();
    db.append(host, 1, 1.0).unwrap();
    let path = world.segments().remove(0);
    let before = used(&path);
    let written = content(&db);
    db.append_batch(&[(host, 2, 2.0), (host, 3, 3.0)]).unwrap();
    let all = content(&db);
    let after = used(&path);
    for end in 0..=after {
        let torn = world.copy();
        truncate(&torn.segments()[0], end as u64);
        let again = torn.open().await.unwrap();
        let expected = match end {
            _ if end >= after => all.clone(),
            _ if end >= before => written.clone(),
            _ => content(&again),
        };
        assert_eq!(content(&again), expected, "cut at {end} of {after}");
        // What is written now is behind the cut, and found at the next start.
        again
            .insert_rows(&[row("host", "cpu", 9, end as f64)])
            .unwrap();
        let expected = content(&again);
        drop(again);
        assert_eq!(
            content(&torn.open().await.unwrap()),
            expected,
            "cut at {end} of {after}"
        );
    }
}

#[tokio::test]
async fn case_3_a_flipped_bit_with_frames_behind_it_stops_with_a_report() {
    let world = World::new();
    let db = world.open().await.unwrap();
    for n in 0..4 {
        db.insert_rows(&[row("host", &format!("metric {n}"), n, 1.0)])
            .unwrap();
    }
    let path = world.segments().remove(0);
    let bytes = fs::read(&path).unwrap();
    let end = used(&path);
    // The last frame is a row's; a flip in it cannot be told from a torn one.
    let last = end - 40;
    for at in (24..last).step_by(3) {
        let flipped = world.copy();
        let path = flipped.segments().remove(0);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[bytes[at] ^ 0x10], at as u64).unwrap();
        let before = fs::read(&path).unwrap();
        match flipped.open().await {
            Err(SeriesError::DamagedLog {
                segment: 1, offset, ..
            }) => assert!(offset <= at as u64),
            other => panic!("byte {at} of {end}: {other:?}"),
        }
        assert!(fs::read(&path).unwrap() == before, "nothing was changed");
    }
}

#[tokio::test]
async fn salvage_keeps_what_can_be_read_and_puts_the_damage_aside() {
    let world = World::new();
    let db = world.open().await.unwrap();
    db.insert_rows(&[row("a", "b", 1, 1.0)]).unwrap();
    let damage = used(&world.segments()[0]);
    db.insert_rows(&[row("a", "b", 2, 2.0)]).unwrap();
    db.insert_rows(&[row("a", "b", 3, 3.0)]).unwrap();
    let mut damaged = world.copy();
    let file = OpenOptions::new()
        .write(true)
        .open(&damaged.segments()[0])
        .unwrap();
    file.write_all_at(b"?", damage as u64 + 30).unwrap();
    assert!(damaged.open().await.is_err());
    damaged.options.salvage = true;
    let again = damaged.open().await.unwrap();
    let timestamps: Vec<i64> = content(&again).keys().map(|key| key.2).collect();
    assert_eq!(timestamps, [1, 3]);
}

#[tokio::test]
async fn empty_and_header_only_segments_are_legal() {
    let world = World::new();
    let db = world.open().await.unwrap();
    db.insert_rows(&[row("a", "b", 1, 1.0)]).unwrap();
    let written = content(&db);
    db.close().await.unwrap();
    drop(db);
    let first = fs::read(&world.segments()[0]).unwrap();
    for content in [&[][..], &[0; 100], &first[..10]] {
        fs::write(world.folder.path().join(format!("{:020}.wal", 2)), content).unwrap();
        let again = world.copy().open().await.unwrap();
        assert_eq!(super::tests::content(&again), written);
    }
    fs::write(world.folder.path().join("notes.wal"), b"not of the log").unwrap();
    assert_eq!(super::tests::content(&world.open().await.unwrap()), written);
}

#[tokio::test]
async fn case_7_of_writers_side_by_side_the_same_one_wins_before_and_after_a_start() {
    let world = World::new();
    let db = world.open().await.unwrap();
    std::thread::scope(|threads| {
        for writer in 0..4 {
            let db = &db;
            threads.spawn(move || {
                let series: Vec<SeriesHandle> = (0..3)
                    .map(|n| db.handle("host", &format!("{n}")).unwrap())
                    .collect();
                for n in 0..2000 {
                    // The same few timestamps again and again, in batches that overlap.
                    let value = f64::from(writer * 10_000 + n);
                    let rows: Vec<_> = series
                        .iter()
                        .map(|&of| (of, i64::from(n / 8), value))
                        .collect();
                    db.append_batch(&rows).unwrap();
                    if n % 100 == 0 {
                        db.0.gate.close();
                    }
                }
            });
        }
    });
    let written = content(&db);
    let again = world.copy().open().await.unwrap();
    let different = written
        .iter()
        .find(|&(key, value)| content(&again).get(key) != Some(value));
    assert_eq!(different, None);
    assert_eq!(content(&again).len(), written.len());
}

fn sealed_rows(db: &SeriesDb) -> u64 {
    let version = db.0.files.version();
    version.files().iter().map(|file| file.entry().rows).sum()
}

#[tokio::test]
async fn what_is_flushed_is_in_files_once_and_neither_in_memory_nor_replayed() {
    let world = World::new();
    let db = world.open().await.unwrap();
    let span = 2 * 3600 * 1_000_000_000;
    let rows: Vec<Row<'_>> = (-3..3).map(|n| row("a", "b", n * span, 1.0)).collect();
    db.insert_rows(&rows).unwrap();
    db.flush().await.unwrap();
    assert_eq!((content(&db).len(), sealed_rows(&db)), (0, 6));
    db.insert_rows(&rows[..2]).unwrap();
    let crashed = world.copy();
    drop(db);
    let again = crashed.open().await.unwrap();
    assert_eq!((content(&again).len(), sealed_rows(&again)), (2, 6));
    again.flush().await.unwrap();
    again.flush().await.unwrap();
    assert_eq!((content(&again).len(), sealed_rows(&again)), (0, 8));
}

#[tokio::test]
async fn writers_wait_for_memory_and_log_and_lose_nothing() {
    let mut world = World::new();
    world.options.head_bytes = Some(1 << 20);
    world.options.wal_bytes = 2 << 20;
    world.options.patience = std::time::Duration::from_secs(60);
    let db = world.open().await.unwrap();
    const ROWS: i64 = 400_000;
    std::thread::scope(|threads| {
        for writer in 0..2 {
            let db = &db;
            threads.spawn(move || {
                let series = db.handle("host", &format!("{writer}")).unwrap();
                let rows: Vec<_> = (0..ROWS / 2).map(|n| (series, n, n as f64)).collect();
                for rows in rows.chunks(10_000) {
                    db.append_batch(rows).unwrap();
                    assert!(db.stats().head_bytes <= 1 << 20);
                }
            });
        }
    });
    assert!(db.stats().seals > 2, "{:?}", db.stats());
    db.flush().await.unwrap();
    assert_eq!(sealed_rows(&db), ROWS as u64);
    assert!(db.stats().wal_bytes < 2 << 20);
}

#[tokio::test]
async fn a_closed_database_takes_nothing() {
    let world = World::new();
    let db = world.open().await.unwrap();
    let series = db.handle("a", "b").unwrap();
    db.close().await.unwrap();
    db.close().await.unwrap();
    assert!(matches!(
        db.append(series, 1, 1.0),
        Err(SeriesError::Closed)
    ));
    assert!(matches!(db.flush().await, Err(SeriesError::Closed)));
    assert!(matches!(
        db.append(SeriesHandle(7), 1, 1.0),
        Err(SeriesError::UnknownHandle(7))
    ));
}

#[tokio::test]
async fn without_a_log_a_close_seals() {
    let mut world = World::new();
    world.options.log = false;
    let db = world.open().await.unwrap();
    db.insert_rows(&[row("a", "b", 1, 1.0)]).unwrap();
    db.close().await.unwrap();
    assert_eq!(sealed_rows(&db), 1);
    assert!(world.segments().is_empty());
}
