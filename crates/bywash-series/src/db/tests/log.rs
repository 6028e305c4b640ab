//! Tests of the log: torn, damaged, and on a failing disk.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use bywash_support::faulty_store::Fault;

use super::*;
use crate::background::TICK;
use crate::wal::LogFile;

/// Bytes of a segment up to the last nonzero byte.
pub(super) fn used(path: &Path) -> usize {
    let bytes = fs::read(path).unwrap();
    bytes
        .iter()
        .rposition(|&byte| byte != 0)
        .map_or(0, |at| at + 1)
}

pub(super) fn truncate(path: &Path, bytes: u64) {
    OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(bytes)
        .unwrap();
}

#[tokio::test]
async fn case_3_torn_end_is_cut_at_any_byte_and_earlier_rows_stay() {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    let host = db.handle("host", "cpu").unwrap();
    db.append(host, 1, 1.0).unwrap();
    let path = database.segments().remove(0);
    let before = used(&path);
    let written = content(&db);
    db.append_batch(&[(host, 2, 2.0), (host, 3, 3.0)]).unwrap();
    let all = content(&db);
    let after = used(&path);
    for end in 0..=after {
        let torn = database.copy();
        truncate(&torn.segments()[0], end as u64);
        let again = torn.open().await.unwrap();
        let expected = match end {
            _ if end >= after => all.clone(),
            _ if end >= before => written.clone(),
            _ => content(&again),
        };
        assert_eq!(content(&again), expected, "cut at {end} of {after}");
        // New rows are written after the cut and replayed at the next open.
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
async fn case_3_flipped_bit_before_valid_frames_fails_the_open() {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    for n in 0..4 {
        db.insert_rows(&[row("host", &format!("metric {n}"), n, 1.0)])
            .unwrap();
    }
    let path = database.segments().remove(0);
    let bytes = fs::read(&path).unwrap();
    let end = used(&path);
    // The last frame has rows; a flipped bit in it looks like a torn frame.
    let last = end - 40;
    for at in (24..last).step_by(3) {
        let flipped = database.copy();
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
async fn salvage_keeps_readable_rows_and_sets_damage_aside() {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    db.insert_rows(&[row("a", "b", 1, 1.0)]).unwrap();
    let damage = used(&database.segments()[0]);
    db.insert_rows(&[row("a", "b", 2, 2.0)]).unwrap();
    db.insert_rows(&[row("a", "b", 3, 3.0)]).unwrap();
    let mut damaged = database.copy();
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
    // Once its rows are flushed, the damage has no further effect.
    let filler: Vec<_> = (0..100_000)
        .map(|n| (again.handle("c", "d").unwrap(), n, 0.0))
        .collect();
    again.append_batch(&filler).unwrap();
    again.flush().await.unwrap();
    again.close().await.unwrap();
    drop(again);
    damaged.options.salvage = false;
    damaged.open().await.unwrap();
    assert!(
        damaged
            .folder
            .path()
            .join(format!("{:020}.damaged", 1))
            .exists()
    );
}

#[tokio::test]
async fn empty_and_header_only_segments_are_valid() {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    db.insert_rows(&[row("a", "b", 1, 1.0)]).unwrap();
    let written = content(&db);
    db.close().await.unwrap();
    drop(db);
    let first = fs::read(&database.segments()[0]).unwrap();
    for bytes in [&[][..], &[0; 100], &first[..10]] {
        fs::write(database.folder.path().join(format!("{:020}.wal", 2)), bytes).unwrap();
        let again = database.copy().open().await.unwrap();
        assert_eq!(content(&again), written);
    }
    fs::write(database.folder.path().join("notes.wal"), b"not of the log").unwrap();
    assert_eq!(content(&database.open().await.unwrap()), written);
}

/// A segment is complete before the next one begins: one without frames before others has lost them.
#[tokio::test]
async fn segment_without_frames_before_others_is_damage() {
    let database = TestDatabase::new();
    let mut lengths = Vec::new();
    for number in 0..3 {
        // Each open begins a segment.
        let db = database.open().await.unwrap();
        let name = format!("{number}");
        let rows = [row("a", "b", number, 1.0), row("a", &name, 0, 1.0)];
        db.insert_rows(&rows).unwrap();
        db.close().await.unwrap();
        lengths.push(database.segments().len());
    }
    assert_eq!(lengths, [1, 2, 3]);
    let header = fs::read(&database.segments()[1]).unwrap()[..24].to_vec();
    for bytes in [&[][..], &[0; 4096], &header[..10], &header] {
        for at in [0, 1] {
            let mut copy = database.copy();
            fs::write(&copy.segments()[at], bytes).unwrap();
            let failed = copy.open().await.unwrap_err();
            let expected = at as u64 + 1;
            assert!(
                matches!(failed, SeriesError::DamagedLog { segment, .. } if segment == expected),
                "{failed}"
            );
            copy.options.salvage = true;
            let salvaged = content(&copy.open().await.unwrap());
            assert!(salvaged.keys().any(|(_, metric, _)| metric == "2"), "{at}");
            assert_eq!(
                salvaged.len(),
                content(&database.copy().open().await.unwrap()).len() - 2
            );
        }
    }
}

/// A crash may end a start before its first frame. The segment that it leaves is no damage once
/// others follow.
#[tokio::test]
async fn segments_that_crashes_left_empty_are_removed_before_others_follow() {
    let database = TestDatabase::new();
    let mut expected = 0;
    for number in 0..4 {
        let db = database.open().await.unwrap();
        assert_eq!(content(&db).len(), expected);
        db.insert_rows(&[row("a", &format!("{number}"), 0, 1.0)])
            .unwrap();
        expected += 1;
        drop(db);
        let next = database.segments().len() as u64 + 1;
        let empty = |number| database.folder.path().join(format!("{number:020}.wal"));
        fs::write(empty(next), [0; 4096]).unwrap();
        fs::write(empty(next + 1), []).unwrap();
    }
    let db = database.open().await.unwrap();
    assert_eq!(content(&db).len(), expected);
}

/// Makes operations of one kind fail after some successes.
#[derive(Debug, Clone)]
struct FailingStorage {
    what: &'static str,
    /// Operations that still succeed.
    remaining: Arc<AtomicU64>,
    /// Operations attempted.
    attempts: Arc<AtomicU64>,
}

impl FailingStorage {
    fn new(what: &'static str, remaining: u64) -> Self {
        Self {
            what,
            remaining: Arc::new(AtomicU64::new(remaining)),
            attempts: Arc::default(),
        }
    }

    fn attempt(&self, what: &str) -> io::Result<()> {
        let remaining = || {
            let less = |remaining: u64| remaining.checked_sub(1);
            self.remaining
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
        };
        self.attempts.fetch_add(1, Ordering::SeqCst);
        if what == self.what && remaining().is_err() {
            return Err(io::Error::from_raw_os_error(5));
        }
        Ok(())
    }
}

#[derive(Debug)]
struct FailingFile(FailingStorage, Box<dyn LogFile>);

impl LogStorage for FailingStorage {
    fn create(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn LogFile>> {
        self.attempt("create")?;
        Ok(Box::new(FailingFile(
            self.clone(),
            FileSystemStorage.create(path, bytes)?,
        )))
    }
}

impl LogFile for FailingFile {
    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.attempt("write")?;
        self.1.write(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.attempt("sync")?;
        self.1.sync()
    }
}

#[tokio::test]
async fn large_batch_takes_few_log_writes_and_one_sync() {
    const ROWS: i64 = 400_000;
    let mut database = TestDatabase::new();
    database.options.ack = Ack::Synced;
    database.options.segment_bytes = 64 << 20;
    database.options.wal_bytes = 256 << 20;
    let (writes, syncs) = (
        FailingStorage::new("write", u64::MAX),
        FailingStorage::new("sync", u64::MAX),
    );
    let disk = CountingDisk(writes.clone(), syncs.clone());
    let db = database.open_on(Box::new(disk)).await.unwrap();
    let attempts = |disk: &FailingStorage| disk.attempts.load(Ordering::SeqCst);
    let before = (attempts(&writes), attempts(&syncs));
    let start_time = Instant::now();
    let mut batch = db.batch();
    for start in (0..ROWS).step_by(1000) {
        let rows: Vec<_> = (start..start + 1000)
            .map(|at| row("host", "cpu", at, 1.0))
            .collect();
        batch.insert_rows(&rows).unwrap();
    }
    batch.commit().unwrap();
    let (written, synced) = (attempts(&writes) - before.0, attempts(&syncs) - before.1);
    // The background writes pending bytes at most once an interval.
    let in_background = start_time.elapsed().as_millis() / TICK.as_millis();
    let most = 4 + in_background as u64;
    assert!(written <= most, "{written} log writes, at most {most}");
    assert_eq!(synced, 1);
    drop(db);
    let again = database.open().await.unwrap();
    assert_eq!(content(&again).len(), ROWS as usize);
}

/// Counts writes and syncs separately.
#[derive(Debug)]
struct CountingDisk(FailingStorage, FailingStorage);

#[derive(Debug)]
struct CountingFile(FailingStorage, FailingStorage, Box<dyn LogFile>);

impl LogStorage for CountingDisk {
    fn create(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn LogFile>> {
        let file = FileSystemStorage.create(path, bytes)?;
        Ok(Box::new(CountingFile(self.0.clone(), self.1.clone(), file)))
    }
}

impl LogFile for CountingFile {
    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.attempt("write")?;
        self.2.write(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.1.attempt("sync")?;
        self.2.sync()
    }
}

#[tokio::test]
async fn case_4_failed_write_or_sync_fails_its_group_and_is_final() {
    for (what, succeeding) in [("create", 0), ("write", 5), ("sync", 5)] {
        let mut database = TestDatabase::new();
        database.options.ack = Ack::Synced;
        let disk = FailingStorage::new(what, succeeding);
        let db = database.open_on(Box::new(disk.clone())).await.unwrap();
        let acknowledged: Vec<(String, i64)> = std::thread::scope(|threads| {
            let writer = |name: String| {
                let db = &db;
                move || {
                    let series = db.handle("host", &name).unwrap();
                    let mut acknowledged = Vec::new();
                    for n in 0.. {
                        match db.append(series, n, 1.0) {
                            Ok(()) => acknowledged.push((name.clone(), n)),
                            Err(SeriesError::LogFailed { .. }) => return acknowledged,
                            Err(other) => panic!("{what}: {other}"),
                        }
                    }
                    unreachable!("the disk fails")
                }
            };
            let writers: Vec<_> = (0..4)
                .map(|n| threads.spawn(writer(n.to_string())))
                .collect();
            writers
                .into_iter()
                .flat_map(|writer| writer.join().unwrap())
                .collect()
        });
        // The disk works again, but is not used.
        disk.remaining.store(u64::MAX, Ordering::SeqCst);
        let attempts = disk.attempts.load(Ordering::SeqCst);
        let series = db.handle("host", "0").unwrap();
        assert!(matches!(
            db.append(series, -1, 1.0),
            Err(SeriesError::LogFailed { .. })
        ));
        assert!(matches!(
            db.close().await,
            Err(SeriesError::LogFailed { .. })
        ));
        assert_eq!(disk.attempts.load(Ordering::SeqCst), attempts, "{what}");
        drop(db);
        let again = database.open().await.unwrap();
        let found = content(&again);
        for (metric, timestamp) in acknowledged {
            let key = ("host".to_owned(), metric, timestamp);
            assert!(found.contains_key(&key), "{what}: {key:?} was acknowledged");
        }
    }
}

#[tokio::test]
async fn case_2_names_precede_their_rows_in_the_log_at_any_cut() {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for series in 0..20 {
                    let metric = series.to_string();
                    db.insert_rows(&[row("host", &metric, 1, 1.0), row("host", "0", series, 1.0)])
                        .unwrap();
                }
            });
        }
    });
    let path = database.segments().remove(0);
    let bytes = fs::read(&path).unwrap();
    let mut ends = vec![24];
    while let Some(&at) = ends.last()
        && bytes[at..at + 4] != [0; 4]
    {
        let length = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        ends.push(at + 24 + length as usize);
    }
    assert!(ends.len() > 40, "{} frames", ends.len());
    for end in ends.into_iter().step_by(3) {
        let cut = database.copy();
        truncate(&cut.segments()[0], end as u64);
        cut.open().await.unwrap();
    }
}

#[tokio::test]
async fn case_2_rows_of_an_unnamed_series_are_reported_and_counted() {
    let mut database = TestDatabase::new();
    let db = database.open().await.unwrap();
    db.insert_rows(&[row("a", "b", 1, 1.0)]).unwrap();
    let name = fs::read(&database.segments()[0]).unwrap();
    db.insert_rows(&[row("c", "d", 1, 1.0), row("c", "d", 2, 1.0)])
        .unwrap();
    db.insert_rows(&[row("a", "b", 2, 1.0)]).unwrap();
    let path = database.segments().remove(0);
    let at = name.iter().rposition(|&byte| byte != 0).unwrap() + 1 + 26;
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"?", at as u64).unwrap();
    drop(db);
    assert!(matches!(
        database.open().await,
        Err(SeriesError::DamagedLog { .. })
    ));
    database.options.salvage = true;
    let again = database.open().await.unwrap();
    assert_eq!(again.stats().unnamed_rows, 2);
    assert_eq!(content(&again).len(), 2);
}

