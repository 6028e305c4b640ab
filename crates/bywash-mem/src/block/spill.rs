//! The hook that evicted blocks are offered to: the engine's disk tier.

use std::fmt;

use super::options::BlockOptions;
use super::slab::BlockContents;
use crate::key::BlockKey;

/// Destination of evicted blocks of [`super::Keep::Spill`] and [`super::Keep::OnlyCopy`]: a slower tier.
///
/// Called in the evicting thread, without any lock held. Must not acquire frames from the same pool.
pub trait Spill: Send + Sync + fmt::Debug {
    /// Accepts the block, or declines it; a declined block is dropped. Must not block for long. Its key is no longer found. An
    /// accepted block stays charged until it is dropped; the evicting thread looks for memory elsewhere or waits for it.
    ///
    /// # Errors
    /// The block itself, if it is declined.
    fn spill(&self, block: Spilled) -> Result<(), Spilled>;

    /// Stores the bytes of a block of [`super::Keep::OnlyCopy`]. Returns whether they are stored: the pool then releases the memory,
    /// else the block stays resident. Call [`crate::BlockPool::retry_waiters`] when blocks can be stored that could not be before.
    ///
    /// The evicting thread owns the block during the call: it is not found, and not another block of its key either. Unlike
    /// [`Self::spill`], this may take the time of a write to a disk.
    fn store(&self, _block: &Spilled) -> bool {
        false
    }
}

/// An evicted block: its bytes with their charge. Dropping it releases the memory.
pub struct Spilled(pub(super) BlockContents);

impl Spilled {
    /// Key of the block.
    #[must_use]
    pub fn key(&self) -> BlockKey {
        self.0.key
    }

    /// Options it was loaded with.
    #[must_use]
    pub fn options(&self) -> BlockOptions {
        self.0.options
    }

    /// Bytes of the block.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: this value owns the contents, which were complete when published and have no writer.
        unsafe { &*self.0.bytes() }
    }
}

// SAFETY: it owns its memory as a frame does; the raw address in it belongs to that memory.
unsafe impl Send for Spilled {}
// SAFETY: as above, and `&Spilled` only reads.
unsafe impl Sync for Spilled {}

impl fmt::Debug for Spilled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spilled")
            .field("key", &self.key())
            .field("len", &self.bytes().len())
            .finish_non_exhaustive()
    }
}
