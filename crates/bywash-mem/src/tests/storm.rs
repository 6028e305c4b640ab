//! Threads at once, and an oracle: each block's bytes say which key and which load they belong to, all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{key, pool};
use crate::{BlockKey, BlockPool, Claim, Flight, FlightError, Frame, Load, Share};

const KEYS: usize = 24;
/// Blocks fit three quarters of the pool: half of the keys.
const PAGES: u64 = 16;
const READERS: u64 = 4;
const OPS: u64 = if cfg!(miri) { 20 } else { 3_000 };

struct Storm {
    pool: Arc<BlockPool>,
    /// Loads begun of each key.
    generations: [AtomicU64; KEYS],
    /// Blocks looked at.
    verified: AtomicU64,
    over: AtomicBool,
}

/// Word `i` of the block that the `generation`th load of a key brought.
fn word(key: BlockKey, generation: u64, i: usize) -> u64 {
    let mixed = (key.object << 48 ^ i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    if i == 0 {
        generation
    } else {
        mixed ^ generation.rotate_left(17)
    }
}

fn pattern(key: BlockKey, generation: u64, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8)).flat_map(|i| word(key, generation, i).to_le_bytes());
    words.take(len).collect()
}

fn len_of(key: BlockKey) -> usize {
    // Two classes, so that frames of one are given up for the other.
    if key.object.is_multiple_of(5) {
        8000
    } else {
        2000 + key.object as usize
    }
}

impl Storm {
    /// All of a block's bytes, and the load they came from.
    fn verify(&self, key: BlockKey, bytes: &[u8]) -> u64 {
        let generation = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert!(
            bytes == pattern(key, generation, len_of(key)),
            "{key:?} holds another block's bytes"
        );
        assert!(generation <= self.generations[key.object as usize].load(Ordering::SeqCst));
        self.verified.fetch_add(1, Ordering::Relaxed);
        generation
    }

