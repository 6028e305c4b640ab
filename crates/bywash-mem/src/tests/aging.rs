//! Eviction of blocks unused for a time.

use std::time::{Duration, Instant};

use super::{MIB, key, load, pool};
use crate::{Evicted, Share};

#[test]
fn decommits_idle_frames_up_to_the_bytes_given() {
    let pool = pool(MIB);
    drop(pool.try_frames(Share::Download, 4096, 8, 8).unwrap());
    let held = pool.try_frames(Share::Download, 4096, 2, 2).unwrap();
    assert_eq!(
        (pool.budget().used(), pool.budget().idle()),
        (8 * 4096, 6 * 4096)
    );
    pool.decommit_idle(2 * 4096);
    assert_eq!(
        (pool.budget().used(), pool.budget().idle()),
        (6 * 4096, 4 * 4096)
    );
    pool.decommit_idle(u64::MAX);
    assert_eq!((pool.budget().used(), pool.budget().idle()), (2 * 4096, 0));
    drop(held);
}

#[test]
fn evicts_blocks_unused_for_the_minimum_age() {
    let pool = pool(MIB);
    for object in 0..3 {
        drop(load(&pool, key(object), b"x"));
        for _ in 0..5 {
            drop(pool.get(key(object)));
        }
    }
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let sweep = |seconds| pool.evict_unused(Duration::from_secs(10), after(seconds));
    assert_eq!(sweep(0), Evicted::default(), "first seen now");
    drop(pool.get(key(1)));
    let pinned = pool.get(key(2)).unwrap();
    assert_eq!(sweep(5), Evicted::default());
    let gone = Evicted {
        blocks: 1,
        bytes: 4096,
    };
    assert_eq!(
        sweep(10),
        gone,
        "unused since second 0, though it was used often"
    );
    assert!(pool.get(key(0)).is_none());
    assert_eq!(sweep(14), Evicted::default());
    assert_eq!(sweep(15), gone, "used until second 5");
    assert_eq!(sweep(100), Evicted::default(), "a pinned block is in use");
    drop(pinned);
    // A new block in a reused slot has an age of its own.
    drop(load(&pool, key(3), b"new"));
    assert_eq!(sweep(101), Evicted::default());
    assert_eq!(sweep(110).blocks, 1, "unpinned after second 100");
    assert!(pool.get(key(3)).is_some());
    assert_eq!(sweep(112), Evicted::default(), "used just now");
    assert_eq!(sweep(122).blocks, 1);
}
