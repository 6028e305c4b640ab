//! The write-at buffer through its public interface.
#![allow(
    clippy::single_range_in_vec_init,
    reason = "lists of ranges, often of one"
)]

use std::io;
use std::sync::Arc;
use std::thread;

use bytes::Buf;

use super::{KIB, MIB, block_on, key, pool, vacant};
use crate::{
    BlockPool, FrameError, FreezeError, LoadError, Overlap, Share, WriteAtBuffer, WriteAtError,
    WriteAtOptions,
};

const DOWN: Share = Share::Download;

/// Returns a buffer with frames of one page, so that small writes cross them.
pub(super) fn paged(pool: &Arc<BlockPool>, size_hint: u64) -> WriteAtBuffer {
    let options = WriteAtOptions {
        size_hint,
        frame_len: Some(4096),
        ..WriteAtOptions::default()
    };
    WriteAtBuffer::new(pool.budget(), options).unwrap()
}

fn refusing(pool: &Arc<BlockPool>) -> WriteAtBuffer {
    let options = WriteAtOptions {
        overlap: Overlap::Refuse,
        size_hint: 10,
        ..WriteAtOptions::default()
    };
    WriteAtBuffer::new(pool.budget(), options).unwrap()
}

/// Bytes that depend on their offset.
pub(super) fn pattern(range: std::ops::Range<usize>) -> Vec<u8> {
    range.map(|i| (i * 31 + i / 251) as u8).collect()
}

fn error(text: &'static str) -> LoadError {
    Arc::from(Box::<dyn std::error::Error + Send + Sync>::from(text))
}

fn read(buffer: &WriteAtBuffer, offset: u64, len: usize) -> Result<Vec<u8>, WriteAtError> {
    let mut bytes = vec![0; len];
    let n = buffer.read_at(offset, &mut bytes)?;
    bytes.truncate(n);
    Ok(bytes)
}

/// A reader's slice of a buffer that fails keeps its bytes.
#[test]
fn slice_keeps_its_bytes_after_the_buffer_has_failed() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 0);
    let bytes = pattern(0..5000);
    buffer.write_at(0, &bytes).unwrap();
    let slice = buffer.slice(1000, 2000).unwrap().unwrap();
    buffer.fail(error("planted"));
    assert!(buffer.slice(0, 1).is_err());
    assert_eq!(slice[..], bytes[1000..3000]);
}

#[test]
fn claims_in_any_order_freeze_to_the_exact_bytes() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 0);
    let bytes = pattern(0..10_000);
    for range in [7000..10_000, 0..3000, 3000..7000] {
        let mut claim = buffer.claim(range.start..range.end).unwrap().unwrap();
        assert_eq!(claim.range(), range);
        for piece in bytes[range.start as usize..range.end as usize].chunks(999) {
            assert_eq!(claim.write(piece), piece.len());
        }
        assert_eq!((claim.remaining(), claim.write(b"more")), (0, 0));
    }
    let segments = buffer.freeze(10_000).unwrap();
    assert_eq!(
        segments.iter().map(bytes::Bytes::len).collect::<Vec<_>>(),
        [4096, 4096, 1808]
    );
    assert_eq!(segments.into_contiguous(), bytes);
}

#[test]
fn claim_filled_in_place_goes_frame_by_frame() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 0);
    let bytes = pattern(100..9000);
    let mut claim = buffer.claim(100..9000).unwrap().unwrap();
    let mut lengths = Vec::new();
    let mut filled = 0;
    while claim.remaining() > 0 {
        let n = claim.spare().len();
        lengths.push(n);
        claim.spare().copy_from_slice(&bytes[filled..filled + n]);
        // Bytes are not readable before `advance`.
        assert_eq!(
            buffer.size(),
            if filled == 0 { 0 } else { 100 + filled as u64 }
        );
        claim.advance(n);
        filled += n;
    }
    assert_eq!(lengths, [3996, 4096, 808]);
    assert!(claim.spare().is_empty());
    assert_eq!(read(&buffer, 100, 10_000).unwrap(), bytes);
    assert_eq!(buffer.written(), [100..9000]);
}

