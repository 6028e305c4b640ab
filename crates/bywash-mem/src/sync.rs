//! The one door to atomics, locks and waiting. Under `--cfg loom` the same names are loom's, so that the models run the real code.

#[cfg(loom)]
pub(crate) mod loomed;

#[cfg(loom)]
pub(crate) use loomed::*;

#[cfg(not(loom))]
pub(crate) use real::*;

#[cfg(not(loom))]
mod real {
    pub(crate) use event_listener::{Event, EventListener, Listener};
    pub(crate) use parking_lot::Mutex;
    /// A counted pointer whose last drop loom sees as the synchronisation it is.
    pub(crate) use std::sync::Arc as Counted;
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

    use super::Step;

    /// `std::cell::UnsafeCell` with loom's closures, which is how loom sees each access.
    #[derive(Debug)]
    #[repr(transparent)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
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

    /// The ordering of a step of a protocol. A negative control may weaken it, under loom only.
    #[inline(always)]
    pub(crate) const fn order(_: Step, strong: Ordering) -> Ordering {
        strong
    }

    /// Whether a negative control leaves this step out. Never, outside loom.
    #[inline(always)]
    pub(crate) const fn skipped(_: Step) -> bool {
        false
    }

    /// Between a `SeqCst` store and a `SeqCst` load of another word. Those accesses suffice; loom takes them for `AcqRel` and
    /// needs the fence spelled out.
    #[inline(always)]
    pub(crate) const fn store_load_fence(_: Step) {}
}

/// The steps of the protocols that the models weaken, one a negative control, to see that loom would notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The acquire of `StateWord::look` and `StateWord::try_evict`.
    Evict,
    /// The release of `StateWord::unpin`.
    Unpin,
    /// The release of `StateWord::publish`.
    Publish,
    /// The key is compared under the pin, `BlockPool::pin`.
    Key,
    /// Hand-off pins: `Flight` publishes with one pin for each waiter.
    HandOff,
    /// The release of the bytes written so far, `Buffer::advance`.
    Progress,
    /// A reader's own hold of the frame, `Followed`.
    Hold,
    /// Room is checked and charged under one lock, `Memory::take`.
    Charge,
    /// The store-load pair of `unpin` and a taker's `Ticket`.
    Wake,
}
