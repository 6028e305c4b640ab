//! The locks and counts of the protocols that loom checks. Under `--cfg loom` the same names are loom's types, so `models` run the
//! real code.

#[cfg(not(loom))]
pub(crate) use real::*;

#[cfg(loom)]
pub(crate) use loomed::*;

/// Protocol steps that negative controls leave out, one a control, to show that loom notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Erasures are noted while a batch is open, `Erasures::erase`.
    Note,
    /// An erasure that was written before the blocks it erases is written again, `OpenBatch::enter`.
    Again,
    /// A segment's entries leave the index before its readers are looked at, `segments::release`.
    Entries,
    /// A segment that is used again has no reader, `segments::release`.
    Readers,
}

#[cfg(not(loom))]
mod real {
    pub(crate) use parking_lot::Mutex;
    /// `Arc` of loom where loom runs: it models the last drop as a synchronisation.
    pub(crate) use std::sync::Arc as Counted;
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

    use super::Step;

    /// Whether a negative control leaves this step out: never, outside loom.
    #[inline(always)]
    pub(crate) const fn skipped(_: Step) -> bool {
        false
    }
}

#[cfg(loom)]
mod loomed {
    pub(crate) use loom::sync::Arc as Counted;
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
    use loom::sync::{Mutex as Lock, MutexGuard};
    use std::cell::Cell;
    use std::sync::PoisonError;

    use super::Step;

    thread_local! {
        // Loom runs all threads of a model on one system thread.
        static LEFT_OUT: Cell<Option<Step>> = const { Cell::new(None) };
    }

    /// Leaves one step out in all models that this thread runs from now on.
    pub(crate) fn leave_out(step: Step) {
        LEFT_OUT.set(Some(step));
    }

    pub(crate) fn skipped(step: Step) -> bool {
        LEFT_OUT.get() == Some(step)
    }

    /// Loom's lock with the interface of `parking_lot`: no poisoning.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(Lock<T>);

    impl<T: Default> Default for Mutex<T> {
        fn default() -> Self {
            Self::new(T::default())
        }
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Lock::new(value))
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
