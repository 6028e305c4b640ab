//! The registry: publication, growth, entries that move, removal against entry anew. A slot of these models is a cell that loom
//! watches: it must be written before it is found.

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

// SAFETY: loom watches each access.
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
                // SAFETY: loom says whether anyone writes.
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
fn a_slot_is_filled_before_it_is_found() {
    explore(ALL, publication);
}

#[test]
fn without_the_entrys_release_it_is_found_before() {
    control(Step::Enter, publication, "Causality violation");
}

/// A registry of these entries in slots 1 and on, and a thread that looks for the last of them meanwhile.
fn read_beside(hashes: &[u64]) -> (Arc<Registry>, JoinHandle<()>) {
    let registry = Arc::new(Registry::new());
    let entries = (1..).zip(hashes.iter().copied());
    for (slot, hash) in entries.clone() {
        registry.insert(hash, slot);
    }
    let (slot, hash) = entries.last().expect("entries");
    let reading = thread::spawn({
        let registry = Arc::clone(&registry);
        move || assert_eq!(find(&registry, hash), Some(slot), "what stays is found")
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
fn growth_hides_nothing() {
    explore(ALL, growth);
}

#[test]
fn without_the_tables_release_growth_hides_entries() {
    control(Step::Grow, growth, "Causality violation");
}

fn move_back() {
    let (registry, reading) = read_beside(&[A, B, C]);
    // Two fill the first group. The third comes back to it as soon as there is room.
    registry.remove(A, 1);
    registry.remove(B, 2);
    reading.join().unwrap();
    assert_eq!((find(&registry, A), find(&registry, B)), (None, None));
}

#[test]
fn an_entry_that_moves_is_found() {
    explore(MANY, move_back);
}

#[test]
fn without_the_look_at_the_moves_it_is_missed() {
    control(Step::Moves, move_back, "what stays is found");
}

fn move_along() {
    let (registry, reading) = read_beside(&[A, B, C, D, E]);
    // The third comes back from the second group, and the fifth from the third.
    registry.remove(A, 1);
    reading.join().unwrap();
    for (slot, hash) in (2..).zip([B, C, D, E]) {
        assert_eq!(find(&registry, hash), Some(slot));
    }
}

#[test]
fn an_entry_that_moves_after_another_is_found() {
    explore(MANY, move_along);
}

#[test]
fn without_the_look_at_the_moves_that_is_missed() {
    control(Step::Moves, move_along, "what stays is found");
}

fn reentry_beside_removal() {
    let registry = Arc::new(Registry::new());
    // The older entry is in the second cell of its group, and the newer comes to the first.
    registry.insert(B, 9);
    registry.insert(A, 1);
    registry.remove(B, 9);
    let newer = Arc::new(AtomicU32::new(0));
    let reading = thread::spawn({
        let (registry, newer) = (Arc::clone(&registry), Arc::clone(&newer));
        move || {
            let known = newer.load(Ordering::Acquire) == 2;
            // The pool compares by a word that refuses the older before there is a newer.
            let resident = |slot| (slot == 2).then_some(slot);
            let found = registry.find(A, resident);
            assert!(!known || found == Some(2), "what was entered is found");
        }
    });
    registry.insert(A, 2);
    newer.store(2, Ordering::Release);
    registry.remove(A, 1);
    reading.join().unwrap();
    assert_eq!(find(&registry, A), Some(2), "what was entered is found");
}

#[test]
fn an_entry_is_found_while_its_predecessor_leaves() {
    explore(ALL, reentry_beside_removal);
}

#[test]
fn without_the_look_at_the_slot_it_leaves_too() {
    control(
        Step::Leave,
        reentry_beside_removal,
        "what was entered is found",
    );
}

fn removal_against_reentry() {
    let registry = Arc::new(Registry::new());
    // The block in slot 1 was erased, and is removed again when it is evicted; its key is loaded anew meanwhile, into slot 2.
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
    // Refused by its word, as the pool does.
    let resident = |slot| (slot != 1).then_some(slot);
    assert_eq!(registry.find(A, resident), Some(2), "the newer entry stays");
    leaving.join().unwrap();
    reading.join().unwrap();
    assert_eq!(find(&registry, A), Some(2), "the newer entry stays");
    assert_eq!(registry.len(), 1);
}

#[test]
fn a_removal_takes_no_newer_entry() {
    explore(ALL, removal_against_reentry);
}

#[test]
fn without_the_look_at_the_slot_it_does() {
    control(
        Step::Leave,
        removal_against_reentry,
        "the newer entry stays",
    );
}
