//! What a block is to the pool: how long it is kept, how soon it goes, on whose account it is.

use std::fmt;

use crate::pool::BlockKey;
use crate::slab::Contents;
use crate::sync::{AtomicU64, Ordering};

/// How long a block is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Keep {
    /// Until it is evicted; then it is dropped, for it can be loaded again.
    #[default]
    UntilEvicted,
    /// Until it is evicted; then it is offered to the [`Spill`] hook, if the pool has one. An erased block is not.
    Spill,
    /// Until its last unpin.
    WhilePinned,
}

/// How soon a block goes: all unpinned blocks of a lower class are evicted before any of a higher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum Priority {
    /// First to go.
    Low,
    /// In between.
    #[default]
    Normal,
    /// Last to go.
    High,
}

impl Priority {
    /// Number of classes.
    pub(crate) const COUNT: usize = 3;
}

/// The account a block's memory is counted on; its meaning is the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tag(u8);

impl Tag {
    /// Number of tags: one hexadecimal digit, so that the counters of all are a few lines.
    pub const COUNT: usize = 16;

    /// The tag of this number.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if (number as usize) < Self::COUNT {
            Some(Self(number))
        } else {
            None
        }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// What a block is to the pool. Set on its load, for the block's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockOptions {
    /// How long it is kept.
    pub keep: Keep,
    /// How soon it goes.
    pub priority: Priority,
    /// On whose account it is.
    pub tag: Tag,
}

/// Memory on one tag's account. Exact while nobody loads or evicts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TagStats {
    /// Blocks resident now.
    pub used_blocks: u64,
    /// Memory of their frames, in bytes.
    pub used_bytes: u64,
    /// Blocks ever evicted or erased; those that changed key or size are not.
    pub evicted_blocks: u64,
    /// Memory of their frames, in bytes.
    pub evicted_bytes: u64,
}

/// One tag's counters. Written by whoever publishes or evicts, read by `tag_stats`.
#[derive(Debug, Default)]
pub(crate) struct TagCounters {
    used_blocks: AtomicU64,
    used_bytes: AtomicU64,
    evicted_blocks: AtomicU64,
    evicted_bytes: AtomicU64,
}

impl TagCounters {
    // Relaxed throughout: counters that order nothing.
    pub(crate) fn enter(&self, bytes: u64) {
        self.used_blocks.fetch_add(1, Ordering::Relaxed);
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self, bytes: u64) {
        // Relaxed, as `enter`.
        self.used_blocks.fetch_sub(1, Ordering::Relaxed);
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn evicted(&self, bytes: u64) {
        // Relaxed, as `enter`.
        self.evicted_blocks.fetch_add(1, Ordering::Relaxed);
        self.evicted_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> TagStats {
        // Relaxed, as `enter`.
        TagStats {
            used_blocks: self.used_blocks.load(Ordering::Relaxed),
            used_bytes: self.used_bytes.load(Ordering::Relaxed),
            evicted_blocks: self.evicted_blocks.load(Ordering::Relaxed),
            evicted_bytes: self.evicted_bytes.load(Ordering::Relaxed),
        }
    }
}

/// Where evicted blocks of [`Keep::Spill`] go: a slower tier.
///
/// Called in the thread that evicts, without any lock held, when the key is already not found; must not block for long, and
/// must not take frames from the same pool. What it takes over stays charged until dropped, and the evicting thread looks
/// for memory elsewhere or waits for that.
pub trait Spill: Send + Sync + fmt::Debug {
    /// Takes the block over, or declines it: then it is dropped.
    ///
    /// # Errors
    /// The block itself, if it is declined.
    fn spill(&self, block: Spilled) -> Result<(), Spilled>;
}

/// A block on its way out: its bytes, with their charge. Dropping it gives the memory back.
pub struct Spilled(pub(crate) Contents);

impl Spilled {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> BlockKey {
        self.0.key
    }

    /// What it was to the pool.
    #[must_use]
    pub fn options(&self) -> BlockOptions {
        self.0.options
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the contents are this value's own, complete since they were published, and written by nobody.
        unsafe { &*self.0.bytes() }
    }
}

// SAFETY: it owns its memory as a frame does; the plain address in it is of that memory.
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