    fn frame(&self, rng: &mut StdRng, len: usize) -> Option<Frame> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let frames = match rng.random_range(0..3) {
            0 => self.pool.try_frames(Share::Download, len, 1, 1)?,
            1 => self
                .pool
                .frames_blocking(Share::Download, len, 1, 1, deadline)
                .unwrap(),
            _ => futures::executor::block_on(self.pool.frames(Share::Download, len, 1, 1)).unwrap(),
        };
        frames.into_iter().next()
    }

    fn lead(&self, rng: &mut StdRng, mut load: Load) {
        let key = load.key();
        let generation = self.generations[key.object as usize].fetch_add(1, Ordering::SeqCst) + 1;
        let Some(frame) = self.frame(rng, len_of(key)) else {
            return;
        };
        load.attach(frame, len_of(key));
        let bytes = pattern(key, generation, len_of(key));
        let give_up_at = if rng.random_ratio(1, 8) {
            rng.random_range(0..bytes.len())
        } else {
            bytes.len()
        };
        for piece in bytes[..give_up_at].chunks(700) {
            load.write(piece);
        }
        if give_up_at == bytes.len() {
            self.verify(key, &load.publish().unwrap());
        } else if rng.random() {
            load.fail(Arc::new(std::fmt::Error));
        }
    }

    fn wait(&self, rng: &mut StdRng, key: BlockKey, flight: &Arc<Flight>) {
        match rng.random_range(0..4) {
            0 => drop(flight.join()),
            1 => self.follow(key, flight),
            n => {
                let waiter = flight.join();
                let outcome = if n == 2 {
                    waiter.wait_blocking()
                } else {
                    futures::executor::block_on(waiter.wait())
                };
                if let Ok(pin) = outcome {
                    self.verify(key, &pin);
                }
            }
        }
    }

    fn follow(&self, key: BlockKey, flight: &Arc<Flight>) {
        let mut follower = flight.follow(0);
        let mut slices = Vec::new();
        let whole = loop {
            match follower.next_blocking(900) {
                Ok(Some(bytes)) => slices.push(bytes),
                Ok(None) => break true,
                Err(FlightError::Failed(_) | FlightError::Abandoned) => break false,
            }
        };
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
        if whole {
            self.verify(key, &bytes);
        } else if bytes.len() >= 8 {
            let generation = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert!(
                bytes == pattern(key, generation, bytes.len()),
                "a prefix of one load"
            );
        }
    }

    fn erase(&self, key: BlockKey) {
        let before = self.generations[key.object as usize].load(Ordering::SeqCst);
        self.pool.erase(key);
        if let Some(pin) = self.pool.get(key) {
            assert!(
                self.verify(key, &pin) > before,
                "what was erased is found again"
            );
        }
    }

    fn read(&self, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut held = Vec::new();
        for _ in 0..OPS {
            // Some keys are asked for more than others.
            let key = key(rng
                .random_range(0..KEYS as u64)
                .min(rng.random_range(0..KEYS as u64)));
            if rng.random_ratio(1, 50) {
                self.erase(key);
            }
            // Whoever may wait for memory holds none of it.
            held.clear();
            match self.pool.claim(key) {
                Claim::Resident(pin) => {
                    let generation = self.verify(key, &pin);
                    held.push((key, generation, pin.into_owned(Arc::clone(&self.pool))));
                    thread::yield_now();
                }
                Claim::Loading(flight) => self.wait(&mut rng, key, &flight),
                Claim::Vacant(load) => self.lead(&mut rng, load),
            }
            for (key, generation, pin) in &held {
                assert_eq!(
                    self.verify(*key, pin),
                    *generation,
                    "a pinned block changed"
                );
            }
        }
    }

    fn upload(&self, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        for _ in 0..OPS / 4 {
            let (min, max) = (rng.random_range(1..4), rng.random_range(4..9));
            let wait = self.pool.frames(Share::Upload, 4096, min, max);
            if rng.random_ratio(1, 10) {
                // Looks once, perhaps stands in line, and leaves.
                drop(futures::executor::block_on(async { futures::poll!(wait) }));
                continue;
            }
            let mut frames = futures::executor::block_on(wait).unwrap();
            assert!(frames.len() >= min && frames.len() <= max);
            let mark = rng.random();
            frames
                .iter_mut()
                .for_each(|frame| frame.as_mut_slice().fill(mark));
            thread::yield_now();
            assert!(
                frames
                    .iter()
                    .all(|frame| frame.as_slice().iter().all(|&byte| byte == mark)),
                "a frame has one owner"
            );
        }
    }

    fn sample(&self) {
        let budget = self.pool.budget();
        while !self.over.load(Ordering::Relaxed) {
            assert!(budget.used() <= budget.limit());
            assert!(budget.held(Share::Upload) <= budget.limit() * 3 / 4);
            thread::yield_now();
        }
    }
}

#[test]
fn no_thread_ever_sees_another_block_s_bytes() {
    let storm = Storm {
        pool: pool(PAGES * 4096),
        generations: std::array::from_fn(|_| AtomicU64::new(0)),
        verified: AtomicU64::new(0),
        over: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        let storm = &storm;
        scope.spawn(|| storm.sample());
        let mut workers: Vec<_> = (0..READERS)
            .map(|seed| scope.spawn(move || storm.read(seed)))
            .collect();
        workers.push(scope.spawn(|| storm.upload(READERS)));
        let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        storm.over.store(true, Ordering::Relaxed);
        assert!(outcomes.iter().all(Result::is_ok));
    });
    assert!(
        storm.verified.load(Ordering::Relaxed) > OPS,
        "it read something"
    );
    assert!(
        cfg!(miri) || storm.pool.stats().evictions > OPS / 10,
        "and evicted"
    );
    for object in 0..KEYS as u64 {
        storm.pool.erase(key(object));
    }
    assert_eq!(storm.pool.names(), 0);
    let (stats, budget) = (storm.pool.stats(), storm.pool.budget());
    assert_eq!(
        (
            stats.resident_blocks,
            stats.resident_bytes,
            stats.flights,
            budget.waiting()
        ),
        (0, 0, 0, 0)
    );
    assert_eq!(
        (
            budget.used(),
            budget.held(Share::Download),
            budget.held(Share::Upload)
        ),
        (budget.idle(), 0, 0)
    );
}
