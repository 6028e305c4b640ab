//! Taking memory: at once, as a task, as a thread; frames, or a charge for bytes that are not a frame.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use crate::arena::{Class, MAX_FRAME};
use crate::budget::{Reservation, Share, Supply};
use crate::error::FrameError;
use crate::frame::Frame;
use crate::pool::BlockPool;
use crate::queue::Ticket;
use crate::sync::{EventListener, Listener};

/// What a taker asks for.
pub(crate) trait Request: Copy + Unpin {
    /// What it is granted.
    type Granted;

    fn share(&self) -> Share;

    /// The minimum, in bytes.
    fn bytes(&self) -> u64;

    /// Takes it from the ledger: see [`crate::budget::Memory::take`].
    fn take(&self, pool: &BlockPool, evictable: u64) -> Supply<Self::Granted>;
}

/// Frames of one class.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    share: Share,
    class: Class,
    min: usize,
    max: usize,
}

impl Request for Wish {
    type Granted = Vec<Frame>;

    fn share(&self) -> Share {
        self.share
    }

    fn bytes(&self) -> u64 {
        self.class.bytes().saturating_mul(self.min as u64)
    }

    fn take(&self, pool: &BlockPool, evictable: u64) -> Supply<Vec<Frame>> {
        pool.memory()
            .take(self.share, self.class, (self.min, self.max), evictable)
    }
}

/// A charge for bytes that are not a frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bytes {
    share: Share,
    bytes: u64,
}

impl Request for Bytes {
    type Granted = Reservation;

    fn share(&self) -> Share {
        self.share
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn take(&self, pool: &BlockPool, evictable: u64) -> Supply<Reservation> {
        pool.memory().take_bytes(self.share, self.bytes, evictable)
    }
}

impl BlockPool {
    /// At least `min` and at most `max` frames of the class that holds `len` bytes, or nothing. Never waits, and never gets
    /// ahead of a taker that waits for the same share.
    ///
    /// Supply, in order: idle frames of the class, room in the budget, idle frames of other classes, cold unpinned blocks.
    #[must_use]
    pub fn try_frames(
        &self,
        share: Share,
        len: usize,
        min: usize,
        max: usize,
    ) -> Option<Vec<Frame>> {
        let wish = self.wish(share, len, min, max).ok()?;
        self.try_ahead(wish)
    }

    /// As [`Self::try_frames`], waiting its turn: first come, first served within a share. Dropping the future leaves the line;
    /// for a deadline, put a timeout around it. Takers that hold memory should not wait for more.
    ///
    /// # Errors
    /// The future's error is [`FrameError::TooLarge`], at once, if waiting would never help.
    pub fn frames(self: &Arc<Self>, share: Share, len: usize, min: usize, max: usize) -> FrameWait {
        FrameWait(Wait::new(self, self.wish(share, len, min, max)))
    }

    /// Charges `bytes` that are not a frame, or nothing. Evicts unpinned blocks if that makes the room. Never waits, and never
    /// gets ahead of a taker that waits for the same share.
    #[must_use]
    pub fn try_reserve(&self, share: Share, bytes: u64) -> Option<Reservation> {
        self.try_ahead(Bytes { share, bytes })
    }

    /// As [`Self::try_reserve`], waiting in the same line as takers of frames: see [`Self::frames`].
    ///
    /// # Errors
    /// The future's error is [`FrameError::TooLarge`], at once, if waiting would never help.
    pub fn reserve(self: &Arc<Self>, share: Share, bytes: u64) -> ReserveWait {
        let request = Bytes { share, bytes };
        ReserveWait(Wait::new(self, self.possible(request).map(|()| request)))
    }

    /// Adds `more` bytes to `charge`, all or nothing; true if it did. As [`Self::try_reserve`]: a holder of memory never waits.
    #[must_use]
    pub fn try_grow(&self, charge: &mut Reservation, more: u64) -> bool {
        let added = self.try_reserve(charge.share(), more);
        added.map(|added| charge.merge(added)).is_some()
    }

    /// As [`Self::frames`], blocking the thread until `deadline`.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`] at once, or [`FrameError::Deadline`].
    pub fn frames_blocking(
        &self,
        share: Share,
        len: usize,
        min: usize,
        max: usize,
        deadline: Instant,
    ) -> Result<Vec<Frame>, FrameError> {
        let wish = self.wish(share, len, min, max)?;
        if let Some(frames) = self.try_ahead(wish) {
            return Ok(frames);
        }
        let ticket = Ticket::enter(Arc::clone(self.memory()), share);
        loop {
            let listener = ticket.listen();
            if let Some(frames) = self.try_in_turn(&ticket, wish) {
                return Ok(frames);
            }
            // The limit may have been lowered since.
            self.possible(wish)?;
            if listener.wait_deadline(deadline).is_none() {
                return Err(FrameError::Deadline {
                    bytes: wish.class.bytes() * wish.min as u64,
                });
            }
        }
    }

