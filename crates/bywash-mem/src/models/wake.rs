//! The last unpin wakes a waiter for memory.

use std::sync::Arc;

use loom::thread;

use super::{
    ALL, DOWN, KEY, MANY, PAGE, block_on, check_empty, control, explore, frame, load, pool,
};
use crate::sync::Step;

fn unpin_against_queued_waiter() {
    let pool = pool(1);
    let pin = load(&pool, KEY, b"x");
    let unpinning = thread::spawn(move || drop(pin));
    let frames = block_on(pool.frames(DOWN, 1, 1, 1)).unwrap();
    assert_eq!(frames.len(), 1);
    unpinning.join().unwrap();
    drop(frames);
    check_empty(&pool);
}

#[test]
fn last_unpin_wakes_the_queued_waiter() {
    explore(ALL, unpin_against_queued_waiter);
}

#[test]
fn control_unpin_without_store_load_order_loses_the_wake_up() {
    control(Step::Wake, unpin_against_queued_waiter, "deadlock");
}

#[test]
fn leaving_the_queue_wakes_the_next_waiter() {
    explore(MANY, || {
        let pool = pool(1);
        let held = frame(&pool).unwrap();
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let pool = Arc::clone(&pool);
                thread::spawn(move || drop(block_on(pool.frames(DOWN, 1, 1, 1))))
            })
            .collect();
        drop(held);
        for waiter in waiters {
            waiter.join().unwrap();
        }
        check_empty(&pool);
    });
}

#[test]
fn shrinking_a_reservation_wakes_the_queued_waiter() {
    explore(ALL, || {
        let pool = pool(1);
        let mut charge = pool.try_reserve(DOWN, PAGE).unwrap();
        let shrinking = thread::spawn(move || {
            charge.shrink_to(0);
            charge
        });
        drop(block_on(pool.frames(DOWN, 1, 1, 1)).unwrap());
        drop(shrinking.join().unwrap());
        check_empty(&pool);
    });
}
