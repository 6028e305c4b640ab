//! The leader's side of a load.

use std::fmt;
use std::sync::Arc;

use super::flight::Flight;
use crate::block::{BlockOptions, OwnedPin};
use crate::buffer::{BlockSlice, BufferCore, WriteClaim};
use crate::error::{FlightError, Incomplete, LoadError};
use crate::frames::{Frame, Share};
use crate::key::BlockKey;
use crate::sync::Counted;

/// The exclusive right to load one block. If it is dropped before [`Self::publish`] or [`Self::fail`], also by a panic, the load is
/// abandoned: its memory is released, and waiters look the block up again.
#[must_use = "dropping it abandons the load"]
pub struct Load {
    flight: Arc<Flight>,
    buffer: Option<LoadBuffer>,
    options: BlockOptions,
    ended: bool,
}

/// A write-at buffer of one frame.
struct LoadBuffer {
    core: Counted<BufferCore>,
    len: usize,
    /// A claim of the whole block; `None` for an empty block.
    claim: Option<WriteClaim>,
}

impl Load {
    pub(super) fn new(flight: Arc<Flight>) -> Self {
        Self {
            flight,
            buffer: None,
            options: BlockOptions::default(),
            ended: false,
        }
    }

    /// Key of the block.
    #[must_use]
    pub fn key(&self) -> BlockKey {
        self.flight.key()
    }

    /// Options of the block.
    #[must_use]
    pub fn options(&self) -> BlockOptions {
        self.options
    }

    /// Sets the options of the block.
    pub fn set_options(&mut self, options: BlockOptions) {
        self.options = options;
    }

    /// Returns the flight of this load, for waiting on it or reading along.
    #[must_use]
    pub fn flight(&self) -> Arc<Flight> {
        Arc::clone(&self.flight)
    }

    /// Whether there is a waiter or reader now. If not, and the leader does not need the block either, the load can be dropped without
    /// affecting another caller.
    #[must_use]
    pub fn has_listeners(&self) -> bool {
        self.flight.has_listeners()
    }

    /// Attaches a frame, whose first `len` bytes the block will fill. Its charge moves to [`Share::Download`].
    ///
    /// # Panics
    /// If a frame is attached already, or `len` exceeds its capacity.
    pub fn attach(&mut self, mut frame: Frame, len: usize) {
        assert!(self.buffer.is_none(), "a load has one frame");
        frame.charge_to(Share::Download);
        let (core, claim) = BufferCore::of_frame(self.flight.cache().allocator(), frame, len);
        self.flight.attach(&core);
        self.buffer = Some(LoadBuffer { core, len, claim });
    }

    fn claim(&mut self) -> Option<&mut WriteClaim> {
        self.buffer.as_mut()?.claim.as_mut()
    }

    /// Bytes not written yet; 0 before a frame is attached.
    #[must_use]
    pub fn remaining(&self) -> usize {
        let claim = self
            .buffer
            .as_ref()
            .and_then(|buffer| buffer.claim.as_ref());
        claim.map_or(0, |claim| claim.remaining() as usize)
    }

    /// Appends as much of `bytes` as is missing. Returns how much that was. Readers see it at once.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        self.claim().map_or(0, |claim| claim.write(bytes))
    }

    /// Fills the load from a frame whose first bytes are the whole block. The frame takes the place of the attached one, which is
    /// returned; readers of the load move over. Frames of another capacity are copied from, and returned.
    ///
    /// # Panics
    /// If no frame is attached, or a byte was written already.
    pub fn fill(&mut self, mut frame: Frame) -> Option<Frame> {
        let Some(attached) = &self.buffer else {
            panic!("no frame is attached")
        };
        let len = attached.len;
        assert_eq!(self.remaining(), len, "a byte was written already");
        if attached.core.frame().capacity() != frame.capacity() {
            self.write(&frame.as_slice()[..len]);
            return Some(frame);
        }
        frame.charge_to(Share::Download);
        let (core, mut claim) = BufferCore::of_frame(self.flight.cache().allocator(), frame, len);
        if let Some(claim) = &mut claim {
            claim.advance(len);
        }
        let unused = attached.core.frame();
        self.flight.exchange(&core);
        self.buffer = Some(LoadBuffer { core, len, claim });
        // No byte of it was readable, so no reader has a slice.
        Counted::try_unwrap(unused).ok()
    }

    /// Returns the memory of the missing bytes, to be filled from its start. Call [`Self::advance`] after that. Empty before a frame
    /// is attached.
    pub fn spare(&mut self) -> &mut [u8] {
        self.claim().map_or(&mut [], WriteClaim::spare)
    }

    /// Marks the first `n` bytes of [`Self::spare`] as written. Readers see them at once.
    ///
    /// # Panics
    /// If fewer than `n` bytes are missing.
    pub fn advance(&mut self, n: usize) {
        match self.claim() {
            Some(claim) => claim.advance(n),
            None => assert!(n == 0, "no byte is missing"),
        }
    }

    /// Makes the block resident. Every waiter gets its pin, and this caller one too.
    ///
    /// # Errors
    /// [`Incomplete`] if bytes are missing; the load has then failed with it.
    pub fn publish(mut self) -> Result<OwnedPin, Incomplete> {
        self.ended = true;
        let missing = self.remaining();
        match self.buffer.take() {
            Some(LoadBuffer { core, len, claim }) if missing == 0 => {
                // Drops its reference to the frame.
                drop(claim);
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

    /// Makes bytes of a buffer the block, in the frame where they are. Other slices of the frame stay readable, and eviction frees its
    /// memory only after the last slice. Readers that joined look the block up again.
    ///
    /// # Panics
    /// If a frame is attached already, or `bytes` does not begin where its frame begins.
    pub fn publish_slice(mut self, bytes: BlockSlice) -> OwnedPin {
        assert!(self.buffer.is_none(), "a load has one frame");
        let (frame, len) = bytes.into_frame();
        self.ended = true;
        self.flight.publish_frame(frame, len, self.options)
    }

    /// Fails the load: waiters and readers get the error. The memory is released with the last reader's slice.
    pub fn fail(mut self, error: LoadError) {
        self.end(FlightError::Failed(error));
    }

    fn end(&mut self, error: FlightError) {
        self.ended = true;
        self.flight.end(error);
        // After the end, so that a new load of the key may already run while readers drop their slices.
        self.buffer = None;
    }
}

impl fmt::Debug for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
