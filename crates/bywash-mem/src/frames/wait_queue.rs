//! The queue of takers: one line a share, first come first served, and a wake-up that costs an unpin one load when nobody waits.

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::budget::{Memory, Share};
use crate::sync::{
    AtomicU64, Event, EventListener, Mutex, Ordering, Step, order, store_load_fence,
};

/// Two lines of takers. Only the head of a line tries; each in a line listens to an event of its own.
#[derive(Debug)]
pub(crate) struct Turnstile {
    /// Takers in both lines. Written on entering and leaving a line, read by whoever frees memory or drops a last pin.
    waiters: CachePadded<AtomicU64>,
    lines: Mutex<[VecDeque<Arc<Event>>; 2]>,
}

impl Turnstile {
    pub(crate) fn new() -> Self {
        Self {
            waiters: CachePadded::new(AtomicU64::new(0)),
            lines: Mutex::new([VecDeque::new(), VecDeque::new()]),
        }
    }

    /// Takers in line.
    #[inline]
    pub(crate) fn waiting(&self) -> u64 {
        // SeqCst: the load after `StateWord::unpin`'s store; the other half is `Ticket::enter`, then `StateWord::look`.
        self.waiters.load(order(Step::Wake, Ordering::SeqCst))
    }

    /// Whether anyone stands in this share's line.
    pub(crate) fn in_line(&self, share: Share) -> bool {
        !self.lines.lock()[share as usize].is_empty()
    }

    /// Memory came free or a block lost its last pin: the heads try again.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.waiting() != 0 {
            self.wake_heads();
        }
    }

    #[cold]
    fn wake_heads(&self) {
        let heads = {
            let lines = self.lines.lock();
            [
                lines[0].front().map(Arc::clone),
                lines[1].front().map(Arc::clone),
            ]
        };
        for head in heads.into_iter().flatten() {
            head.notify(1);
        }
    }
}

/// A place in a line. Dropping it leaves the line, and the next one's turn comes.
#[derive(Debug)]
pub(crate) struct Ticket {
    memory: Arc<Memory>,
    share: Share,
    event: Arc<Event>,
}

impl Ticket {
    /// Joins the end of the line.
    pub(crate) fn enter(memory: Arc<Memory>, share: Share) -> Self {
        let event = Arc::new(Event::new());
        {
            let mut lines = memory.turnstile().lines.lock();
            lines[share as usize].push_back(Arc::clone(&event));
            // SeqCst: the store before the loads of `StateWord::look`; the other half is `StateWord::unpin`, then `waiting`.
            memory
                .turnstile()
                .waiters
                .fetch_add(1, order(Step::Wake, Ordering::SeqCst));
        }
        store_load_fence(Step::Wake);
        Self {
            memory,
            share,
            event,
        }
    }

    /// Listens for a wake-up. Listen first, then try, then wait: a wake-up between is kept.
    pub(crate) fn listen(&self) -> EventListener {
        self.event.listen()
    }

    /// Whether it is this taker's turn to try.
    pub(crate) fn at_head(&self) -> bool {
        let lines = self.memory.turnstile().lines.lock();
        lines[self.share as usize]
            .front()
            .is_some_and(|head| Arc::ptr_eq(head, &self.event))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let next = {
            let turnstile = self.memory.turnstile();
            let mut lines = turnstile.lines.lock();
            let line = &mut lines[self.share as usize];
            let Some(place) = line
                .iter()
                .position(|event| Arc::ptr_eq(event, &self.event))
            else {
                return;
            };
            line.remove(place);
            // SeqCst like its counterpart in `enter`; a late reader that still sees the old count only wakes for nothing.
            turnstile.waiters.fetch_sub(1, Ordering::SeqCst);
            if place == 0 {
                line.front().map(Arc::clone)
            } else {
                None
            }
        };
        if let Some(next) = next {
            next.notify(1);
        }
    }
}
