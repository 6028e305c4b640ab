//! The facade on loom: its atomics, locks and cells, and shadow cells for the bytes of frames.

use std::ops::Range;

pub(crate) use loom::cell::UnsafeCell;
pub(crate) use loom::sync::Arc as Counted;
pub(crate) use loom::sync::MutexGuard;
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
pub(super) use loom::sync::{Condvar, Mutex as Lock};
pub(crate) use loom::thread::yield_now;
use std::cell::Cell;
use std::sync::Arc;

use super::{Step, skipped};

loom::thread_local! {
    static NUMBER: Cell<usize> = Cell::new(0);
}

/// The number of the calling thread of a model, which selects its shard of sharded counters; 0 until [`set_thread_number`].
pub(crate) fn thread_number() -> usize {
    NUMBER.with(Cell::get)
}

/// Sets the number of the calling thread of a model.
pub(crate) fn set_thread_number(number: usize) {
    NUMBER.with(|own| own.set(number));
}

pub(crate) fn order(step: Step, strong: Ordering) -> Ordering {
    if skipped(step) {
        Ordering::Relaxed
    } else {
        strong
    }
}

/// Loom treats `SeqCst` accesses as `AcqRel`, so the order among them that the protocol needs is a fence here.
pub(crate) fn store_load_fence(step: Step) {
    if !skipped(step) {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// Stand-ins for a frame's bytes: one cell for each of the first three, and one for the rest.
#[derive(Debug)]
pub(crate) struct Shadow([UnsafeCell<()>; 4]);

// SAFETY: it holds no data, and loom checks each access to a cell.
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
