//! Reading a block while it is being loaded.

use std::fmt;
use std::sync::Arc;

use super::flight::Flight;
use crate::buffer::{BlockSlice, TailReader, WriteAtError};
use crate::error::FlightError;

/// Reads a block from an offset on as its bytes arrive: see [`Flight::reader`].
///
/// Bytes are returned before the load is known to succeed; the end only after it did. Dropping it does not affect the load.
pub struct BlockReader {
    flight: Arc<Flight>,
    offset: usize,
    /// Set once the load has its frame.
    tail: Option<TailReader>,
}

impl BlockReader {
    pub(super) fn new(flight: Arc<Flight>, offset: usize) -> Self {
        Self {
            flight,
            offset,
            tail: None,
        }
    }

    /// Returns the next bytes as soon as there are any: at most `max` (0 counts as 1). Returns `None` once the block is published and
    /// every byte was read. Cancel-safe.
    ///
    /// # Errors
    /// [`FlightError::Failed`] if the load failed, even if bytes are left unread. [`FlightError::Abandoned`] if its leader was
    /// dropped, or if this reader was created after publication: claim the block again, and continue from [`Self::offset`].
    pub async fn next(&mut self, max: usize) -> Result<Option<BlockSlice>, FlightError> {
        loop {
            let Some(tail) = &mut self.tail else {
                self.find_buffer().await?;
                continue;
            };
            match tail.next(max).await {
                Ok(bytes) => {
                    self.offset += bytes.as_ref().map_or(0, |bytes| bytes.len());
                    return Ok(bytes);
                }
                Err(WriteAtError::Failed(error)) => return Err(FlightError::Failed(error)),
                // The load ended, or has another buffer.
                Err(_) => self.tail = None,
            }
        }
    }

    /// Waits until the load has a buffer.
    async fn find_buffer(&mut self) -> Result<(), FlightError> {
        let listener = self.flight.listen();
        let buffer = self.flight.buffer()?;
        self.tail = buffer.map(|buffer| TailReader::new(&buffer, self.offset as u64));
        if self.tail.is_none() {
            listener.await;
        }
        Ok(())
    }

    /// Offset of the next bytes.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }
}

impl fmt::Debug for BlockReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockReader")
            .field("key", &self.flight.key())
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

impl Drop for BlockReader {
    fn drop(&mut self) {
        self.flight.remove_reader();
    }
}
