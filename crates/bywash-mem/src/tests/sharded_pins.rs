//! Conditions under which pins of contended blocks are sharded, and their shards collapsed.

use super::{MIB, begin, key, load, pool};
use crate::BlockPool;

/// Notes as many contended pins as shard a block's pins.
fn contend(pool: &BlockPool, object: u64) {
    let pin = pool.get(key(object)).unwrap();
    for _ in 0..4 {
        pool.cache
            .sharded_pins()
            .note_contention(pool.cache.slab(), pin.handle().slot);
    }
}

#[test]
fn pins_in_shards_prevent_eviction() {
    let pool = pool(MIB);
    drop(load(&pool, key(1), b"hot"));
    let early = pool.get(key(1)).unwrap();
    contend(&pool, 1);
    assert_eq!(pool.stats().sharded_blocks, 1);
    let handle = early.handle();
    let pins: Vec<_> = (0..100).map(|_| pool.try_pin(&handle).unwrap()).collect();
    assert!(pins.iter().all(|pin| &pin[..] == b"hot"));
    // Moved to and dropped in another thread, which has another shard.
    let owned = pool.get(key(1)).unwrap().into_owned();
    std::thread::spawn(move || assert_eq!(&owned[..], b"hot"))
        .join()
        .unwrap();
    drop(early);
    assert!(
        !pool.cache.evict(u64::MAX),
        "the only block is pinned in a shard"
    );
    drop(pins);
    assert!(pool.cache.evict(u64::MAX));
    assert!(pool.try_pin(&handle).is_none());
    assert_eq!(pool.stats().sharded_blocks, 0, "its counters are released");
}

#[test]
fn erased_sharded_block_is_evicted_at_its_last_unpin() {
    let pool = pool(MIB);
    drop(load(&pool, key(1), b"hot"));
    contend(&pool, 1);
    let pins: Vec<_> = (0..3).map(|_| pool.get(key(1)).unwrap()).collect();
    assert!(pool.erase(key(1)));
    assert!(pool.get(key(1)).is_none());
    assert_eq!(pool.stats().resident_blocks, 1);
    assert!(pins.iter().all(|pin| &pin[..] == b"hot"));
    drop(pins);
    let stats = pool.stats();
    assert_eq!((stats.resident_blocks, stats.sharded_blocks), (0, 0));
}

#[test]
#[cfg_attr(miri, ignore = "it takes more blocks than there are sets of counters")]
fn sharded_counters_are_bounded_and_move_to_contended_blocks() {
    let pool = pool(64 * MIB);
    for object in 0..600 {
        let mut load = begin(&pool, key(object), 1);
        load.write(b"x");
        drop(load.publish().unwrap());
        contend(&pool, object);
    }
    assert_eq!(pool.stats().sharded_blocks, 255, "all sets of counters");
    // The last blocks were contended when all sets were in use, and took over the sets of blocks that were not any more.
    for object in 0..600 {
        assert_eq!(&pool.get(key(object)).unwrap()[..], b"x");
    }
    // Blocks that are still pinned keep theirs.
    let hot: Vec<u64> = (0..600)
        .filter(|object| {
            let slot = pool.get(key(*object)).unwrap().handle().slot;
            pool.cache.load_unprobed(slot).counters() != 0
        })
        .collect();
    assert_eq!(hot.len(), 255);
    assert!(hot.contains(&599), "the last block has counters");
}

#[test]
fn contention_shards_the_pins_of_a_block() {
    let pool = pool(MIB);
    drop(load(&pool, key(1), b"hot"));
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    drop(pool.get(key(1)));
                }
            });
        }
        while pool.stats().sharded_blocks == 0 {
            std::thread::yield_now();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(&pool.get(key(1)).unwrap()[..], b"hot");
}

#[test]
fn single_reader_never_shards_a_block() {
    let pool = pool(MIB);
    drop(load(&pool, key(1), b"mine"));
    let held = pool.get(key(1)).unwrap();
    for _ in 0..10_000 {
        drop(pool.get(key(1)));
    }
    assert_eq!(pool.stats().sharded_blocks, 0);
    drop(held);
}
