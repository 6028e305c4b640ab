//! Leases of blocks to another process: it reads the frame without any lock of this one, and says by a message when it has ended.
//! Until then the frame is neither written, nor given to another block, nor punched out of the memory.

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use super::{DOWN, KEY, control, explore, key, load, pool};
use crate::Claim;
use crate::frames::SizeClass;
use crate::sync::{Step, skipped};

/// `take_frame` needs the one frame of the pool, as soon as it is free.
fn leased_against(take_frame: fn(&Arc<crate::BlockPool>)) {
    let pool = pool(1);
    let pin = load(&pool, KEY, b"x");
    let class = SizeClass::of(1).unwrap();
    let frame = pool.cache.allocator().arena().shadow(class, 0);
    // The message that ends the lease: all accesses of the reader happen before its receipt.
    let released = Arc::new(AtomicBool::new(false));
    let other_process = thread::spawn({
        let released = Arc::clone(&released);
        move || {
            frame.read(0..1);
            released.store(true, Ordering::Release);
        }
    });
    let taking = thread::spawn({
        let pool = Arc::clone(&pool);
        move || take_frame(&pool)
    });
    if !skipped(Step::Lease) {
        while !released.load(Ordering::Acquire) {
            thread::yield_now();
        }
    }
    drop(pin);
    other_process.join().unwrap();
    taking.join().unwrap();
}

fn leased_against_another_block() {
    leased_against(|pool| {
        pool.cache.evict(1);
        if let Claim::Vacant(mut load) = pool.claim(key(2))
            && let Some(mut frames) = pool.try_frames(DOWN, 1, 1, 1)
        {
            load.attach(frames.remove(0), 1);
            load.write(b"y");
        }
    });
}

fn leased_against_hole_punch() {
    leased_against(|pool| {
        pool.cache.evict(1);
        pool.decommit_idle(u64::MAX);
    });
}

#[test]
fn leased_frame_is_not_given_to_another_block() {
    explore(Some(3), leased_against_another_block);
}

#[test]
fn leased_frame_is_not_punched() {
    explore(Some(3), leased_against_hole_punch);
}

#[test]
fn control_frame_of_a_lease_ended_early_is_written_under_its_reader() {
    control(
        Step::Lease,
        leased_against_another_block,
        "Causality violation",
    );
}

#[test]
fn control_frame_of_a_lease_ended_early_is_punched_under_its_reader() {
    control(
        Step::Lease,
        leased_against_hole_punch,
        "Causality violation",
    );
}
