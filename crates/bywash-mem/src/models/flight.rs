//! The flight: hand-off pins, cancellation, abandonment.

use std::sync::Arc;

use loom::thread;

use super::{ALL, DOWN, KEY, begin, block_on, check_empty, control, explore, frame, pool};
use crate::sync::Step;
use crate::{BlockPool, Claim, FlightError};

fn hand_off_against_eviction() {
    let pool = pool(1);
    let mut load = begin(&pool, KEY, 1);
    let waiter = load.flight().join();
    let cancelled = load.flight().join();
    let waiting = thread::spawn(move || {
        let pin = block_on(waiter.wait()).unwrap();
        assert_eq!(&pin[..], b"x");
    });
    let cancelling = thread::spawn(move || drop(cancelled));
    load.write(b"x");
    drop(load.publish().unwrap());
    // The only page of the pool: allocating it evicts the block, which the waiter's pin must not allow too early.
    drop(frame(&pool));
    waiting.join().unwrap();
    cancelling.join().unwrap();
    check_empty(&pool);
}

#[test]
fn waiter_gets_its_pin_while_another_cancels() {
    explore(ALL, hand_off_against_eviction);
}

#[test]
fn control_publish_without_hand_off_pins_loses_the_block() {
    control(
        Step::HandOff,
        hand_off_against_eviction,
        "Causality violation",
    );
}

fn get_or_load(pool: &Arc<BlockPool>, leader_gives_up: bool) {
    loop {
        let pin = match pool.claim(KEY) {
            Claim::Resident(pin) => pin.into_owned(),
            Claim::Loading(flight) => match block_on(flight.join().wait()) {
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
fn concurrent_claims_start_one_load() {
    explore(ALL, || {
        let pool = pool(1);
        let other = thread::spawn({
            let pool = Arc::clone(&pool);
            move || get_or_load(&pool, false)
        });
        get_or_load(&pool, false);
        other.join().unwrap();
        assert_eq!(pool.stats().loads, 1);
        check_empty(&pool);
    });
}

#[test]
fn abandoned_load_is_taken_over() {
    explore(ALL, || {
        let pool = pool(1);
        let quitter = thread::spawn({
            let pool = Arc::clone(&pool);
            move || get_or_load(&pool, true)
        });
        get_or_load(&pool, false);
        quitter.join().unwrap();
        check_empty(&pool);
    });
}

#[test]
fn erasure_during_a_load_leaves_no_block() {
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
        assert_eq!(&block_on(waiter.wait()).unwrap()[..], b"x");
        eraser.join().unwrap();
        assert!(pool.get(KEY).is_none());
        assert_eq!(
            (pool.stats().resident_blocks, pool.budget().held(DOWN)),
            (0, 0)
        );
    });
}
