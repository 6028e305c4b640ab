//! Waiting for a change of a buffer.

use super::core::BufferCore;
use crate::sync::{Counted, EventListener, Listener, Ordering, Step, store_load_fence};

/// A thread or task that may sleep until the buffer changes. Writers notify only while there are listeners.
#[derive(Debug)]
pub(super) struct ChangeListener(Counted<BufferCore>);

impl ChangeListener {
    pub(super) fn new(core: &Counted<BufferCore>) -> Self {
        // SeqCst: the store before the loads of `Progress::written`. The other side is `Progress::raise`, then `BufferCore::notify`.
        core.listeners.fetch_add(1, Ordering::SeqCst);
        store_load_fence(Step::Notify);
        Self(Counted::clone(core))
    }

    pub(super) fn core(&self) -> &Counted<BufferCore> {
        &self.0
    }

    /// Listens for a change. Listen first, then look, then wait: a change in between is not lost.
    pub(super) fn listen(&self) -> EventListener {
        self.0.changed.listen()
    }

    /// Calls `attempt` until it returns a value, blocking the thread between calls until the buffer changes.
    pub(super) fn block_until<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> T {
        loop {
            let listener = self.listen();
            if let Some(found) = attempt() {
                return found;
            }
            listener.wait();
        }
    }
}

impl Drop for ChangeListener {
    fn drop(&mut self) {
        // Relaxed: a thread that still reads the old count in `notify` only notifies without need.
        self.0.listeners.fetch_sub(1, Ordering::Relaxed);
    }
}
