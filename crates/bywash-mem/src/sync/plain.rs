//! The parts of the facade that are plain Rust wherever loom is not used.

use std::sync::atomic::Ordering;

use super::Step;

/// `std::cell::UnsafeCell` with loom's closures, through which loom observes each access.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    #[cfg(shuttle)]
    pub(crate) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Shared access: no thread may write during it.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Exclusive access: no thread may read or write during it.
    #[inline]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Returns the ordering of a protocol step. Only negative controls under loom weaken it.
#[inline(always)]
pub(crate) const fn order(_: Step, strong: Ordering) -> Ordering {
    strong
}

/// Marks the place between a `SeqCst` store and a `SeqCst` load of another word. The accesses suffice by themselves; loom treats
/// them as `AcqRel` and needs a fence.
#[inline(always)]
pub(crate) const fn store_load_fence(_: Step) {}
