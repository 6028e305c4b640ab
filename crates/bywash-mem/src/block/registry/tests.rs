#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;

use super::Registry;

const MIRI: bool = cfg!(miri);

/// All slots under a hash. `find` may check one twice.
fn slots(registry: &Registry, hash: u64) -> BTreeSet<u32> {
    let mut all = BTreeSet::new();
    registry.find(hash, |slot| {
        all.insert(slot);
        None::<()>
    });
    all
}

/// A hash with these top bits: entries of one `place` of 16 and different `rest` collide in the table, not in their tags.
fn hash(place: u64, rest: u64) -> u64 {
    place << 60 | rest << 33
}

#[test]
fn slot_is_found_only_under_its_hash() {
    let registry = Registry::new();
    registry.insert(hash(1, 1), 7);
    registry.insert(hash(1, 2), 8);
    assert_eq!(registry.find(hash(1, 1), Some), Some(7));
    assert_eq!(registry.find(hash(1, 2), Some), Some(8));
    assert_eq!(registry.find(hash(1, 3), Some), None);
    assert_eq!(registry.find(hash(2, 1), Some), None);
    assert_eq!(registry.len(), 2);
}

#[test]
fn refused_slot_leads_to_the_next_one() {
    let registry = Registry::new();
    registry.insert(hash(1, 1), 7);
    registry.insert(hash(1, 1), 8);
    let newer = |slot| (slot == 8).then_some(slot);
    assert_eq!(registry.find(hash(1, 1), newer), Some(8));
    assert!(registry.remove(hash(1, 1), 7));
    assert!(!registry.remove(hash(1, 1), 7));
    assert_eq!(slots(&registry, hash(1, 1)), BTreeSet::from([8]));
    assert_eq!(registry.len(), 1);
}

/// Of entries with one tag, a removal takes the one of its slot, also if it is not the first.
#[test]
fn removal_leaves_other_slots_of_the_same_tag() {
    for removed in [7, 8, 9] {
        let registry = Registry::new();
        (7..10).for_each(|slot| registry.insert(hash(1, 1), slot));
        assert!(registry.remove(hash(1, 1), removed));
        let left: BTreeSet<_> = (7..10).filter(|slot| *slot != removed).collect();
        assert_eq!(slots(&registry, hash(1, 1)), left);
    }
}

#[test]
fn removal_moves_displaced_entries_back_across_the_end() {
    let registry = Registry::new();
    // The last group overflows into the first, and that into the second.
    let places = [15, 15, 15, 15, 15, 0, 0, 0, 0, 1];
    let hash_of = |slot: u32| hash(places[slot as usize], u64::from(slot));
    for slot in 0..places.len() as u32 {
        registry.insert(hash_of(slot), slot);
    }
    let groups = |slot| registry.tables.newest().distance(hash_of(slot), slot);
    assert_eq!([3, 4, 7, 8, 9].map(groups), [1, 2, 1, 2, 1]);
    registry.remove(hash_of(0), 0);
    for slot in 1..places.len() as u32 {
        assert_eq!(registry.find(hash_of(slot), Some), Some(slot));
        assert_eq!(groups(slot), 1, "one of each overfull group moved back");
    }
    let moves = || registry.writer.moves.load(Ordering::Relaxed);
    let before = moves();
    assert!(before.is_multiple_of(2) && before > 0);
    // Of a group with room: nothing is behind it for lack of that.
    registry.remove(hash_of(9), 9);
    assert_eq!(moves(), before);
}

#[test]
#[cfg_attr(miri, ignore = "means nothing with few entries")]
fn entry_takes_at_most_34_bytes() {
    let registry = Registry::new();
    let mut entered = 0;
    for count in [10_000, 1_000_000, 4_000_000] {
        for key in entered..count {
            registry.insert(registry.hash(key), key as u32);
        }
        entered = count;
        let each = registry.bytes() as f64 / count as f64;
        assert!(each <= 34.0, "{count} entries of {each} bytes");
    }
}

/// Store, object and block of the key of this number.
type Numbering = fn(u32) -> (u32, u64, u32);

