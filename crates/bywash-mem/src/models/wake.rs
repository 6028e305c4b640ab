//! The last unpin wakes whoever waits for memory.

use std::sync::Arc;
use std::time::Instant;

use loom::thread;

use super::{ALL, DOWN, KEY, MANY, PAGE, control, explore, frame, gone, load, pool};
use crate::sync::Step;

fn unpin_against_waiting_taker() {
    let pool = pool(1);
    let pin = load(&pool, KEY, b"x");
    let unpinning = thread::spawn(move || drop(pin));
    let frames = pool.frames_blocking(DOWN, 1, 1, 1, Instant::now()).unwrap();
    assert_eq!(frames.len(), 1);
    unpinning.join().unwrap();
    drop(frames);
    gone(&pool);
}

#[test]
fn the_last_unpin_wakes_the_taker() {
    explore(ALL, unpin_against_waiting_taker);
}

#[test]
fn without_the_store_load_order_the_taker_sleeps_on() {
    control(Step::Wake, unpin_against_waiting_taker, "deadlock");
}

#[test]
fn a_leaving_taker_passes_the_turn_on() {
    explore(MANY, || {
        let pool = pool(1);
        let held = frame(&pool).unwrap();
        let takers: Vec<_> = (0..2)
            .map(|_| {
                let pool = Arc::clone(&pool);
                thread::spawn(move || drop(pool.frames_blocking(DOWN, 1, 1, 1, Instant::now())))
            })
            .collect();
        drop(held);
        for taker in takers {
            taker.join().unwrap();
        }
        gone(&pool);
    });
}

#[test]
fn shrinking_a_reservation_wakes_the_taker() {
    explore(ALL, || {
        let pool = pool(1);
        let mut charge = pool.try_reserve(DOWN, PAGE).unwrap();
        let shrinking = thread::spawn(move || {
            charge.shrink_to(0);
            charge
        });
        drop(pool.frames_blocking(DOWN, 1, 1, 1, Instant::now()).unwrap());
        drop(shrinking.join().unwrap());
        gone(&pool);
    });
}
