//! Frames, the ledger and the wait queue.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;

use super::{MIB, block_on, key, load, pool};
use crate::{BlockPool, Frame, FrameError, MAX_FRAME, MIN_FRAME, PoolConfig, PoolError, Share};

const DOWN: Share = Share::Download;
const UP: Share = Share::Upload;
const PAGE: u64 = MIN_FRAME as u64;
/// Every byte of it is read, which is slow under Miri.
const LARGE: usize = if cfg!(miri) { 4 * MIN_FRAME } else { MAX_FRAME };

/// Waits until this many callers are queued.
fn until_waiting(pool: &BlockPool, takers: u64) {
    while pool.budget().waiting() != takers {
        thread::yield_now();
    }
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn new_frames_are_zero_and_of_their_size_class() {
    let pool = pool(16 * MIB);
    let mut kept = Vec::new();
    for (len, capacity) in [(0, 4096), (1, 4096), (4097, 8192), (LARGE, LARGE)] {
        let frame = pool.try_frames(UP, len, 1, 1).unwrap().remove(0);
        assert_eq!(frame.capacity(), capacity);
        assert!(frame.as_slice().iter().all(|&byte| byte == 0));
        kept.push(frame);
    }
}

#[test]
fn inconsistent_pool_sizes_are_refused() {
    let config = |limit, down, up| PoolConfig {
        download_guarantee: down,
        upload_guarantee: up,
        ..PoolConfig::new(limit)
    };
    for config in [
        config(4095, 0, 0),
        config(MIB, MIB, 1),
        config(MIB, u64::MAX, 1),
    ] {
        assert!(matches!(
            BlockPool::new(config),
            Err(PoolError::Config { .. })
        ));
    }
    #[cfg(not(miri))]
    assert!(matches!(
        BlockPool::new(config(u64::MAX / 2, 0, 0)),
        Err(PoolError::AddressSpace { .. })
    ));
    assert!(BlockPool::new(config(MIB, MIB / 2, MIB / 2)).is_ok());
}

#[test]
fn idle_frame_stays_charged_and_is_reused_first() {
    let pool = pool(MIB);
    let mut frames = pool.try_frames(UP, 4096, 3, 3).unwrap();
    frames[0].as_mut_slice().fill(7);
    let address = frames[0].as_slice().as_ptr();
    assert_eq!((pool.budget().used(), pool.budget().idle()), (3 * PAGE, 0));
    drop(frames.remove(0));
    assert_eq!(
        (pool.budget().used(), pool.budget().idle()),
        (3 * PAGE, PAGE)
    );
    let again = pool.try_frames(DOWN, 100, 1, 1).unwrap();
    assert_eq!(again[0].as_slice().as_ptr(), address);
    assert_eq!((pool.budget().used(), pool.budget().idle()), (3 * PAGE, 0));
}

#[test]
fn idle_frames_of_other_classes_are_decommitted_for_room() {
    let pool = pool(MIB);
    let ceiling = 768 * 1024;
    let small = pool.try_frames(UP, 4096, 192, 192).unwrap();
    assert!(
        pool.try_frames(UP, 4096, 1, 1).is_none(),
        "the rest is guaranteed to downloads"
    );
    drop(small);
    assert_eq!(pool.budget().idle(), ceiling);
    let large = pool.try_frames(UP, 256 * 1024, 3, 3).unwrap();
    assert_eq!(
        (pool.budget().held(UP), pool.budget().used()),
        (ceiling, MIB)
    );
    // Every page is new.
    assert!(
        large
            .iter()
            .all(|frame| frame.as_slice().iter().step_by(4096).all(|&byte| byte == 0))
    );
    drop(large);
    assert_eq!(
        pool.try_frames(UP, 4096, 192, 192)
            .map(|frames| frames.len()),
        Some(192)
    );
    assert!(pool.budget().used() <= MIB);
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn decommitted_frames_are_not_resident() {
    let resident = |frame: *const u8, len: usize| {
        let mut pages = vec![0u8; len / 4096];
        // SAFETY: a mapped range, and room for a byte a page.
        let failed = unsafe { libc::mincore(frame.cast_mut().cast(), len, pages.as_mut_ptr()) };
        assert_eq!(failed, 0);
        pages.iter().filter(|&&page| page & 1 == 1).count()
    };
    let pool = pool(4 * MIB);
    let mut frame = pool.try_frames(UP, 1 << 20, 1, 1).unwrap().remove(0);
    let address = frame.as_slice().as_ptr();
    assert_eq!(resident(address, 1 << 20), 0, "committed by touch");
    frame.as_mut_slice().fill(1);
    assert_eq!(resident(address, 1 << 20), 256);
    drop(frame);
    assert_eq!(
        resident(address, 1 << 20),
        256,
        "idle frames keep their pages"
    );
    let reservation = pool.budget().try_reserve(UP, 3 * MIB).unwrap();
    assert_eq!(
        (resident(address, 1 << 20), pool.budget().used()),
        (256, 4 * MIB)
    );
    drop(reservation);
    let other = pool.try_frames(UP, 512 * 1024, 6, 6).unwrap();
    assert_eq!(pool.budget().used(), 4 * MIB);
    let reservation = pool.budget().try_reserve(DOWN, MIB).unwrap();
    assert_eq!(
        (
            resident(address, 1 << 20),
            pool.budget().used(),
            pool.budget().idle()
        ),
        (0, 4 * MIB, 0)
    );
    drop((other, reservation));
}

#[test]
fn share_leaves_the_other_its_guarantee() {
    for (one, other) in [(DOWN, UP), (UP, DOWN)] {
        let pool = pool(16 * PAGE);
        let frames = pool.try_frames(one, 4096, 1, 100).unwrap();
        assert_eq!(frames.len(), 12);
        assert!(pool.budget().try_reserve(one, 1).is_none());
        let guaranteed = pool.try_frames(other, 4096, 4, 4).unwrap();
        assert_eq!(pool.budget().used(), 16 * PAGE);
        drop(frames);
        drop(guaranteed);
        assert_eq!(pool.budget().idle(), 16 * PAGE);
    }
}

#[test]
fn uploads_evict_blocks_down_to_the_download_guarantee() {
    let pool = pool(16 * PAGE);
    for object in 0..12 {
        drop(load(&pool, key(object), &[1; 4096]));
    }
    assert_eq!(
        pool.try_frames(UP, 4096, 4, 4).unwrap().len(),
        4,
        "the uploads' own guarantee evicts no block"
    );
    assert_eq!(pool.stats().evictions, 0);
    let uploads = pool.try_frames(UP, 4096, 1, 100).unwrap();
    assert_eq!(
        (
            uploads.len(),
            pool.stats().evictions,
            pool.stats().resident_blocks
        ),
        (12, 8, 4)
    );
    assert!(pool.try_frames(UP, 4096, 1, 1).is_none());
    assert_eq!(
        pool.stats().resident_blocks,
        4,
        "evicting more would not help"
    );
}

#[test]
fn allocation_below_the_minimum_takes_nothing() {
    let pool = pool(16 * PAGE);
    let held = pool.try_frames(UP, 4096, 6, 6).unwrap();
    assert!(pool.try_frames(UP, 4096, 7, 7).is_none());
    assert_eq!(pool.budget().used(), 6 * PAGE);
    assert_eq!(pool.try_frames(UP, 4096, 0, 0).unwrap().len(), 0);
    assert_eq!(pool.try_frames(UP, 4096, 1, 9).unwrap().len(), 6);
    drop(held);
}

#[test]
fn impossible_requests_fail_at_once() {
    let pool = pool(MIB);
    let max = 768 * 1024;
    let too_large = FrameError::TooLarge { bytes: MIB, max };
    assert_eq!(
        block_on(pool.frames(UP, 1 << 20, 1, 1)).unwrap_err(),
        too_large
    );
    assert_eq!(
        poll(&mut pool.frames(DOWN, 4096, 256, 256)).map(Result::unwrap_err),
        Poll::Ready(too_large)
    );
    assert!(pool.try_frames(UP, MAX_FRAME + 1, 0, 1).is_none());
    assert!(
        pool.try_frames(UP, usize::MAX, usize::MAX, usize::MAX)
            .is_none()
    );
    assert!(pool.try_frames(UP, 1, usize::MAX, usize::MAX).is_none());
}

#[test]
fn waiters_are_served_in_order() {
    let pool = pool(16 * PAGE);
    let mut held = pool.try_frames(UP, 4096, 12, 12).unwrap();
    let mut large = pool.frames(UP, 4096, 3, 3);
    let mut small = pool.frames(UP, 4096, 1, 1);
    assert!(poll(&mut large).is_pending() && poll(&mut small).is_pending());
    held.truncate(10);
    assert!(
        poll(&mut small).is_pending(),
        "two frames are free, but it is not the head of the queue"
    );
    assert!(poll(&mut large).is_pending());
    assert!(
        pool.try_frames(UP, 4096, 1, 1).is_none() && pool.budget().try_reserve(UP, 1).is_none(),
        "nor that of any other caller"
    );
    assert_eq!(
        pool.try_frames(DOWN, 4096, 1, 1).unwrap().len(),
        1,
        "the other share has its own queue"
    );
    held.truncate(9);
    assert!(poll(&mut small).is_pending());
    let Poll::Ready(Ok(three)) = poll(&mut large) else {
        panic!("it is the head, and there is room")
    };
    assert!(poll(&mut small).is_pending());
    drop(three);
    assert_eq!(pool.budget().waiting(), 1);
    let Poll::Ready(Ok(one)) = poll(&mut small) else {
        panic!("it is the head, and there is room")
    };
    assert_eq!((one.len(), pool.budget().waiting()), (1, 0));
}

#[test]
fn dropped_wait_wakes_the_next_waiter() {
    let pool = pool(16 * PAGE);
    let held = pool.try_frames(UP, 4096, 11, 11).unwrap();
    let mut large = pool.frames(UP, 4096, 12, 12);
    assert!(poll(&mut large).is_pending());
    let behind = thread::spawn({
        let pool = Arc::clone(&pool);
        move || block_on(pool.frames(UP, 4096, 1, 1))
    });
    until_waiting(&pool, 2);
    drop(large);
    assert_eq!(behind.join().unwrap().unwrap().len(), 1);
    assert_eq!(pool.budget().waiting(), 0);
    drop(held);
}

#[test]
fn leaving_the_middle_of_the_queue_keeps_the_order() {
    let pool = pool(16 * PAGE);
    let mut held = pool.try_frames(UP, 4096, 12, 12).unwrap();
    let mut first = pool.frames(UP, 4096, 3, 3);
    let mut middle = pool.frames(UP, 4096, 1, 1);
    let mut last = pool.frames(UP, 4096, 1, 1);
    for wait in [&mut first, &mut middle, &mut last] {
        assert!(poll(wait).is_pending());
    }
    drop(middle);
    assert_eq!(pool.budget().waiting(), 2);
    held.truncate(9);
    assert!(poll(&mut last).is_pending(), "still behind the first");
    let Poll::Ready(Ok(three)) = poll(&mut first) else {
        panic!("it is the head, and there is room")
    };
    held.truncate(8);
    let Poll::Ready(Ok(one)) = poll(&mut last) else {
        panic!("it is the head, and there is room")
    };
    assert_eq!((three.len(), one.len(), pool.budget().waiting()), (3, 1, 0));
}

/// Queues a thread for a frame, calls `free`, and returns the frame.
fn woken_by(pool: &Arc<BlockPool>, free: impl FnOnce()) -> Vec<Frame> {
    thread::scope(|scope| {
        let task = scope.spawn(|| block_on(pool.frames(DOWN, 4096, 1, 1)));
        until_waiting(pool, 1);
        free();
        task.join().unwrap().unwrap()
    })
}

#[test]
fn every_release_of_memory_wakes_a_waiter() {
    let pool = pool(16 * PAGE);
    let mut frames = pool.try_frames(DOWN, 4096, 11, 11).unwrap();
    let pin = load(&pool, key(1), b"pinned");
    let frame = woken_by(&pool, || drop(frames.pop()));
    let more = woken_by(&pool, || drop(pin));
    assert!(pool.get(key(1)).is_none(), "evicted for the waiter");
    drop((frame, more));
    let reservation = pool.budget().try_reserve(DOWN, 2 * PAGE).unwrap();
    let frame = woken_by(&pool, || drop(reservation));
    drop(frame);

    let pin = load(&pool, key(2), b"erased");
    let second = load(&pool, key(3), b"too");
    let third = pool.get(key(3)).unwrap();
    let frame = woken_by(&pool, || {
        pool.erase(key(2));
        drop(pin);
    });
    assert_eq!(
        frame.len() as u64 * PAGE + 10 * PAGE + PAGE,
        pool.budget().held(DOWN)
    );
    drop((second, third));
}

#[test]
fn waiter_evicts_a_block_in_use() {
    let pool = pool(16 * PAGE);
    let frames = pool.try_frames(DOWN, 4096, 11, 11).unwrap();
    drop(load(&pool, key(1), b"hot"));
    for _ in 0..10 {
        drop(pool.get(key(1)).unwrap());
    }
    assert_eq!(block_on(pool.frames(DOWN, 4096, 1, 1)).unwrap().len(), 1);
    drop(frames);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no resident pages")]
fn high_ceiling_commits_no_memory() {
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let before = resident();
    let pools: Vec<_> = (0..4)
        .map(|_| {
            let config = PoolConfig {
                ceiling: 64 << 30,
                ..PoolConfig::new(MIB)
            };
            BlockPool::new(config).unwrap()
        })
        .collect();
    pools.iter().for_each(|pool| drop(load(pool, key(1), b"x")));
    let after = resident();
    // Other tests run at the same time; the tables of four such pools would be 4 GiB.
    assert!(after.saturating_sub(before) < 1 << 30, "{before} {after}");
}

#[test]
fn reservation_evicts_blocks_and_waits_in_the_queue() {
    let pool = pool(4 * MIB);
    // Guarantees of a quarter each: downloads hold at most three quarters.
    let pins: Vec<_> = (0..3).map(|n| load(&pool, key(n), &[1; 1 << 20])).collect();
    assert!(
        pool.budget().try_reserve(DOWN, MIB).is_none() && pool.try_reserve(DOWN, 1).is_none(),
        "pinned blocks are not evicted"
    );
    let mut waiting = pool.reserve(DOWN, 2 * MIB);
    assert!(poll(&mut waiting).is_pending());
    assert!(
        pool.try_reserve(DOWN, 0).is_none(),
        "a caller never overtakes a waiter of its share"
    );
    let mut pins = pins.into_iter();
    drop(pins.next());
    assert!(poll(&mut waiting).is_pending(), "one block is not enough");
    drop(pins.next());
    let Poll::Ready(Ok(charge)) = poll(&mut waiting) else {
        panic!("two unpinned blocks make the room");
    };
    assert_eq!(
        (charge.bytes(), pool.budget().held(DOWN)),
        (2 * MIB, 3 * MIB)
    );
    drop(charge);
    assert_eq!(pool.budget().held(DOWN), MIB);
}

#[test]
fn reservation_shrinks_and_grows_within_the_limit() {
    let pool = pool(4 * MIB);
    let mut charge = pool.try_reserve(DOWN, 3 * MIB).unwrap();
    assert!(
        !pool.try_grow(&mut charge, 1),
        "the uploads' guarantee stays"
    );
    charge.shrink_to(PAGE);
    assert_eq!((charge.bytes(), pool.budget().used()), (PAGE, PAGE));
    charge.shrink_to(MIB);
    assert_eq!(charge.bytes(), PAGE, "shrinking never grows");
    assert!(pool.try_grow(&mut charge, 3 * MIB - PAGE));
    assert_eq!(
        (charge.bytes(), pool.budget().held(DOWN)),
        (3 * MIB, 3 * MIB)
    );
    drop(charge);
    assert_eq!(pool.budget().used(), 0);
}

#[test]
fn reservation_above_the_share_fails_at_once() {
    let pool = pool(4 * MIB);
    let result = poll(&mut pool.reserve(DOWN, 3 * MIB + 1));
    assert!(matches!(
        result,
        Poll::Ready(Err(FrameError::TooLarge { max, .. })) if max == 3 * MIB
    ));
    assert!(matches!(
        poll(&mut pool.reserve(UP, u64::MAX)),
        Poll::Ready(Err(FrameError::TooLarge { .. }))
    ));
}

/// Threads that each want the last room of the limit at once.
#[test]
fn check_and_charge_of_many_threads_are_one_step() {
    const ROUNDS: u32 = if cfg!(miri) { 10 } else { 60_000 };
    const LEN: usize = 16 * MIN_FRAME;
    let pool = pool(3 * LEN as u64 + PAGE);
    let limit = pool.budget().limit();
    let begin = std::sync::Barrier::new(4);
    thread::scope(|scope| {
        for thread in 0..4 {
            let (pool, begin) = (&pool, &begin);
            scope.spawn(move || {
                // Two classes: idle frames of one are no room for the other.
                let len = if thread % 2 == 0 { LEN } else { LEN / 2 };
                begin.wait();
                for _ in 0..ROUNDS {
                    let taken = pool.try_frames(UP, len, 1, 2);
                    let used = pool.budget().used();
                    assert!(used <= limit, "{used} bytes of {limit}");
                    drop(taken);
                }
            });
        }
    });
}
