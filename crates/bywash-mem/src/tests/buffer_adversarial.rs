//! The five hardest cases of the ancestor, Kraken's download buffer, as far as they are a buffer's.
#![allow(
    clippy::single_range_in_vec_init,
    reason = "lists of ranges, often of one"
)]

use std::io::{Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::write_at::{paged, pattern};
use super::{MIB, pool};
use crate::{
    BlockPool, FreezeError, MIN_FRAME, Share, WriteAtBuffer, WriteAtError, WriteAtOptions,
};

const DOWN: Share = Share::Download;
const PAGE: usize = MIN_FRAME;

fn hinted(pool: &Arc<BlockPool>, size_hint: u64, limit: u64) -> WriteAtBuffer {
    let options = WriteAtOptions {
        size_hint,
        limit,
        frame_len: Some(PAGE),
        ..WriteAtOptions::default()
    };
    WriteAtBuffer::new(pool, options).unwrap()
}

#[test]
fn shards_that_end_in_reverse_with_one_failed_are_never_served() {
    let pool = pool(MIB);
    let shard_len = 3 * PAGE;
    let buffer = hinted(&pool, 5 * shard_len as u64, u64::MAX);
    let follower = buffer.follow(0);
    let claim = |i: usize| {
        let range = (i * shard_len) as u64..((i + 1) * shard_len) as u64;
        buffer.claim(range).unwrap().unwrap()
    };
    let mut shards: Vec<_> = (0..5).map(claim).collect();
    while let Some(mut shard) = shards.pop() {
        let range = shard.range().start as usize..shard.range().end as usize;
        let bytes = pattern(range);
        // The second one dies in its middle.
        let written = if shards.len() == 1 {
            PAGE + 7
        } else {
            shard_len
        };
        thread::scope(|scope| {
            scope.spawn(|| shard.write(&bytes[..written]));
        });
    }
    let missing = (shard_len + PAGE + 7) as u64..2 * shard_len as u64;
    assert_eq!(
        buffer.size(),
        5 * shard_len as u64,
        "the extent alone says nothing"
    );
    assert!(matches!(
        buffer.freeze(5 * shard_len as u64),
        Err(FreezeError::Holes(holes)) if holes == std::slice::from_ref(&missing)
    ));
    assert_eq!(buffer.contiguous(), missing.start);
    assert!(buffer.commit().is_err());
    drop(buffer);
    drop(follower);
    assert_eq!(pool.budget().held(DOWN), 0, "the budget is whole again");
}

fn grow_from(pool: &Arc<BlockPool>, size_hint: u64) {
    const SHARDS: usize = 6;
    let shard_len = if cfg!(miri) {
        PAGE + 100
    } else {
        5 * PAGE + 100
    };
    let total = SHARDS * shard_len;
    let buffer = hinted(pool, size_hint, u64::MAX);
    thread::scope(|scope| {
        for i in 0..SHARDS {
            let buffer = &buffer;
            let range = i * shard_len..(i + 1) * shard_len;
            scope.spawn(move || {
                let bytes = pattern(range.clone());
                if i % 2 == 0 {
                    let claim = range.start as u64..range.end as u64;
                    let mut shard = buffer.claim(claim).unwrap().unwrap();
                    for piece in bytes.chunks(777) {
                        shard.write(piece);
                    }
                } else {
                    for (at, piece) in bytes.chunks(777).enumerate() {
                        let offset = (range.start + at * 777) as u64;
                        assert_eq!(buffer.write_at(offset, piece).unwrap(), piece.len());
                    }
                }
            });
        }
    });
    assert_eq!(buffer.written(), [0..total as u64], "no write is lost");
    let segments = buffer.freeze(total as u64).unwrap();
    assert_eq!(
        pool.budget().held(DOWN) as usize,
        total.next_multiple_of(PAGE),
        "what was expected in vain went back"
    );
    assert_eq!(segments.into_contiguous(), pattern(0..total));
    drop(buffer);
    assert_eq!(pool.budget().held(DOWN), 0);
}

#[test]
fn sizes_expected_too_small_or_too_large_lose_no_byte_among_parallel_growers() {
    let pool = pool(MIB);
    let hints = [3 * PAGE + 1, 40 * PAGE, 0, 1, 1 << 50];
    // Miri looks at each byte.
    let hints = if cfg!(miri) { &hints[..2] } else { &hints };
    for &hint in hints {
        grow_from(&pool, hint as u64);
    }
    // A short frame at the expected end, and bytes written past it.
    let options = WriteAtOptions {
        size_hint: 16 * 1024 + 5000,
        frame_len: Some(16 * 1024),
        ..WriteAtOptions::default()
    };
    let buffer = WriteAtBuffer::new(&pool, options).unwrap();
    assert_eq!(pool.budget().held(DOWN), (16 + 8) * 1024);
    buffer.write_at(0, &pattern(0..30_000)).unwrap();
    let lengths: Vec<_> = buffer
        .freeze(30_000)
        .unwrap()
        .iter()
        .map(bytes::Bytes::len)
        .collect();
    assert_eq!(lengths, [16_384, 8192, 5424]);
    assert_eq!(
        buffer.freeze(30_000).unwrap().into_contiguous(),
        pattern(0..30_000)
    );
}

#[test]
fn a_slice_taken_before_growth_stays_what_it_was_while_others_write() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 1);
    buffer.write_at(0, b"aaaa").unwrap();
    let slice = buffer.follow(0).next_blocking(4).unwrap().unwrap();
    let address = slice.as_ptr();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut bytes = vec![0; 2 * PAGE];
            // Relaxed: the last round is a bonus.
            while !done.load(Ordering::Relaxed) {
                // In this order: the writer goes on between the two.
                let contiguous = buffer.contiguous();
                assert!(contiguous <= buffer.size());
                let n = buffer.read_at(4, &mut bytes).unwrap();
                assert_eq!(bytes[..n], pattern(4..4 + n));
            }
        });
        let rounds = if cfg!(miri) { 3 * PAGE } else { 40 * PAGE };
        for at in (4..rounds).step_by(1000) {
            buffer.write_at(at as u64, &pattern(at..at + 1000)).unwrap();
            assert_eq!(&slice[..], b"aaaa");
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    let again = buffer.follow(0).next_blocking(8).unwrap().unwrap();
    assert_eq!(again.as_ptr(), address, "growth moved nothing");
    assert_eq!(again[..], [&b"aaaa"[..], &pattern(4..8)].concat());
}

