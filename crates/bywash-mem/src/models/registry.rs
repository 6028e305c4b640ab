//! The registry: publication, growth, moving entries, removal against reinsertion. A slot of these models is a cell that loom
//! checks: it must be written before it is found.

use std::sync::Arc;

use loom::thread::{self, JoinHandle};

use super::{ALL, MANY, control, explore};
use crate::Registry;
use crate::sync::{AtomicU32, Ordering, Step, UnsafeCell};

/// Hashes of three tags that all begin in the first group of any table.
const A: u64 = 1 << 32;
const B: u64 = 3 << 32;
const C: u64 = 5 << 32;
/// Two more, that begin in the second of four.
const D: u64 = 1 << 62 | A;
const E: u64 = 1 << 62 | B;

fn find(registry: &Registry, hash: u64) -> Option<u32> {
    registry.find(hash, Some)
}

struct Slots([UnsafeCell<u32>; 2]);

// SAFETY: loom checks each access.
unsafe impl Sync for Slots {}
// SAFETY: as above.
unsafe impl Send for Slots {}

fn publication() {
    let registry = Arc::new(Registry::new());
    let slots = Arc::new(Slots(std::array::from_fn(|_| UnsafeCell::new(0))));
    let reading = thread::spawn({
        let (registry, slots) = (Arc::clone(&registry), Arc::clone(&slots));
        move || {
            let found = registry.find(A, |slot| {
                // SAFETY: loom detects concurrent writers.
                Some(slots.0[slot as usize].with(|slot| unsafe { *slot }))
            });
            assert!(found.is_none_or(|found| found == 7));
        }
    });
    // SAFETY: as above.
    slots.0[1].with_mut(|slot| unsafe { *slot = 7 });
    registry.insert(A, 1);
    reading.join().unwrap();
    assert_eq!(find(&registry, A), Some(1));
}

#[test]
fn slot_is_initialised_before_it_is_found() {
    explore(ALL, publication);
}

#[test]
fn control_insert_without_release_races_with_a_lookup() {
    control(Step::Insert, publication, "Causality violation");
}

/// A registry of these entries in slots 1 and on, and a thread that looks up the last one during the change.
fn read_beside(hashes: &[u64]) -> (Arc<Registry>, JoinHandle<()>) {
    let registry = Arc::new(Registry::new());
    let entries = (1..).zip(hashes.iter().copied());
    for (slot, hash) in entries.clone() {
        registry.insert(hash, slot);
    }
    let (slot, hash) = entries.last().expect("entries");
    let reading = thread::spawn({
        let registry = Arc::clone(&registry);
        move || {
            assert_eq!(
                find(&registry, hash),
                Some(slot),
                "a present entry is found"
            )
        }
    });
    (registry, reading)
}

fn growth() {
    let (registry, reading) = read_beside(&[A, B, C]);
    // The fourth of four cells.
    registry.insert(A, 4);
    reading.join().unwrap();
    assert_eq!(find(&registry, C), Some(3));
    assert_eq!(registry.find(A, |slot| (slot == 4).then_some(4)), Some(4));
}

#[test]
fn growth_hides_no_entry() {
    explore(ALL, growth);
}

#[test]
fn control_growth_without_release_races_with_a_lookup() {
    control(Step::Grow, growth, "Causality violation");
}

fn move_back() {
    let (registry, reading) = read_beside(&[A, B, C]);
    // Two fill the first group. The third returns to it as soon as there is room.
    registry.remove(A, 1);
    registry.remove(B, 2);
    reading.join().unwrap();
    assert_eq!((find(&registry, A), find(&registry, B)), (None, None));
}

#[test]
fn moving_entry_is_found() {
    explore(MANY, move_back);
}

#[test]
fn control_lookup_without_move_count_misses_a_moving_entry() {
    control(Step::Moves, move_back, "a present entry is found");
}

fn move_along() {
    let (registry, reading) = read_beside(&[A, B, C, D, E]);
    // The third returns from the second group, and the fifth from the third.
    registry.remove(A, 1);
    reading.join().unwrap();
    for (slot, hash) in (2..).zip([B, C, D, E]) {
        assert_eq!(find(&registry, hash), Some(slot));
    }
}

#[test]
fn entry_that_moves_after_another_is_found() {
    explore(MANY, move_along);
}

#[test]
fn control_lookup_without_move_count_misses_a_second_move() {
    control(Step::Moves, move_along, "a present entry is found");
}

fn reentry_beside_removal() {
    let registry = Arc::new(Registry::new());
    // The older entry is in the second cell of its group, and the newer moves to the first.
    registry.insert(B, 9);
    registry.insert(A, 1);
    registry.remove(B, 9);
    let newer = Arc::new(AtomicU32::new(0));
    let reading = thread::spawn({
        let (registry, newer) = (Arc::clone(&registry), Arc::clone(&newer));
        move || {
            let known = newer.load(Ordering::Acquire) == 2;
            // The pool's state word refuses the older block before there is a newer one.
            let resident = |slot| (slot == 2).then_some(slot);
            let found = registry.find(A, resident);
            assert!(!known || found == Some(2), "an inserted entry is found");
        }
    });
    registry.insert(A, 2);
    newer.store(2, Ordering::Release);
    registry.remove(A, 1);
    reading.join().unwrap();
    assert_eq!(find(&registry, A), Some(2), "an inserted entry is found");
}

#[test]
fn entry_is_found_while_its_predecessor_is_removed() {
    explore(ALL, reentry_beside_removal);
}

#[test]
fn control_removal_by_tag_removes_the_successor() {
    control(
        Step::RemoveSlot,
        reentry_beside_removal,
        "an inserted entry is found",
    );
}

fn removal_against_reentry() {
    let registry = Arc::new(Registry::new());
    // The block in slot 1 was erased, and is removed again when it is evicted; before that its key is loaded again, into slot 2.
    registry.insert(A, 1);
    let leaving = thread::spawn({
        let registry = Arc::clone(&registry);
        move || {
            registry.remove(A, 1);
        }
    });
    let reading = thread::spawn({
        let registry = Arc::clone(&registry);
        move || assert!(registry.find(B, Some).is_none())
    });
    registry.remove(A, 1);
    registry.insert(A, 2);
    // Refused, as by the state word in the pool.
    let resident = |slot| (slot != 1).then_some(slot);
    assert_eq!(registry.find(A, resident), Some(2), "the newer entry stays");
    leaving.join().unwrap();
    reading.join().unwrap();
    assert_eq!(find(&registry, A), Some(2), "the newer entry stays");
    assert_eq!(registry.len(), 1);
}

#[test]
fn removal_keeps_the_newer_entry_of_its_key() {
    explore(ALL, removal_against_reentry);
}

#[test]
fn control_removal_by_tag_removes_the_newer_entry() {
    control(
        Step::RemoveSlot,
        removal_against_reentry,
        "the newer entry stays",
    );
}