#[test]
fn written_ranges_and_holes_are_exact() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 0);
    assert_eq!((buffer.size(), buffer.contiguous()), (0, 0));
    assert!(buffer.written().is_empty());
    buffer.write_at(10, b"0123456789").unwrap();
    let mut claim = buffer.claim(0..30).unwrap().unwrap();
    assert_eq!(claim.range(), 0..10, "the first part that is free");
    claim.write(b"abc");
    assert_eq!((buffer.size(), buffer.contiguous()), (20, 3));
    assert_eq!(buffer.written(), [0..3, 10..20]);
    let missing = buffer.freeze(25).unwrap_err();
    assert!(matches!(missing, FreezeError::Holes(holes) if holes == [3..10, 20..25]));
    claim.write(b"defghij");
    assert_eq!((buffer.contiguous(), buffer.written()), (20, vec![0..20]));
    assert!(
        buffer.claim(0..20).unwrap().is_none(),
        "all of it is written"
    );
    assert_eq!(buffer.claim(5..30).unwrap().unwrap().range(), 20..30);
    assert!(buffer.claim(7..7).unwrap().is_none());
}

#[test]
fn claim_dropped_early_keeps_written_bytes_and_frees_the_rest() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 0);
    let mut claim = buffer.claim(0..100).unwrap().unwrap();
    claim.write(b"head");
    assert!(matches!(
        buffer.claim(0..100),
        Err(WriteAtError::InFlight { range }) if range == (4..100)
    ));
    drop(claim);
    assert_eq!(buffer.claim(0..100).unwrap().unwrap().range(), 4..100);
    assert_eq!(buffer.written(), [0..4]);
    buffer.write_at(0, &pattern(0..100)).unwrap();
    assert_eq!(
        read(&buffer, 0, 5).unwrap(),
        [&b"head"[..], &pattern(4..5)].concat()
    );
}

#[test]
fn first_writer_of_a_byte_wins() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 0);
    assert_eq!(buffer.write_at(4, b"first").unwrap(), 5);
    assert_eq!(buffer.write_at(0, b"second and third").unwrap(), 16);
    assert_eq!(read(&buffer, 0, 99).unwrap(), b"secofirstd third");
    assert_eq!(buffer.write_at(2, b"none of it").unwrap(), 10);
    assert_eq!(read(&buffer, 0, 99).unwrap(), b"secofirstd third");
}

#[test]
fn write_over_bytes_in_flight_waits_or_is_refused() {
    let pool = pool(MIB);
    let buffer = refusing(&pool);
    let mut claim = buffer.claim(4..8).unwrap().unwrap();
    claim.write(b"ab");
    assert!(matches!(
        buffer.write_at(0, b"0123456789"),
        Err(WriteAtError::InFlight { range }) if range == (6..8)
    ));
    assert_eq!(buffer.written(), [4..6], "nothing was written");
    assert_eq!(
        buffer.write_at(2, b"2345").unwrap(),
        4,
        "written bytes do not conflict"
    );
    drop(claim);
    buffer.write_at(0, b"0123456789").unwrap();
    assert_eq!(read(&buffer, 0, 99).unwrap(), b"0123ab6789");

    let buffer = paged(&pool, 0);
    let mut claim = buffer.claim(4..8).unwrap().unwrap();
    thread::scope(|scope| {
        let writers = [
            scope.spawn(|| buffer.write_at(0, b"0123456789")),
            scope.spawn(|| buffer.write_at(0, b"0123456789")),
        ];
        // Unclaimed parts are written before the wait.
        while buffer.written() != [0..4, 8..10] {
            thread::yield_now();
        }
        claim.write(b"abc");
        drop(claim);
        for writer in writers {
            assert_eq!(writer.join().unwrap().unwrap(), 10);
        }
    });
    assert_eq!(read(&buffer, 0, 99).unwrap(), b"0123abc789");
}

