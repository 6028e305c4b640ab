//! Followers against a failed load.

use std::sync::Arc;

use loom::thread;

use super::{KEY, MANY, begin, control, explore, frame, gone, pool};
use crate::FlightError;
use crate::sync::Step;

fn follower_against_failure() {
    let pool = pool(1);
    let mut load = begin(&pool, KEY, 3);
    let mut follower = load.flight().follow(0);
    let reading = thread::spawn(move || {
        let mut kept = Vec::new();
        let end = loop {
            match follower.next_blocking(1) {
                Ok(bytes) => {
                    let bytes = bytes.expect("it never ends well");
                    assert_eq!(bytes[..], [b"ab"[kept.len()]]);
                    kept.push(bytes);
                }
                Err(error) => break error,
            }
        };
        assert!(matches!(end, FlightError::Failed(_)));
        drop(follower);
        for (followed, written) in kept.iter().zip(b"ab") {
            assert_eq!(followed[..], [*written]);
        }
    });
    load.write(b"a");
    load.write(b"b");
    load.fail(Arc::new(std::fmt::Error));
    // The only page of the pool: it comes back with the last slice, and is written by its next owner.
    if let Some(mut frame) = frame(&pool) {
        frame.as_mut_slice()[0] = b'!';
    }
    reading.join().unwrap();
    gone(&pool);
}

#[test]
fn the_frame_returns_after_the_last_slice() {
    explore(MANY, follower_against_failure);
}

#[test]
fn without_the_marks_release_a_follower_is_early() {
    control(
        Step::Progress,
        follower_against_failure,
        "Causality violation",
    );
}

#[test]
fn without_its_hold_a_follower_reads_what_is_written() {
    control(Step::Hold, follower_against_failure, "Causality violation");
}

#[test]
fn a_followed_block_outlives_its_followers() {
    explore(MANY, || {
        let pool = pool(1);
        let mut load = begin(&pool, KEY, 1);
        let mut follower = load.flight().follow(0);
        let reading = thread::spawn(move || {
            assert_eq!(&follower.next_blocking(1).unwrap().unwrap()[..], b"x");
            assert!(follower.next_blocking(1).unwrap().is_none());
        });
        load.write(b"x");
        assert_eq!(&load.publish().unwrap()[..], b"x");
        drop(frame(&pool));
        reading.join().unwrap();
        gone(&pool);
    });
}
