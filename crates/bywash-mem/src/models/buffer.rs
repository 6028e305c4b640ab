//! The write-at buffer: claims against claims, growers, followers and a freeze.
#![allow(
    clippy::single_range_in_vec_init,
    reason = "lists of ranges, often of one"
)]

use std::sync::Arc;

use loom::thread;

use super::{ALL, DOWN, MANY, control, explore, frame, pool};
use crate::sync::Step;
use crate::{BlockPool, FreezeError, WriteAtBuffer, WriteAtError, WriteAtOptions};

/// Of one page or two, as loom knows three bytes of each.
fn buffer(pool: &Arc<BlockPool>, size_hint: u64) -> WriteAtBuffer {
    let options = WriteAtOptions {
        size_hint,
        frame_len: Some(4096),
        ..WriteAtOptions::default()
    };
    WriteAtBuffer::new(pool, options).unwrap()
}

// --- claim and drop

fn early_drop_and_second_claimer() {
    let pool = pool(1);
    let buffer = buffer(&pool, 2);
    let mut first = buffer.claim(0..2).unwrap().unwrap();
    let quitting = thread::spawn(move || {
        first.write(b"a");
        drop(first);
    });
    let mut second = buffer.claim_blocking(0..2).unwrap().unwrap();
    assert_eq!(second.range(), 1..2, "what the first wrote is kept");
    second.write(b"b");
    quitting.join().unwrap();
    assert_eq!(buffer.freeze(2).unwrap().into_contiguous(), b"ab"[..]);
}

#[test]
fn an_early_drop_gives_the_rest_to_who_waits_for_it() {
    explore(MANY, early_drop_and_second_claimer);
}

#[test]
fn without_its_head_kept_a_shard_is_overwritten() {
    control(Step::Head, early_drop_and_second_claimer, "left == right");
}

fn follower_of_a_shard() {
    let pool = pool(1);
    let buffer = buffer(&pool, 2);
    let mut shard = buffer.claim(0..2).unwrap().unwrap();
    let writing = thread::spawn(move || {
        // Not all of it, so that no lock but its own word tells of it.
        shard.write(b"a");
        shard
    });
    let mut follower = buffer.follow(0);
    assert_eq!(follower.next_blocking(1).unwrap().unwrap()[..], *b"a");
    writing.join().unwrap().write(b"b");
    assert_eq!(buffer.commit().unwrap(), 2);
    assert_eq!(follower.next_blocking(1).unwrap().unwrap()[..], *b"b");
    assert!(follower.next_blocking(1).unwrap().is_none());
}

#[test]
fn a_follower_sees_what_is_written_and_sleeps_through_nothing() {
    explore(ALL, follower_of_a_shard);
}

#[test]
fn without_the_progress_s_release_a_follower_is_early() {
    control(Step::Progress, follower_of_a_shard, "Causality violation");
}

#[test]
fn without_the_store_load_order_a_follower_sleeps_on() {
    control(Step::Ring, follower_of_a_shard, "deadlock");
}

// --- a follower against a buffer that fails

fn follower_against_failed_buffer() {
    let pool = pool(1);
    let buffer = buffer(&pool, 2);
    let mut follower = buffer.follow(0);
    let following = thread::spawn(move || {
        let mut kept = Vec::new();
        let end = loop {
            match follower.next_blocking(1) {
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
    // The only page of the pool: it comes back with the last slice, and is written by its next owner.
    if let Some(mut frame) = frame(&pool) {
        frame.as_mut_slice()[0] = b'!';
    }
    following.join().unwrap();
    drop(buffer);
    assert_eq!(pool.budget().held(DOWN), 0);
}

#[test]
fn a_failed_buffer_s_frame_returns_after_the_last_slice() {
    explore(MANY, follower_against_failed_buffer);
}

#[test]
fn without_their_hold_slices_of_a_failed_buffer_are_overwritten() {
    control(
        Step::Hold,
        follower_against_failed_buffer,
        "Causality violation",
    );
}

// --- growth

fn growers_and_reader() {
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
fn two_that_grow_the_same_place_lose_no_byte() {
    explore(MANY, growers_and_reader);
}

#[test]
fn without_the_first_frame_kept_a_grower_loses_a_byte() {
    control(Step::FirstFrame, growers_and_reader, "left == right");
}

// --- freeze

fn freeze_against_a_shard() {
    let pool = pool(1);
    let buffer = buffer(&pool, 2);
    buffer.write_at(0, b"a").unwrap();
    let mut shard = buffer.claim(0..2).unwrap().unwrap();
    let writing = thread::spawn(move || {
        shard.write(b"b");
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
fn a_freeze_takes_no_byte_in_flight() {
    explore(ALL, freeze_against_a_shard);
}

#[test]
fn without_the_look_at_what_is_in_flight_a_freeze_is_early() {
    control(Step::Freeze, freeze_against_a_shard, "left == right");
}
