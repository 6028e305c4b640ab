//! Limits that change at run time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{MIB, block_on, key, load};
use crate::{BlockPool, FrameError, LimitError, PoolConfig, Share};

fn pool(limit: u64, ceiling: u64) -> Arc<BlockPool> {
    BlockPool::new(PoolConfig {
        ceiling,
        ..PoolConfig::new(limit)
    })
    .unwrap()
}

#[test]
fn raised_limit_allows_more() {
    let pool = pool(MIB, 4 * MIB);
    let all = |pool: &BlockPool| pool.try_frames(Share::Download, 1 << 16, 1, 1000).unwrap();
    assert_eq!(all(&pool).len(), 12, "three quarters of 1 MiB");
    pool.set_limit(4 * MIB).unwrap();
    assert_eq!((all(&pool).len(), pool.budget().limit()), (48, 4 * MIB));
    let error = pool.set_limit(4 * MIB + 1).unwrap_err();
    assert!(matches!(error, LimitError::OutOfRange { ceiling, .. } if ceiling == 4 * MIB));
    assert!(pool.set_limit(1).is_err());
}

#[test]
fn guarantees_are_exact_after_many_limit_changes() {
    let pool = pool(MIB, MIB);
    let made = pool.cache.allocator().limits();
    for limit in (4096..MIB).step_by(997) {
        pool.set_limit(limit).unwrap();
    }
    pool.set_limit(MIB).unwrap();
    assert_eq!(pool.cache.allocator().limits(), made);
}

#[test]
fn lowered_limit_evicts() {
    let pool = pool(MIB, MIB);
    for object in 0..100 {
        drop(load(&pool, key(object), &[1; 8192]));
    }
    pool.set_limit(MIB / 4).unwrap();
    assert!(pool.budget().used() <= MIB / 4);
    let left = pool.stats().resident_blocks;
    assert!(
        (16..=32).contains(&left),
        "{left} blocks stay, as many as fit"
    );
}

#[test]
fn lowered_limit_decommits_idle_frames_of_all_classes() {
    let pool = pool(8 * MIB, 8 * MIB);
    for len in [4096, 1 << 16, 1 << 20] {
        drop(pool.try_frames(Share::Download, len, 1, 3).unwrap());
    }
    assert_eq!(pool.budget().used(), pool.budget().idle());
    assert_eq!(pool.budget().idle(), 3 * (4096 + (1 << 16) + (1 << 20)));
    pool.set_limit(2 * MIB).unwrap();
    assert_eq!(
        pool.budget().idle(),
        MIB + 3 * (4096 + (1 << 16)),
        "the largest first"
    );
    pool.set_limit(4096).unwrap();
    assert_eq!(pool.budget().idle(), 4096);
}

#[test]
fn limit_below_held_memory_is_refused_without_evicting() {
    let pool = pool(MIB, MIB);
    let pins: Vec<_> = (0..50)
        .map(|object| load(&pool, key(object), &[1; 8192]))
        .collect();
    for object in 50..90 {
        drop(load(&pool, key(object), &[1; 8192]));
    }
    let reserved = pool.budget().try_reserve(Share::Upload, 8192).unwrap();
    let error = pool.set_limit(50 * 8192).unwrap_err();
    let held = 51 * 8192;
    assert!(matches!(error, LimitError::Held { held: found, .. } if found == held));
    assert_eq!(
        (pool.stats().resident_blocks, pool.budget().limit()),
        (90, MIB),
        "nothing was evicted"
    );
    pool.set_limit(held).unwrap();
    assert_eq!(pool.stats().resident_blocks, 50);
    drop((pins, reserved));
}

#[test]
fn waiter_fails_when_the_limit_drops_below_its_request() {
    let pool = pool(MIB, MIB);
    let held = pool.try_frames(Share::Download, 1 << 16, 1, 1).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| block_on(pool.frames(Share::Download, 1 << 16, 12, 12)));
        while pool.budget().waiting() == 0 {
            std::thread::yield_now();
        }
        pool.set_limit(MIB / 2).unwrap();
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(error, FrameError::TooLarge { .. }));
    });
    drop(held);
}

#[test]
fn used_never_exceeds_a_changing_limit() {
    let pool = pool(MIB, MIB);
    let done = AtomicBool::new(false);
    let rounds = if cfg!(miri) { 5 } else { 500 };
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (pool, done) = (&pool, &done);
            scope.spawn(move || {
                let mut object = thread << 32;
                while !done.load(Ordering::Relaxed) {
                    object += 1;
                    if let Some(frame) = pool.try_frames(Share::Download, 8192, 1, 1) {
                        let crate::Claim::Vacant(mut load) = pool.claim(key(object)) else {
                            panic!("the object is this thread's")
                        };
                        load.attach(frame.into_iter().next().unwrap(), 8192);
                        load.advance(8192);
                        drop(load.publish().unwrap());
                    }
                    // The limit first: it may only have been higher since.
                    assert!(pool.budget().used() <= MIB);
                }
            });
        }
        let mut lowered = 0;
        for round in 0..rounds {
            let limit = if round % 2 == 0 { MIB / 4 } else { MIB };
            if pool.set_limit(limit).is_ok() && limit < MIB {
                lowered += 1;
                assert!(pool.budget().used() <= limit, "until it is raised again");
            }
        }
        done.store(true, Ordering::Relaxed);
        assert!(lowered > 0);
    });
}
