//! Disks that fail, and work again.

use std::sync::mpsc;

use rustix::io::Errno;

use super::*;
use crate::health::TierState;
use crate::memory_storage::{Fault, Operation};
use crate::{ReadJob, Readers};

fn state(tier: &Tier) -> TierState {
    tier.state().state
}

/// A disk with one whole segment and a begun one, and its clock.
fn filled() -> (Arc<MemoryStorage>, Tier, Arc<AtomicU64>) {
    let (storage, time) = (Arc::default(), Arc::default());
    let tier = open_at(&storage, 4, &time);
    for number in 0..30 {
        write(&tier, &[(1, number)]).unwrap();
    }
    (storage, tier, time)
}

fn found(tier: &Tier, blocks: u32) -> usize {
    (0..blocks).filter(|&number| check(tier, 1, number)).count()
}

#[test]
fn failed_write_declines_writes_and_leaves_reads_until_a_probe_succeeds() {
    for error in [Errno::NOSPC, Errno::IO, Errno::ROFS] {
        let (storage, tier, time) = filled();
        storage.fail(Fault::all(Operation::Write, error));
        assert!(matches!(write(&tier, &[(1, 30)]), Err(Declined::Failed(_))));
        assert_eq!(state(&tier), TierState::ReadOnly);
        let calls = storage.failed();
        for _ in 0..100 {
            assert!(matches!(
                write(&tier, &[(1, 30)]),
                Err(Declined::NotWritable)
            ));
        }
        assert_eq!(storage.failed(), calls, "nothing is tried");
        assert_eq!(found(&tier, 30), 30, "written blocks stay readable");
        assert!(tier.last_error().unwrap().contains("cannot write"));
        let stats = tier.stats();
        assert_eq!((stats.failed_writes, stats.declined_state), (1, 100));
        storage.heal();
        time.store(999, Ordering::Relaxed);
        assert!(write(&tier, &[(1, 30)]).is_err());
        time.store(1000, Ordering::Relaxed);
        write(&tier, &[(1, 30)]).unwrap();
        assert_eq!(state(&tier), TierState::On);
        assert_eq!(found(&tier, 31), 31);
        drop(tier);
        let tier = open(&storage, 4);
        assert_eq!(
            found(&tier, 31),
            31,
            "in segments before and after the failed one"
        );
    }
}

/// An erasure waits for the next batch. If that fails, the one after it has the erasure.
#[test]
fn erasure_of_a_batch_that_failed_is_written_with_the_next() {
    let (storage, tier, time) = filled();
    write(&tier, &[(2, 0)]).unwrap();
    tier.erase(VersionKey::of(&record(2)));
    storage.fail(Fault::all(Operation::Write, Errno::IO));
    assert!(write(&tier, &[(1, 30)]).is_err());
    storage.heal();
    time.store(1000, Ordering::Relaxed);
    write(&tier, &[(1, 30)]).unwrap();
    drop(tier);
    let tier = open(&storage, 4);
    assert!(check(&tier, 1, 30));
    assert!(!check(&tier, 2, 0), "erased before");
}

#[test]
fn disk_that_stays_broken_costs_one_call_a_probe_and_one_segment_in_all() {
    let (storage, tier, time) = filled();
    let mut number = 30;
    while tier.stats().recycled_segments == 0 {
        write(&tier, &[(1, number)]).unwrap();
        number += 1;
    }
    let before = found(&tier, number);
    storage.fail(Fault::all(Operation::Write, Errno::IO));
    for second in 0..3600 {
        time.store(second * 1000, Ordering::Relaxed);
        assert!(write(&tier, &[(1, number)]).is_err());
    }
    assert!(storage.failed() < 70, "{} calls", storage.failed());
    let lost = before - found(&tier, number);
    assert!(lost * 2 < before, "{lost} of {before} blocks lost");
}

