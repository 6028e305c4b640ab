//! The write-at buffer through its public face.
#![allow(
    clippy::single_range_in_vec_init,
    reason = "lists of ranges, often of one"
)]

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use bytes::Buf;

use super::{KIB, MIB, pool};
use crate::{
    BlockPool, FrameError, FreezeError, LoadError, Overlap, Share, WriteAtBuffer, WriteAtError,
    WriteAtOptions,
};

const DOWN: Share = Share::Download;

/// Of frames of one page, so that small writes cross them.
pub(super) fn paged(pool: &Arc<BlockPool>, size_hint: u64) -> WriteAtBuffer {
    let options = WriteAtOptions {
        size_hint,
        frame_len: Some(4096),
        ..WriteAtOptions::default()
    };
    WriteAtBuffer::new(pool, options).unwrap()
}

fn refusing(pool: &Arc<BlockPool>) -> WriteAtBuffer {
    let options = WriteAtOptions {
        overlap: Overlap::Refuse,
        size_hint: 10,
        ..WriteAtOptions::default()
    };
    WriteAtBuffer::new(pool, options).unwrap()
}

/// Bytes that tell their place.
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

#[test]
fn shards_in_any_order_freeze_to_the_exact_bytes() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 0);
    let bytes = pattern(0..10_000);
    for range in [7000..10_000, 0..3000, 3000..7000] {
        let mut shard = buffer.claim(range.start..range.end).unwrap().unwrap();
        assert_eq!(shard.range(), range);
        for piece in bytes[range.start as usize..range.end as usize].chunks(999) {
            assert_eq!(shard.write(piece), piece.len());
        }
        assert_eq!((shard.remaining(), shard.write(b"more")), (0, 0));
    }
    let segments = buffer.freeze(10_000).unwrap();
    assert_eq!(
        segments.iter().map(bytes::Bytes::len).collect::<Vec<_>>(),
        [4096, 4096, 1808]
    );
    assert_eq!(segments.into_contiguous(), bytes);
}

#[test]
fn a_shard_filled_in_place_lands_frame_by_frame() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 0);
    let bytes = pattern(100..9000);
    let mut shard = buffer.claim(100..9000).unwrap().unwrap();
    let mut lengths = Vec::new();
    let mut filled = 0;
    while shard.remaining() > 0 {
        let n = shard.spare().len();
        lengths.push(n);
        shard.spare().copy_from_slice(&bytes[filled..filled + n]);
        // Nothing is seen before it is said to be written.
        assert_eq!(
            buffer.size(),
            if filled == 0 { 0 } else { 100 + filled as u64 }
        );
        shard.advance(n);
        filled += n;
    }
    assert_eq!(lengths, [3996, 4096, 808]);
    assert!(shard.spare().is_empty());
    assert_eq!(read(&buffer, 100, 10_000).unwrap(), bytes);
    assert_eq!(buffer.holes(9000), [0..100]);
}

#[test]
fn what_is_written_is_exactly_known() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 0);
    assert_eq!((buffer.size(), buffer.contiguous()), (0, 0));
    assert_eq!((buffer.written(), buffer.holes(5)), (vec![], vec![0..5]));
    buffer.write_at(10, b"0123456789").unwrap();
    let mut shard = buffer.claim(0..30).unwrap().unwrap();
    assert_eq!(shard.range(), 0..10, "the first part that is free");
    shard.write(b"abc");
    assert_eq!((buffer.size(), buffer.contiguous()), (20, 3));
    assert_eq!(buffer.written(), [0..3, 10..20]);
    assert_eq!(buffer.holes(25), [3..10, 20..25]);
    assert_eq!(buffer.holes(12), [3..10]);
    shard.write(b"defghij");
    assert_eq!((buffer.contiguous(), buffer.written()), (20, vec![0..20]));
    assert!(
        buffer.claim(0..20).unwrap().is_none(),
        "all of it is written"
    );
    assert_eq!(buffer.claim(5..30).unwrap().unwrap().range(), 20..30);
    assert!(buffer.claim(7..7).unwrap().is_none());
}