    fn wish(&self, share: Share, len: usize, min: usize, max: usize) -> Result<Wish, FrameError> {
        let class = Class::of(len).ok_or(FrameError::TooLarge {
            bytes: len as u64,
            most: MAX_FRAME as u64,
        })?;
        let wish = Wish {
            share,
            class,
            min,
            max: max.max(min),
        };
        self.possible(wish).map(|()| wish)
    }

    /// Whether waiting could help.
    fn possible(&self, wish: impl Request) -> Result<(), FrameError> {
        let most = self.memory().limits().ceiling(wish.share());
        let bytes = wish.bytes();
        if bytes > most {
            return Err(FrameError::TooLarge { bytes, most });
        }
        Ok(())
    }

    fn try_ahead<R: Request>(&self, wish: R) -> Option<R::Granted> {
        if self.memory().turnstile().in_line(wish.share()) {
            return None;
        }
        self.attempt(wish, |bytes| self.evict(bytes))
    }

    /// One frame, if it can be had without taking from a block in use. Never waits, never gets ahead.
    pub(crate) fn try_frame_gently(&self, share: Share, len: usize) -> Option<Frame> {
        let wish = self.wish(share, len, 1, 1).ok()?;
        if self.memory().turnstile().in_line(share) {
            return None;
        }
        let frames = self.attempt(wish, |bytes| self.evict_cold(bytes));
        frames.and_then(|mut frames| frames.pop())
    }

    fn try_in_turn<R: Request>(&self, ticket: &Ticket, wish: R) -> Option<R::Granted> {
        if ticket.at_head() {
            self.attempt(wish, |bytes| self.evict(bytes))
        } else {
            None
        }
    }

    /// Takes what there is, evicting as long as that helps. Holds nothing while it evicts: two takers never keep half of what
    /// the other needs.
    fn attempt<R: Request>(&self, wish: R, evict: impl Fn(u64) -> bool) -> Option<R::Granted> {
        let mut exhausted = false;
        loop {
            let evictable = if exhausted { 0 } else { self.resident_bytes() };
            match wish.take(self, evictable) {
                Supply::Taken(granted) => return Some(granted),
                Supply::Short(bytes) => exhausted = !evict(bytes),
                Supply::Nothing => return None,
            }
        }
    }
}

/// Frames to come: see [`BlockPool::frames`].
#[derive(Debug)]
#[must_use = "a future does nothing unless awaited"]
pub struct FrameWait(Wait<Wish>);

impl Future for FrameWait {
    type Output = Result<Vec<Frame>, FrameError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx)
    }
}

/// A charge to come: see [`BlockPool::reserve`].
#[derive(Debug)]
#[must_use = "a future does nothing unless awaited"]
pub struct ReserveWait(Wait<Bytes>);

impl Future for ReserveWait {
    type Output = Result<Reservation, FrameError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx)
    }
}

/// A taker's place in line. Dropping it leaves the line.
#[derive(Debug)]
struct Wait<R> {
    wish: Result<R, FrameError>,
    pool: Arc<BlockPool>,
    // Before the ticket, so that it is gone when the ticket passes the turn on.
    listener: Option<EventListener>,
    ticket: Option<Ticket>,
}

impl<R: Request> Wait<R> {
    fn new(pool: &Arc<BlockPool>, wish: Result<R, FrameError>) -> Self {
        Self {
            wish,
            pool: Arc::clone(pool),
            listener: None,
            ticket: None,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<R::Granted, FrameError>> {
        let wish = match &self.wish {
            Ok(wish) => *wish,
            Err(error) => return Poll::Ready(Err(error.clone())),
        };
        if self.ticket.is_none()
            && let Some(granted) = self.pool.try_ahead(wish)
        {
            return Poll::Ready(Ok(granted));
        }
        let Self {
            pool,
            listener,
            ticket,
            ..
        } = self;
        let place =
            ticket.get_or_insert_with(|| Ticket::enter(Arc::clone(pool.memory()), wish.share()));
        loop {
            let heard = listener.get_or_insert_with(|| place.listen());
            if let Some(granted) = pool.try_in_turn(place, wish) {
                *listener = None;
                *ticket = None;
                return Poll::Ready(Ok(granted));
            }
            // The limit may have been lowered since.
            if let Err(error) = pool.possible(wish) {
                *listener = None;
                *ticket = None;
                return Poll::Ready(Err(error));
            }
            match Pin::new(heard).poll(cx) {
                Poll::Ready(()) => *listener = None,
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
