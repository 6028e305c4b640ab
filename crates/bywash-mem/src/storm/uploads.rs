//! Threads that take memory for uploads, wait for it, and change their minds.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Ordering, World, block_on, thread};
use crate::Share;

pub(super) fn run(world: &World, number: u64, ops: u64) {
    let mut rng = StdRng::seed_from_u64(world.plan.seed ^ (number << 56));
    for _ in 0..ops {
        upload(world, &mut rng);
        world.sample();
        world.done.fetch_add(1, Ordering::Relaxed);
    }
}

fn upload(world: &World, rng: &mut StdRng) {
    let page = crate::MIN_FRAME;
    let most = world.plan.pages as usize / 4;
    let (min, max) = (
        rng.random_range(1..=most.min(4)),
        rng.random_range(most..=2 * most),
    );
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
        // Looks once, perhaps stands in line, and leaves.
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
