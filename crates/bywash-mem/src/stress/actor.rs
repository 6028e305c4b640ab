//! One thread of a stress test: it reads, loads, waits, reads along, cancels and erases at random. Its changes to resident blocks are
//! in `changes`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{BLOCKS, Ordering, STORES, StressWorld, block_on, oracle, thread};
use crate::{
    BlockHandle, BlockKey, BlockOptions, Claim, Flight, FlightError, Frame, Keep, Load, OwnedPin,
    Priority, Share, Tag,
};

/// Pins that one thread keeps.
const MAX_HELD: usize = 3;

/// A pinned block and the state known when it was found.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) key: BlockKey,
    load: u64,
    len: usize,
    /// Finished erasures of its key before it was found.
    left: u64,
    pin: OwnedPin,
}

impl Held {
    /// Checks that it did not change.
    pub(super) fn unchanged(&self, world: &StressWorld) {
        let now = (world.verify(self.key, &self.pin), self.pin.len());
        assert_eq!(
            now,
            (self.load, self.len),
            "{:?} changed under a pin",
            self.key
        );
    }
}

pub(super) struct Actor<'a> {
    pub(super) world: &'a StressWorld,
    pub(super) rng: StdRng,
    /// Empty while the thread waits for memory or a load: else two threads could wait for each other.
    pub(super) held: Vec<Held>,
    /// The newest load seen of each block of the first store, into which nothing is adopted.
    newest: Vec<u64>,
    /// Handle under which each block was last found.
    handles: Vec<Option<BlockHandle>>,
    /// Buffer in which blocks are written before they are copied into frames.
    scratch: Vec<u8>,
}

impl<'a> Actor<'a> {
    pub(super) fn new(world: &'a StressWorld, number: u64) -> Self {
        Self {
            world,
            rng: StdRng::seed_from_u64(world.plan.seed ^ (number << 56)),
            held: Vec::new(),
            newest: vec![0; world.known.len()],
            handles: vec![None; world.known.len()],
            scratch: vec![0; world.plan.longest],
        }
    }

    pub(super) fn read(mut self) {
        while self.world.another() {
            self.step();
            self.world.sample();
        }
    }

    fn step(&mut self) {
        let key = self.any_key();
        match self.rng.random_range(0..100) {
            0..25 => self.get(key),
            25..40 => self.pin_by_handle(key),
            40..42 => self.erase(key),
            42..46 => self.adopt(key),
            46..50 => self.resize(key),
            50..54 => self.readahead(key),
            54..56 => self.limit(),
            56 => drop(self.world.pool.evict_unused(Duration::ZERO, Instant::now())),
            57..67 => self.look_again(),
            _ => self.claim(key),
        }
    }

    /// Some keys are requested more often than others.
    fn any_key(&mut self) -> BlockKey {
        let objects = self.world.plan.objects;
        let mut any = || self.rng.random_range(0..objects);
        let object = any().min(any());
        BlockKey {
            store: u32::from(self.rng.random_ratio(1, 2 * STORES as u32)),
            object,
            block: self.rng.random_range(0..BLOCKS as u32),
        }
    }

    fn get(&mut self, key: BlockKey) {
        let left = self.world.erase_done(key);
        if let Some(pin) = self.world.pool.get(key) {
            let pin = pin.into_owned();
            self.found(key, left, pin);
        }
    }

    /// Handle under which the block was last found.
    pub(super) fn handle(&self, key: BlockKey) -> Option<BlockHandle> {
        self.handles[self.world.number(key)]
    }

    fn pin_by_handle(&mut self, key: BlockKey) {
        let Some(handle) = self.handle(key) else {
            return;
        };
        if let Some(pin) = self.world.pool.try_pin(&handle) {
            assert_eq!(pin.key(), key);
            let load = self.world.verify(key, &pin);
            thread::yield_now();
            assert_eq!(self.world.verify(key, &pin), load, "changed under a pin");
        }
    }

