//! The leader's side of a load.

use std::sync::Arc;

use crate::budget::Share;
use crate::error::{FlightError, Incomplete, LoadError};
use crate::flight::Flight;
use crate::frame::Frame;
use crate::options::BlockOptions;
use crate::pin::OwnedPin;
use crate::pool::BlockKey;
use crate::sync::Counted;
use crate::write_at::{Core, Shard};

/// The exclusive right to load one block. Dropped before [`Self::publish`] or [`Self::fail`], by a panic too, the load is
/// abandoned: its memory goes back and whoever waited looks the block up again.
#[must_use = "dropping it abandons the load"]
pub struct Load {
    flight: Arc<Flight>,
    buffer: Option<Buffer>,
    options: BlockOptions,
    ended: bool,
}

/// A write-at buffer of one frame.
struct Buffer {
    core: Counted<Core>,
    len: usize,
    /// All of it; none of an empty block.
    shard: Option<Shard>,
}

impl Load {
    pub(crate) fn new(flight: Arc<Flight>) -> Self {
        Self {
            flight,
            buffer: None,
            options: BlockOptions::default(),
            ended: false,
        }
    }

    /// The block to load.
    #[must_use]
    pub fn key(&self) -> BlockKey {
        self.flight.key()
    }

    /// Says what the block shall be to the pool.
    pub fn set_options(&mut self, options: BlockOptions) {
        self.options = options;
    }

    /// The flight of this load, to follow it oneself.
    #[must_use]
    pub fn flight(&self) -> Arc<Flight> {
        Arc::clone(&self.flight)
    }

    /// Whether anyone waits for this block or reads along now. If not, and its leader has no use for it either, the load may
    /// be dropped: it cancels nobody.
    #[must_use]
    pub fn has_audience(&self) -> bool {
        self.flight.has_audience()
    }

    /// Gives the load its memory: a frame, of which the block fills the first `len` bytes. Its charge moves to
    /// [`Share::Download`], where blocks belong.
    ///
    /// # Panics
    /// If a frame is attached already, or `len` exceeds its capacity.
    pub fn attach(&mut self, mut frame: Frame, len: usize) {
        assert!(self.buffer.is_none(), "a load has one frame");
        frame.charge_to(Share::Download);
        let (core, shard) = Core::of_frame(self.flight.pool(), frame, len);
        self.flight.attach(&core);
        self.buffer = Some(Buffer { core, len, shard });
    }

    fn shard(&mut self) -> Option<&mut Shard> {
        self.buffer.as_mut()?.shard.as_mut()
    }

    /// Bytes still missing; 0 before a frame is attached.
    #[must_use]
    pub fn remaining(&self) -> usize {
        let shard = self
            .buffer
            .as_ref()
            .and_then(|buffer| buffer.shard.as_ref());
        shard.map_or(0, |shard| shard.remaining() as usize)
    }

    /// Appends as much of `bytes` as is missing, and answers how much that was. Followers see it at once.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        self.shard().map_or(0, |shard| shard.write(bytes))
    }

    /// The missing bytes' place, to be filled from its start; then [`Self::advance`]. Empty before a frame is attached.
    pub fn spare(&mut self) -> &mut [u8] {
        self.shard().map_or(&mut [], Shard::spare)
    }

    /// Says that the first `n` bytes of [`Self::spare`] are the block's. Followers see them at once.
    ///
    /// # Panics
    /// If fewer than `n` bytes are missing.
    pub fn advance(&mut self, n: usize) {
        match self.shard() {
            Some(shard) => shard.advance(n),
            None => assert!(n == 0, "no byte is missing"),
        }
    }

    /// Makes the block resident: every waiter gets its pin, this caller one too.
    ///
    /// # Errors
    /// [`Incomplete`] if bytes are missing; the load has then failed with it.
    pub fn publish(mut self) -> Result<OwnedPin, Incomplete> {
        self.ended = true;
        let missing = self.remaining();
        match self.buffer.take() {
            Some(Buffer { core, len, shard }) if missing == 0 => {
                // The frame goes on without it.
                drop(shard);
                Ok(self.flight.publish(core, len, self.options))
            }
            buffer => {
                let incomplete = Incomplete {
                    missing,
                    len: buffer.as_ref().map_or(0, |buffer| buffer.len),
                };
                drop(buffer);
                self.flight.end(FlightError::Failed(Arc::new(incomplete)));
                Err(incomplete)
            }
        }
    }

    /// Ends the load: whoever waits or follows gets the error, the memory goes back when the last follower's slice does.
    pub fn fail(mut self, error: LoadError) {
        self.end(FlightError::Failed(error));
    }

    fn end(&mut self, error: FlightError) {
        self.ended = true;
        self.flight.end(error);
        // After the end, so that a new load of the key may already run while followers let go.
        self.buffer = None;
    }
}

impl std::fmt::Debug for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Load")
            .field("key", &self.key())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if !self.ended {
            self.end(FlightError::Abandoned);
        }
    }
}
