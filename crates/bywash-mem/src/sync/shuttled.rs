//! The facade on shuttle, which runs one thread at a time and switches at each atomic, lock and wait. Sequential consistency only.

pub(super) use shuttle::sync::{Condvar, Mutex as Lock};
/// Not shuttle's: the stress tests need the sharing, loom models how the last drop is ordered.
pub(crate) use std::sync::Arc as Counted;

pub(crate) use shuttle::sync::MutexGuard;
pub(crate) use shuttle::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
pub(crate) use shuttle::thread::yield_now;

/// The number of the calling thread of a schedule, which selects its shard of sharded counters.
pub(crate) fn thread_number() -> usize {
    usize::from(shuttle::current::me())
}