    /// Checks a block that was found and may keep it. `left` is the number of finished erasures before the lookup.
    fn found(&mut self, key: BlockKey, left: u64, pin: OwnedPin) {
        let load = self.world.verify(key, &pin);
        let erase_started = self.world.erase_started(key);
        let number = self.world.number(key);
        self.handles[number] = Some(pin.handle());
        if key.store == 0 {
            let newest = &mut self.newest[number];
            assert!(
                load >= *newest,
                "{key:?} came back: load {load} after {newest}"
            );
            *newest = load;
        }
        for other in self.held.iter().filter(|held| held.key == key) {
            assert!(
                other.load == load || erase_started > other.left,
                "{key:?} was found twice, as loads {} and {load}, without an erasure",
                other.load
            );
        }
        if self.held.len() == MAX_HELD {
            let oldest = self.held.remove(0);
            oldest.unchanged(self.world);
        }
        let held = Held {
            key,
            load,
            len: pin.len(),
            left,
            pin,
        };
        match self.rng.random_range(0..8) {
            0..4 => {}
            4 => drop(self.world.shelf.leave(held)),
            _ => self.held.push(held),
        }
    }

    fn look_again(&mut self) {
        thread::yield_now();
        self.held.iter().for_each(|held| held.unchanged(self.world));
        let keep = self.rng.random_range(0..=self.held.len());
        self.held.truncate(keep);
    }

    fn claim(&mut self, key: BlockKey) {
        let left = self.world.erase_done(key);
        let pool = &self.world.pool;
        match pool.claim(key) {
            Claim::Resident(pin) => {
                let pin = pin.into_owned();
                self.found(key, left, pin);
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
        // A chunk of an upload may become a block.
        let share = if self.rng.random_ratio(1, 8) {
            Share::Upload
        } else {
            Share::Download
        };
        let frames = match self.rng.random_range(0..3) {
            0 => pool.try_frames(share, len, 1, 1)?,
            _ => block_on(pool.frames(share, len, 1, 1)).unwrap(),
        };
        frames.into_iter().next()
    }

    fn options(&mut self, key: BlockKey) -> BlockOptions {
        let keep = match self.rng.random_range(0..6) {
            0 => Keep::WhilePinned,
            1 => Keep::Spill,
            2 => Keep::OnlyCopy,
            _ => Keep::UntilEvicted,
        };
        let priority = match self.rng.random_range(0..3) {
            0 => Priority::Low,
            1 => Priority::Normal,
            _ => Priority::High,
        };
        let tag = Tag::new((key.object % Tag::COUNT as u64) as u8).unwrap();
        BlockOptions {
            keep,
            priority,
            tag,
        }
    }

    fn lead(&mut self, mut load: Load) {
        let key = load.key();
        let len = self.world.len(key);
        let number = self.world.loads(key).fetch_add(1, Ordering::SeqCst) + 1;
        let Some(frame) = self.frame(len) else {
            return;
        };
        load.attach(frame, len);
        self.fill(load, number);
    }

    /// Writes the bytes of the `number`th load of the block, or gives up.
    pub(super) fn fill(&mut self, mut load: Load, number: u64) {
        let key = load.key();
        let len = self.world.len(key);
        assert_eq!(load.remaining(), len);
        load.set_options(self.options(key));
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
            1 => self.read_along(key, flight),
            _ => {
                if let Ok(pin) = block_on(flight.join().wait()) {
                    self.world.verify(key, &pin);
                }
            }
        }
    }

    fn read_along(&mut self, key: BlockKey, flight: &Arc<Flight>) {
        let mut reader = flight.reader(0);
        let mut slices = Vec::new();
        let max = self.world.len(key).div_ceil(2);
        let whole = loop {
            match block_on(reader.next(max)) {
                Ok(Some(bytes)) => slices.push(bytes),
                Ok(None) => break true,
                Err(FlightError::Failed(_) | FlightError::Abandoned) => break false,
            }
            if self.rng.random_ratio(1, 16) {
                break false;
            }
        };
        drop(reader);
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
        if whole {
            self.world.verify(key, &bytes);
        } else if bytes.len() >= size_of::<u64>() {
            assert!(
                self.world.load_of(key, &bytes).is_some(),
                "a prefix of one load"
            );
        }
    }
}
