//! Loom models of erasures against writes, and of readers against segments that are used again: the real code, every interleaving.
//! For each protocol there is a negative control: with one step left out, the model must fail.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p bywash-disk --release --lib --target-dir target/loom models`
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io;
use std::sync::Arc;

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use super::segments::{Segments, hold, release};
use crate::erasures::Erasures;
use crate::format::VersionKey;
use crate::index::{Index, Place};
use crate::segment::Segment;
use crate::storage::SegmentFile;
use crate::sync::{Counted, Mutex, Step, leave_out};

fn explore(model: fn()) {
    loom::model::Builder::new().check(model);
}

/// Runs a model with one step left out, in a process of its own because loom's panics may abort, and checks that it fails for this
/// reason.
fn control(step: Step, model: fn(), reason: &str) {
    const CHILD: &str = "BYWASH_LEFT_OUT";
    if std::env::var_os(CHILD).is_some() {
        leave_out(step);
        return explore(model);
    }
    let this = std::thread::current();
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([this.name().unwrap(), "--exact", "--nocapture"])
        .envs([(CHILD, "1"), ("RUST_BACKTRACE", "0")])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success(),
        "loom reported no error without {step:?}"
    );
    assert!(
        stderr.contains(reason),
        "without {step:?} the model failed, but not by {reason:?}: {stderr}"
    );
}

const VERSION: VersionKey = VersionKey([1; 16]);

/// A record of the log on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Record {
    Erasure,
    Block,
}

/// State that an erasure and a batch share, all of one version.
#[derive(Debug, Default)]
struct Shared {
    erasures: Erasures,
    /// A block is queued, to be written.
    queued: Mutex<bool>,
    /// A block is in the index.
    indexed: Mutex<bool>,
    log: Mutex<Vec<Record>>,
}

impl Shared {
    fn erase(&self) {
        *self.queued.lock() = false;
        self.erasures
            .erase(VERSION, || *self.indexed.lock() = false);
    }

    /// Writes a block that `is_there` finds.
    fn write(&self, is_there: impl Fn() -> bool) {
        let open = self.erasures.open();
        if !is_there() {
            return;
        }
        let erased = open.take_pending(1);
        self.log
            .lock()
            .extend(erased.iter().map(|_| Record::Erasure));
        self.log.lock().push(Record::Block);
        open.enter(std::iter::once(VERSION), |_| *self.indexed.lock() = true);
    }

    /// Checks that no block is found, now and after a clean end and a restart.
    fn check_erased(&self) {
        assert!(!*self.indexed.lock(), "an erased block is found");
        let pending = self.erasures.open().take_pending(1);
        let mut log = self.log.lock();
        log.extend(pending.iter().map(|_| Record::Erasure));
        assert!(
            log.last() != Some(&Record::Block),
            "an erased block is found after a restart"
        );
    }
}

/// A queued block is written while its version is erased.
fn erasure_and_write() {
    let shared = Arc::new(Shared::default());
    *shared.queued.lock() = true;
    let writer = Arc::clone(&shared);
    let writer = thread::spawn(move || writer.write(|| *writer.queued.lock()));
    shared.erase();
    writer.join().unwrap();
    shared.check_erased();
}

/// A block is written again from the disk while its version is erased.
fn erasure_and_reinsertion() {
    let shared = Arc::new(Shared::default());
    *shared.indexed.lock() = true;
    shared.log.lock().push(Record::Block);
    let writer = Arc::clone(&shared);
    let writer = thread::spawn(move || writer.write(|| *writer.indexed.lock()));
    shared.erase();
    writer.join().unwrap();
    shared.check_erased();
}

#[test]
fn erased_versions_are_not_brought_back_by_a_write() {
    explore(erasure_and_write);
}

#[test]
fn erased_versions_are_not_brought_back_by_a_reinsertion() {
    explore(erasure_and_reinsertion);
}

#[test]
fn control_erasure_that_an_open_batch_does_not_note() {
    control(Step::Note, erasure_and_write, "an erased block is found");
}

#[test]
fn control_erasure_that_precedes_its_block_in_the_log_is_not_repeated() {
    control(
        Step::Again,
        erasure_and_reinsertion,
        "an erased block is found after a restart",
    );
}

/// A segment's file: the generation that was last written there.
#[derive(Debug)]
struct File(AtomicU32);

impl SegmentFile for File {
    fn read(&self, buffer: &mut [u8], _: u32) -> io::Result<()> {
        // Relaxed: the protocol must order it.
        buffer[0] = self.0.load(Ordering::Relaxed) as u8;
        Ok(())
    }

    fn write(&self, pieces: &[&[u8]], _: u32) -> io::Result<()> {
        // Relaxed: as in `read`.
        self.0.store(pieces[0][0].into(), Ordering::Relaxed);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_whole(&self, _: u64) -> io::Result<bool> {
        Ok(true)
    }
}

/// A block is read while its segment is used again.
fn read_and_recycling() {
    let index = Arc::new(Index::new(1));
    let place = Place {
        segment: 0,
        page: 1,
        length: 1,
        crc: 0,
    };
    index.insert(1, 1, place).unwrap();
    let mut segments = Segments::new(1);
    let file: Arc<dyn SegmentFile> = Arc::new(File(AtomicU32::new(1)));
    segments.insert(Counted::new(Segment::new(0, 1, file)));
    let segments = Arc::new(Mutex::new(segments));
    let reader = {
        let (index, segments) = (Arc::clone(&index), Arc::clone(&segments));
        thread::spawn(move || {
            let Some((segment, place)) = hold(&index, &segments, 1, 1) else {
                return;
            };
            let mut buffer = [0];
            segment.file.read(&mut buffer, place.page).unwrap();
            assert_eq!(buffer, [1], "a reader sees another generation");
        })
    };
    let released = release(&segments, 0, || {
        index.remove_segment(0);
    });
    if let Some(file) = released {
        file.write(&[&[2]], 1).unwrap();
    }
    reader.join().unwrap();
}

#[test]
fn segments_that_are_used_again_have_no_reader() {
    explore(read_and_recycling);
}

#[test]
fn control_segment_with_entries_is_used_again() {
    control(
        Step::Entries,
        read_and_recycling,
        "a reader sees another generation",
    );
}

#[test]
fn control_segment_with_a_reader_is_used_again() {
    control(
        Step::Readers,
        read_and_recycling,
        "a reader sees another generation",
    );
}