#[test]
fn reads_stop_at_a_hole_and_fail_inside_one() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 0);
    buffer.write_at(0, &pattern(0..5000)).unwrap();
    buffer.write_at(6000, b"x").unwrap();
    assert_eq!(read(&buffer, 4000, 3000).unwrap(), pattern(4000..5000));
    assert!(matches!(
        read(&buffer, 5500, 10),
        Err(WriteAtError::Hole { hole }) if hole == (5500..6000)
    ));
    assert_eq!(read(&buffer, 6000, 10).unwrap(), b"x");
    assert_eq!(read(&buffer, 6001, 10).unwrap(), b"");
    assert_eq!(read(&buffer, u64::MAX, 10).unwrap(), b"");
    assert_eq!(read(&buffer, 5500, 0).unwrap(), b"");
    let mut claim = buffer.claim(5000..6000).unwrap().unwrap();
    claim.write(&pattern(5000..5600));
    assert_eq!(read(&buffer, 5500, 500).unwrap(), pattern(5500..5600));
    assert!(matches!(
        read(&buffer, 5600, 1),
        Err(WriteAtError::Hole { hole }) if hole == (5600..6000)
    ));
}

#[test]
fn readers_read_arriving_bytes_and_end_with_the_commit() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 0);
    let bytes = pattern(0..10_000);
    let read_all = |mut reader: crate::TailReader| {
        let mut all = Vec::new();
        while let Some(slice) = block_on(reader.next(3000)).unwrap() {
            all.extend_from_slice(&slice);
        }
        assert_eq!(reader.offset(), 10_000);
        all
    };
    thread::scope(|scope| {
        let blocking = scope.spawn(|| read_all(buffer.reader(0)));
        let task = scope.spawn(|| {
            block_on(async {
                let mut reader = buffer.reader(9_999);
                let last = reader.next(99).await.unwrap().unwrap();
                assert!(reader.next(99).await.unwrap().is_none());
                last
            })
        });
        buffer.write_at(5000, &bytes[5000..]).unwrap();
        let mut claim = buffer.claim(0..5000).unwrap().unwrap();
        for piece in bytes[..5000].chunks(700) {
            claim.write(piece);
        }
        assert_eq!(buffer.commit().unwrap(), 10_000);
        assert_eq!(blocking.join().unwrap(), bytes);
        assert_eq!(task.join().unwrap()[..], bytes[9_999..]);
    });
    assert_eq!(
        read_all(buffer.reader(10_000)),
        b"",
        "nothing is past the end"
    );
}

#[test]
fn first_failure_ends_readers_and_writers() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 8 * 4096);
    let mut claim = buffer.claim(0..4096).unwrap().unwrap();
    claim.write(b"abc");
    let (mut reader, mut behind) = (buffer.reader(0), buffer.reader(0));
    let slice = block_on(reader.next(9)).unwrap().unwrap();
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| block_on(reader.next(9)).map(|_| ()));
        let writer = scope.spawn(|| buffer.write_at(0, &pattern(0..4096)));
        buffer.fail(error("broken"));
        buffer.fail(error("again"));
        buffer.cancel();
        for ended in [
            sleeper.join().unwrap(),
            writer.join().unwrap().map(|_| ()),
            block_on(behind.next(9)).map(|_| ()),
            read(&buffer, 0, 1).map(|_| ()),
            buffer.claim(0..1).map(|_| ()),
            buffer.freeze(0).map(|_| ()).map_err(|error| match error {
                FreezeError::Ended(error) => error,
                other => panic!("{other}"),
            }),
        ] {
            let Err(WriteAtError::Failed(error)) = ended else {
                panic!("{ended:?}")
            };
            assert_eq!(error.to_string(), "broken");
        }
    });
    assert_eq!((&slice[..], claim.write(b"def")), (&b"abc"[..], 3));
    assert_eq!(
        pool.budget().held(DOWN),
        4096,
        "what the claim and the slice hold"
    );
    drop((claim, slice));
    assert_eq!(pool.budget().held(DOWN), 0);
}

#[test]
fn dropping_the_last_handle_cancels_the_buffer() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 4096);
    let mut reader = buffer.reader(0);
    drop(buffer.clone());
    buffer.write_at(0, b"x").unwrap();
    assert_eq!(&block_on(reader.next(1)).unwrap().unwrap()[..], b"x");
    drop(buffer);
    assert!(matches!(
        block_on(reader.next(1)),
        Err(WriteAtError::Cancelled)
    ));
    assert_eq!(pool.budget().held(DOWN), 0);
}

