//! The facade on shuttle: it runs one thread at a time and switches at each atomic, lock and wait. Sequential consistency only.

pub(super) use shuttle::sync::{Condvar, Mutex as Lock, MutexGuard};
/// Not shuttle's: the storms care for what is shared, loom for how the last drop is ordered.
pub(crate) use std::sync::Arc as Counted;

pub(crate) use shuttle::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
pub(crate) use shuttle::thread::yield_now;

/// The lane of stripes that this thread of a storm pins in.
pub(crate) fn lane() -> usize {
    usize::from(shuttle::current::me())
}
