//! The facade on loom: its atomics, locks and cells, and the shadows of frames.

use std::ops::Range;

pub(crate) use loom::cell::UnsafeCell;
pub(crate) use loom::sync::Arc as Counted;
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
pub(super) use loom::sync::{Condvar, Mutex as Lock, MutexGuard};
pub(crate) use loom::thread::yield_now;
use std::cell::Cell;
use std::sync::Arc;

use super::{Step, skipped};

loom::thread_local! {
    static LANE: Cell<usize> = Cell::new(0);
}

/// The lane of stripes that this thread of a model pins in; 0 until [`set_lane`].
pub(crate) fn lane() -> usize {
    LANE.with(Cell::get)
}

/// Deals this thread of a model to a lane.
pub(crate) fn set_lane(lane: usize) {
    LANE.with(|own| own.set(lane));
}

pub(crate) fn order(step: Step, strong: Ordering) -> Ordering {
    if skipped(step) {
        Ordering::Relaxed
    } else {
        strong
    }
}

/// Loom takes `SeqCst` accesses for `AcqRel`; the order among them that the protocol rests on has to be a fence here.
pub(crate) fn store_load_fence(step: Step) {
    if !skipped(step) {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// What loom knows of a frame's bytes: the first three, and the rest as one.
#[derive(Debug)]
pub(crate) struct Shadow([UnsafeCell<()>; 4]);

// SAFETY: it holds nothing, and loom checks who may be in which cell.
unsafe impl Sync for Shadow {}
// SAFETY: as above.
unsafe impl Send for Shadow {}

impl Shadow {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(std::array::from_fn(|_| UnsafeCell::new(()))))
    }

    fn cells(&self, bytes: Range<usize>) -> &[UnsafeCell<()>] {
        let last = self.0.len() - 1;
        if bytes.is_empty() {
            &[]
        } else {
            &self.0[bytes.start.min(last)..=(bytes.end - 1).min(last)]
        }
    }

    pub(crate) fn read(&self, bytes: Range<usize>) {
        self.cells(bytes).iter().for_each(|cell| cell.with(|_| ()));
    }

    pub(crate) fn write(&self, bytes: Range<usize>) {
        self.cells(bytes)
            .iter()
            .for_each(|cell| cell.with_mut(|_| ()));
    }
}
