//! Reading a buffer while it is being written.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::core::{Audience, Core};
use super::error::WriteAtError;
use super::slice::Followed;
use crate::sync::{Counted, EventListener, Listener};

type Answer = Result<Option<Followed>, WriteAtError>;

/// Reads a buffer from some offset on as its bytes arrive: see [`crate::WriteAtBuffer::follow`].
///
/// It ends only when the buffer is committed or frozen. Dropping it leaves the buffer alone. Also an [`io::Read`] that blocks.
pub struct PrefixReader {
    // Before the audience, which keeps the buffer.
    listener: Option<EventListener>,
    audience: Audience,
    offset: u64,
}

impl PrefixReader {
    pub(crate) fn new(core: &Counted<Core>, offset: u64) -> Self {
        Self {
            listener: None,
            audience: Audience::new(core),
            offset,
        }
    }

    /// Where the next bytes will come from.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next bytes, at most `max` (at least 1 is asked for) and of one frame, as soon as there are any; `None` once the
    /// buffer is closed and all of it was read. Cancelling loses nothing.
    ///
    /// # Errors
    /// [`WriteAtError::Failed`] or [`WriteAtError::Cancelled`], even if bytes are left unread.
    pub async fn next(&mut self, max: usize) -> Answer {
        poll_fn(|cx| self.poll_next(cx, max)).await
    }

    /// [`Self::next`], as a step of a future.
    pub fn poll_next(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<Answer> {
        loop {
            if let Some(answer) = self.look(max) {
                self.listener = None;
                return Poll::Ready(answer);
            }
            match &mut self.listener {
                None => self.listener = Some(self.audience.listen()),
                Some(listener) => match Pin::new(listener).poll(cx) {
                    Poll::Ready(()) => self.listener = None,
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
    }

    /// [`Self::next`], blocking the thread.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub fn next_blocking(&mut self, max: usize) -> Answer {
        loop {
            if let Some(answer) = self.look(max) {
                return answer;
            }
            let listener = self.audience.listen();
            if let Some(answer) = self.look(max) {
                return answer;
            }
            listener.wait();
        }
    }

    fn look(&mut self, max: usize) -> Option<Answer> {
        let answer = self.audience.core().follow(self.offset, max.max(1))?;
        if let Ok(Some(bytes)) = &answer {
            self.offset += bytes.len() as u64;
        }
        Some(answer)
    }
}

impl io::Read for PrefixReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let Some(bytes) = self.next_blocking(into.len())? else {
            return Ok(0);
        };
        into[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }
}

impl std::fmt::Debug for PrefixReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PrefixReader")
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}
