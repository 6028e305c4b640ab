//! Acquiring memory, at once or by waiting in a queue: frames, or a charge for bytes that are not a frame.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::allocator::{AllocOutcome, FrameAllocator};
use super::arena::{MAX_FRAME, SizeClass};
use super::budget::Reservation;
use super::config::Share;
use super::frame::Frame;
use super::wait_queue::QueueEntry;
use crate::error::FrameError;
use crate::sync::EventListener;

/// A request for memory, as the allocator grants it.
pub(super) trait Request: Copy + Unpin {
    /// The memory that it is granted.
    type Granted;

    fn share(&self) -> Share;

    /// Minimum, in bytes.
    fn min_bytes(&self) -> u64;

    /// Tries once: see [`FrameAllocator::allocate`].
    fn attempt(
        &self,
        allocator: &Arc<FrameAllocator>,
        reclaimable: u64,
    ) -> AllocOutcome<Self::Granted>;
}

/// A request for frames of one class.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrameRequest {
    share: Share,
    class: SizeClass,
    min: usize,
    max: usize,
}

impl Request for FrameRequest {
    type Granted = Vec<Frame>;

    fn share(&self) -> Share {
        self.share
    }

    fn min_bytes(&self) -> u64 {
        self.class.bytes().saturating_mul(self.min as u64)
    }

    fn attempt(
        &self,
        allocator: &Arc<FrameAllocator>,
        reclaimable: u64,
    ) -> AllocOutcome<Vec<Frame>> {
        allocator.allocate(self.share, self.class, (self.min, self.max), reclaimable)
    }
}

/// A request for a charge of bytes that are not a frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct ByteRequest {
    share: Share,
    bytes: u64,
}

impl Request for ByteRequest {
    type Granted = Reservation;

    fn share(&self) -> Share {
        self.share
    }

    fn min_bytes(&self) -> u64 {
        self.bytes
    }

    fn attempt(
        &self,
        allocator: &Arc<FrameAllocator>,
        reclaimable: u64,
    ) -> AllocOutcome<Reservation> {
        allocator.reserve(self.share, self.bytes, reclaimable)
    }
}

impl FrameAllocator {
    /// See [`crate::BlockPool::try_frames`].
    pub(crate) fn try_frames(
        self: &Arc<Self>,
        share: Share,
        len: usize,
        min: usize,
        max: usize,
    ) -> Option<Vec<Frame>> {
        let request = self.frame_request(share, len, min, max).ok()?;
        self.try_acquire(request)
    }

    /// See [`crate::BlockPool::frames`].
    pub(crate) fn frames(
        self: &Arc<Self>,
        share: Share,
        len: usize,
        min: usize,
        max: usize,
    ) -> FrameWait {
        FrameWait(Acquire::new(self, self.frame_request(share, len, min, max)))
    }

    /// See [`crate::BlockPool::try_reserve`].
    pub(crate) fn try_reserve(self: &Arc<Self>, share: Share, bytes: u64) -> Option<Reservation> {
        self.try_acquire(ByteRequest { share, bytes })
    }

    /// See [`crate::BlockPool::reserve`].
    pub(crate) fn reserve_waiting(self: &Arc<Self>, share: Share, bytes: u64) -> ReserveWait {
        let request = ByteRequest { share, bytes };
        ReserveWait(Acquire::new(
            self,
            self.check_possible(request).map(|()| request),
        ))
    }

    /// Allocates one frame without waiting or overtaking a waiter. Memory that is short is freed by `evict`, not by the reclaimer.
    pub(crate) fn try_frame_evicting(
        self: &Arc<Self>,
        share: Share,
        len: usize,
        evict: impl Fn(u64) -> bool,
    ) -> Option<Frame> {
        let request = self.frame_request(share, len, 1, 1).ok()?;
        if self.wait_queue().has_waiters(share) {
            return None;
        }
        let frames = self.acquire_with(request, evict);
        frames.and_then(|mut frames| frames.pop())
    }

    fn frame_request(
        &self,
        share: Share,
        len: usize,
        min: usize,
        max: usize,
    ) -> Result<FrameRequest, FrameError> {
        let class = SizeClass::of(len).ok_or(FrameError::TooLarge {
            bytes: len as u64,
            max: MAX_FRAME as u64,
        })?;
        let request = FrameRequest {
            share,
            class,
            min,
            max: max.max(min),
        };
        self.check_possible(request).map(|()| request)
    }