#[test]
fn a_shard_dropped_early_keeps_its_head_and_gives_back_the_rest() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 0);
    let mut shard = buffer.claim(0..100).unwrap().unwrap();
    shard.write(b"head");
    assert!(matches!(
        buffer.claim(0..100),
        Err(WriteAtError::InFlight { range }) if range == (4..100)
    ));
    thread::scope(|scope| {
        let hedges = [
            scope.spawn(|| buffer.claim_blocking(0..100).unwrap().unwrap().range()),
            scope.spawn(|| {
                let claim = futures::executor::block_on(buffer.claim_async(0..100));
                claim.unwrap().unwrap().range()
            }),
        ];
        drop(shard);
        // One after the other: each drops what it got.
        for hedge in hedges {
            assert_eq!(hedge.join().unwrap(), 4..100);
        }
    });
    assert_eq!(buffer.written(), [0..4]);
    buffer.write_at(0, &pattern(0..100)).unwrap();
    assert_eq!(
        read(&buffer, 0, 5).unwrap(),
        [&b"head"[..], &pattern(4..5)].concat()
    );
}

#[test]
fn the_first_writer_of_a_byte_wins() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 0);
    assert_eq!(buffer.write_at(4, b"first").unwrap(), 5);
    assert_eq!(buffer.write_at(0, b"second and third").unwrap(), 16);
    assert_eq!(read(&buffer, 0, 99).unwrap(), b"secofirstd third");
    assert_eq!(buffer.write_at(2, b"none of it").unwrap(), 10);
    assert_eq!(read(&buffer, 0, 99).unwrap(), b"secofirstd third");
}

#[test]
fn a_write_over_bytes_in_flight_waits_or_is_refused() {
    let pool = pool(MIB);
    let buffer = refusing(&pool);
    let mut shard = buffer.claim(4..8).unwrap().unwrap();
    shard.write(b"ab");
    assert!(matches!(
        buffer.write_at(0, b"0123456789"),
        Err(WriteAtError::InFlight { range }) if range == (6..8)
    ));
    assert_eq!(buffer.written(), [4..6], "nothing was written");
    assert_eq!(
        buffer.write_at(2, b"2345").unwrap(),
        4,
        "written bytes are in nobody's way"
    );
    drop(shard);
    buffer.write_at(0, b"0123456789").unwrap();
    assert_eq!(read(&buffer, 0, 99).unwrap(), b"0123ab6789");

    let buffer = paged(&pool, 0);
    let mut shard = buffer.claim(4..8).unwrap().unwrap();
    thread::scope(|scope| {
        let writers = [
            scope.spawn(|| buffer.write_at(0, b"0123456789")),
            scope.spawn(|| futures::executor::block_on(buffer.write_at_async(0, b"0123456789"))),
        ];
        // What is free lands before the wait.
        while buffer.written() != [0..4, 8..10] {
            thread::yield_now();
        }
        shard.write(b"abc");
        drop(shard);
        for writer in writers {
            assert_eq!(writer.join().unwrap().unwrap(), 10);
        }
    });
    assert_eq!(read(&buffer, 0, 99).unwrap(), b"0123abc789");
}

#[test]
fn reads_stop_at_a_hole_and_never_begin_in_one() {
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
    let mut shard = buffer.claim(5000..6000).unwrap().unwrap();
    shard.write(&pattern(5000..5600));
    assert_eq!(read(&buffer, 5500, 500).unwrap(), pattern(5500..5600));
    assert!(matches!(
        read(&buffer, 5600, 1),
        Err(WriteAtError::Hole { hole }) if hole == (5600..6000)
    ));
}

