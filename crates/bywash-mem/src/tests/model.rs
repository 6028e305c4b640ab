//! Random operations on ledger and pool against plain models.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use proptest::prelude::*;

use super::{block_on, key, pool, vacant};
use crate::{
    BlockKey, BlockPool, Claim, FlightError, Frame, Load, OwnedPin, Reservation, Share, Waiter,
};

const PAGES: u64 = 32;
const PAGE: u64 = 4096;
const LIMIT: u64 = PAGES * PAGE;
/// Cases a property; Miri runs some thousand times slower.
const CASES: u32 = if cfg!(miri) { 4 } else { 256 };

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

fn share() -> impl Strategy<Value = Share> {
    prop_oneof![Just(Share::Download), Just(Share::Upload)]
}

// --- the ledger

#[derive(Debug, Clone)]
enum Ledger {
    Take {
        share: Share,
        shift: u32,
        min: usize,
        extra: usize,
    },
    Reserve {
        share: Share,
        bytes: u64,
    },
    Free(prop::sample::Index),
    Return(prop::sample::Index),
}

fn ledger() -> impl Strategy<Value = Ledger> {
    prop_oneof![
        4 => (share(), 0..4u32, 0..6usize, 0..6usize).prop_map(|(share, shift, min, extra)| Ledger::Take { share, shift, min, extra }),
        2 => (share(), 0..LIMIT / 3).prop_map(|(share, bytes)| Ledger::Reserve { share, bytes }),
        3 => any::<prop::sample::Index>().prop_map(Ledger::Free),
        1 => any::<prop::sample::Index>().prop_map(Ledger::Return),
    ]
}

/// The plain model of the ledger.
#[derive(Debug, Default)]
struct Plain {
    held: [u64; 2],
    /// Idle frames by size.
    idle: BTreeMap<u64, u64>,
}

impl Plain {
    fn idle(&self) -> u64 {
        self.idle.iter().map(|(size, count)| size * count).sum()
    }

    fn used(&self) -> u64 {
        self.held[0] + self.held[1] + self.idle()
    }

    fn fits(&self, share: Share, bytes: u64) -> bool {
        let other = self.held[1 - share as usize];
        let lacking = (LIMIT / 4).saturating_sub(other);
        self.held[0] + self.held[1] + bytes <= LIMIT - lacking
    }

    fn make_room(&mut self, bytes: u64) {
        while self.used() + bytes > LIMIT {
            let (_, count) = self
                .idle
                .iter_mut()
                .rev()
                .find(|(_, count)| **count > 0)
                .unwrap();
            *count -= 1;
        }
    }

    fn take(&mut self, share: Share, size: u64, min: usize, max: usize) -> Option<usize> {
        let n = (0..=max)
            .rev()
            .find(|&n| self.fits(share, n as u64 * size))
            .unwrap_or(0);
        if n < min {
            return None;
        }
        for _ in 0..n {
            match self.idle.get_mut(&size) {
                Some(count) if *count > 0 => *count -= 1,
                _ => self.make_room(size),
            }
            self.held[share as usize] += size;
        }
        Some(n)
    }
}

fn check_ledger(pool: &BlockPool, plain: &Plain) {
    let budget = pool.budget();
    let real = (
        budget.used(),
        budget.idle(),
        budget.held(Share::Download),
        budget.held(Share::Upload),
    );
    assert_eq!(
        real,
        (plain.used(), plain.idle(), plain.held[0], plain.held[1])
    );
    assert!(budget.used() <= LIMIT);
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn random_charges_match_a_plain_ledger(ops in prop::collection::vec(ledger(), 0..60)) {
        let pool = pool(LIMIT);
        let mut plain = Plain::default();
        let mut frames: Vec<(Share, Frame)> = Vec::new();
        let mut reservations: Vec<(Share, Reservation)> = Vec::new();
        for op in ops {
            match op {
                Ledger::Take { share, shift, min, extra } => {
                    let size = PAGE << shift;
                    let taken = pool.try_frames(share, size as usize - 1, min, min + extra);
                    prop_assert_eq!(taken.as_ref().map(Vec::len), plain.take(share, size, min, min + extra));
                    frames.extend(taken.into_iter().flatten().map(|frame| (share, frame)));
                }
                Ledger::Reserve { share, bytes } => {
                    let reserved = pool.budget().try_reserve(share, bytes);
                    prop_assert_eq!(reserved.is_some(), plain.fits(share, bytes));
                    if let Some(reserved) = reserved {
                        plain.make_room(bytes);
                        plain.held[share as usize] += bytes;
                        reservations.push((share, reserved));
                    }
                }
                Ledger::Free(at) => if !frames.is_empty() {
                    let (share, frame) = frames.swap_remove(at.index(frames.len()));
                    let size = frame.capacity() as u64;
                    plain.held[share as usize] -= size;
                    *plain.idle.entry(size).or_default() += 1;
                },
                Ledger::Return(at) => if !reservations.is_empty() {
                    let (share, reserved) = reservations.swap_remove(at.index(reservations.len()));
                    plain.held[share as usize] -= reserved.bytes();
                },
            }
            check_ledger(&pool, &plain);
        }
        drop((frames, reservations));
        prop_assert_eq!(pool.budget().used(), pool.budget().idle());
    }
}

