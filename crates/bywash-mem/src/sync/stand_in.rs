//! Stand-ins for types that loom and shuttle cannot instrument, made of the tool's own locks, and the switch of the negative
//! controls.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

/// Seeded alike in every execution, because the tools repeat executions.
pub(crate) use foldhash::quality::FixedState as HashState;

use super::{Condvar, Lock, MutexGuard, Step};

thread_local! {
    // The tools run all threads of a model on one system thread.
    static WEAKENED: Cell<Option<Step>> = const { Cell::new(None) };
}

/// Weakens one step in all models that this thread runs from now on.
pub(crate) fn weaken(step: Step) {
    WEAKENED.set(Some(step));
}

pub(crate) fn skipped(step: Step) -> bool {
    WEAKENED.get() == Some(step)
}

/// The tool's lock with the interface of `parking_lot`: no poisoning.
#[derive(Debug)]
pub(crate) struct Mutex<T>(Lock<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Lock::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}

/// Stand-in for `event_listener::Event`. Every notification wakes all listeners created before it.
#[derive(Debug)]
pub(crate) struct Event {
    listeners: Mutex<Vec<Arc<Entry>>>,
}

#[derive(Debug)]
struct Entry {
    /// Whether it was notified, and the task to wake.
    notified: Mutex<(bool, Option<Waker>)>,
    changed: Condvar,
}

impl Event {
    pub(crate) fn new() -> Self {
        Self {
            listeners: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn listen(&self) -> EventListener {
        let entry = Arc::new(Entry {
            notified: Mutex::new((false, None)),
            changed: Condvar::new(),
        });
        self.listeners.lock().push(Arc::clone(&entry));
        EventListener(entry)
    }

    pub(crate) fn notify(&self, _: usize) {
        let listeners = std::mem::take(&mut *self.listeners.lock());
        for entry in listeners {
            let mut notified = entry.notified.lock();
            notified.0 = true;
            let waker = notified.1.take();
            drop(notified);
            entry.changed.notify_all();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct EventListener(Arc<Entry>);

/// The part of `event_listener::Listener` that is used.
pub(crate) trait Listener {
    fn wait(self);
}

impl Listener for EventListener {
    fn wait(self) {
        let mut notified = self.0.notified.lock();
        while !notified.0 {
            notified = self
                .0
                .changed
                .wait(notified)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Future for EventListener {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut notified = self.0.notified.lock();
        if notified.0 {
            return Poll::Ready(());
        }
        notified.1 = Some(cx.waker().clone());
        Poll::Pending
    }
}
