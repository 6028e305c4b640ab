//! The facade on loom: its atomics, locks and cells, small stand-ins for what loom cannot see into, and the knob of the
//! negative controls.

use std::cell::Cell;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

pub(crate) use loom::cell::UnsafeCell;
pub(crate) use loom::sync::Arc as Counted;
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

use super::Step;

thread_local! {
    // Loom runs all threads of a model on one system thread.
    static WEAKENED: Cell<Option<Step>> = const { Cell::new(None) };
}

/// From here on, this thread's models run with one step weakened.
pub(crate) fn weaken(step: Step) {
    WEAKENED.set(Some(step));
}

pub(crate) fn skipped(step: Step) -> bool {
    WEAKENED.get() == Some(step)
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

/// `parking_lot`'s face on loom's lock.
#[derive(Debug)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().expect("loom ends a model at its first panic")
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
    bell: loom::sync::Condvar,
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
            bell: loom::sync::Condvar::new(),
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
    /// Loom knows no time: no deadline ever passes.
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
                .expect("loom ends a model at its first panic");
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
