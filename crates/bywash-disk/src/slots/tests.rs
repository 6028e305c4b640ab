//! Slot files on a disk in memory that fills, fails and flips, and on a real one.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::io::Errno;

use super::*;
use crate::memory_storage::{Fault, MemoryStorage, Operation};

const KIB: usize = 1 << 10;
const MIB: u64 = 1 << 20;

fn options(limit: u64) -> SlotOptions {
    SlotOptions {
        path: "/scratch".into(),
        limit,
        compressors: 1,
        compressed_block: 1 << 20,
    }
}

/// Slot files on a disk in memory, and milliseconds that the test sets.
fn files(limit: u64) -> (SlotFiles, MemoryStorage, Arc<AtomicU64>) {
    let disk = MemoryStorage::default();
    let time = Arc::new(AtomicU64::new(0));
    let clock = Clock::Manual(Arc::clone(&time));
    let files = SlotFiles::over(Box::new(disk.clone()), &options(limit), clock);
    (files, disk, time)
}

/// Bytes that do not compress.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    bywash_support::pattern(seed, len).into()
}

fn read(files: &SlotFiles, slot: &Slot, len: usize) -> Result<Vec<u8>, SlotError> {
    let mut bytes = vec![0; len];
    files.read(slot, &mut bytes).map(|()| bytes)
}

#[test]
fn lowest_free_slot_is_taken_and_files_shrink_and_go() {
    let (files, disk, _) = files(64 * MIB);
    let block = noise(32 * KIB, 1);
    let mut slots: Vec<_> = (0..8).map(|_| files.write(&block).unwrap()).collect();
    let places = |slots: &[Slot]| slots.iter().map(|slot| slot.place.slot).collect::<Vec<_>>();
    assert_eq!(places(&slots), [0, 1, 2, 3, 4, 5, 6, 7]);
    files.free(slots.remove(5));
    files.free(slots.remove(2));
    assert_eq!(disk.allocated(), 8 * 32 * KIB as u64, "its end is taken");
    slots.push(files.write(&block).unwrap());
    slots.push(files.write(&block).unwrap());
    assert_eq!(places(&slots)[6..], [2, 5]);
    while slots.len() > 3 {
        // From the end: 7, 6 and so on.
        let last = (0..slots.len())
            .max_by_key(|at| slots[*at].place.slot)
            .unwrap();
        files.free(slots.remove(last));
        assert_eq!(disk.allocated(), slots.len() as u64 * 32 * KIB as u64);
    }
    let other = files.write(&noise(40 * KIB, 2)).unwrap();
    assert_eq!(disk.segments().len(), 2, "a file for each size");
    slots.into_iter().for_each(|slot| files.free(slot));
    assert_eq!(disk.segments().len(), 1, "an empty file goes");
    assert_eq!(read(&files, &other, 40 * KIB).unwrap(), noise(40 * KIB, 2));
    drop(other);
    drop(files);
    assert!(disk.segments().is_empty());
}

