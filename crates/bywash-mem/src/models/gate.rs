//! Generations: closing waits for the writers inside, and a closed generation is not written.

use std::sync::Arc;

use loom::thread;

use super::{MANY, control, explore};
use crate::Gate;
use crate::sync::{Step, UnsafeCell, set_thread_number};

/// Cells that the writers of each generation write, one a writer.
struct Written([[UnsafeCell<u32>; 2]; 3]);

// SAFETY: loom checks each access.
unsafe impl Sync for Written {}
// SAFETY: as above.
unsafe impl Send for Written {}

impl Written {
    fn new() -> Self {
        Self(std::array::from_fn(|_| {
            std::array::from_fn(|_| UnsafeCell::new(0))
        }))
    }

    fn write(&self, generation: u64, writer: usize) {
        // SAFETY: loom detects concurrent readers.
        self.0[generation as usize][writer].with_mut(|place| unsafe { *place += 1 });
    }

    fn read(&self, generation: u64) -> u32 {
        // SAFETY: loom detects concurrent writers.
        let read = |place: &UnsafeCell<u32>| place.with(|place| unsafe { *place });
        self.0[generation as usize].iter().map(read).sum()
    }
}

fn close_twice_against_writers() {
    let gate = Arc::new(Gate::new(0));
    let written = Arc::new(Written::new());
    let writers: Vec<_> = (0..2)
        .map(|writer| {
            let (gate, written) = (Arc::clone(&gate), Arc::clone(&written));
            thread::spawn(move || {
                set_thread_number(writer);
                let inside = gate.enter();
                written.write(inside.generation(), writer);
            })
        })
        .collect();
    // Both parities: a third generation uses the first one's counts.
    let sealed: u32 = (0..2).map(|_| written.read(gate.close())).sum();
    for writer in writers {
        writer.join().unwrap();
    }
    assert_eq!(sealed + written.read(gate.current()), 2, "each once");
}

#[test]
fn closed_generation_is_complete() {
    explore(MANY, close_twice_against_writers);
}

#[test]
fn control_enter_without_reread_enters_a_closed_generation() {
    control(
        Step::Entry,
        close_twice_against_writers,
        "Causality violation",
    );
}

#[test]
fn control_leave_without_release_races_with_close() {
    control(
        Step::Exit,
        close_twice_against_writers,
        "Causality violation",
    );
}
