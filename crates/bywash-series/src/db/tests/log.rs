//! The log: torn, damaged, on a disk that fails.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use super::*;
use crate::wal::LogFile;

/// The bytes of a segment up to the last that is not zero.
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
    // Once its rows are sealed, the damage is in nobody's way.
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
async fn empty_and_header_only_segments_are_legal() {
    let world = World::new();
    let db = world.open().await.unwrap();
    db.insert_rows(&[row("a", "b", 1, 1.0)]).unwrap();
    let written = content(&db);
    db.close().await.unwrap();
    drop(db);
    let first = fs::read(&world.segments()[0]).unwrap();
    for bytes in [&[][..], &[0; 100], &first[..10]] {
        fs::write(world.folder.path().join(format!("{:020}.wal", 2)), bytes).unwrap();
        let again = world.copy().open().await.unwrap();
        assert_eq!(content(&again), written);
    }
    fs::write(world.folder.path().join("notes.wal"), b"not of the log").unwrap();
    assert_eq!(content(&world.open().await.unwrap()), written);
}

/// Makes each operation of one kind fail from some on, until it is told to work again.
#[derive(Debug, Clone)]
struct Failing {
    what: &'static str,
    /// Operations that go well.
    left: Arc<AtomicU64>,
    /// Operations that were asked for.
    asked: Arc<AtomicU64>,
}

impl Failing {
    fn new(what: &'static str, left: u64) -> Self {
        Self {
            what,
            left: Arc::new(AtomicU64::new(left)),
            asked: Arc::default(),
        }
    }

    fn may(&self, what: &str) -> io::Result<()> {
        let left = || {
            let less = |left: u64| left.checked_sub(1);
            self.left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
        };
        self.asked.fetch_add(1, Ordering::SeqCst);
        if what == self.what && left().is_err() {
            return Err(io::Error::from_raw_os_error(5));
        }
        Ok(())
    }
}

#[derive(Debug)]
struct FailingFile(Failing, Box<dyn LogFile>);

impl Disk for Failing {
    fn create(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn LogFile>> {
        self.may("create")?;
        Ok(Box::new(FailingFile(
            self.clone(),
            Files.create(path, bytes)?,
        )))
    }
}

impl LogFile for FailingFile {
    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.may("write")?;
        self.1.write(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.may("sync")?;
        self.1.sync()
    }
}

#[tokio::test]
async fn a_large_batch_takes_a_handful_of_log_writes_and_one_sync() {
    const ROWS: i64 = 400_000;
    let mut world = World::new();
    world.options.ack = Ack::Synced;
    world.options.segment_bytes = 64 << 20;
    world.options.wal_bytes = 256 << 20;
    let (writes, syncs) = (
        Failing::new("write", u64::MAX),
        Failing::new("sync", u64::MAX),
    );
    let disk = CountingDisk(writes.clone(), syncs.clone());
    let db = world.open_on(Box::new(disk)).await.unwrap();
    let asked = |disk: &Failing| disk.asked.load(Ordering::SeqCst);
    let before = (asked(&writes), asked(&syncs));
    let mut batch = db.batch();
    for start in (0..ROWS).step_by(1000) {
        let rows: Vec<_> = (start..start + 1000)
            .map(|at| row("host", "cpu", at, 1.0))
            .collect();
        batch.insert_rows(&rows).unwrap();
    }
    batch.commit().unwrap();
    let (written, synced) = (asked(&writes) - before.0, asked(&syncs) - before.1);
    assert!(written <= 4, "{written} log writes");
    assert_eq!(synced, 1);
    drop(db);
    let again = world.open().await.unwrap();
    assert_eq!(content(&again).len(), ROWS as usize);
}

/// Counts writes and syncs apart, each with one of these.
#[derive(Debug)]
struct CountingDisk(Failing, Failing);

#[derive(Debug)]
struct CountingFile(Failing, Failing, Box<dyn LogFile>);

impl Disk for CountingDisk {
    fn create(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn LogFile>> {
        let file = Files.create(path, bytes)?;
        Ok(Box::new(CountingFile(self.0.clone(), self.1.clone(), file)))
    }
}

impl LogFile for CountingFile {
    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.may("write")?;
        self.2.write(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.1.may("sync")?;
        self.2.sync()
    }
}

#[tokio::test]
async fn case_4_a_failed_write_or_sync_fails_its_group_and_is_final() {
    for (what, well) in [("create", 0), ("write", 5), ("sync", 5)] {
        let mut world = World::new();
        world.options.ack = Ack::Synced;
        let disk = Failing::new(what, well);
        let db = world.open_on(Box::new(disk.clone())).await.unwrap();
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
        // The disk is well again, and not asked.
        disk.left.store(u64::MAX, Ordering::SeqCst);
        let asked = disk.asked.load(Ordering::SeqCst);
        let series = db.handle("host", "0").unwrap();
        assert!(matches!(
            db.append(series, -1, 1.0),
            Err(SeriesError::LogFailed { .. })
        ));
        assert!(matches!(
            db.close().await,
            Err(SeriesError::LogFailed { .. })
        ));
        assert_eq!(disk.asked.load(Ordering::SeqCst), asked, "{what}");
        drop(db);
        let again = world.open().await.unwrap();
        let found = content(&again);
        for (metric, timestamp) in acknowledged {
            let key = ("host".to_owned(), metric, timestamp);
            assert!(found.contains_key(&key), "{what}: {key:?} was acknowledged");
        }
    }
}

#[tokio::test]
async fn case_2_a_name_is_in_the_log_before_all_its_rows_wherever_a_crash_cuts() {
    let world = World::new();
    let db = world.open().await.unwrap();
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
    let path = world.segments().remove(0);
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
        let cut = world.copy();
        truncate(&cut.segments()[0], end as u64);
        cut.open().await.unwrap();
    }
}

#[tokio::test]
async fn case_2_rows_of_a_series_without_a_name_are_reported_and_counted() {
    let mut world = World::new();
    let db = world.open().await.unwrap();
    db.insert_rows(&[row("a", "b", 1, 1.0)]).unwrap();
    let name = fs::read(&world.segments()[0]).unwrap();
    db.insert_rows(&[row("c", "d", 1, 1.0), row("c", "d", 2, 1.0)])
        .unwrap();
    db.insert_rows(&[row("a", "b", 2, 1.0)]).unwrap();
    let path = world.segments().remove(0);
    let at = name.iter().rposition(|&byte| byte != 0).unwrap() + 1 + 26;
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"?", at as u64).unwrap();
    drop(db);
    assert!(matches!(
        world.open().await,
        Err(SeriesError::DamagedLog { .. })
    ));
    world.options.salvage = true;
    let again = world.open().await.unwrap();
    assert_eq!(again.stats().nameless_rows, 2);
    assert_eq!(content(&again).len(), 2);
}

