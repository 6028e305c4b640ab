//! One thread of a storm: it reads, loads, waits, follows, cancels and erases by the throw of a die.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Ordering, World, block_on, key, oracle, thread};
use crate::{BlockKey, Claim, Flight, FlightError, Frame, Load, OwnedPin, Share};

/// Past it a wait is a lost wake-up.
const LOST: Duration = Duration::from_secs(120);
/// Pins that one thread keeps.
const MOST_HELD: usize = 3;

/// A pinned block and what was known when it was found.
struct Held {
    key: BlockKey,
    load: u64,
    erasures: u64,
    pin: OwnedPin,
}

pub(super) struct Actor<'a> {
    world: &'a World,
    rng: StdRng,
    /// Whoever may wait, for memory or for another's load, holds none: else two could wait for each other.
    held: Vec<Held>,
    /// Where blocks are written before they are copied into frames.
    scratch: Vec<u8>,
}

impl<'a> Actor<'a> {
    pub(super) fn new(world: &'a World, number: u64) -> Self {
        Self {
            world,
            rng: StdRng::seed_from_u64(world.plan.seed ^ (number << 56)),
            held: Vec::new(),
            scratch: vec![0; world.plan.longest],
        }
    }

    pub(super) fn read(mut self, ops: u64) {
        for _ in 0..ops {
            self.step();
            self.world.sample();
            self.world.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn step(&mut self) {
        let key = self.any_key();
        match self.rng.random_range(0..100) {
            0..40 => self.get(key),
            40..44 => self.erase(key),
            44..64 => self.look_again(),
            _ => self.claim(key),
        }
    }

    /// Some keys are asked for more than others.
    fn any_key(&mut self) -> BlockKey {
        let keys = self.world.plan.keys;
        key(self
            .rng
            .random_range(0..keys)
            .min(self.rng.random_range(0..keys)))
    }

    fn get(&mut self, key: BlockKey) {
        let erasures = self.world.known(key).erasures.load(Ordering::SeqCst);
        if let Some(pin) = self.world.pool.get(key) {
            let pin = pin.into_owned(Arc::clone(&self.world.pool));
            self.found(key, erasures, pin);
        }
    }

    /// Compares a block that was found and perhaps keeps it. `erasures` was counted before it was looked for.
    fn found(&mut self, key: BlockKey, erasures: u64, pin: OwnedPin) {
        let load = self.world.verify(key, &pin);
        let erased = self.world.known(key).erasures.load(Ordering::SeqCst);
        for other in self.held.iter().filter(|held| held.key == key) {
            assert!(
                other.load == load || erased > other.erasures,
                "{key:?} was found twice, as loads {} and {load}, and nobody erased it",
                other.load
            );
        }
        if self.held.len() == MOST_HELD {
            let oldest = self.held.remove(0);
            self.unchanged(&oldest);
        }
        if self.rng.random() {
            self.held.push(Held {
                key,
                load,
                erasures,
                pin,
            });
        }
    }

    fn unchanged(&self, held: &Held) {
        let load = self.world.verify(held.key, &held.pin);
        assert_eq!(load, held.load, "{:?} changed under a pin", held.key);
    }

    fn look_again(&mut self) {
        thread::yield_now();
        self.held.iter().for_each(|held| self.unchanged(held));
        let keep = self.rng.random_range(0..=self.held.len());
        self.held.truncate(keep);
    }

    fn erase(&mut self, key: BlockKey) {
        let known = self.world.known(key);
        let begun = known.loads.load(Ordering::SeqCst);
        known.erasures.fetch_add(1, Ordering::SeqCst);
        self.world.pool.erase(key);
        if let Some(pin) = self.world.pool.get(key) {
            assert!(
                self.world.verify(key, &pin) > begun,
                "what was erased is found again"
            );
        }
    }

    fn claim(&mut self, key: BlockKey) {
        let erasures = self.world.known(key).erasures.load(Ordering::SeqCst);
        let pool = &self.world.pool;
        match pool.claim(key) {
            Claim::Resident(pin) => {
                let pin = pin.into_owned(Arc::clone(pool));
                self.found(key, erasures, pin);
            }
            Claim::Loading(flight) => {
                self.held.clear();
                self.join(key, &flight);
            }
            Claim::Vacant(load) => {
                self.held.clear();
                self.lead(load);
            }
        }
    }

    fn frame(&mut self, len: usize) -> Option<Frame> {
        let pool = &self.world.pool;
        let frames = match self.rng.random_range(0..3) {
            0 => pool.try_frames(Share::Download, len, 1, 1)?,
            1 => pool
                .frames_blocking(Share::Download, len, 1, 1, Instant::now() + LOST)
                .unwrap(),
            _ => block_on(pool.frames(Share::Download, len, 1, 1)).unwrap(),
        };
        frames.into_iter().next()
    }

    fn lead(&mut self, mut load: Load) {
        let key = load.key();
        let len = self.world.len(key);
        let number = self.world.known(key).loads.fetch_add(1, Ordering::SeqCst) + 1;
        let Some(frame) = self.frame(len) else {
            return;
        };
        load.attach(frame, len);
        let mut bytes = std::mem::take(&mut self.scratch);
        oracle::write(key, number, &mut bytes[..len]);
        let gives_up = self.rng.random_ratio(1, 8);
        let end = if gives_up {
            self.rng.random_range(0..len)
        } else {
            len
        };
        for piece in bytes[..end].chunks(len.div_ceil(3)) {
            load.write(piece);
        }
        self.scratch = bytes;
        if !gives_up {
            let pin = load.publish().unwrap();
            assert_eq!(self.world.verify(key, &pin), number);
        } else if self.rng.random() {
            load.fail(Arc::new(std::fmt::Error));
        }
    }

    fn join(&mut self, key: BlockKey, flight: &Arc<Flight>) {
        match self.rng.random_range(0..4) {
            0 => drop(flight.join()),
            1 => self.follow(key, flight),
            n => {
                let waiter = flight.join();
                let outcome = if n == 2 {
                    waiter.wait_blocking()
                } else {
                    block_on(waiter.wait())
                };
                if let Ok(pin) = outcome {
                    self.world.verify(key, &pin);
                }
            }
        }
    }

    fn follow(&mut self, key: BlockKey, flight: &Arc<Flight>) {
        let mut follower = flight.follow(0);
        let mut slices = Vec::new();
        let max = self.world.len(key).div_ceil(2);
        let whole = loop {
            match follower.next_blocking(max) {
                Ok(Some(bytes)) => slices.push(bytes),
                Ok(None) => break true,
                Err(FlightError::Failed(_) | FlightError::Abandoned) => break false,
            }
            if self.rng.random_ratio(1, 16) {
                break false;
            }
        };
        drop(follower);
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
        if whole {
            self.world.verify(key, &bytes);
        } else if bytes.len() >= size_of::<u64>() {
            assert!(oracle::read(key, &bytes).is_some(), "a prefix of one load");
        }
    }
}
