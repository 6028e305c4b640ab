//! Reading a block while it is being loaded.

use std::sync::Arc;

use crate::error::FlightError;
use crate::flight::Flight;
use crate::sync::Listener;
use crate::write_at::{Followed, PrefixReader, WriteAtError};

type Answer = Result<Option<Followed>, FlightError>;

/// Reads a block from some offset on as its bytes arrive: see [`Flight::follow`].
///
/// Bytes come before the load is known to succeed; the end comes only after. Dropping it leaves the load alone.
pub struct Follower {
    flight: Arc<Flight>,
    offset: usize,
    /// Once the load has its frame.
    reader: Option<PrefixReader>,
}

impl Follower {
    pub(crate) fn new(flight: Arc<Flight>, offset: usize) -> Self {
        Self {
            flight,
            offset,
            reader: None,
        }
    }

    /// The next bytes, at most `max` (at least 1 is asked for), as soon as there are any; `None` once the block is published and
    /// all of it was read. Cancelling loses nothing.
    ///
    /// # Errors
    /// [`FlightError::Failed`] if the load failed, even if bytes are left unread. [`FlightError::Abandoned`] if its leader went
    /// away, or if this follower came after publication: claim the block again, and go on from [`Self::offset`].
    pub async fn next(&mut self, max: usize) -> Answer {
        while self.reader.is_none() {
            let listener = self.flight.listen();
            if !self.attach()? {
                listener.await;
            }
        }
        let reader = self.reader.as_mut().expect("attached above");
        let answer = reader.next(max).await;
        self.told(answer)
    }

    /// [`Self::next`], blocking the thread.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub fn next_blocking(&mut self, max: usize) -> Answer {
        while self.reader.is_none() {
            let listener = self.flight.listen();
            if !self.attach()? {
                listener.wait();
            }
        }
        let reader = self.reader.as_mut().expect("attached above");
        let answer = reader.next_blocking(max);
        self.told(answer)
    }

    /// Where the next bytes will come from.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Takes hold of the load's frame, if it has one.
    fn attach(&mut self) -> Result<bool, FlightError> {
        let buffer = self.flight.attached()?;
        self.reader = buffer.map(|buffer| PrefixReader::new(&buffer, self.offset as u64));
        Ok(self.reader.is_some())
    }

    fn told(&mut self, answer: Result<Option<Followed>, WriteAtError>) -> Answer {
        match answer {
            Ok(bytes) => {
                self.offset += bytes.as_ref().map_or(0, |bytes| bytes.len());
                Ok(bytes)
            }
            Err(WriteAtError::Failed(error)) => Err(FlightError::Failed(error)),
            Err(_) => Err(FlightError::Abandoned),
        }
    }
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follower")
            .field("key", &self.flight.key())
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.flight.unfollow();
    }
}