#[test]
fn followers_read_the_prefix_and_end_with_the_commit() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 0);
    let bytes = pattern(0..10_000);
    let read_all = |mut reader: crate::PrefixReader| {
        let mut all = Vec::new();
        while let Some(slice) = reader.next_blocking(3000).unwrap() {
            all.extend_from_slice(&slice);
        }
        assert_eq!(reader.offset(), 10_000);
        all
    };
    thread::scope(|scope| {
        let blocking = scope.spawn(|| read_all(buffer.follow(0)));
        let reading = scope.spawn(|| {
            let mut all = Vec::new();
            buffer.follow(10).read_to_end(&mut all).unwrap();
            all
        });
        let task = scope.spawn(|| {
            futures::executor::block_on(async {
                let mut reader = buffer.follow(9_999);
                let last = reader.next(99).await.unwrap().unwrap();
                assert!(reader.next(99).await.unwrap().is_none());
                last
            })
        });
        buffer.write_at(5000, &bytes[5000..]).unwrap();
        let mut shard = buffer.claim(0..5000).unwrap().unwrap();
        for piece in bytes[..5000].chunks(700) {
            shard.write(piece);
        }
        assert_eq!(buffer.commit().unwrap(), 10_000);
        assert_eq!(blocking.join().unwrap(), bytes);
        assert_eq!(reading.join().unwrap(), bytes[10..]);
        assert_eq!(task.join().unwrap()[..], bytes[9_999..]);
    });
    assert_eq!(
        read_all(buffer.follow(10_000)),
        b"",
        "nothing is past the end"
    );
}

#[test]
fn a_failure_is_the_first_one_and_ends_everyone() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 8 * 4096);
    let mut shard = buffer.claim(0..4096).unwrap().unwrap();
    shard.write(b"abc");
    let (mut follower, mut behind) = (buffer.follow(0), buffer.follow(0));
    let slice = follower.next_blocking(9).unwrap().unwrap();
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| follower.next_blocking(9).map(|_| ()));
        let writer = scope.spawn(|| buffer.write_at(0, &pattern(0..4096)));
        buffer.fail(error("broken"));
        buffer.fail(error("again"));
        buffer.cancel();
        for ended in [
            sleeper.join().unwrap(),
            writer.join().unwrap().map(|_| ()),
            behind.next_blocking(9).map(|_| ()),
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
    assert_eq!((&slice[..], shard.write(b"def")), (&b"abc"[..], 3));
    assert_eq!(
        pool.budget().held(DOWN),
        4096,
        "what the shard and the slice hold"
    );
    drop((shard, slice));
    assert_eq!(pool.budget().held(DOWN), 0);
}

#[test]
fn a_buffer_nobody_can_complete_is_cancelled() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 4096);
    let mut reader = buffer.follow(0);
    drop(buffer.clone());
    buffer.write_at(0, b"x").unwrap();
    assert_eq!(&reader.next_blocking(1).unwrap().unwrap()[..], b"x");
    drop(buffer);
    assert!(matches!(
        reader.next_blocking(1),
        Err(WriteAtError::Cancelled)
    ));
    assert_eq!(pool.budget().held(DOWN), 0);
}

