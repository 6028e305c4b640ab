//! The hook that evicted blocks are offered to: the engine's disk tier.

use std::fmt;

use super::options::BlockOptions;
use super::slab::BlockContents;
use crate::key::BlockKey;

/// Destination of evicted blocks of [`super::Keep::Spill`]: a slower tier.
///
/// Called in the evicting thread, without any lock held, when the key is no longer found. Must not block for long, and must not
/// acquire frames from the same pool. A block it accepts stays charged until dropped; the evicting thread looks for memory
/// elsewhere or waits for it.
pub trait Spill: Send + Sync + fmt::Debug {
    /// Accepts the block, or declines it, after which it is dropped.
    ///
    /// # Errors
    /// The block itself, if it is declined.
    fn spill(&self, block: Spilled) -> Result<(), Spilled>;
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