/// Keys as callers number them, consecutive in one part or another: the hash must spread them as chance would. (Foldhash's fast
/// variant does not, in the bits that the table uses.)
#[test]
fn lookup_reads_as_few_groups_as_a_random_hash_allows() {
    // As full as a table of its size gets.
    let count: u32 = if MIRI { 48 } else { 3 << 14 };
    let patterns: [Numbering; 4] = [
        |n| (0, 0, n),
        |n| (3, u64::from(n), 0),
        |n| (0, u64::from(n / 1024), n % 1024),
        |n| (n % 16, u64::from(n / 64), n / 16 % 4),
    ];
    for key in patterns {
        let registry = Registry::new();
        for n in 0..count {
            registry.insert(registry.hash(key(n)), n);
        }
        let table = registry.tables.newest();
        assert_eq!(count as usize * 4, table.capacity() * 3, "just not grown");
        let read = |n| table.distance(registry.hash(key(n)), n);
        let mean = (0..count).map(read).sum::<usize>() as f64 / f64::from(count);
        // 1.26 expected.
        assert!(MIRI || mean < 1.35, "{mean} groups a hit");
    }
}

#[derive(Debug, Clone)]
enum Op {
    Insert { place: u64, rest: u64 },
    Remove(prop::sample::Index),
    RemoveAbsent { place: u64, rest: u64 },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    // Few places, at both ends: long chains, over the end of the table too.
    let place = || prop_oneof![Just(0_u64), Just(1), Just(14), Just(15), 0..16_u64];
    let op = prop_oneof![
        3 => (place(), 0..4_u64).prop_map(|(place, rest)| Op::Insert { place, rest }),
        2 => any::<prop::sample::Index>().prop_map(Op::Remove),
        1 => (place(), 0..4_u64).prop_map(|(place, rest)| Op::RemoveAbsent { place, rest }),
    ];
    prop::collection::vec(op, 0..if MIRI { 20 } else { 300 })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if MIRI { 2 } else { 300 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_operations_match_a_plain_list(ops in ops()) {
        let registry = Registry::new();
        let mut plain: Vec<(u64, u32)> = Vec::new();
        for (at, op) in ops.into_iter().enumerate() {
            match op {
                Op::Insert { place, rest } => {
                    registry.insert(hash(place, rest), at as u32);
                    plain.push((hash(place, rest), at as u32));
                }
                Op::Remove(_) if plain.is_empty() => {}
                Op::Remove(which) => {
                    let (hash, slot) = plain.swap_remove(which.index(plain.len()));
                    prop_assert!(registry.remove(hash, slot));
                }
                Op::RemoveAbsent { place, rest } => {
                    prop_assert!(!registry.remove(hash(place, rest), u32::MAX - 1));
                }
            }
            prop_assert_eq!(registry.len(), plain.len());
        }
        for place in 0..16 {
            for rest in 0..4 {
                let expected: BTreeSet<u32> = plain
                    .iter()
                    .filter(|(found, _)| *found == hash(place, rest))
                    .map(|(_, slot)| *slot)
                    .collect();
                prop_assert_eq!(slots(&registry, hash(place, rest)), expected);
            }
        }
    }
}

/// An entry is moved back again and again, group by group, and the table grows under the readers: while it is there, every look
/// finds it.
#[test]
fn present_entry_is_found_while_others_move() {
    const BEFORE_IT: u32 = 24;
    let rounds = if MIRI { 1 } else { 4_000 };
    let registry = Registry::new();
    // Odd while the entry is there.
    let present = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    let look = || {
        let mut looks = 0;
        while !done.load(Ordering::Relaxed) || looks == 0 {
            let before = present.load(Ordering::Acquire);
            let found = registry.find(hash(15, 999), Some);
            let after = present.load(Ordering::Acquire);
            looks += 1;
            assert!(
                before.is_multiple_of(2) || before != after || found == Some(999),
                "missed at look {looks}"
            );
        }
    };
    let move_back = || {
        for _ in 0..rounds {
            (0..BEFORE_IT).for_each(|slot| registry.insert(hash(15, 1), slot));
            registry.insert(hash(15, 999), 999);
            present.fetch_add(1, Ordering::AcqRel);
            assert!((0..BEFORE_IT).all(|slot| registry.remove(hash(15, 1), slot)));
            present.fetch_add(1, Ordering::AcqRel);
            registry.remove(hash(15, 999), 999);
        }
        done.store(true, Ordering::Relaxed);
    };
    let grow = || {
        for slot in 0..if MIRI { 20 } else { 3000 } {
            registry.insert(registry.hash(slot), 1000 + slot);
        }
    };
    std::thread::scope(|scope| {
        let _readers = [scope.spawn(look), scope.spawn(look)];
        scope.spawn(grow);
        scope.spawn(move_back);
    });
}