    /// Fails if the request could not be met even by an empty pool.
    fn check_possible(&self, request: impl Request) -> Result<(), FrameError> {
        let max = self.limits().max_of_share(request.share());
        let bytes = request.min_bytes();
        if bytes > max {
            return Err(FrameError::TooLarge { bytes, max });
        }
        Ok(())
    }

    /// Tries without waiting, unless the share has waiters.
    fn try_acquire<R: Request>(self: &Arc<Self>, request: R) -> Option<R::Granted> {
        if self.wait_queue().has_waiters(request.share()) {
            return None;
        }
        self.acquire(request)
    }

    /// Tries if `entry` is at the head of its queue.
    fn try_at_head<R: Request>(
        self: &Arc<Self>,
        entry: &QueueEntry,
        request: R,
    ) -> Option<R::Granted> {
        if entry.at_head() {
            self.acquire(request)
        } else {
            None
        }
    }

    fn acquire<R: Request>(self: &Arc<Self>, request: R) -> Option<R::Granted> {
        self.acquire_with(request, |bytes| {
            self.reclaimer()
                .is_some_and(|reclaimer| reclaimer.reclaim(bytes))
        })
    }

    /// Tries, evicting for as long as that helps. Holds nothing while it evicts, so two callers never each keep half of the frames that
    /// the other needs.
    fn acquire_with<R: Request>(
        self: &Arc<Self>,
        request: R,
        evict: impl Fn(u64) -> bool,
    ) -> Option<R::Granted> {
        let mut exhausted = false;
        loop {
            let reclaimable = if exhausted { 0 } else { self.reclaimable() };
            match request.attempt(self, reclaimable) {
                AllocOutcome::Allocated(granted) => return Some(granted),
                AllocOutcome::Reclaim(bytes) => exhausted = !evict(bytes),
                AllocOutcome::Unavailable => return None,
            }
        }
    }
}

/// Future of [`crate::BlockPool::frames`].
#[derive(Debug)]
#[must_use = "a future does nothing unless awaited"]
pub struct FrameWait(Acquire<FrameRequest>);

impl Future for FrameWait {
    type Output = Result<Vec<Frame>, FrameError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx)
    }
}

/// Future of [`crate::BlockPool::reserve`].
#[derive(Debug)]
#[must_use = "a future does nothing unless awaited"]
pub struct ReserveWait(Acquire<ByteRequest>);

impl Future for ReserveWait {
    type Output = Result<Reservation, FrameError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx)
    }
}

/// A request and, once it has to wait, its place in the queue. Dropping it leaves the queue.
#[derive(Debug)]
struct Acquire<R> {
    request: Result<R, FrameError>,
    allocator: Arc<FrameAllocator>,
    // Before the entry: dropped before the entry wakes the next waiter.
    listener: Option<EventListener>,
    entry: Option<QueueEntry>,
}

impl<R: Request> Acquire<R> {
    fn new(allocator: &Arc<FrameAllocator>, request: Result<R, FrameError>) -> Self {
        Self {
            request,
            allocator: Arc::clone(allocator),
            listener: None,
            entry: None,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<R::Granted, FrameError>> {
        let request = match &self.request {
            Ok(request) => *request,
            Err(error) => return Poll::Ready(Err(error.clone())),
        };
        if self.entry.is_none()
            && let Some(granted) = self.allocator.try_acquire(request)
        {
            return Poll::Ready(Ok(granted));
        }
        let Self {
            allocator,
            listener,
            entry,
            ..
        } = self;
        let queued =
            entry.get_or_insert_with(|| QueueEntry::join(Arc::clone(allocator), request.share()));
        loop {
            let listening = listener.get_or_insert_with(|| queued.listen());
            let result = match allocator.try_at_head(queued, request) {
                Some(granted) => Some(Ok(granted)),
                // The limit may have been lowered since.
                None => allocator.check_possible(request).err().map(Err),
            };
            if let Some(result) = result {
                *listener = None;
                *entry = None;
                return Poll::Ready(result);
            }
            match Pin::new(listening).poll(cx) {
                Poll::Ready(()) => *listener = None,
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
