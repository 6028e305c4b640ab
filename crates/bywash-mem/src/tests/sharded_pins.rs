//! Hot blocks: when they get stripes, and when they lose them.

use std::sync::Arc;

use super::{MIB, begin, key, load, pool};
use crate::BlockPool;

/// As many collisions as open stripes for a block.
fn collide(pool: &BlockPool, object: u64) {
    let pin = pool.get(key(object)).unwrap();
    for _ in 0..4 {
        pool.stripes().heat(pool.slab(), pin.handle().slot);
    }
}

#[test]
fn pins_in_lanes_count_like_any() {
    let pool = pool(MIB);
    drop(load(&pool, key(1), b"hot"));
    let early = pool.get(key(1)).unwrap();
    collide(&pool, 1);
    assert_eq!(pool.stats().striped_blocks, 1);
    let handle = early.handle();
    let pins: Vec<_> = (0..100).map(|_| pool.try_pin(&handle).unwrap()).collect();
    assert!(pins.iter().all(|pin| &pin[..] == b"hot"));
    // Moved to and dropped in another thread, whose lane is another.
    let owned = pool.get(key(1)).unwrap().into_owned(Arc::clone(&pool));
    std::thread::spawn(move || assert_eq!(&owned[..], b"hot"))
        .join()
        .unwrap();
    drop(early);
    assert!(
        !pool.evict(u64::MAX),
        "pinned in a lane is pinned, and nothing else is here"
    );
    drop(pins);
    assert!(pool.evict(u64::MAX));
    assert!(pool.try_pin(&handle).is_none());
    assert_eq!(pool.stats().striped_blocks, 0, "the array came back");
}

#[test]
fn an_erased_hot_block_leaves_at_its_last_unpin() {
    let pool = pool(MIB);
    drop(load(&pool, key(1), b"hot"));
    collide(&pool, 1);
    let pins: Vec<_> = (0..3).map(|_| pool.get(key(1)).unwrap()).collect();
    assert!(pool.erase(key(1)));
    assert!(pool.get(key(1)).is_none());
    assert_eq!(pool.stats().resident_blocks, 1);
    assert!(pins.iter().all(|pin| &pin[..] == b"hot"));
    drop(pins);
    let stats = pool.stats();
    assert_eq!((stats.resident_blocks, stats.striped_blocks), (0, 0));
}

#[test]
#[cfg_attr(miri, ignore = "it takes more blocks than there are arrays")]
fn arrays_are_bounded_and_go_to_who_is_hot_now() {
    let pool = pool(64 * MIB);
    for object in 0..600 {
        let mut load = begin(&pool, key(object), 1);
        load.write(b"x");
        drop(load.publish().unwrap());
        collide(&pool, object);
    }
    assert_eq!(pool.stats().striped_blocks, 255, "no more than there are");
    // The last were hot when all arrays were given out, and got one of a block that had cooled.
    for object in 0..600 {
        assert_eq!(&pool.get(key(object)).unwrap()[..], b"x");
    }
    // Those that go on being pinned keep theirs.
    let hot: Vec<u64> = (0..600)
        .filter(|object| {
            let slot = pool.get(key(*object)).unwrap().handle().slot;
            pool.settled(slot).stripes() != 0
        })
        .collect();
    assert_eq!(hot.len(), 255);
    assert!(hot.contains(&599), "the newcomer has one");
}

#[test]
fn contention_turns_stripes_on() {
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
        while pool.stats().striped_blocks == 0 {
            std::thread::yield_now();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(&pool.get(key(1)).unwrap()[..], b"hot");
}

#[test]
fn a_lone_reader_never_turns_them_on() {
    let pool = pool(MIB);
    drop(load(&pool, key(1), b"mine"));
    let held = pool.get(key(1)).unwrap();
    for _ in 0..10_000 {
        drop(pool.get(key(1)));
    }
    assert_eq!(pool.stats().striped_blocks, 0);
    drop(held);
}