/// A copy of a file attempt have holes in place of zeros, also at the end of a frame.
#[tokio::test]
async fn trailing_zeros_of_a_frame_survive_as_a_hole() {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    let rows: Vec<_> = (0..2000).map(|_| row("a", "b", 0, 0.0)).collect();
    db.insert_rows(&rows).unwrap();
    let written = content(&db);
    drop(db);
    let path = database.segments().remove(0);
    let length = fs::metadata(&path).unwrap().len();
    truncate(&path, used(&path) as u64);
    truncate(&path, length);
    let again = database.open().await.unwrap();
    assert_eq!(content(&again), written);
    assert_eq!(again.stats().replayed_rows, 2000);
}

#[tokio::test]
async fn case_7_frames_out_of_sequence_give_the_same_winner() {
    let database = TestDatabase::new();
    let folder = LogFolder::open(
        database.folder.path().to_owned(),
        Box::new(FileSystemStorage),
    )
    .unwrap();
    let wal = Wal::new(Arc::new(folder), 512 << 10, Vec::new());
    let series = SeriesHandle(7, 0);
    let mut name = Vec::new();
    put_name_entry(series, ("a", "b"), &mut name);
    wal.append(Kind::Names, 1, &name).unwrap();
    // Three writes to one timestamp in another order, and an independent one.
    for (lock, timestamp, value) in [(2, 5, 3.0), (1, 5, 2.0), (0, 5, 1.0), (3, 6, 4.0)] {
        let mut body = Vec::new();
        put_rows(
            (series, lock),
            &[(series, timestamp, value)],
            &mut 0,
            &mut body,
        );
        wal.append(Kind::Rows, 1, &body).unwrap();
    }
    wal.write_all(true).unwrap();
    drop(wal);
    let values: Vec<f64> = content(&database.open().await.unwrap())
        .values()
        .map(|bits| f64::from_bits(*bits))
        .collect();
    assert_eq!(values, [3.0, 4.0]);
}