#[test]
fn closed_buffer_is_readable_and_not_writable() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 0);
    buffer.write_at(0, b"abc").unwrap();
    let claim = buffer.claim(5..8).unwrap().unwrap();
    assert!(matches!(
        buffer.commit(),
        Err(FreezeError::InFlight { range }) if range == (5..8)
    ));
    drop(claim);
    assert_eq!(buffer.commit().unwrap(), 3);
    assert!(matches!(
        buffer.write_at(3, b"d"),
        Err(WriteAtError::Closed)
    ));
    assert!(matches!(buffer.claim(3..4), Err(WriteAtError::Closed)));
    buffer.cancel();
    assert_eq!(read(&buffer, 1, 9).unwrap(), b"bc");
    assert_eq!(buffer.freeze(3).unwrap().into_contiguous(), &b"abc"[..]);
    assert_eq!(buffer.commit().unwrap(), 3);
    assert!(matches!(
        buffer.freeze(2),
        Err(FreezeError::TooLong { len: 2, size: 3 })
    ));
    assert!(matches!(
        buffer.freeze(4),
        Err(FreezeError::Holes(holes)) if holes == [3..4]
    ));
}

#[test]
fn failed_freeze_keeps_the_buffer_open_for_repair() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 0);
    buffer.write_at(4096, &pattern(4096..9000)).unwrap();
    let Err(FreezeError::Holes(holes)) = buffer.freeze(9500) else {
        panic!("it has holes")
    };
    assert_eq!(holes, [0..4096, 9000..9500]);
    assert!(matches!(buffer.commit(), Err(FreezeError::Holes(holes)) if holes == [0..4096]));
    for hole in holes {
        let bytes = pattern(hole.start as usize..hole.end as usize);
        buffer.claim(hole).unwrap().unwrap().write(&bytes);
    }
    assert_eq!(
        buffer.freeze(9500).unwrap().into_contiguous(),
        pattern(0..9500)
    );
}

#[test]
fn segments_read_as_one_buffer_without_copies() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 0);
    let bytes = pattern(0..9000);
    buffer.write_at(0, &bytes).unwrap();
    let segments = buffer.freeze(9000).unwrap();
    let address = segments.chunk().as_ptr();
    drop(buffer);
    assert_eq!((segments.len(), segments.is_empty()), (9000, false));
    let mut read = segments.clone();
    let first = read.copy_to_bytes(1000);
    assert_eq!(
        (first.as_ptr(), &first[..]),
        (address, &bytes[..1000]),
        "of one frame: uncopied"
    );
    assert_eq!(read.copy_to_bytes(4000), bytes[1000..5000]);
    let mut slices = [io::IoSlice::new(&[]); 4];
    assert_eq!(read.chunks_vectored(&mut slices), 2);
    assert_eq!(&slices[1][..], &bytes[8192..]);
    read.advance(3999);
    assert_eq!((read.remaining(), read.get_u8()), (1, bytes[8999]));
    assert!(!read.has_remaining());
    let parts: Vec<_> = segments.into_iter().collect();
    assert_eq!(parts.concat(), bytes);
    assert_eq!(
        pool.budget().held(DOWN),
        3 * 4096,
        "each part keeps its frame"
    );
    drop(first);
    drop(parts);
    assert_eq!(pool.budget().held(DOWN), 0);

    let one = paged(&pool, 0);
    one.write_at(0, b"short").unwrap();
    let segments = one.freeze(5).unwrap();
    let address = segments.chunk().as_ptr();
    assert_eq!(segments.into_contiguous().as_ptr(), address);
}

#[test]
fn empty_buffer_is_complete() {
    let pool = pool(MIB);
    let options = WriteAtOptions {
        limit: 0,
        ..WriteAtOptions::default()
    };
    let buffer = block_on(WriteAtBuffer::reserved(pool.budget(), options, 0)).unwrap();
    assert!(matches!(
        buffer.write_at(0, b"x"),
        Err(WriteAtError::Offset { limit: 0, .. })
    ));
    assert!(buffer.freeze(0).unwrap().is_empty());
    assert!(buffer.freeze(0).unwrap().into_contiguous().is_empty());
}

