//! Adversarial cases of Kraken's download buffer, as far as they apply to a buffer.
#![allow(
    clippy::single_range_in_vec_init,
    reason = "lists of ranges, often of one"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::buffer::{paged, pattern};
use super::{MIB, block_on, pool};
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
    WriteAtBuffer::new(pool.budget(), options).unwrap()
}

#[test]
fn claims_finished_in_reverse_with_one_failed_never_freeze() {
    let pool = pool(MIB);
    let claim_len = 3 * PAGE;
    let buffer = hinted(&pool, 5 * claim_len as u64, u64::MAX);
    let reader = buffer.reader(0);
    let claim = |i: usize| {
        let range = (i * claim_len) as u64..((i + 1) * claim_len) as u64;
        buffer.claim(range).unwrap().unwrap()
    };
    let mut claims: Vec<_> = (0..5).map(claim).collect();
    while let Some(mut claim) = claims.pop() {
        let range = claim.range().start as usize..claim.range().end as usize;
        let bytes = pattern(range);
        // The second claim is dropped in its middle.
        let written = if claims.len() == 1 {
            PAGE + 7
        } else {
            claim_len
        };
        thread::scope(|scope| {
            scope.spawn(|| claim.write(&bytes[..written]));
        });
    }
    let missing = (claim_len + PAGE + 7) as u64..2 * claim_len as u64;
    assert_eq!(
        buffer.size(),
        5 * claim_len as u64,
        "the size alone does not prove completeness"
    );
    assert!(matches!(
        buffer.freeze(5 * claim_len as u64),
        Err(FreezeError::Holes(holes)) if holes == std::slice::from_ref(&missing)
    ));
    assert_eq!(buffer.contiguous(), missing.start);
    assert!(buffer.commit().is_err());
    drop(buffer);
    drop(reader);
    assert_eq!(pool.budget().held(DOWN), 0, "all memory is released");
}

fn grow_from(pool: &Arc<BlockPool>, size_hint: u64) {
    const CLAIMS: usize = 6;
    let claim_len = if cfg!(miri) {
        PAGE + 100
    } else {
        5 * PAGE + 100
    };
    let total = CLAIMS * claim_len;
    let buffer = hinted(pool, size_hint, u64::MAX);
    thread::scope(|scope| {
        for i in 0..CLAIMS {
            let buffer = &buffer;
            let range = i * claim_len..(i + 1) * claim_len;
            scope.spawn(move || {
                let bytes = pattern(range.clone());
                if i % 2 == 0 {
                    let claim = range.start as u64..range.end as u64;
                    let mut claim = buffer.claim(claim).unwrap().unwrap();
                    for piece in bytes.chunks(777) {
                        claim.write(piece);
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
        "surplus frames are released"
    );
    assert_eq!(segments.into_contiguous(), pattern(0..total));
    drop(buffer);
    assert_eq!(pool.budget().held(DOWN), 0);
}

#[test]
fn wrong_size_hints_lose_no_byte_under_parallel_growth() {
    let pool = pool(MIB);
    let hints = [3 * PAGE + 1, 40 * PAGE, 0, 1, 1 << 50];
    // Miri interprets each byte.
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
    let buffer = WriteAtBuffer::new(pool.budget(), options).unwrap();
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
fn slice_read_before_growth_is_unchanged_by_later_writes() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 1);
    buffer.write_at(0, b"aaaa").unwrap();
    let slice = block_on(buffer.reader(0).next(4)).unwrap().unwrap();
    let address = slice.as_ptr();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut bytes = vec![0; 2 * PAGE];
            // Relaxed: the last round is a bonus.
            while !done.load(Ordering::Relaxed) {
                // In this order: the writer may continue between the two.
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
    let again = block_on(buffer.reader(0).next(8)).unwrap().unwrap();
    assert_eq!(again.as_ptr(), address, "growth moved nothing");
    assert_eq!(again[..], [&b"aaaa"[..], &pattern(4..8)].concat());
}

#[test]
fn holes_and_bytes_in_flight_are_never_read() {
    let pool = pool(MIB);
    // Bytes of an earlier use of the memory must not be readable.
    drop(
        pool.try_frames(DOWN, PAGE, 4, 4)
            .unwrap()
            .into_iter()
            .map(|mut frame| frame.as_mut_slice().fill(0xEE))
            .collect::<Vec<_>>(),
    );
    let buffer = hinted(&pool, 3 * PAGE as u64, u64::MAX);
    let mut claim = buffer.claim(0..2 * PAGE as u64).unwrap().unwrap();
    buffer.write_at(2 * PAGE as u64, &[3; PAGE]).unwrap();
    claim.write(&[1; 100]);
    claim.spare()[..100].fill(0xBB);
    let mut bytes = vec![0; 3 * PAGE];
    assert_eq!(buffer.read_at(0, &mut bytes).unwrap(), 100);
    assert_eq!(bytes[..101], [&[1; 100][..], &[0]].concat());
    assert!(matches!(
        buffer.read_at(100, &mut bytes),
        Err(WriteAtError::Hole { hole }) if hole == (100..2 * PAGE as u64)
    ));
    let mut reader = buffer.reader(0);
    assert_eq!(block_on(reader.next(PAGE)).unwrap().unwrap().len(), 100);
    assert!(matches!(
        buffer.freeze(3 * PAGE as u64),
        Err(FreezeError::Holes(holes)) if holes == [100..2 * PAGE as u64]
    ));
    // Found corrupt: readers fail before the end.
    buffer.fail(Arc::new(std::fmt::Error));
    assert!(matches!(
        block_on(reader.next(PAGE)),
        Err(WriteAtError::Failed(_))
    ));
    assert!(buffer.freeze(3 * PAGE as u64).is_err());
}

#[test]
fn invalid_offsets_are_errors_and_change_nothing() {
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

    // A far offset within the limit: one frame, and an unreadable hole before it.
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