/// A crash between the flushes of two partitions: the names of the first one are in files, and need no place in memory.
#[tokio::test]
async fn log_with_more_names_than_memory_holds_is_replayed_if_their_rows_are_in_files() {
    const NAMES: usize = 4000;
    const DAYS: i64 = 100 * 24 * 3_600_000_000_000;
    let faulty = bywash_support::faulty_store::FaultyStore::default();
    let mut database = TestDatabase::new();
    let db = super::machines::open_over(faulty.shared(), &database);
    let db = db.await.unwrap();
    db.flush().await.unwrap();
    for number in 0..NAMES {
        let name = format!("{number}");
        db.insert_rows(&[row("host", &name, 0, 1.0)]).unwrap();
    }
    db.insert_rows(&[row("host", "7", DAYS, 2.0)]).unwrap();
    let charged = db.stats().memtable_bytes;
    // The file of the other partition.
    faulty.fault("put", "files/1200-", Fault::Fail);
    db.flush().await.unwrap_err();
    drop(db);
    database.options.memtable_bytes = Some(NAMES as u64 * 64);
    assert!(charged > NAMES as u64 * 64);
    let again = super::machines::open_over(faulty.shared(), &database);
    let again = again.await.unwrap();
    let rows = |metric: &'static str| {
        let mut points = again.iterator("host", metric);
        async move {
            let mut count = 0;
            while points.next().await.unwrap().is_some() {
                count += 1;
            }
            count
        }
    };
    assert_eq!((rows("7").await, rows("8").await), (2, 1));
    assert_eq!(again.stats().replayed_rows, 1);
}
