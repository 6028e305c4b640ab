//! A value of a gate: writers have the value of their generation, and it is dropped after they have left.

use std::sync::Arc;

use loom::thread;

use super::{MANY, control, explore};
use crate::Gated;
use crate::sync::{Step, UnsafeCell, set_thread_number};

/// A value whose accesses loom sees.
struct Value(UnsafeCell<u64>);

// SAFETY: loom checks each access.
unsafe impl Sync for Value {}
// SAFETY: as above.
unsafe impl Send for Value {}

impl Value {
    fn new(number: u64) -> Arc<Self> {
        Arc::new(Self(UnsafeCell::new(number)))
    }

    fn read(&self) -> u64 {
        // SAFETY: loom detects concurrent writers.
        self.0.with(|place| unsafe { *place })
    }

    /// As the last drop would: no writer may have it any more.
    fn end(&self) {
        // SAFETY: loom detects concurrent readers.
        self.0.with_mut(|place| unsafe { *place = u64::MAX });
    }
}

fn replacement_against_writers() {
    // Kept by the model, so that a control reads no freed memory.
    let (before, next) = (Value::new(10), Value::new(11));
    let gated = Arc::new(Gated::new(0, Arc::clone(&before)));
    let writers: Vec<_> = (0..2)
        .map(|writer| {
            let gated = Arc::clone(&gated);
            thread::spawn(move || {
                set_thread_number(writer);
                let inside = gated.enter();
                let expected = 10 + inside.generation();
                assert_eq!(inside.read(), expected, "the value of the generation");
            })
        })
        .collect();
    gated.close_with(Arc::clone(&next));
    assert_eq!(Arc::strong_count(&before), 1, "given up");
    before.end();
    for writer in writers {
        writer.join().unwrap();
    }
    assert_eq!(gated.enter().read(), 11);
    drop(gated);
    assert_eq!(Arc::strong_count(&next), 1, "given up");
}

#[test]
fn writers_have_the_value_of_their_generation() {
    explore(MANY, replacement_against_writers);
}

#[test]
fn control_enter_without_reread_has_a_value_that_ended() {
    control(
        Step::Entry,
        replacement_against_writers,
        "Causality violation",
    );
}

#[test]
fn control_leave_without_release_races_with_the_end() {
    control(
        Step::Exit,
        replacement_against_writers,
        "Causality violation",
    );
}