#[test]
fn full_file_system_leaves_the_tier_the_segments_it_has() {
    let storage: Arc<MemoryStorage> = Arc::default();
    let time = Arc::default();
    let tier = open_at(&storage, 8, &time);
    let size = 3 * u64::from(SEGMENT);
    storage.set_capacity(size);
    for number in 0..200 {
        write(&tier, &[(1, number)]).unwrap();
        assert!(check(&tier, 1, number) && storage.allocated() <= size);
    }
    assert_eq!((state(&tier), tier.stats().segments), (TierState::On, 3));
    assert_eq!(storage.failed(), 1, "one try a minute");
    assert!(
        tier.last_error()
            .unwrap()
            .contains("cannot create a segment")
    );
    storage.heal();
    time.store(60_000, Ordering::Relaxed);
    for number in 200..400 {
        write(&tier, &[(1, number)]).unwrap();
    }
    assert_eq!(tier.stats().segments, 8, "it grows again");
}

#[test]
fn full_file_system_with_one_segment_makes_the_tier_read_only() {
    let storage: Arc<MemoryStorage> = Arc::default();
    let time = Arc::default();
    let tier = open_at(&storage, 8, &time);
    storage.set_capacity(u64::from(SEGMENT));
    let failed = (0..100).find(|&number| write(&tier, &[(1, number)]).is_err());
    assert_eq!(state(&tier), TierState::ReadOnly);
    assert_eq!(found(&tier, failed.unwrap()) as u32, failed.unwrap());
    storage.heal();
    time.store(1000, Ordering::Relaxed);
    write(&tier, &[(1, 500)]).unwrap();
    assert_eq!(state(&tier), TierState::On);
}

#[test]
fn missing_folder_turns_off_until_it_is_back() {
    let (storage, tier, time) = filled();
    storage.fail(Fault::all(Operation::Create, Errno::NOENT));
    let failed = (30..100).find(|&number| write(&tier, &[(1, number)]).is_err());
    assert_eq!(state(&tier), TierState::Off);
    let calls = storage.failed();
    assert!(!tier.contains(VersionKey::of(&record(1)), 0) && !check(&tier, 1, 0));
    assert!(!tier.has_object("s3://data", "object-1"));
    assert!(write(&tier, &[(1, 30)]).is_err());
    assert_eq!(storage.failed(), calls);
    storage.heal();
    time.store(1000, Ordering::Relaxed);
    write(&tier, &[(1, failed.unwrap())]).unwrap();
    assert_eq!(state(&tier), TierState::On);
    assert!(check(&tier, 1, 0) && tier.has_object("s3://data", "object-1"));
}

#[test]
fn read_errors_remove_their_blocks_and_above_a_rate_turn_off() {
    let (storage, tier, time) = filled();
    storage.fail(Fault {
        times: 1,
        ..Fault::all(Operation::Read, Errno::IO)
    });
    assert_eq!(found(&tier, 30), 29);
    assert_eq!(
        (state(&tier), tier.stats().failed_reads),
        (TierState::On, 1)
    );
    storage.fail(Fault::all(Operation::Read, Errno::IO));
    time.store(20_000, Ordering::Relaxed);
    assert_eq!(found(&tier, 30), 0);
    assert_eq!(state(&tier), TierState::Off);
    let blocks = tier.stats().blocks;
    for minute in 1..100 {
        time.store(minute * 60_000, Ordering::Relaxed);
        assert_eq!(found(&tier, 30), 0);
    }
    assert!(storage.failed() < 110, "{} calls", storage.failed());
    assert_eq!(
        tier.stats().blocks,
        blocks,
        "the disk is at fault, not they"
    );
    assert!(blocks > 5);
    storage.heal();
    assert_eq!(found(&tier, 30), 0, "nothing is tried");
    time.store(100 * 60_000, Ordering::Relaxed);
    assert_eq!(found(&tier, 30) as u64, tier.stats().blocks);
    assert_eq!(state(&tier), TierState::On);
}