/// A copy may have a hole wherever zeros are, also where a frame ends with them.
#[tokio::test]
async fn zeros_at_the_end_of_a_frame_are_its_own_though_a_copy_has_a_hole_there() {
    let world = World::new();
    let db = world.open().await.unwrap();
    let rows: Vec<_> = (0..2000).map(|_| row("a", "b", 0, 0.0)).collect();
    db.insert_rows(&rows).unwrap();
    let written = content(&db);
    drop(db);
    let path = world.segments().remove(0);
    let length = fs::metadata(&path).unwrap().len();
    truncate(&path, used(&path) as u64);
    truncate(&path, length);
    let again = world.open().await.unwrap();
    assert_eq!(content(&again), written);
    assert_eq!(again.stats().replayed_rows, 2000);
}

#[tokio::test]
async fn case_7_frames_in_another_order_than_their_turns_give_the_same_winner() {
    let world = World::new();
    let folder = Folder::open(world.folder.path().to_owned(), Box::new(Files)).unwrap();
    let wal = Wal::new(Arc::new(folder), 512 << 10, Vec::new());
    let series = SeriesHandle(7);
    let mut name = Vec::new();
    put_names(series, ("a", "b"), &mut name);
    wal.append(Kind::Names, 1, &name).unwrap();
    // Two turns that wrote to one timestamp, and one that waits for neither.
    for (turn, timestamp, value) in [(2, 5, 3.0), (1, 5, 2.0), (0, 5, 1.0), (3, 6, 4.0)] {
        let mut body = Vec::new();
        put_turn(
            (series, turn),
            &[(series, timestamp, value)],
            &mut 0,
            &mut body,
        );
        wal.append(Kind::Rows, 1, &body).unwrap();
    }
    wal.write_out(true).unwrap();
    drop(wal);
    let values: Vec<f64> = content(&world.open().await.unwrap())
        .values()
        .map(|bits| f64::from_bits(*bits))
        .collect();
    assert_eq!(values, [3.0, 4.0]);
}
