//! Per-block options: retention, priority, tag.

use crate::sync::{AtomicU64, Ordering};

/// Retention of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Keep {
    /// Kept until evicted, then dropped: it can be loaded again.
    #[default]
    UntilEvicted,
    /// Kept until evicted, then offered to the [`super::Spill`] hook if the pool has one. Erased blocks are not offered.
    Spill,
    /// The pool has the only copy: evicted when the [`super::Spill`] hook has stored the bytes, and resident while it cannot.
    /// Erased blocks are dropped.
    OnlyCopy,
    /// Kept until its last unpin.
    WhilePinned,
}

/// Eviction priority. All unpinned blocks of a lower class are evicted before any of a higher one, with one exception: blocks of
/// [`Priority::High`] beyond an eighth of the limit are evicted first. So unused blocks of this class leave as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum Priority {
    /// Evicted first.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Evicted last.
    High,
}

impl Priority {
    /// Number of classes.
    pub(super) const COUNT: usize = 3;
    /// Fraction of the limit up to which blocks of [`Self::High`] are evicted last.
    pub(super) const HIGH_DIVISOR: u64 = 8;
}

/// Account that a block's memory is counted on. The caller defines its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tag(u8);

impl Tag {
    /// Number of tags. Small, so that the counters of all tags fit a few cache lines.
    pub const COUNT: usize = 16;

    /// The tag of a number below [`Self::COUNT`].
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if (number as usize) < Self::COUNT {
            Some(Self(number))
        } else {
            None
        }
    }

    /// Number of the tag.
    pub(super) fn number(self) -> u8 {
        self.0
    }
}

/// Options of a block, set on its load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockOptions {
    /// Retention.
    pub keep: Keep,
    /// Eviction priority.
    pub priority: Priority,
    /// Account its memory is counted on.
    pub tag: Tag,
}

/// Memory counted on one tag. Exact while no thread loads or evicts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TagStats {
    /// Blocks resident now.
    pub used_blocks: u64,
    /// Bytes of their frames.
    pub used_bytes: u64,
    /// Blocks ever evicted or erased. Blocks that changed key or size are not counted.
    pub evicted_blocks: u64,
    /// Bytes of their frames.
    pub evicted_bytes: u64,
}

/// Blocks of one store ([`crate::BlockKey::store`]) that are resident now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of their frames.
    pub bytes: u64,
}

/// Counters of one tag. Written by threads that publish or evict, read by `tag_stats`.
#[derive(Debug, Default)]
pub(super) struct TagCounters {
    used_blocks: AtomicU64,
    used_bytes: AtomicU64,
    evicted_blocks: AtomicU64,
    evicted_bytes: AtomicU64,
}

impl TagCounters {
    // Relaxed throughout: counters that order nothing.
    pub(super) fn add(&self, bytes: u64) {
        self.used_blocks.fetch_add(1, Ordering::Relaxed);
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, bytes: u64) {
        // Relaxed, as in `add`.
        self.used_blocks.fetch_sub(1, Ordering::Relaxed);
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn count_eviction(&self, bytes: u64) {
        // Relaxed, as in `add`.
        self.evicted_blocks.fetch_add(1, Ordering::Relaxed);
        self.evicted_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> TagStats {
        // Relaxed, as in `add`.
        TagStats {
            used_blocks: self.used_blocks.load(Ordering::Relaxed),
            used_bytes: self.used_bytes.load(Ordering::Relaxed),
            evicted_blocks: self.evicted_blocks.load(Ordering::Relaxed),
            evicted_bytes: self.evicted_bytes.load(Ordering::Relaxed),
        }
    }
}
