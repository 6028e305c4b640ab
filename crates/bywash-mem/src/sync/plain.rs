//! What is the standard library's wherever loom does not look.

use std::sync::atomic::Ordering;

use super::Step;

/// `std::cell::UnsafeCell` with loom's closures, which is how loom sees each access.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    #[cfg(shuttle)]
    pub(crate) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Shared access: no one may write meanwhile.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Exclusive access: no one may read or write meanwhile.
    #[inline]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// The ordering of a step of a protocol. Only loom sees a weaker one.
#[inline(always)]
pub(crate) const fn order(_: Step, strong: Ordering) -> Ordering {
    strong
}

/// Between a `SeqCst` store and a `SeqCst` load of another word. Those accesses suffice; loom takes them for `AcqRel` and
/// needs the fence spelled out.
#[inline(always)]
pub(crate) const fn store_load_fence(_: Step) {}
