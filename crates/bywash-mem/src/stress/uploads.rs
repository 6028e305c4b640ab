//! Threads that acquire memory for uploads, as frames and as write-at buffers, wait for it, or cancel.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{StressWorld, block_on, oracle, thread};
use crate::{BlockKey, FreezeError, Overlap, Share, WriteAtBuffer, WriteAtError, WriteAtOptions};

pub(super) fn run(world: &StressWorld, number: u64) {
    let mut rng = StdRng::seed_from_u64(world.plan.seed ^ (number << 56));
    while world.another() {
        upload(world, &mut rng);
        world.sample();
    }
}

fn upload(world: &StressWorld, rng: &mut StdRng) {
    let page = crate::MIN_FRAME;
    let max = world.plan.pages as usize / 4;
    let (min, max) = (
        rng.random_range(1..=max.min(4)),
        rng.random_range(max..=2 * max),
    );
    if rng.random_ratio(1, 3) {
        return write_at(world, rng);
    }
    if rng.random_ratio(1, 4) {
        let bytes = rng.random_range(1..4 * page as u64);
        if let Some(reserved) = world.pool.budget().try_reserve(Share::Upload, bytes) {
            world.sample();
            thread::yield_now();
            drop(reserved);
        }
        return;
    }
    let wait = world.pool.frames(Share::Upload, page, min, max);
    if rng.random_ratio(1, 8) {
        // Tries once, may join the queue, and leaves.
        drop(block_on(async { futures::poll!(wait) }));
        return;
    }
    let mut frames = block_on(wait).unwrap();
    assert!(frames.len() >= min && frames.len() <= max);
    let mark: u8 = rng.random();
    for frame in &mut frames {
        frame.as_mut_slice().fill(mark);
    }
    thread::yield_now();
    let whole = |bytes: &[u8]| bytes.iter().all(|&byte| byte == mark);
    assert!(
        frames.iter().all(|frame| whole(frame.as_slice())),
        "a frame has one owner"
    );
}

/// Fills a buffer with a wrong size hint from its end to its start, in claims; some are dropped early.
fn write_at(world: &StressWorld, rng: &mut StdRng) {
    // Its bytes equal a block that no thread loads.
    let key = BlockKey {
        store: u32::MAX,
        object: rng.random_range(0..1 << 20),
        block: 0,
    };
    let mut bytes = vec![0; rng.random_range(8..=2 * world.plan.longest)];
    oracle::write(key, 1, &mut bytes);
    let options = WriteAtOptions {
        size_hint: rng.random_range(0..=3 * world.plan.longest as u64),
        frame_len: Some(crate::MIN_FRAME),
        overlap: Overlap::Refuse,
        share: Share::Upload,
        ..WriteAtOptions::default()
    };
    let buffer = WriteAtBuffer::new(world.pool.budget(), options).unwrap();
    let len = bytes.len() as u64;
    let segments = loop {
        let hole = match buffer.freeze(len) {
            Ok(segments) => break segments,
            Err(FreezeError::Holes(mut holes)) => holes.pop().expect("a hole is named"),
            Err(error) => panic!("{error}"),
        };
        let start = rng.random_range(hole.start..hole.end);
        match buffer.claim(start..hole.end) {
            Ok(claim) => {
                let mut claim = claim.expect("it is a hole");
                let here = claim.range().start as usize;
                let max = claim.remaining() as usize;
                let n = rng.random_range(1..=max);
                assert_eq!(claim.write(&bytes[here..here + n]), n);
            }
            // A buffer that holds memory does not wait for more.
            Err(WriteAtError::Memory { .. }) => return,
            Err(error) => panic!("{error}"),
        }
        world.sample();
        if rng.random_ratio(1, 32) {
            buffer.cancel();
            return;
        }
    };
    drop(buffer);
    thread::yield_now();
    let whole = segments.into_contiguous();
    assert_eq!(
        oracle::read(key, &whole),
        Some(1),
        "a frozen buffer changed"
    );
}
