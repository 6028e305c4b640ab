//! Threads. Of a disk tier's 20 hardest cases: 8 (a disk that takes long), 17 (readers of a segment that is used again; erasure against
//! write, read and write again), 19 (more blocks than the index has room for).

use std::sync::atomic::AtomicBool;
use std::thread;

use super::*;
use crate::index::Index;
use crate::memory_storage::Operation;

#[test]
fn write_that_does_not_return_keeps_nothing_else_waiting() {
    let storage: Arc<MemoryStorage> = Arc::default();
    let tier = open(&storage, 4);
    write(&tier, &[(1, 0), (2, 0)]).unwrap();
    storage.stall(Operation::Write);
    thread::scope(|scope| {
        let stuck = scope.spawn(|| write(&tier, &[(1, 1), (2, 1)]));
        storage.wait_for_stalled(1);
        let [first, second] = [1, 2].map(|object| VersionKey::of(&record(object)));
        assert!(check(&tier, 1, 0) && tier.contains(first, 0) && !tier.contains(first, 1));
        assert!(tier.wants(first, 2, 4096));
        tier.resize(size_of(2, u64::from(SEGMENT))).unwrap();
        tier.erase(second);
        assert_eq!((tier.stats().blocks_written, tier.stats().segments), (2, 1));
        storage.heal();
        stuck.join().unwrap().unwrap();
        assert!(check(&tier, 1, 1));
        assert!(
            !check(&tier, 2, 0) && !check(&tier, 2, 1),
            "erased while being written"
        );
    });
    tier.record_erasures().unwrap();
    drop(tier);
    let tier = open(&storage, 4);
    assert!(check(&tier, 1, 1) && !check(&tier, 2, 0) && !check(&tier, 2, 1));
}

#[test]
fn version_erased_while_it_is_written_stays_erased_after_a_restart() {
    let storage: Arc<MemoryStorage> = Arc::default();
    let tier = open(&storage, 4);
    storage.stall(Operation::Write);
    thread::scope(|scope| {
        let stuck = scope.spawn(|| write(&tier, &[(2, 0)]));
        storage.wait_for_stalled(1);
        tier.erase(VersionKey::of(&record(2)));
        storage.heal();
        stuck.join().unwrap().unwrap();
    });
    write(&tier, &[(1, 0)]).unwrap();
    drop(tier);
    let tier = open(&storage, 4);
    assert!(check(&tier, 1, 0) && !check(&tier, 2, 0));
}

/// Between two steps of a read the number of a version was given to another one.
#[test]
fn read_with_the_former_number_of_a_version_leaves_the_blocks_of_the_next_one() {
    let tier = open(&Arc::default(), 4);
    let [first, second] = [1, 2].map(|object| VersionKey::of(&record(object)));
    write(&tier, &[(1, 0)]).unwrap();
    let number = tier.versions.lock().find(first).unwrap();
    for segment in 0..4 {
        tier.remove_blocks(segment);
    }
    write(&tier, &[(2, 0)]).unwrap();
    assert_eq!(tier.versions.lock().find(second), Some(number));
    let mut buffer = Pages::zeroed(8);
    let read = tier.read_numbered(first, number, 0, buffer.as_mut());
    assert_eq!(read, None);
    assert_eq!(tier.stats().mismatches, 0, "no damage");
    assert!(check(&tier, 2, 0));
}

/// Versions are erased while their blocks are on the way to the disk: before the first byte of the batch is written, while a segment
/// that is used again next is read for the blocks in use, and while these are read.
#[test]
fn version_erased_before_its_blocks_are_appended_is_not_found() {
    for reads in 0..6 {
        let storage: Arc<MemoryStorage> = Arc::default();
        let (tier, done) = (open(&storage, 3), AtomicBool::new(false));
        let mut number = 0;
        while tier.stats().segments < 3 {
            write(&tier, &[(1, number)]).unwrap();
            assert!(check(&tier, 1, number));
            number += 1;
        }
        storage.stall_after(Operation::Read, reads);
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    let _ = write(&tier, &[(2, number)]);
                }
            });
            storage.wait_for_stalled(1);
            done.store(true, Ordering::Relaxed);
            tier.erase(VersionKey::of(&record(1)));
            tier.erase(VersionKey::of(&record(2)));
            storage.heal();
        });
        let found = |tier: &Tier| {
            let blocks = [1, 2].into_iter();
            let mut blocks = blocks.flat_map(|object| (0..300).map(move |number| (object, number)));
            blocks.find(|&(object, number)| check(tier, object, number))
        };
        assert_eq!(found(&tier), None, "after {reads} reads");
        write(&tier, &[(3, 0)]).unwrap();
        drop(tier);
        let tier = open(&storage, 3);
        assert_eq!(found(&tier), None, "a restart after {reads} reads");
    }
}

#[test]
fn readers_see_right_bytes_or_none_while_segments_are_used_again_and_versions_erased() {
    let storage: Arc<MemoryStorage> = Arc::default();
    let (tier, done) = (open(&storage, 3), AtomicBool::new(false));
    thread::scope(|scope| {
        for seed in 0..3 {
            let (tier, done) = (&tier, &done);
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(seed);
                while !done.load(Ordering::Relaxed) {
                    check(tier, rng.random_range(0..4), rng.random_range(0..40));
                }
            });
        }
        for round in 0..4000_u32 {
            let object = round % 4;
            // An error means that readers hold all segments.
            let _ = write(&tier, &[(object, round % 40), (object, (round + 7) % 40)]);
            if round % 50 == 49 {
                tier.erase(VersionKey::of(&record(object)));
                let number = (0..40).find(|&number| check(&tier, object, number));
                assert_eq!(number, None, "round {round}");
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    let stats = tier.stats();
    assert!(
        stats.recycled_segments > 100 && stats.reinserted_blocks > 0,
        "{stats:?}"
    );
    let found = (0..4).flat_map(|object| (0..40).map(move |number| (object, number)));
    let found = found.filter(|&(object, number)| check(&tier, object, number));
    assert_eq!(found.count() as u64, stats.blocks);
}

#[test]
fn index_has_a_million_blocks_and_declines_more_in_the_same_memory() {
    let capacity = 1_000_000;
    let index = Index::new(capacity);
    let memory = index.memory();
    assert!(memory <= 33 * capacity as u64, "{memory} bytes");
    let blocks = 0..1_200_000;
    let stored = blocks.filter(|&page| {
        let place = Place {
            segment: 0,
            page,
            length: 4096,
            crc: 0,
        };
        index.insert(page / 1000, page, place).is_ok()
    });
    assert_eq!((stored.count(), index.len()), (capacity, capacity));
    assert_eq!(index.memory(), memory);
    assert_eq!(index.remove_segment(0).len(), capacity);
    assert!(index.len() == 0 && index.memory() == memory);
}