#[test]
fn limit_is_an_error_and_free_slots_of_other_sizes_make_room() {
    let (files, disk, _) = files(MIB);
    let mut small: Vec<_> = (0..20)
        .map(|seed| files.write(&noise(32 * KIB, seed)).unwrap())
        .collect();
    // All but the last are free, which keeps their bytes on the disk.
    let last = small.pop().unwrap();
    small.into_iter().for_each(|slot| files.free(slot));
    assert_eq!(disk.allocated(), 20 * 32 * KIB as u64);
    let mut large = Vec::new();
    let error = loop {
        match files.write(&noise(64 * KIB, 99)) {
            Ok(slot) => large.push(slot),
            Err(error) => break error,
        }
        assert!(disk.allocated() <= MIB);
    };
    assert_eq!(large.len(), 15, "what the free slots had is used");
    let SlotError::Full {
        needed,
        used,
        limit,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!((*needed, *limit), (64 * KIB as u64, MIB));
    assert_eq!(*used, files.stats().allocated);
    let text = error.to_string();
    for part in ["/scratch", "65536", "1048576", "raise the limit"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    // Until a slot is freed, blocks of this length are not even compressed. Shorter ones may fit.
    let tried = || files.compression.blocks.load(Relaxed);
    let before = tried();
    assert!(matches!(
        files.write(&noise(64 * KIB, 3)),
        Err(SlotError::Full { .. })
    ));
    assert_eq!(tried(), before);
    let short = files.write(&noise(KIB, 3)).unwrap();
    assert_eq!(read(&files, &last, 32 * KIB).unwrap(), noise(32 * KIB, 19));
    files.free(short);
    files.free(large.pop().unwrap());
    assert!(files.write(&noise(64 * KIB, 7)).is_ok(), "at once");
}

#[test]
fn full_disk_is_an_error_until_a_slot_is_freed_or_a_pause_has_passed() {
    let (files, disk, time) = files(64 * MIB);
    let block = noise(64 * KIB, 1);
    disk.set_capacity(4 * 64 * KIB as u64);
    let mut slots: Vec<_> = (0..4).map(|_| files.write(&block).unwrap()).collect();
    let is_full = |error: SlotError| match error {
        SlotError::DiskFull { used, limit, .. } => {
            assert_eq!((used, limit), (4 * 64 * KIB as u64 + 4096, 64 * MIB));
        }
        error => panic!("{error}"),
    };
    is_full(files.write(&block).unwrap_err());
    let failed = disk.failed();
    is_full(files.write(&block).unwrap_err());
    assert_eq!(disk.failed(), failed, "not tried in the pause");
    files.free(slots.remove(0));
    slots.push(files.write(&block).unwrap());
    is_full(files.write(&block).unwrap_err());
    // Other files leave more.
    disk.set_capacity(MIB);
    is_full(files.write(&block).unwrap_err());
    time.fetch_add(1000, Relaxed);
    slots.push(files.write(&block).unwrap());
    for slot in &slots {
        assert_eq!(read(&files, slot, block.len()).unwrap(), block);
    }
    assert_eq!(files.stats().slots, 5);
}

#[test]
fn full_disk_takes_back_free_slots_first() {
    let (files, disk, _) = files(64 * MIB);
    let mut small: Vec<_> = (0..9)
        .map(|seed| files.write(&noise(32 * KIB, seed)).unwrap())
        .collect();
    let last = small.pop().unwrap();
    small.into_iter().for_each(|slot| files.free(slot));
    disk.set_capacity(9 * 32 * KIB as u64);
    let large: Vec<_> = (0..4)
        .map(|seed| files.write(&noise(64 * KIB, seed)).unwrap())
        .collect();
    assert!(matches!(
        files.write(&noise(64 * KIB, 9)),
        Err(SlotError::DiskFull { .. })
    ));
    for (slot, seed) in large.iter().zip(0..) {
        assert_eq!(read(&files, slot, 64 * KIB).unwrap(), noise(64 * KIB, seed));
    }
    assert_eq!(read(&files, &last, 32 * KIB).unwrap(), noise(32 * KIB, 8));
}

#[test]
fn failed_operations_are_errors_that_take_nothing() {
    for operation in [Operation::Create, Operation::Write] {
        let (files, disk, time) = files(MIB);
        disk.fail(Fault::all(operation, Errno::IO));
        let error = files.write(&noise(5000, 1)).unwrap_err();
        assert!(
            matches!(
                error,
                SlotError::File {
                    operation: "write",
                    ..
                }
            ),
            "{error}"
        );
        let stats = files.stats();
        assert_eq!(
            (stats.slots, stats.used, stats.allocated),
            (0, 0, 0),
            "{operation:?}"
        );
        disk.heal();
        time.fetch_add(1000, Relaxed);
        let slot = files.write(&noise(5000, 1)).unwrap();
        disk.fail(Fault::all(Operation::Read, Errno::IO));
        let error = read(&files, &slot, 5000).unwrap_err();
        assert!(
            matches!(
                error,
                SlotError::File {
                    operation: "read",
                    ..
                }
            ),
            "{error}"
        );
        disk.heal();
        assert_eq!(read(&files, &slot, 5000).unwrap(), noise(5000, 1));
        files.free(slot);
        assert!(disk.segments().is_empty());
    }
    let (files, ..) = files(64 * MIB);
    let error = files.write(&noise((4 << 20) + 1, 1)).unwrap_err();
    assert!(matches!(error, SlotError::TooLarge { .. }), "{error}");
}

#[test]
fn flipped_lost_and_torn_bytes_are_an_error_and_never_returned() {
    let text = b"rows that compress ".repeat(4000);
    for block in [noise(70_000, 1), text] {
        let (files, disk, _) = files(64 * MIB);
        let mut rng = StdRng::seed_from_u64(5);
        for round in 0..60 {
            let slot = files.write(&block).unwrap();
            let (place, stored) = (slot.place, slot.stored as usize);
            let start = usize::try_from(place.offset()).unwrap();
            disk.change(place.file, |bytes| {
                let at = start + rng.random_range(0..stored);
                match round % 3 {
                    0 => bytes[at] ^= 1 << rng.random_range(0..8),
                    1 => bytes[start..start + stored].fill(0),
                    _ => bytes[at..start + stored]
                        .iter_mut()
                        .for_each(|byte| *byte = !*byte),
                }
            });
            let error = read(&files, &slot, block.len()).unwrap_err();
            assert!(matches!(error, SlotError::Damaged { offset, .. } if offset == place.offset()));
            files.free(slot);
        }
    }
}

#[test]
fn random_writes_and_frees_match_a_model_within_the_limit() {
    for seed in 0..20 {
        let mut rng = StdRng::seed_from_u64(seed);
        let limit = rng.random_range(1..4) * MIB;
        let (files, disk, time) = files(limit);
        let mut model: HashMap<u32, (Slot, u64, usize)> = HashMap::new();
        for step in 0..400 {
            time.fetch_add(200, Relaxed);
            if rng.random_ratio(1, 40) {
                disk.heal();
                match rng.random_range(0..3) {
                    0 => disk.set_capacity(rng.random_range(0..limit)),
                    1 => disk.fail(Fault::all(Operation::Write, Errno::IO)),
                    _ => {}
                }
            }
            let chosen = model.keys().nth(rng.random_range(0..=model.len())).copied();
            if let (Some(key), true) = (chosen, rng.random_bool(0.45)) {
                let (slot, ..) = model.remove(&key).unwrap();
                files.free(slot);
            } else {
                let len = 1 << rng.random_range(3..19);
                let len = rng.random_range(len / 2..len) + 1;
                match files.write(&noise(len, step)) {
                    Ok(slot) => drop(model.insert(step as u32, (slot, step, len))),
                    Err(error) => assert!(error.to_string().contains("scratch"), "{error}"),
                }
            }
            let stats = files.stats();
            assert!(
                stats.used <= stats.allocated && stats.allocated <= limit,
                "{stats:?}"
            );
            assert!(disk.allocated() <= stats.allocated, "{stats:?}");
        }
        disk.heal();
        for (slot, seed, len) in model.values() {
            assert_eq!(read(&files, slot, *len).unwrap(), noise(*len, *seed));
        }
        model.into_values().for_each(|(slot, ..)| files.free(slot));
        let stats = files.stats();
        assert_eq!((stats.slots, stats.used, stats.allocated), (0, 0, 0));
        assert!(disk.segments().is_empty());
    }
}

#[test]
fn threads_that_write_and_free_on_a_real_disk_find_their_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let files = SlotFiles::open(&SlotOptions {
        path: folder.path().join("scratch"),
        ..options(4 * MIB)
    })
    .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let files = &files;
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(thread);
                let mut own: Vec<(Slot, u64, usize)> = Vec::new();
                for _ in 0..400 {
                    if own.len() > 8 || rng.random_ratio(1, 3) {
                        if own.is_empty() {
                            continue;
                        }
                        let (slot, seed, len) = own.swap_remove(rng.random_range(0..own.len()));
                        assert_eq!(read(files, &slot, len).unwrap(), noise(len, seed));
                        files.free(slot);
                    } else {
                        let (len, seed) = (rng.random_range(1..200 * KIB), rng.random());
                        match files.write(&noise(len, seed)) {
                            Ok(slot) => own.push((slot, seed, len)),
                            Err(error) => {
                                assert!(matches!(error, SlotError::Full { .. }), "{error}")
                            }
                        }
                    }
                }
                own.into_iter().for_each(|(slot, ..)| files.free(slot));
            });
        }
    });
    assert_eq!(files.stats().allocated, 0);
    let left = std::fs::read_dir(folder.path().join("scratch")).unwrap();
    assert_eq!(left.count(), 1, "the lock");
}
