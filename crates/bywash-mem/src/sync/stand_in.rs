//! Stand-ins for what neither loom nor shuttle can see into, made of the tool's own locks, and the knob of the
//! negative controls.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// Seeded alike in every run, which the tools repeat.
pub(crate) use foldhash::quality::FixedState as Hashing;

use super::{Condvar, Lock, MutexGuard, Step};

thread_local! {
    // The tools run all threads of a model on one system thread.
    static WEAKENED: Cell<Option<Step>> = const { Cell::new(None) };
}

/// From here on, this thread's models run with one step weakened.
pub(crate) fn weaken(step: Step) {
    WEAKENED.set(Some(step));
}

pub(crate) fn skipped(step: Step) -> bool {
    WEAKENED.get() == Some(step)
}

/// `parking_lot`'s face on the tool's lock: no poison.
#[derive(Debug)]
pub(crate) struct Mutex<T>(Lock<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Lock::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stands in for `event_listener::Event`: whoever listened before a notification is woken by it. Every notification wakes all.
#[derive(Debug)]
pub(crate) struct Event {
    listeners: Mutex<Vec<Arc<Entry>>>,
}

#[derive(Debug)]
struct Entry {
    heard: Mutex<(bool, Option<Waker>)>,
    bell: Condvar,
}

impl Event {
    pub(crate) fn new() -> Self {
        Self {
            listeners: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn listen(&self) -> EventListener {
        let entry = Arc::new(Entry {
            heard: Mutex::new((false, None)),
            bell: Condvar::new(),
        });
        self.listeners.lock().push(Arc::clone(&entry));
        EventListener(entry)
    }

    pub(crate) fn notify(&self, _: usize) {
        let listeners = std::mem::take(&mut *self.listeners.lock());
        for entry in listeners {
            let mut heard = entry.heard.lock();
            heard.0 = true;
            let waker = heard.1.take();
            drop(heard);
            entry.bell.notify_all();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct EventListener(Arc<Entry>);

/// `event_listener::Listener`, as far as it is used.
pub(crate) trait Listener {
    fn wait(self);
    /// The tools know no time: no deadline ever passes.
    fn wait_deadline(self, deadline: Instant) -> Option<()>;
}

impl Listener for EventListener {
    fn wait(self) {
        let mut heard = self.0.heard.lock();
        while !heard.0 {
            heard = self
                .0
                .bell
                .wait(heard)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn wait_deadline(self, _: Instant) -> Option<()> {
        self.wait();
        Some(())
    }
}

impl Future for EventListener {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut heard = self.0.heard.lock();
        if heard.0 {
            return Poll::Ready(());
        }
        heard.1 = Some(cx.waker().clone());
        Poll::Pending
    }
}
