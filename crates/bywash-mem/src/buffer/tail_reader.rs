//! Reading a buffer while it is being written.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use super::block_slice::BlockSlice;
use super::core::BufferCore;
use super::error::WriteAtError;
use super::listener::ChangeListener;
use crate::sync::{Counted, EventListener};

/// Reads a buffer from an offset on as its bytes arrive: see [`crate::WriteAtBuffer::reader`].
///
/// It ends only when the buffer is committed or frozen. Dropping it does not affect the buffer.
pub struct TailReader {
    // Before `buffer`: dropped before the buffer it listens to.
    listener: Option<EventListener>,
    buffer: ChangeListener,
    offset: u64,
}

impl TailReader {
    pub(crate) fn new(core: &Counted<BufferCore>, offset: u64) -> Self {
        Self {
            listener: None,
            buffer: ChangeListener::new(core),
            offset,
        }
    }

    /// Offset of the next bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the next bytes as soon as there are any: at most `max` (0 counts as 1), and all of one frame. Returns `None` once the
    /// buffer is closed and every byte was read. Cancel-safe.
    ///
    /// # Errors
    /// [`WriteAtError::Failed`] or [`WriteAtError::Cancelled`], even if bytes are left unread.
    pub async fn next(&mut self, max: usize) -> Result<Option<BlockSlice>, WriteAtError> {
        poll_fn(|cx| self.poll_next(cx, max)).await
    }

    /// Polls for the next bytes: see [`Self::next`].
    ///
    /// # Errors
    /// As [`Self::next`].
    pub fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
    ) -> Poll<Result<Option<BlockSlice>, WriteAtError>> {
        loop {
            if let Some(result) = self.try_next(max) {
                self.listener = None;
                return Poll::Ready(result);
            }
            match &mut self.listener {
                None => self.listener = Some(self.buffer.listen()),
                Some(listener) => match Pin::new(listener).poll(cx) {
                    Poll::Ready(()) => self.listener = None,
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
    }

    fn try_next(&mut self, max: usize) -> Option<Result<Option<BlockSlice>, WriteAtError>> {
        let result = self.buffer.core().read_tail(self.offset, max.max(1))?;
        if let Ok(Some(bytes)) = &result {
            self.offset += bytes.len() as u64;
        }
        Some(result)
    }
}

impl fmt::Debug for TailReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TailReader")
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}