#[test]
fn holes_and_bytes_in_flight_are_unseen_before_a_freeze() {
    let pool = pool(MIB);
    // What another left in the memory must not show.
    drop(
        pool.try_frames(DOWN, PAGE, 4, 4)
            .unwrap()
            .into_iter()
            .map(|mut frame| frame.as_mut_slice().fill(0xEE))
            .collect::<Vec<_>>(),
    );
    let buffer = hinted(&pool, 3 * PAGE as u64, u64::MAX);
    let mut shard = buffer.claim(0..2 * PAGE as u64).unwrap().unwrap();
    buffer.write_at(2 * PAGE as u64, &[3; PAGE]).unwrap();
    shard.write(&[1; 100]);
    shard.spare()[..100].fill(0xBB);
    let mut bytes = vec![0; 3 * PAGE];
    assert_eq!(buffer.read_at(0, &mut bytes).unwrap(), 100);
    assert_eq!(bytes[..101], [&[1; 100][..], &[0]].concat());
    assert!(matches!(
        buffer.read_at(100, &mut bytes),
        Err(WriteAtError::Hole { hole }) if hole == (100..2 * PAGE as u64)
    ));
    let mut follower = buffer.follow(0);
    assert_eq!(follower.next_blocking(PAGE).unwrap().unwrap().len(), 100);
    assert!(matches!(
        buffer.freeze(3 * PAGE as u64),
        Err(FreezeError::Holes(holes)) if holes == [100..2 * PAGE as u64]
    ));
    // Found corrupt: whoever reads along learns it before the end.
    buffer.fail(Arc::new(std::fmt::Error));
    assert!(matches!(
        follower.next_blocking(PAGE),
        Err(WriteAtError::Failed(_))
    ));
    assert!(buffer.freeze(3 * PAGE as u64).is_err());
}

#[test]
fn offsets_that_make_no_sense_are_errors_and_change_nothing() {
    let pool = pool(MIB);
    let limit = i64::MAX as u64;
    let buffer = hinted(&pool, 0, limit);
    let held = || (buffer.size(), buffer.written(), pool.budget().held(DOWN));
    let refused = |offset| {
        let write = buffer.write_at(offset, b"xy");
        let claim = buffer.claim(offset..offset.saturating_add(2));
        matches!(write, Err(WriteAtError::Offset { .. }))
            && (offset == u64::MAX || matches!(claim, Err(WriteAtError::Offset { .. })))
    };
    for offset in [u64::MAX, u64::MAX - 1, limit, limit - 1] {
        assert!(refused(offset), "{offset}");
    }
    assert!(matches!(
        buffer.claim(0..u64::MAX),
        Err(WriteAtError::Offset { .. })
    ));
    for offset in [0, 1 << 62, u64::MAX] {
        assert_eq!(
            buffer.write_at(offset, b"").unwrap(),
            0,
            "an empty write extends nothing"
        );
    }
    assert_eq!(held(), (0, vec![], 0));

    let mut cursor = buffer.cursor();
    cursor.seek(SeekFrom::Start(7)).unwrap();
    for to in [
        SeekFrom::Current(-8),
        SeekFrom::End(-1),
        SeekFrom::Current(i64::MIN),
    ] {
        assert_eq!(
            cursor.seek(to).unwrap_err().kind(),
            std::io::ErrorKind::InvalidInput
        );
        assert_eq!(cursor.position(), 7, "a failed seek moves nothing");
    }
    cursor.seek(SeekFrom::Start(u64::MAX)).unwrap();
    assert!(cursor.seek(SeekFrom::Current(1)).is_err());
    assert_eq!(
        cursor.write(b"x").unwrap_err().kind(),
        std::io::ErrorKind::InvalidInput
    );
    assert_eq!(held(), (0, vec![], 0));

    // Far out, but legal: one frame, and a hole before it that nobody can mistake for bytes.
    buffer.write_at(1 << 62, b"far").unwrap();
    assert_eq!(pool.budget().held(DOWN), PAGE as u64);
    assert_eq!(buffer.written(), [1 << 62..(1 << 62) + 3]);
    assert!(matches!(
        buffer.freeze((1 << 62) + 3),
        Err(FreezeError::Holes(_))
    ));
    assert!(matches!(
        buffer.claim(0..1 << 61),
        Err(WriteAtError::Memory { .. })
    ));
    let mut end = [0; 4];
    assert_eq!(buffer.read_at(1 << 62, &mut end).unwrap(), 3);
    assert_eq!(buffer.read_at((1 << 62) + 3, &mut end).unwrap(), 0);
}
