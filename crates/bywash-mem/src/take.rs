//! Taking frames: at once, as a task, as a thread.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use crate::arena::{Class, MAX_FRAME};
use crate::budget::{Share, Supply};
use crate::error::FrameError;
use crate::frame::Frame;
use crate::pool::BlockPool;
use crate::queue::Ticket;
use crate::sync::{EventListener, Listener};

/// One taker's wish: of which share, which class, how many.
#[derive(Debug, Clone, Copy)]
struct Wish {
    share: Share,
    class: Class,
    min: usize,
    max: usize,
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
        FrameWait {
            wish: self.wish(share, len, min, max),
            pool: Arc::clone(self),
            listener: None,
            ticket: None,
        }
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
    fn possible(&self, wish: Wish) -> Result<(), FrameError> {
        let most = self.memory().limits().ceiling(wish.share);
        let bytes = wish.class.bytes().saturating_mul(wish.min as u64);
        if bytes > most {
            return Err(FrameError::TooLarge { bytes, most });
        }
        Ok(())
    }

    fn try_ahead(&self, wish: Wish) -> Option<Vec<Frame>> {
        if self.memory().turnstile().in_line(wish.share) {
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

    fn try_in_turn(&self, ticket: &Ticket, wish: Wish) -> Option<Vec<Frame>> {
        if ticket.at_head() {
            self.attempt(wish, |bytes| self.evict(bytes))
        } else {
            None
        }
    }

    /// Takes what there is, evicting as long as that helps. Holds nothing while it evicts: two takers never keep half of what
    /// the other needs.
    fn attempt(&self, wish: Wish, evict: impl Fn(u64) -> bool) -> Option<Vec<Frame>> {
        let mut exhausted = false;
        loop {
            let evictable = if exhausted { 0 } else { self.resident_bytes() };
            match self
                .memory()
                .take(wish.share, wish.class, (wish.min, wish.max), evictable)
            {
                Supply::Frames(frames) => return Some(frames),
                Supply::Short(bytes) => exhausted = !evict(bytes),
                Supply::Nothing => return None,
            }
        }
    }
}

/// Frames to come: see [`BlockPool::frames`].
#[derive(Debug)]
#[must_use = "a future does nothing unless awaited"]
pub struct FrameWait {
    wish: Result<Wish, FrameError>,
    pool: Arc<BlockPool>,
    // Before the ticket, so that it is gone when the ticket passes the turn on.
    listener: Option<EventListener>,
    ticket: Option<Ticket>,
}

impl Future for FrameWait {
    type Output = Result<Vec<Frame>, FrameError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let wish = match &this.wish {
            Ok(wish) => *wish,
            Err(error) => return Poll::Ready(Err(error.clone())),
        };
        if this.ticket.is_none()
            && let Some(frames) = this.pool.try_ahead(wish)
        {
            return Poll::Ready(Ok(frames));
        }
        let FrameWait {
            pool,
            listener,
            ticket,
            ..
        } = this;
        let place =
            ticket.get_or_insert_with(|| Ticket::enter(Arc::clone(pool.memory()), wish.share));
        loop {
            let heard = listener.get_or_insert_with(|| place.listen());
            if let Some(frames) = pool.try_in_turn(place, wish) {
                *listener = None;
                *ticket = None;
                return Poll::Ready(Ok(frames));
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
