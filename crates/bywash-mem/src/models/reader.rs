//! Readers of a load that fails.

use std::sync::Arc;

use loom::thread;

use super::{KEY, MANY, begin, block_on, check_empty, control, explore, frame, pool};
use crate::FlightError;
use crate::sync::Step;

fn reader_against_failure() {
    let pool = pool(1);
    let mut load = begin(&pool, KEY, 3);
    let mut reader = load.flight().reader(0);
    let reading = thread::spawn(move || {
        let mut kept = Vec::new();
        let end = loop {
            match block_on(reader.next(1)) {
                Ok(bytes) => {
                    let bytes = bytes.expect("it never ends well");
                    assert_eq!(bytes[..], [b"ab"[kept.len()]]);
                    kept.push(bytes);
                }
                Err(error) => break error,
            }
        };
        assert!(matches!(end, FlightError::Failed(_)));
        drop(reader);
        for (slice, written) in kept.iter().zip(b"ab") {
            assert_eq!(slice[..], [*written]);
        }
    });
    load.write(b"a");
    load.write(b"b");
    load.fail(Arc::new(std::fmt::Error));
    // The only page of the pool: released with the last slice, and written by its next owner.
    if let Some(mut frame) = frame(&pool) {
        frame.as_mut_slice()[0] = b'!';
    }
    reading.join().unwrap();
    check_empty(&pool);
}

#[test]
fn failed_load_releases_its_frame_after_the_last_slice() {
    explore(MANY, reader_against_failure);
}

#[test]
fn control_progress_without_release_races_with_a_reader() {
    control(
        Step::Progress,
        reader_against_failure,
        "Causality violation",
    );
}

#[test]
fn control_slice_without_reference_is_overwritten() {
    control(
        Step::SliceHold,
        reader_against_failure,
        "Causality violation",
    );
}

#[test]
fn block_outlives_readers_of_its_load() {
    explore(MANY, || {
        let pool = pool(1);
        let mut load = begin(&pool, KEY, 1);
        let mut reader = load.flight().reader(0);
        let reading = thread::spawn(move || {
            assert_eq!(&block_on(reader.next(1)).unwrap().unwrap()[..], b"x");
            assert!(block_on(reader.next(1)).unwrap().is_none());
        });
        load.write(b"x");
        assert_eq!(&load.publish().unwrap()[..], b"x");
        drop(frame(&pool));
        reading.join().unwrap();
        check_empty(&pool);
    });
}

fn reader_against_exchange() {
    let pool = pool(2);
    let mut load = begin(&pool, KEY, 1);
    let flight = load.flight();
    let reading = thread::spawn(move || {
        let mut reader = flight.reader(0);
        match block_on(reader.next(1)) {
            Ok(bytes) => assert_eq!(&bytes.unwrap()[..], b"x"),
            // The block was published before the reader looked for the buffer.
            Err(error) => assert!(matches!(error, FlightError::Abandoned)),
        }
    });
    let mut filled = frame(&pool).unwrap();
    filled.as_mut_slice()[0] = b'x';
    if let Some(mut spare) = load.fill(filled) {
        spare.as_mut_slice()[0] = b'!';
    }
    assert_eq!(&load.publish().unwrap()[..], b"x");
    reading.join().unwrap();
    check_empty(&pool);
}

#[test]
fn exchanged_frame_leaves_no_reader_behind() {
    explore(MANY, reader_against_exchange);
}

#[test]
fn control_exchange_under_a_reader_loses_it() {
    control(Step::Exchange, reader_against_exchange, "deadlock");
}
