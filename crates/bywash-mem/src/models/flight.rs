//! The flight: hand-off, cancellation, abandonment.

use std::sync::Arc;

use loom::thread;

use super::{ALL, DOWN, KEY, begin, control, explore, frame, gone, pool};
use crate::sync::Step;
use crate::{BlockPool, Claim, FlightError};

fn hand_off_against_eviction() {
    let pool = pool(1);
    let mut load = begin(&pool, KEY, 1);
    let waiter = load.flight().join();
    let cancelled = load.flight().join();
    let waiting = thread::spawn(move || {
        let pin = waiter.wait_blocking().unwrap();
        assert_eq!(&pin[..], b"x");
    });
    let cancelling = thread::spawn(move || drop(cancelled));
    load.write(b"x");
    drop(load.publish().unwrap());
    // The only page of the pool: whoever gets it evicted the block, which the waiter's pin must not allow too early.
    drop(frame(&pool));
    waiting.join().unwrap();
    cancelling.join().unwrap();
    gone(&pool);
}

#[test]
fn a_waiter_gets_its_pin_whoever_cancels() {
    explore(ALL, hand_off_against_eviction);
}

#[test]
fn without_hand_off_a_waiter_finds_the_block_evicted() {
    control(
        Step::HandOff,
        hand_off_against_eviction,
        "Causality violation",
    );
}

fn get_or_load(pool: &Arc<BlockPool>, leader_gives_up: bool) {
    loop {
        let pin = match pool.claim(KEY) {
            Claim::Resident(pin) => pin.into_owned(Arc::clone(pool)),
            Claim::Loading(flight) => match flight.join().wait_blocking() {
                Ok(pin) => pin,
                Err(FlightError::Abandoned) => continue,
                Err(FlightError::Failed(error)) => panic!("{error}"),
            },
            Claim::Vacant(load) if leader_gives_up => {
                drop(load);
                return;
            }
            Claim::Vacant(mut load) => {
                load.attach(frame(pool).unwrap(), 1);
                load.write(b"x");
                load.publish().unwrap()
            }
        };
        assert_eq!(&pin[..], b"x");
        return;
    }
}

#[test]
fn one_load_however_many_claim() {
    explore(ALL, || {
        let pool = pool(1);
        let other = thread::spawn({
            let pool = Arc::clone(&pool);
            move || get_or_load(&pool, false)
        });
        get_or_load(&pool, false);
        other.join().unwrap();
        assert_eq!(pool.stats().loads, 1);
        gone(&pool);
    });
}

#[test]
fn an_abandoned_load_is_taken_over() {
    explore(ALL, || {
        let pool = pool(1);
        let quitter = thread::spawn({
            let pool = Arc::clone(&pool);
            move || get_or_load(&pool, true)
        });
        get_or_load(&pool, false);
        quitter.join().unwrap();
        gone(&pool);
    });
}

#[test]
fn an_erasure_during_a_load_leaves_nothing() {
    explore(ALL, || {
        let pool = pool(1);
        let mut load = begin(&pool, KEY, 1);
        let waiter = load.flight().join();
        let eraser = thread::spawn({
            let pool = Arc::clone(&pool);
            move || assert!(pool.erase(KEY))
        });
        load.write(b"x");
        drop(load.publish().unwrap());
        assert_eq!(&waiter.wait_blocking().unwrap()[..], b"x");
        eraser.join().unwrap();
        assert!(pool.get(KEY).is_none());
        assert_eq!(
            (pool.stats().resident_blocks, pool.budget().held(DOWN)),
            (0, 0)
        );
    });
}