#[test]
fn a_closed_buffer_is_read_and_not_written() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 0);
    buffer.write_at(0, b"abc").unwrap();
    let shard = buffer.claim(5..8).unwrap().unwrap();
    assert!(matches!(
        buffer.commit(),
        Err(FreezeError::InFlight { range }) if range == (5..8)
    ));
    drop(shard);
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
fn a_failed_freeze_leaves_the_buffer_for_repair() {
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
fn segments_are_read_as_one_buffer_without_copies() {
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
fn an_empty_buffer_is_complete() {
    let pool = pool(MIB);
    let options = WriteAtOptions {
        limit: 0,
        ..WriteAtOptions::default()
    };
    let buffer = WriteAtBuffer::reserved_blocking(&pool, options, 0, Instant::now()).unwrap();
    assert!(matches!(
        buffer.write_at(0, b"x"),
        Err(WriteAtError::Offset { limit: 0, .. })
    ));
    assert!(buffer.freeze(0).unwrap().is_empty());
    assert!(buffer.freeze(0).unwrap().into_contiguous().is_empty());
}

#[test]
fn cursors_are_files_with_a_position_each() {
    let pool = pool(MIB);
    let buffer = paged(&pool, 0);
    let mut cursor = buffer.cursor();
    cursor.write_all(&pattern(0..5000)).unwrap();
    cursor.flush().unwrap();
    let mut other = cursor.clone();
    assert_eq!(
        (cursor.position(), other.seek(SeekFrom::End(-10)).unwrap()),
        (5000, 4990)
    );
    let mut end = Vec::new();
    assert_eq!(other.read_to_end(&mut end).unwrap(), 10);
    assert_eq!(end, pattern(4990..5000));
    assert_eq!(cursor.seek(SeekFrom::Start(1)).unwrap(), 1);
    assert_eq!(cursor.seek(SeekFrom::Current(2)).unwrap(), 3);
    let mut bytes = [0; 2];
    cursor.read_exact(&mut bytes).unwrap();
    assert_eq!((bytes[..].to_vec(), cursor.position()), (pattern(3..5), 5));
    // Past the end: nothing to read, and a write leaves a hole.
    other.seek(SeekFrom::Start(6000)).unwrap();
    assert_eq!(other.read(&mut bytes).unwrap(), 0);
    other.write_all(b"x").unwrap();
    cursor.seek(SeekFrom::Start(5500)).unwrap();
    let refused = cursor.read(&mut bytes).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(cursor.buffer().size(), 6001);
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
        let _buffer = WriteAtBuffer::new(&pool, options).unwrap();
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
            WriteAtBuffer::new(&pool, options),
            Err(WriteAtError::FrameLen { len: refused }) if refused == len
        ));
    }
}

#[test]
fn a_buffer_waits_for_memory_only_while_it_holds_none() {
    let pool = pool(MIB);
    let most = 768 * KIB;
    let all = pool
        .try_frames(DOWN, 4096, most / 4096, most / 4096)
        .unwrap();
    let options = WriteAtOptions {
        size_hint: 3 * 4096,
        frame_len: Some(4096),
        ..WriteAtOptions::default()
    };
    let buffer = WriteAtBuffer::new(&pool, options).unwrap();
    assert!(matches!(
        buffer.write_at(4000, &[0; 200]),
        Err(WriteAtError::Memory { bytes: 8192 })
    ));
    assert_eq!(buffer.size(), 0);
    assert!(matches!(
        WriteAtBuffer::reserved_blocking(&pool, options, 4096, Instant::now()),
        Err(WriteAtError::Frames(FrameError::Deadline { bytes: 4096 }))
    ));
    assert!(matches!(
        futures::executor::block_on(WriteAtBuffer::reserved(&pool, options, MIB)),
        Err(WriteAtError::Frames(FrameError::TooLarge { .. }))
    ));
    let waiting = thread::spawn({
        let pool = Arc::clone(&pool);
        move || futures::executor::block_on(WriteAtBuffer::reserved(&pool, options, 5000))
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
fn what_crosses_threads_may() {
    fn sent<T: Send + 'static>() {}
    fn shared<T: Send + Sync + 'static>() {}
    sent::<crate::Shard>();
    sent::<crate::PrefixReader>();
    shared::<WriteAtBuffer>();
    shared::<crate::Segments>();
    fn future<T: Send>(_: &T) {}
    let pool = pool(MIB);
    let buffer = paged(&pool, 0);
    future(&buffer.write_at_async(0, b"x"));
    future(&buffer.claim_async(0..1));
    assert_eq!(buffer.size(), 0, "futures do nothing unless polled");
}
