//! Errors of scratch, by the remedies that the program has.

use bywash_disk::SlotError;

/// Error of a scratch block. The block, if there was one, is as it was.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ScratchError {
    /// There is no memory, and blocks cannot be evicted: their temporary files are full, or the disk fails.
    #[error("no memory for a scratch block of {bytes} bytes, and none can be evicted: {source}")]
    NotEvictable {
        /// Length of the block that needs memory.
        bytes: usize,
        /// Why a block was not written to a temporary file.
        #[source]
        source: SlotError,
    },
    /// There was no memory until the deadline: pinned blocks and other users of the engine hold it.
    #[error(
        "no memory for a scratch block of {bytes} bytes within {waited_s} s: {used} of {limit} bytes are pinned or in use; unpin blocks, or raise the memory limit"
    )]
    NoMemory {
        /// Length of the block.
        bytes: usize,
        /// The deadline that passed, in seconds.
        waited_s: u64,
        /// Bytes of memory in use.
        used: u64,
        /// The memory limit.
        limit: u64,
    },
    /// No memory limit, or no frame, is large enough.
    #[error(
        "a scratch block of {bytes} bytes exceeds the maximum of {max}; allocate several, or raise the memory limit"
    )]
    TooLarge {
        /// Length of the block.
        bytes: usize,
        /// The maximum.
        max: u64,
    },
    /// The block could not be read from its temporary file.
    #[error("scratch block: {0}")]
    Unreadable(#[source] SlotError),
    /// The runtime of the asynchronous call is shutting down.
    #[error("scratch block: the runtime is shutting down; use a method that blocks")]
    ShuttingDown,
}
