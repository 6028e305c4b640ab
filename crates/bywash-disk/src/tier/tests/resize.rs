//! Sizes that change at run time.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::io::Errno;

use super::*;
use crate::memory_storage::{Fault, Operation};

fn size(segments: usize) -> u64 {
    size_of(segments, u64::from(SEGMENT))
}

/// Bytes that the file system has allocated for a folder.
fn allocated(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).unwrap();
    let files: u64 = files
        .map(|file| file.unwrap().metadata().unwrap().blocks() * 512)
        .sum();
    files + fs::metadata(folder).unwrap().blocks() * 512
}

#[test]
fn folder_never_has_more_bytes_than_its_size() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("tier");
    let tier = Tier::open(
        &TierOptions {
            path: folder.clone(),
            ..options(16)
        },
        FOLDER,
    )
    .unwrap();
    let mut number = 0;
    for segments in [16, 4, 9, 2, 3, 12, 2] {
        tier.resize(size(segments)).unwrap();
        assert_eq!(tier.size(), size(segments));
        for _ in 0..20 * segments {
            assert!(allocated(&folder) <= tier.size());
            number += 1;
            write(&tier, &[(1, number)]).unwrap();
            assert!(check(&tier, 1, number));
        }
        assert_eq!(tier.stats().segments, segments as u64);
        let found = (0..=number).filter(|&number| check(&tier, 1, number));
        assert_eq!(found.count() as u64, tier.stats().blocks);
    }
    assert!(tier.resize(size(2) - 1).is_err() && tier.resize(0).is_err());
    assert_eq!(tier.size(), size(2), "unchanged");
    drop(tier);
    let tier = Tier::open(
        &TierOptions {
            path: folder,
            ..options(2)
        },
        FOLDER,
    )
    .unwrap();
    assert!(check(&tier, 1, number));
}

#[test]
fn smaller_size_keeps_the_newest_blocks_and_the_memory_of_the_index() {
    let storage = Arc::default();
    let tier = open(&storage, 8);
    for number in 0..100 {
        write(&tier, &[(1, number)]).unwrap();
    }
    let memory = tier.index_memory();
    tier.resize(size(2)).unwrap();
    assert!(storage.allocated() <= size(2));
    assert!(check(&tier, 1, 99) && !check(&tier, 1, 0));
    tier.resize(size(1000)).unwrap();
    for number in 100..2000 {
        write(&tier, &[(1, number)]).unwrap();
    }
    assert_eq!(tier.index_memory(), memory);
    let found = (0..2000).filter(|&number| check(&tier, 1, number));
    assert_eq!(found.count() as u64, tier.stats().blocks);
    assert!(check(&tier, 1, 1999), "the oldest make room in the index");
}

#[test]
fn segment_that_cannot_be_removed_is_tried_again_as_rarely_as_a_disk_that_fails() {
    let storage: Arc<MemoryStorage> = Arc::default();
    let time = Arc::default();
    let tier = open_at(&storage, 8, &time);
    for number in 0..100 {
        write(&tier, &[(1, number)]).unwrap();
    }
    storage.fail(Fault::all(Operation::Remove, Errno::ROFS));
    tier.resize(size(2)).unwrap();
    for second in 0..600 {
        time.store(second * 1000, Ordering::Relaxed);
        let _ = write(&tier, &[(1, 100)]);
    }
    assert!(storage.failed() < 20, "{} calls", storage.failed());
    storage.heal();
    time.store(700_000, Ordering::Relaxed);
    write(&tier, &[(1, 100)]).unwrap();
    assert!(storage.allocated() <= size(2) && check(&tier, 1, 100));
}

#[test]
fn read_in_progress_ends_right_when_its_segment_is_removed() {
    let storage: Arc<MemoryStorage> = Arc::default();
    let tier = open(&storage, 8);
    for number in 0..100 {
        write(&tier, &[(1, number)]).unwrap();
    }
    storage.stall(Operation::Read);
    std::thread::scope(|scope| {
        let read = scope.spawn(|| check(&tier, 1, 0));
        storage.wait_for_stalled(1);
        tier.resize(size(2)).unwrap();
        assert!(storage.allocated() <= size(2), "before the reader has left");
        storage.heal();
        assert!(read.join().unwrap());
    });
    assert!(!check(&tier, 1, 0));
}

#[test]
fn sizes_change_under_load() {
    let storage: Arc<MemoryStorage> = Arc::default();
    let tier = open(&storage, 8);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0..3000 {
                write(&tier, &[(1, number)]).unwrap();
                check(&tier, 1, number / 2);
            }
        });
        let mut rng = StdRng::seed_from_u64(1);
        while !writer.is_finished() {
            tier.resize(size(rng.random_range(2..10))).unwrap();
        }
    });
    tier.resize(size(2)).unwrap();
    assert!(storage.allocated() <= size(2));
}