#[test]
fn frames_fit_the_expected_size() {
    let pool = pool(64 * MIB);
    let held = |size_hint, frame_len| {
        let options = WriteAtOptions {
            size_hint,
            frame_len,
            ..WriteAtOptions::default()
        };
        let _buffer = WriteAtBuffer::new(pool.budget(), options).unwrap();
        pool.budget().held(DOWN)
    };
    const KB: u64 = KIB as u64;
    for (hint, bytes) in [
        (0, 0),
        (1, 4 * KB),
        (100 * KB, 128 * KB),
        (5 * MIB, 5 * MIB),
        (9 * MIB + 1, 10 * MIB),
        (10 * MIB, 10 * MIB),
    ] {
        assert_eq!(held(hint, None), bytes, "{hint}");
    }
    assert_eq!(held(5 * 4096 + 1, Some(4096)), 6 * 4096);
    for len in [0, 5000, 2048, 8 << 20] {
        let options = WriteAtOptions {
            frame_len: Some(len),
            ..WriteAtOptions::default()
        };
        assert!(matches!(
            WriteAtBuffer::new(pool.budget(), options),
            Err(WriteAtError::FrameLen { len: refused }) if refused == len
        ));
    }
}

#[test]
fn buffer_waits_for_memory_only_while_it_holds_none() {
    let pool = pool(MIB);
    let max = 768 * KIB;
    let all = pool.try_frames(DOWN, 4096, max / 4096, max / 4096).unwrap();
    let options = WriteAtOptions {
        size_hint: 3 * 4096,
        frame_len: Some(4096),
        ..WriteAtOptions::default()
    };
    let buffer = WriteAtBuffer::new(pool.budget(), options).unwrap();
    assert!(matches!(
        buffer.write_at(4000, &[0; 200]),
        Err(WriteAtError::Memory { bytes: 8192 })
    ));
    assert_eq!(buffer.size(), 0);
    assert!(matches!(
        block_on(WriteAtBuffer::reserved(pool.budget(), options, MIB)),
        Err(WriteAtError::Frames(FrameError::TooLarge { .. }))
    ));
    let waiting = thread::spawn({
        let pool = Arc::clone(&pool);
        move || block_on(WriteAtBuffer::reserved(pool.budget(), options, 5000))
    });
    while pool.budget().waiting() == 0 {
        thread::yield_now();
    }
    drop(all);
    let waited = waiting.join().unwrap().unwrap();
    // The frames come back one by one, and two are enough to begin with.
    let held = pool.budget().held(DOWN);
    assert!([2 * 4096, 3 * 4096].contains(&held), "{held}");
    waited.write_at(0, &pattern(0..12_288)).unwrap();
    assert_eq!(pool.budget().held(DOWN), 3 * 4096);
}

#[test]
fn frames_of_a_complete_buffer_become_blocks_without_a_copy() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 10_000);
    let bytes = pattern(0..10_000);
    buffer.write_at(0, &bytes).unwrap();
    let held = pool.budget().held(DOWN);
    let parts = [0..4096, 4096..8192, 8192..10_000];
    for (number, part) in (0..).zip(parts.clone()) {
        let load = vacant(&pool, key(number));
        let waiter = load.flight().join();
        let slice = buffer
            .slice(part.start as u64, MIB as usize)
            .unwrap()
            .unwrap();
        let start = slice.as_ptr();
        let pin = load.publish_slice(slice);
        assert_eq!((pin.as_ptr(), &pin[..]), (start, &bytes[part]));
        assert_eq!(block_on(waiter.wait()).unwrap().as_ptr(), start);
    }
    assert!(buffer.slice(10_000, 1).unwrap().is_none());
    let segments = buffer.freeze(10_000).unwrap();
    assert_eq!(pool.budget().held(DOWN), held, "no frame was added");
    drop(buffer);
    // Readers of the buffer keep the evicted bytes.
    for number in 0..3 {
        assert!(pool.erase(key(number)));
    }
    assert_eq!(pool.budget().held(DOWN), held);
    assert_eq!(segments.into_contiguous(), bytes);
    assert_eq!(pool.budget().held(DOWN), 0);
}

#[test]
fn public_types_are_send_and_sync() {
    fn sent<T: Send + 'static>() {}
    fn shared<T: Send + Sync + 'static>() {}
    sent::<crate::WriteClaim>();
    sent::<crate::TailReader>();
    shared::<WriteAtBuffer>();
    shared::<crate::Segments>();
}
