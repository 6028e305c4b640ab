//! Checks of sizes, and the limits that follow from the memory.

use crate::error::EngineError;
use crate::read::ReadaheadLimits;

/// Minimum length of an S3 part, except the last of an upload.
pub(super) const S3_MIN_PART_BYTES: u64 = 5 << 20;
/// Maximum length of one ranged GET: long enough that the cost of a request is small.
const FETCH_BYTES: u64 = 8 << 20;
/// Fraction of the memory for one range fetch, and for one body's read-ahead, so that one reader does not evict blocks that
/// others are about to read.
const AHEAD_MEMORY_DIVISOR: u64 = 16;
/// Range fetches that one body keeps in flight.
const FETCHES_AHEAD: u64 = 4;
/// Fraction of the memory for the read-ahead of all bodies. The rest of the downloads' share is for the blocks being
/// read, and for the cache.
const ALL_AHEAD_MEMORY_DIVISOR: u64 = 2;
/// Minimum memory in blocks: one for a reader, one for its next block, and the same again in each guaranteed share.
pub(super) const MIN_MEMORY_BLOCKS: u64 = 8;
/// Block sizes for which the pool has frames.
const BLOCK_BYTES: std::ops::RangeInclusive<usize> = (4 << 10)..=(4 << 20);

/// Checks that the pool has frames of this size; returns it.
pub(super) fn check_block_size(bytes: usize) -> Result<u64, EngineError> {
    if bytes.is_power_of_two() && BLOCK_BYTES.contains(&bytes) {
        return Ok(bytes as u64);
    }
    Err(EngineError::InvalidSetting {
        setting: "block_size",
        reason: format!("{bytes} is not a power of two from 4 KiB to 4 MiB"),
    })
}

pub(super) fn check_memory(memory: u64, block_size: u64) -> Result<(), EngineError> {
    let min = MIN_MEMORY_BLOCKS * block_size;
    if memory >= min {
        return Ok(());
    }
    Err(EngineError::InvalidSetting {
        setting: "memory",
        reason: format!(
            "{memory} bytes are too few: at least {min} are needed, which is {MIN_MEMORY_BLOCKS} blocks of {block_size}"
        ),
    })
}

/// Fraction of the memory for a chunk of an upload.
pub(super) const CHUNK_MEMORY_DIVISOR: u64 = 4;

/// Returns the bytes of a chunk at a memory limit, for a chunk of `max` bytes at the start. No store takes shorter parts than
/// [`S3_MIN_PART_BYTES`].
pub(super) fn chunk_bytes(memory: u64, max: u64) -> u64 {
    max.min((memory / CHUNK_MEMORY_DIVISOR).max(S3_MIN_PART_BYTES))
}

/// The limits of read-ahead at a memory limit; reads can hold `downloads` bytes.
pub(super) fn readahead_limits(memory: u64, downloads: u64) -> ReadaheadLimits {
    ReadaheadLimits {
        each: (FETCHES_AHEAD * FETCH_BYTES).min(memory / AHEAD_MEMORY_DIVISOR),
        all: memory / ALL_AHEAD_MEMORY_DIVISOR,
        downloads,
    }
}

/// Returns the maximum bytes of one range fetch.
pub(super) fn max_fetch_bytes(memory: u64) -> u64 {
    FETCH_BYTES.min(memory / AHEAD_MEMORY_DIVISOR)
}