#[test]
fn segment_that_cannot_be_read_is_given_up_alone() {
    let (storage, tier, _) = filled();
    storage.fail(Fault {
        segment: Some(0),
        ..Fault::all(Operation::Read, Errno::IO)
    });
    let found = found(&tier, 30);
    assert_eq!(tier.stats().blocks, found as u64);
    assert_eq!(tier.stats().failed_reads, 3, "then its blocks are gone");
    assert_eq!(state(&tier), TierState::On);
    for number in 30..60 {
        write(&tier, &[(1, number)]).unwrap();
        assert!(tier.contains(VersionKey::of(&record(1)), number));
    }
}

struct Job {
    block: u32,
    buffer: Pages,
    done: mpsc::SyncSender<bool>,
}

impl ReadJob for Job {
    fn block(&self) -> (VersionKey, u32) {
        (VersionKey::of(&record(1)), self.block)
    }

    fn buffer(&mut self, _: usize) -> Option<&mut [u8]> {
        Some(self.buffer.as_mut())
    }

    fn finish(self: Box<Self>, read: Option<usize>) {
        self.done.send(read.is_some()).unwrap();
    }
}

#[test]
fn reads_pass_by_while_all_readers_are_stuck() {
    let (storage, tier, time) = filled();
    let tier = Arc::new(tier);
    let readers = Readers::start(&tier, 2).unwrap();
    let read = |block| {
        let (done, finished) = mpsc::sync_channel(1);
        let buffer = Pages::zeroed(8);
        readers.read(Box::new(Job {
            block,
            buffer,
            done,
        }));
        finished
    };
    assert!(read(0).recv().unwrap());
    storage.stall(Operation::Read);
    let stuck = [read(1), read(2)];
    storage.wait_for_stalled(2);
    let queued = read(3);
    time.store(1000, Ordering::Relaxed);
    assert!(!read(4).recv().unwrap(), "at once");
    assert_eq!(state(&tier), TierState::Off);
    assert!(!tier.contains(VersionKey::of(&record(1)), 3));
    assert!(!queued.recv().unwrap(), "by the watching thread");
    time.store(30_000, Ordering::Relaxed);
    storage.heal();
    assert!(stuck.iter().all(|read| read.recv().unwrap()));
    assert_eq!(
        state(&tier),
        TierState::Off,
        "a read of 30 s proves nothing"
    );
    assert!(read(3).recv().unwrap());
    assert_eq!(state(&tier), TierState::On);
}

/// Too few descriptors, or a disk that fails for a moment, at the start.
#[test]
fn segments_that_cannot_be_read_at_the_start_are_kept_within_the_size() {
    for operation in [Operation::Open, Operation::Read] {
        let storage: Arc<MemoryStorage> = Arc::default();
        let tier = open(&storage, 8);
        let mut number = 0;
        while tier.stats().segments < 6 {
            write(&tier, &[(1, number)]).unwrap();
            number += 1;
        }
        tier.close().unwrap();
        let found = |tier: &Tier| (0..number).filter(|&number| check(tier, 1, number)).count();
        let all = found(&tier);
        drop(tier);
        for segment in [0, 5] {
            storage.fail(Fault {
                segment: Some(segment),
                ..Fault::all(operation, Errno::MFILE)
            });
        }
        let tier = open(&storage, 8);
        assert!((1..all).contains(&found(&tier)), "{operation:?}");
        write(&tier, &[(2, 0)]).unwrap();
        tier.close().unwrap();
        drop(tier);
        storage.heal();
        let tier = open(&storage, 8);
        assert_eq!(found(&tier), all, "{operation:?}");
        assert!(check(&tier, 2, 0));
        drop(tier);
        // They leave as soon as their room is needed.
        storage.fail(Fault::all(operation, Errno::IO));
        let tier = open(&storage, 8);
        storage.heal();
        for number in 0..200 {
            write(&tier, &[(3, number)]).unwrap();
            assert!(check(&tier, 3, number));
            assert!(storage.allocated() <= u64::from(8 * SEGMENT));
        }
        drop(tier);
        storage.fail(Fault::all(operation, Errno::IO));
        drop(open(&storage, 3));
        assert!(storage.allocated() <= u64::from(3 * SEGMENT));
    }
}