// --- the pool

const KEYS: u64 = 6;

#[derive(Debug, Clone)]
enum Op {
    Begin(u64),
    Join(prop::sample::Index),
    Finish(prop::sample::Index),
    Fail(prop::sample::Index),
    Abandon(prop::sample::Index),
    Wait(prop::sample::Index),
    Leave(prop::sample::Index),
    Get(u64),
    Unpin(prop::sample::Index),
    Erase(u64),
    Press(Share, usize),
    Relent,
}

fn op() -> impl Strategy<Value = Op> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        6 => (0..KEYS).prop_map(Op::Begin),
        3 => at().prop_map(Op::Join),
        5 => at().prop_map(Op::Finish),
        1 => at().prop_map(Op::Fail),
        1 => at().prop_map(Op::Abandon),
        2 => at().prop_map(Op::Wait),
        1 => at().prop_map(Op::Leave),
        6 => (0..KEYS).prop_map(Op::Get),
        4 => at().prop_map(Op::Unpin),
        2 => (0..KEYS).prop_map(Op::Erase),
        2 => (share(), 1..24usize).prop_map(|(share, pages)| Op::Press(share, pages)),
        2 => Just(Op::Relent),
    ]
}

/// A load that will bring these bytes.
struct Loading {
    load: Load,
    id: usize,
    bytes: Vec<u8>,
    erased: bool,
}

/// Result of an attempt, by its number.
#[derive(Debug, Clone)]
enum End {
    Published(Vec<u8>),
    Failed,
    Abandoned,
}

/// The plain model of the pool, which is free only in when it evicts.
#[derive(Default)]
struct ModelPool {
    attempts: usize,
    loading: Vec<Loading>,
    waiters: Vec<(usize, Waiter)>,
    ended: HashMap<usize, End>,
    /// The bytes under a key since its last publication, unless erased since.
    current: HashMap<BlockKey, Vec<u8>>,
    pins: Vec<(BlockKey, Vec<u8>, OwnedPin)>,
    frames: Vec<Frame>,
}

impl ModelPool {
    fn begin(&mut self, pool: &Arc<BlockPool>, key: BlockKey) {
        let under_way = self
            .loading
            .iter()
            .any(|one| one.load.key() == key && !one.erased);
        match pool.claim(key) {
            Claim::Loading(_) => assert!(under_way),
            Claim::Resident(pin) => {
                assert_eq!(Some(&pin[..]), self.current.get(&key).map(Vec::as_slice))
            }
            Claim::Vacant(mut load) => {
                assert!(
                    !under_way
                        && self.pins.iter().all(|(pinned, bytes, _)| {
                            *pinned != key || self.current.get(&key) != Some(bytes)
                        }),
                    "one load a block, and none of a pinned block"
                );
                self.current.remove(&key);
                self.attempts += 1;
                let len = 1 + self.attempts * 1500 % 20_000;
                let Some(mut frames) = pool.try_frames(Share::Download, len, 1, 1) else {
                    return;
                };
                load.attach(frames.remove(0), len);
                let bytes = vec![self.attempts as u8; len];
                self.loading.push(Loading {
                    load,
                    id: self.attempts,
                    bytes,
                    erased: false,
                });
            }
        }
    }

    fn end(
        &mut self,
        at: prop::sample::Index,
        how: impl FnOnce(&mut Self, &mut Loading, Load) -> End,
        spare: Load,
    ) {
        let mut one = self.loading.swap_remove(at.index(self.loading.len()));
        let load = std::mem::replace(&mut one.load, spare);
        let end = how(self, &mut one, load);
        self.ended.insert(one.id, end);
    }

    fn finish(&mut self, one: &mut Loading, mut load: Load) -> End {
        let key = load.key();
        for piece in one.bytes.chunks(3000) {
            assert_eq!(load.write(piece), piece.len());
        }
        let pin = load.publish().unwrap();
        assert_eq!(&pin[..], &one.bytes[..]);
        if !one.erased {
            self.current.insert(key, one.bytes.clone());
        }
        End::Published(one.bytes.clone())
    }

    fn wait(&mut self, at: prop::sample::Index) {
        let (id, waiter) = self.waiters.swap_remove(at.index(self.waiters.len()));
        match (self.ended.get(&id), waiter) {
            (None, waiter) => self.waiters.push((id, waiter)),
            (Some(End::Published(bytes)), waiter) => {
                assert_eq!(&block_on(waiter.wait()).unwrap()[..], &bytes[..])
            }
            (Some(End::Failed), waiter) => assert!(matches!(
                block_on(waiter.wait()),
                Err(FlightError::Failed(_))
            )),
            (Some(End::Abandoned), waiter) => assert!(matches!(
                block_on(waiter.wait()),
                Err(FlightError::Abandoned)
            )),
        }
    }

