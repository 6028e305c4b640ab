//! The wait queue: one FIFO a share. While it is empty, an unpin pays one load for it.

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use super::allocator::FrameAllocator;
use super::config::Share;
use crate::sync::{
    AtomicU64, Event, EventListener, Mutex, Ordering, Step, order, store_load_fence,
};

/// Queues of callers that wait for memory, one a share. Only the head of a queue tries; each entry has an event of its own.
#[derive(Debug)]
pub(crate) struct WaitQueue {
    /// Entries of both queues. Written on joining and leaving a queue, read by every thread that frees memory or drops a last
    /// pin.
    waiters: CachePadded<AtomicU64>,
    queues: Mutex<[VecDeque<Arc<Event>>; 2]>,
}

impl WaitQueue {
    pub(super) fn new() -> Self {
        Self {
            waiters: CachePadded::new(AtomicU64::new(0)),
            queues: Mutex::new([VecDeque::new(), VecDeque::new()]),
        }
    }

    /// Number of queued callers.
    #[inline]
    pub(super) fn waiting(&self) -> u64 {
        // SeqCst: the load after the store of `StateWord::unpin`. The other side is `QueueEntry::join`, then `StateWord::load`.
        self.waiters.load(order(Step::Wake, Ordering::SeqCst))
    }

    /// Returns whether callers of this share are queued.
    pub(super) fn has_waiters(&self, share: Share) -> bool {
        !self.queues.lock()[share as usize].is_empty()
    }

    /// Wakes the head of each queue. Called after memory came free or a block lost its last pin.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.waiting() != 0 {
            self.wake_heads();
        }
    }

    #[cold]
    fn wake_heads(&self) {
        let heads = {
            let queues = self.queues.lock();
            [
                queues[0].front().map(Arc::clone),
                queues[1].front().map(Arc::clone),
            ]
        };
        for head in heads.into_iter().flatten() {
            head.notify(1);
        }
    }
}

/// A place in a queue. Dropping it leaves the queue and, if it was the head, wakes the next entry.
#[derive(Debug)]
pub(super) struct QueueEntry {
    allocator: Arc<FrameAllocator>,
    share: Share,
    event: Arc<Event>,
}

impl QueueEntry {
    /// Joins the end of a share's queue.
    pub(super) fn join(allocator: Arc<FrameAllocator>, share: Share) -> Self {
        let event = Arc::new(Event::new());
        {
            let mut queues = allocator.wait_queue().queues.lock();
            queues[share as usize].push_back(Arc::clone(&event));
            // SeqCst: the store before the loads of `StateWord::load`. The other side is `StateWord::unpin`, then `waiting`.
            allocator
                .wait_queue()
                .waiters
                .fetch_add(1, order(Step::Wake, Ordering::SeqCst));
        }
        store_load_fence(Step::Wake);
        Self {
            allocator,
            share,
            event,
        }
    }

    /// Listens for a wake-up. Listen first, then try, then wait: a wake-up in between is not lost.
    pub(super) fn listen(&self) -> EventListener {
        self.event.listen()
    }

    /// Returns whether this entry is the head of its queue.
    pub(super) fn at_head(&self) -> bool {
        let queues = self.allocator.wait_queue().queues.lock();
        queues[self.share as usize]
            .front()
            .is_some_and(|head| Arc::ptr_eq(head, &self.event))
    }
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        let next = {
            let wait_queue = self.allocator.wait_queue();
            let mut queues = wait_queue.queues.lock();
            let queue = &mut queues[self.share as usize];
            let Some(position) = queue
                .iter()
                .position(|event| Arc::ptr_eq(event, &self.event))
            else {
                return;
            };
            queue.remove(position);
            // SeqCst like its counterpart in `join`. A thread that still reads the old count only wakes without need.
            wait_queue.waiters.fetch_sub(1, Ordering::SeqCst);
            if position == 0 {
                queue.front().map(Arc::clone)
            } else {
                None
            }
        };
        if let Some(next) = next {
            next.notify(1);
        }
    }
}
