//! Shelf on which threads leave pins and spilled blocks for another thread to drop.

use std::sync::{Mutex, PoisonError};

use super::StressWorld;
use super::actor::Held;
use super::oracle;
use crate::{Spill, Spilled};

/// A shelf with few places. Only the watching thread clears it, and it never waits, so a waiter for the memory on it
/// gets it.
#[derive(Debug)]
pub(super) struct Shelf {
    // Not of `sync`: nothing that a tool schedules happens while it is locked.
    things: Mutex<Things>,
    places: usize,
}

#[derive(Debug, Default)]
struct Things {
    pins: Vec<Held>,
    spilled: Vec<Spilled>,
    closed: bool,
}

impl Shelf {
    pub(super) fn new(places: usize) -> Self {
        Self {
            things: Mutex::new(Things::default()),
            places,
        }
    }

    fn with<R>(&self, f: impl FnOnce(&mut Things) -> R) -> R {
        f(&mut self.things.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Leaves a pin here, or returns it.
    pub(super) fn leave(&self, held: Held) -> Option<Held> {
        self.with(|things| {
            if things.closed || things.pins.len() >= self.places {
                return Some(held);
            }
            things.pins.push(held);
            None
        })
    }

    /// Refuses everything from now on.
    pub(super) fn close(&self) {
        self.with(|things| things.closed = true);
    }

    /// Checks everything on the shelf, and drops it.
    pub(super) fn clear(&self, world: &StressWorld) {
        let (pins, spilled) = self.with(|things| {
            let pins = std::mem::take(&mut things.pins);
            (pins, std::mem::take(&mut things.spilled))
        });
        for held in pins {
            held.unchanged(world);
        }
        for block in spilled {
            world.verify(block.key(), block.bytes());
        }
    }
}

impl Spill for Shelf {
    fn spill(&self, block: Spilled) -> Result<(), Spilled> {
        assert!(
            oracle::read_resized(block.key(), block.bytes()).is_some(),
            "{:?} is spilled with bytes of another block",
            block.key()
        );
        self.with(|things| {
            if things.closed || things.spilled.len() >= self.places {
                return Err(block);
            }
            things.spilled.push(block);
            Ok(())
        })
    }

    /// Always: a waiter would not learn that a block can be stored later.
    fn store(&self, block: &Spilled) -> bool {
        assert!(
            oracle::read_resized(block.key(), block.bytes()).is_some(),
            "{:?} is stored with bytes of another block",
            block.key()
        );
        true
    }
}
