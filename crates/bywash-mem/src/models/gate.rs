//! Generations: who entered is waited for, and what is closed is written no more.

use std::sync::Arc;

use loom::thread;

use super::{MANY, control, explore};
use crate::Gate;
use crate::sync::{Step, UnsafeCell, set_lane};

/// What writers of each generation write, each in a place of its own.
struct Written([[UnsafeCell<u32>; 2]; 3]);

// SAFETY: loom watches each access.
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
        // SAFETY: loom says whether anyone reads.
        self.0[generation as usize][writer].with_mut(|place| unsafe { *place += 1 });
    }

    fn read(&self, generation: u64) -> u32 {
        // SAFETY: loom says whether anyone writes.
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
                set_lane(writer);
                let inside = gate.enter();
                written.write(inside.generation(), writer);
            })
        })
        .collect();
    // Both parities: a third generation shares the first's counts.
    let sealed: u32 = (0..2).map(|_| written.read(gate.close())).sum();
    for writer in writers {
        writer.join().unwrap();
    }
    assert_eq!(sealed + written.read(gate.current()), 2, "each once");
}

#[test]
fn what_is_closed_is_complete() {
    explore(MANY, close_twice_against_writers);
}

#[test]
fn without_the_second_look_a_writer_enters_what_is_closed() {
    control(
        Step::Entry,
        close_twice_against_writers,
        "Causality violation",
    );
}

#[test]
fn without_the_release_of_who_leaves_it_is_not() {
    control(
        Step::Exit,
        close_twice_against_writers,
        "Causality violation",
    );
}
