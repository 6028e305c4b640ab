//! The policy alone, and eviction in a pool.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::thread;

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{AgeMode, DORMANT_SAMPLES, Policy, ScanState, Usage, Victim};
use crate::tests::{key, load, pool};
use crate::{BlockOptions, BlockPool, Priority, Share};

const PAGE: u64 = 4096;

/// A cache of this many blocks around the policy alone: the pool without threads or bytes.
struct Cache {
    policy: Policy,
    room: usize,
    slots: HashMap<u64, u32>,
    /// Key and uses by slot.
    blocks: Vec<(u64, u8)>,
}

fn hash(key: u64) -> u64 {
    let mixed = (key ^ key >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

impl Cache {
    fn new(room: usize) -> Self {
        Self {
            policy: Policy::default(),
            room,
            slots: HashMap::new(),
            blocks: Vec::new(),
        }
    }

    fn evict(&mut self) -> u32 {
        let (policy, blocks) = (&mut self.policy, &mut self.blocks);
        let mut scan = ScanState::default();
        loop {
            let look = |slot: u32, look| match (&mut blocks[slot as usize].1, look) {
                (0, _) => Usage::Unused,
                (_, AgeMode::Observe) => Usage::Unavailable,
                (uses, AgeMode::Age) => Usage::Used(std::mem::take(uses)),
            };
            match policy.next_victim(&mut scan, look) {
                Victim::Slot(slot) => {
                    let (key, uses) = blocks[slot as usize];
                    assert_eq!(uses, 0, "a used block is not evicted");
                    policy.forget(slot, Some(hash(key)));
                    assert_eq!(self.slots.remove(&key), Some(slot));
                    return slot;
                }
                Victim::Continue => {}
                Victim::None => panic!("nothing is pinned"),
            }
        }
    }

    fn hit(&mut self, key: u64) -> bool {
        if let Some(&slot) = self.slots.get(&key) {
            let uses = &mut self.blocks[slot as usize].1;
            *uses = (*uses + 1).min(3);
            return true;
        }
        let slot = if self.slots.len() < self.room {
            self.blocks.push((0, 0));
            self.blocks.len() as u32 - 1
        } else {
            self.evict()
        };
        self.blocks[slot as usize] = (key, 0);
        self.slots.insert(key, slot);
        self.policy.admit(slot, hash(key), Priority::Normal);
        assert_eq!(self.policy.len() as usize, self.slots.len());
        false
    }

    /// Hits of a hundred requests.
    fn ratio(&mut self, requests: impl Iterator<Item = u64>) -> f64 {
        let (mut hits, mut all) = (0, 0);
        for key in requests {
            hits += u32::from(self.hit(key));
            all += 1;
        }
        f64::from(hits) * 100.0 / f64::from(all)
    }
}

const ROOM: u64 = 500;
const REQUESTS: u64 = if cfg!(miri) { 300 } else { 100_000 };

#[test]
fn loop_larger_than_memory_keeps_the_part_that_fits() {
    let mut cache = Cache::new(ROOM as usize);
    let around = ROOM * 11 / 10;
    let ratio = cache.ratio((0..REQUESTS).map(|i| i % around));
    assert!(cfg!(miri) || ratio > 88.0, "{ratio}; LRU has 0");
}

#[test]
fn scan_does_not_evict_the_hot_set() {
    let mut cache = Cache::new(ROOM as usize);
    let mut rng = StdRng::seed_from_u64(1);
    let mut hot = || rng.random_range(0..ROOM * 8 / 10);
    for _ in 0..REQUESTS / 10 {
        cache.hit(hot());
    }
    for once in 0..ROOM * 4 {
        cache.hit(1 << 32 | once);
    }
    let ratio = cache.ratio((0..ROOM).map(|_| hot()));
    assert!(cfg!(miri) || ratio > 95.0, "{ratio}");
}

/// In memory full of blocks read once, a second read of new blocks hits.
#[test]
#[cfg_attr(miri, ignore = "counts for long, and has nothing unsafe")]
fn unused_blocks_do_not_keep_new_ones_out() {
    for filled in [3, 4, 10, 11] {
        let mut cache = Cache::new(ROOM as usize);
        for once in 0..ROOM * filled / 2 {
            cache.hit(1 << 40 | once);
        }
        let mut read = || {
            let quarter = 0..ROOM / 4;
            quarter.filter(|block| !cache.hit(*block)).count() as u64
        };
        assert_eq!((read(), read()), (ROOM / 4, 0));
    }
}

/// The same after the memory was full of small blocks, whose slots are empty now.
#[test]
#[cfg_attr(miri, ignore = "counts for long, and has nothing unsafe")]
fn empty_slots_do_not_delay_the_sampler() {
    let mut cache = Cache::new(ROOM as usize * 3);
    for once in 0..ROOM * 3 {
        cache.hit(1 << 40 | once);
    }
    cache.room = ROOM as usize;
    while cache.slots.len() > cache.room {
        cache.evict();
    }
    for once in 0..ROOM * 2 {
        cache.hit(1 << 41 | once);
    }
    let mut read = || (0..ROOM / 4).filter(|block| !cache.hit(*block)).count() as u64;
    assert_eq!((read(), read()), (ROOM / 4, 0));
}

/// Memory in use, at any part of the whole, outlasts a scan of any length.
#[test]
#[cfg_attr(miri, ignore = "counts for long, and has nothing unsafe")]
fn hot_part_outlasts_a_scan_of_many_times_the_memory() {
    for part in [ROOM / 8, ROOM / 2, ROOM * 9 / 10] {
        let mut cache = Cache::new(ROOM as usize);
        for once in 0..ROOM * 3 {
            cache.hit(1 << 40 | once);
        }
        for _ in 0..20 {
            for block in 0..part {
                cache.hit(block);
            }
        }
        for once in 0..ROOM * 6 {
            cache.hit(1 << 41 | once);
        }
        let lost = (0..part).filter(|block| !cache.hit(*block)).count();
        assert_eq!(lost, 0, "of {part}");
    }
}

/// A warm set of half of the memory is read between scans as long as itself.
#[test]
#[cfg_attr(miri, ignore = "counts for long, and has nothing unsafe")]
fn scans_of_blocks_read_once_leave_a_warm_set_whole() {
    let room = 3072;
    let mut cache = Cache::new(room as usize);
    for once in 0..room {
        cache.hit(1 << 40 | once);
    }
    let mut missed = |first: u64| {
        let blocks = first..first + room / 2;
        blocks.filter(|block| !cache.hit(*block)).count() as u64
    };
    assert_eq!(missed(0), room / 2, "cold");
    for round in 1..=5 {
        missed(round << 41);
        let lost = missed(0);
        assert!(lost <= room / 40, "{lost} in round {round}");
    }
}

/// Sets of a tenth to nine tenths of the memory are read between scans of twice the memory. Some of their blocks were not
/// kept at the first read, and their return ages others, which must not be taken for dormant.
#[test]
#[cfg_attr(miri, ignore = "counts for long, and has nothing unsafe")]
fn blocks_read_twice_outlast_scans_in_full_memory() {
    let room = 3072;
    for set in [room / 10, room / 2, room * 9 / 10] {
        let mut cache = Cache::new(room as usize);
        for once in 0..room {
            cache.hit(1 << 40 | once);
        }
        let mut missed = |first: u64, count: u64| {
            let blocks = first..first + count;
            blocks.filter(|block| !cache.hit(*block)).count()
        };
        missed(0, set);
        missed(0, set);
        for round in 1..=5 {
            missed(round << 41, 2 * room);
            let lost = missed(0, set);
            assert!(
                lost <= DORMANT_SAMPLES as usize,
                "{lost} of {set} in round {round}"
            );
        }
    }
}

#[test]
fn new_hot_set_displaces_the_old_one() {
    let mut cache = Cache::new(ROOM as usize);
    let mut rng = StdRng::seed_from_u64(2);
    let mut ratio = 0.0;
    for phase in 1..=5 {
        let requests = (0..REQUESTS / 5).map(|_| {
            let any = rng.random_range(1 << 40..1 << 41);
            let hot = phase << 32 | rng.random_range(0..ROOM * 8 / 10);
            if rng.random_ratio(1, 10) { any } else { hot }
        });
        ratio = cache.ratio(requests);
    }
    assert!(cfg!(miri) || ratio > 83.0, "{ratio} of at most 88");
}

#[test]
fn pinned_blocks_are_skipped_and_keep_their_place() {
    let mut policy = Policy::default();
    for slot in 0..200 {
        policy.admit(slot, hash(slot.into()), Priority::Normal);
    }
    let mut scan = ScanState::default();
    let picks = std::iter::repeat_with(|| policy.next_victim(&mut scan, |_, _| Usage::Unavailable));
    let again = picks
        .take_while(|pick| match pick {
            Victim::Slot(slot) => panic!("{slot} is pinned"),
            pick => *pick == Victim::Continue,
        })
        .count();
    assert!(again > 1, "the lock is released in between");
    assert_eq!((scan.examined, scan.pinned), (scan.pinned, scan.examined));
    let mut left = HashSet::new();
    for _ in 0..200 {
        let Victim::Slot(slot) =
            policy.next_victim(&mut ScanState::default(), |_, _| Usage::Unused)
        else {
            panic!("all are free now")
        };
        policy.forget(slot, None);
        left.insert(slot);
    }
    assert_eq!((left.len(), policy.len()), (200, 0));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// After any sequence of operations each block has one place, and a full scan finds
    /// each that is not pinned, lower classes first.
    #[test]
    fn random_operations_keep_one_place_a_block(ops in prop::collection::vec((0..48u32, 0..4u8, 0..4u8), 0..300)) {
        let mut policy = Policy::default();
        let mut blocks: HashMap<u32, (Priority, u8)> = HashMap::new();
        for (slot, what, uses) in ops {
            let priority = [Priority::Low, Priority::Normal, Priority::High][slot as usize % 3];
            match what {
                0 | 1 => {
                    if let Entry::Vacant(entry) = blocks.entry(slot) {
                        entry.insert((priority, uses));
                        policy.admit(slot, hash(slot.into()), priority);
                    }
                }
                2 => if blocks.remove(&slot).is_some() {
                    policy.forget(slot, (uses > 1).then(|| hash(slot.into())));
                },
                _ => if let Some(block) = blocks.get_mut(&slot) {
                    block.1 = uses;
                },
            }
            prop_assert_eq!(policy.len() as usize, blocks.len());
        }
        // Three uses stand for a pin here.
        let mut scan = ScanState::default();
        loop {
            let look = |slot: u32, look| {
                match (&mut blocks.get_mut(&slot).expect("each place has a block").1, look) {
                    (0, _) => Usage::Unused,
                    (3, _) | (_, AgeMode::Observe) => Usage::Unavailable,
                    (uses, AgeMode::Age) => Usage::Used(std::mem::take(uses)),
                }
            };
            match policy.next_victim(&mut scan, look) {
                Victim::Continue => {}
                Victim::None => break,
                Victim::Slot(slot) => {
                    let (priority, _) = blocks.remove(&slot).unwrap();
                    policy.forget(slot, None);
                    prop_assert!(blocks.values().all(|(other, uses)| *uses == 3 || *other >= priority));
                }
            }
        }
        prop_assert!(blocks.values().all(|(_, uses)| *uses == 3), "only pinned ones are left");
    }
}

fn load_as(pool: &Arc<BlockPool>, object: u64, priority: Priority) {
    let mut load = crate::tests::begin(pool, key(object), 100);
    load.set_options(BlockOptions {
        priority,
        ..BlockOptions::default()
    });
    load.advance(100);
    drop(load.publish().unwrap());
}

#[test]
fn evicts_lower_priority_first() {
    let pool = pool(32 * PAGE);
    let class = |object: u64| match object % 3 {
        0 => Priority::High,
        1 => Priority::Low,
        _ => Priority::Normal,
    };
    for object in 0..12 {
        load_as(&pool, object, class(object));
        // Use helps within a class, not against one.
        drop(
            pool.get(key(object))
                .filter(|_| class(object) == Priority::Low),
        );
    }
    let left = |pool: &BlockPool, priority| {
        let here = |object: &u64| pool.get(key(*object)).is_some();
        (0..12)
            .filter(|object| class(*object) == priority)
            .filter(here)
            .count()
    };
    assert!(pool.cache.evict(4 * PAGE));
    assert_eq!(left(&pool, Priority::Low), 0);
    assert_eq!(
        (left(&pool, Priority::Normal), left(&pool, Priority::High)),
        (4, 4)
    );
    assert!(pool.cache.evict(4 * PAGE));
    assert_eq!(
        (left(&pool, Priority::Normal), left(&pool, Priority::High)),
        (0, 4)
    );
}

#[test]
fn evicts_high_priority_beyond_its_share_first() {
    let pool = pool(64 * PAGE);
    for object in 0..16 {
        load_as(&pool, object, Priority::High);
        load_as(&pool, 100 + object, Priority::Normal);
    }
    let left = |first: u64| {
        let here = |object: &u64| pool.contains(key(*object));
        (first..first + 16).filter(here).count()
    };
    // In one pass: those beyond an eighth of the limit, and then the others.
    assert!(pool.cache.evict(10 * PAGE));
    assert_eq!((left(0), left(100)), (8, 14));
    assert!(pool.cache.evict(4 * PAGE));
    assert_eq!((left(0), left(100)), (8, 10));
    // Where all others are pinned, they go as well.
    let pins: Vec<_> = (100..116)
        .filter_map(|object| pool.get(key(object)))
        .collect();
    assert!(pool.cache.evict(8 * PAGE));
    assert_eq!((left(0), left(100)), (0, 10));
    drop(pins);
}

/// From DuckDB: its queue got a node at each unpin, and lost count of dead ones.
#[test]
fn repeated_pins_add_no_policy_nodes() {
    let pool = pool(64 * PAGE);
    let repins = if cfg!(miri) { 100 } else { 1_000_000 };
    for object in 0..40 {
        drop(load(&pool, key(object), b"block"));
    }
    let threads = 4;
    thread::scope(|scope| {
        for thread in 0..threads {
            let pool = &pool;
            scope.spawn(move || {
                for i in 0..repins / threads {
                    drop(pool.get(key((i * 7 + thread) % 40)));
                }
            });
        }
    });
    assert_eq!(
        (pool.cache.evictor.len(), pool.stats().resident_blocks),
        (40, 40)
    );
    let kept: Vec<_> = (0..5)
        .map(|object| pool.get(key(object)).unwrap())
        .collect();
    assert!(pool.cache.evict(u64::MAX), "a purge ends");
    assert_eq!(
        (pool.cache.evictor.len(), pool.stats().resident_blocks),
        (5, 5)
    );
    assert!(kept.iter().all(|pin| &pin[..] == b"block"));
    assert!(pool.erase(key(0)));
    assert_eq!(pool.cache.evictor.len(), 5, "until its last unpin");
    drop(kept);
    assert_eq!(
        (pool.cache.evictor.len(), pool.stats().resident_blocks),
        (4, 4)
    );
    assert!(pool.cache.evict(u64::MAX));
    assert_eq!(
        (pool.cache.evictor.len(), pool.stats().resident_blocks),
        (0, 0)
    );
}

/// From DuckDB: threads at the memory limit.
#[test]
fn threads_at_the_limit_never_exceed_it_and_release_everything() {
    let limit = 64 * PAGE;
    let pool = pool(limit);
    let rounds: u64 = if cfg!(miri) { 2 } else { 2_000 };
    thread::scope(|scope| {
        for thread in 0..8 {
            let pool = &pool;
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(thread);
                for round in 0..rounds {
                    let share = if rng.random() {
                        Share::Download
                    } else {
                        Share::Upload
                    };
                    let bytes = rng.random_range(1..limit);
                    let reserved = pool.budget().try_reserve(share, bytes);
                    let frames = pool.try_frames(share, 1, 1, 8);
                    assert!(pool.budget().used() <= limit);
                    let object = key(thread << 32 | round);
                    if let (Some(frame), crate::Claim::Vacant(mut load)) = (
                        frames.and_then(|mut frames| frames.pop()),
                        pool.claim(object),
                    ) {
                        load.attach(frame, 8);
                        load.write(&round.to_le_bytes());
                        let pin = load.publish().unwrap();
                        drop(reserved);
                        assert_eq!(pin[..], round.to_le_bytes());
                    }
                    assert!(pool.budget().used() <= limit);
                }
            });
        }
    });
    assert_eq!(pool.cache.evictor.len(), pool.stats().resident_blocks);
    pool.cache.evict(u64::MAX);
    let (stats, budget) = (pool.stats(), pool.budget());
    assert_eq!(
        (
            stats.resident_blocks,
            stats.resident_bytes,
            pool.cache.evictor.len()
        ),
        (0, 0, 0)
    );
    assert_eq!(
        (
            budget.held(Share::Download),
            budget.held(Share::Upload),
            budget.used()
        ),
        (0, 0, budget.idle())
    );
}
