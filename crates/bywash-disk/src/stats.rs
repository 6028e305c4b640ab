//! Counters of a tier.

use std::sync::atomic::AtomicU64;

/// Counters since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Blocks that can be found.
    pub blocks: u64,
    /// Versions they belong to.
    pub versions: u64,
    /// Segments that exist.
    pub segments: u64,
    /// Segments among them that the system did not open or read at the start. Their blocks are not found, and they are the next to be
    /// used again once there is no room for further ones.
    pub unread_segments: u64,
    /// Reads with the bytes that were written.
    pub hits: u64,
    /// Reads that found other bytes: damage, or a segment used again during the read.
    pub mismatches: u64,
    /// Reads that failed.
    pub failed_reads: u64,
    /// Bytes of these reads.
    pub hit_bytes: u64,
    /// Blocks written.
    pub blocks_written: u64,
    /// Bytes of blocks written.
    pub block_bytes: u64,
    /// Bytes written, with summaries, padding and footers.
    pub written_bytes: u64,
    /// Segments used again.
    pub recycled_segments: u64,
    /// Blocks declined because the index is full and they did not come back soon.
    pub index_full: u64,
    /// Blocks whose write failed.
    pub failed_writes: u64,
    /// Blocks declined because they, or names of theirs, were too large.
    pub declined_large: u64,
    /// Blocks declined because the tier was read-only or off, or too many versions were being compared with their digests.
    pub declined_state: u64,
    /// Blocks declined because all segments were being read.
    pub declined_segments: u64,
    /// Blocks declined because the bytes of the day were written.
    pub declined_rate: u64,
    /// Blocks declined because the disk is full and they did not come back soon.
    pub declined_new: u64,
    /// Blocks written again because they were read in a segment that was to be used again.
    pub reinserted_blocks: u64,
    /// Bytes of these blocks.
    pub reinserted_bytes: u64,
}

impl TierStats {
    /// Bytes written for each byte of a block; `None` if none was written.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn write_amplification(&self) -> Option<f64> {
        (self.block_bytes > 0).then(|| self.written_bytes as f64 / self.block_bytes as f64)
    }
}

/// Counters behind [`TierStats`]. They order nothing, hence relaxed.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) hits: AtomicU64,
    pub(crate) hit_bytes: AtomicU64,
    pub(crate) mismatches: AtomicU64,
    pub(crate) failed_reads: AtomicU64,
    pub(crate) blocks_written: AtomicU64,
    pub(crate) block_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) recycled_segments: AtomicU64,
    pub(crate) index_full: AtomicU64,
    pub(crate) failed_writes: AtomicU64,
    pub(crate) declined_large: AtomicU64,
    pub(crate) declined_state: AtomicU64,
    pub(crate) declined_segments: AtomicU64,
    pub(crate) declined_rate: AtomicU64,
    pub(crate) declined_new: AtomicU64,
    pub(crate) reinserted_blocks: AtomicU64,
    pub(crate) reinserted_bytes: AtomicU64,
}
