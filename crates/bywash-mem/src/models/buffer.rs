//! The write-at buffer: concurrent claims, growth, readers and a freeze.
#![allow(
    clippy::single_range_in_vec_init,
    reason = "lists of ranges, often of one"
)]

use std::sync::Arc;

use loom::thread;

use super::{ALL, DOWN, MANY, block_on, control, explore, frame, pool};
use crate::sync::Step;
use crate::{BlockPool, FreezeError, WriteAtBuffer, WriteAtError, WriteAtOptions};

/// A buffer with frames of one page; loom distinguishes three bytes of each.
fn buffer(pool: &Arc<BlockPool>, size_hint: u64) -> WriteAtBuffer {
    let options = WriteAtOptions {
        size_hint,
        frame_len: Some(4096),
        ..WriteAtOptions::default()
    };
    WriteAtBuffer::new(pool.budget(), options).unwrap()
}

// --- claim and drop

fn early_drop_and_waiting_writer() {
    let pool = pool(1);
    let buffer = buffer(&pool, 2);
    let mut first = buffer.claim(0..2).unwrap().unwrap();
    let quitting = thread::spawn(move || {
        first.write(b"a");
        drop(first);
    });
    // Waits for the end of the claim if it is second.
    buffer.write_at(0, b"xb").unwrap();
    quitting.join().unwrap();
    assert_eq!(buffer.freeze(2).unwrap().into_contiguous(), b"ab"[..]);
}

#[test]
fn early_drop_gives_the_rest_of_a_claim_to_a_waiting_writer() {
    explore(MANY, early_drop_and_waiting_writer);
}

#[test]
fn control_dropped_head_of_a_claim_is_overwritten() {
    control(
        Step::ClaimHead,
        early_drop_and_waiting_writer,
        "left == right",
    );
}

fn reader_of_a_claim() {
    let pool = pool(1);
    let buffer = buffer(&pool, 2);
    let mut claim = buffer.claim(0..2).unwrap().unwrap();
    let writing = thread::spawn(move || {
        // Not all of it, so that only the progress word reports it.
        claim.write(b"a");
        claim
    });
    let mut reader = buffer.reader(0);
    assert_eq!(block_on(reader.next(1)).unwrap().unwrap()[..], *b"a");
    writing.join().unwrap().write(b"b");
    assert_eq!(buffer.commit().unwrap(), 2);
    assert_eq!(block_on(reader.next(1)).unwrap().unwrap()[..], *b"b");
    assert!(block_on(reader.next(1)).unwrap().is_none());
}

#[test]
fn reader_sees_written_bytes_and_misses_no_wake_up() {
    explore(ALL, reader_of_a_claim);
}

#[test]
fn control_progress_without_release_races_with_a_tail_reader() {
    control(Step::Progress, reader_of_a_claim, "Causality violation");
}

#[test]
fn control_notify_without_store_load_order_loses_the_wake_up() {
    control(Step::Notify, reader_of_a_claim, "deadlock");
}

// --- a reader against a buffer that fails

fn reader_against_failed_buffer() {
    let pool = pool(1);
    let buffer = buffer(&pool, 2);
    let mut reader = buffer.reader(0);
    let reading = thread::spawn(move || {
        let mut kept = Vec::new();
        let end = loop {
            match block_on(reader.next(1)) {
                Ok(bytes) => kept.push(bytes.expect("it never ends well")),
                Err(error) => break error,
            }
        };
        assert!(matches!(end, WriteAtError::Failed(_)));
        for (slice, written) in kept.iter().zip(b"ab") {
            assert_eq!(slice[..], [*written]);
        }
    });
    buffer.write_at(0, b"ab").unwrap();
    buffer.fail(Arc::new(std::fmt::Error));
    // The only page of the pool: released with the last slice, and written by its next owner.
    if let Some(mut frame) = frame(&pool) {
        frame.as_mut_slice()[0] = b'!';
    }
    reading.join().unwrap();
    drop(buffer);
    assert_eq!(pool.budget().held(DOWN), 0);
}

#[test]
fn failed_buffer_releases_its_frame_after_the_last_slice() {
    explore(MANY, reader_against_failed_buffer);
}

#[test]
fn control_slices_of_a_failed_buffer_without_reference_are_overwritten() {
    control(
        Step::SliceHold,
        reader_against_failed_buffer,
        "Causality violation",
    );
}

// --- growth

fn growth_and_reader() {
    let pool = pool(3);
    let buffer = buffer(&pool, 0);
    let growing = thread::spawn({
        let buffer = buffer.clone();
        move || {
            buffer.write_at(0, b"a").unwrap();
        }
    });
    buffer.write_at(1, b"b").unwrap();
    let mut byte = [0];
    if buffer.read_at(0, &mut byte).is_ok() {
        assert_eq!(byte, *b"a");
    }
    growing.join().unwrap();
    assert_eq!(buffer.freeze(2).unwrap().into_contiguous(), b"ab"[..]);
    assert_eq!(
        pool.budget().held(DOWN),
        4096,
        "one of two frames went back"
    );
}

#[test]
fn concurrent_growth_of_one_span_loses_no_byte() {
    explore(MANY, growth_and_reader);
}

#[test]
fn control_replaced_frame_loses_a_byte() {
    control(Step::FirstFrame, growth_and_reader, "left == right");
}

// --- freeze

fn freeze_against_a_claim() {
    let pool = pool(1);
    let buffer = buffer(&pool, 2);
    buffer.write_at(0, b"a").unwrap();
    let mut claim = buffer.claim(0..2).unwrap().unwrap();
    let writing = thread::spawn(move || {
        claim.write(b"b");
    });
    match buffer.freeze(2) {
        Ok(segments) => assert_eq!(segments.into_contiguous(), b"ab"[..]),
        Err(FreezeError::Holes(holes)) => assert_eq!(holes, [1..2]),
        Err(FreezeError::InFlight { range }) => assert_eq!(range, 1..2),
        Err(other) => panic!("{other}"),
    }
    writing.join().unwrap();
    assert_eq!(buffer.freeze(2).unwrap().into_contiguous(), b"ab"[..]);
}

#[test]
fn freeze_includes_no_byte_in_flight() {
    explore(ALL, freeze_against_a_claim);
}

#[test]
fn control_freeze_without_in_flight_check_reads_unwritten_bytes() {
    control(Step::Freeze, freeze_against_a_claim, "left == right");
}