    fn get(&mut self, pool: &Arc<BlockPool>, key: BlockKey) {
        let pinned = self
            .pins
            .iter()
            .any(|(held, bytes, _)| *held == key && self.current.get(&key) == Some(bytes));
        match pool.get(key) {
            Some(pin) => {
                let bytes = self
                    .current
                    .get(&key)
                    .expect("only what was published and not erased is found")
                    .clone();
                assert_eq!(&pin[..], &bytes[..]);
                self.pins.push((key, bytes, pin.into_owned()));
            }
            None => assert!(!pinned, "a pinned block is found"),
        }
    }

    fn erase(&mut self, pool: &Arc<BlockPool>, key: BlockKey) {
        pool.erase(key);
        assert!(pool.get(key).is_none());
        self.current.remove(&key);
        self.loading
            .iter_mut()
            .filter(|one| one.load.key() == key)
            .for_each(|one| one.erased = true);
    }

    fn apply(&mut self, pool: &Arc<BlockPool>, other: &Arc<BlockPool>, op: Op) {
        // A load to leave in the place of one that ends.
        let spare = || {
            vacant(
                other,
                BlockKey {
                    store: 0,
                    object: u64::MAX,
                    block: 0,
                },
            )
        };
        match op {
            Op::Begin(object) => self.begin(pool, key(object)),
            Op::Join(at) if !self.loading.is_empty() => {
                let one = &self.loading[at.index(self.loading.len())];
                self.waiters.push((one.id, one.load.flight().join()));
            }
            Op::Finish(at) if !self.loading.is_empty() => self.end(at, Self::finish, spare()),
            Op::Fail(at) if !self.loading.is_empty() => {
                let fail = |_: &mut Self, _: &mut Loading, load: Load| {
                    load.fail(Arc::new(std::fmt::Error));
                    End::Failed
                };
                self.end(at, fail, spare());
            }
            Op::Abandon(at) if !self.loading.is_empty() => {
                self.end(at, |_, _, _| End::Abandoned, spare())
            }
            Op::Wait(at) if !self.waiters.is_empty() => self.wait(at),
            Op::Leave(at) if !self.waiters.is_empty() => {
                drop(self.waiters.swap_remove(at.index(self.waiters.len())))
            }
            Op::Get(object) => self.get(pool, key(object)),
            Op::Unpin(at) if !self.pins.is_empty() => {
                drop(self.pins.swap_remove(at.index(self.pins.len())))
            }
            Op::Erase(object) => self.erase(pool, key(object)),
            Op::Press(share, pages) => self
                .frames
                .extend(pool.try_frames(share, 1, 1, pages).into_iter().flatten()),
            Op::Relent => self.frames.clear(),
            _ => {}
        }
    }

    fn check(&self, pool: &BlockPool) {
        let budget = pool.budget();
        assert_eq!(
            budget.used(),
            budget.held(Share::Download) + budget.held(Share::Upload) + budget.idle()
        );
        assert!(budget.used() <= LIMIT);
        let (stats, loading) = (pool.stats(), &self.loading);
        assert!(
            pool.cache.registered_keys() <= stats.resident_blocks,
            "no key of an evicted block is kept"
        );
        assert_eq!(
            stats.flights,
            loading.iter().filter(|one| !one.erased).count() as u64
        );
        let frames: u64 = self
            .frames
            .iter()
            .map(|frame| frame.capacity() as u64)
            .sum();
        let coming: u64 = loading
            .iter()
            .map(|one| (one.bytes.len() as u64).next_power_of_two().max(PAGE))
            .sum();
        let held = budget.held(Share::Download) + budget.held(Share::Upload);
        assert_eq!(held, stats.resident_bytes + coming + frames);
        for (_, bytes, pin) in &self.pins {
            assert_eq!(&pin[..], &bytes[..], "a pinned block never changes");
        }
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn random_operations_match_a_map_that_may_forget(ops in prop::collection::vec(op(), 0..80)) {
        let (pool, other) = (pool(LIMIT), pool(LIMIT));
        let mut world = ModelPool::default();
        for op in ops {
            world.apply(&pool, &other, op);
            world.check(&pool);
        }
        drop(world);
        for object in 0..KEYS {
            pool.erase(key(object));
        }
        let stats = pool.stats();
        prop_assert_eq!((stats.resident_blocks, stats.resident_bytes, stats.flights, pool.cache.registered_keys()), (0, 0, 0, 0));
        prop_assert_eq!(pool.budget().used(), pool.budget().idle(), "everything is released");
    }
}
