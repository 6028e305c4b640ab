//! Errors, by what the caller can do about them.

use std::sync::Arc;

/// Why a load failed, as its leader said it; shared by everyone who waited.
pub type LoadError = Arc<dyn std::error::Error + Send + Sync>;

/// The pool could not be built. Nothing was taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The two guarantees do not fit below the limit, or the limit holds no frame or is above the ceiling.
    #[error(
        "memory pool: limit {limit} bytes (of at most {ceiling}) cannot hold one frame and guarantees of {download} and {upload} bytes; raise the limit, within the ceiling, or lower the guarantees"
    )]
    Config {
        /// The configured limit, in bytes.
        limit: u64,
        /// The configured ceiling, in bytes.
        ceiling: u64,
        /// The downloads' guarantee, in bytes.
        download: u64,
        /// The uploads' guarantee, in bytes.
        upload: u64,
    },
    /// The system refused the address space (not memory) for the frames.
    #[error(
        "memory pool: cannot reserve {bytes} bytes of address space; check `ulimit -v` and `vm.overcommit_memory`, or lower the memory limit"
    )]
    AddressSpace {
        /// What was asked for, in bytes.
        bytes: u64,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// Frames could not be had. Nothing was taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Waiting would never help: the minimum exceeds what this share can ever hold, or the length the largest frame.
    #[error(
        "memory: {bytes} bytes can never be had, at most {most}; ask for less or raise the memory limit"
    )]
    TooLarge {
        /// What was asked for as the minimum, in bytes.
        bytes: u64,
        /// The most that could ever be given, in bytes.
        most: u64,
    },
    /// The deadline passed while others held the memory. Trying again later may work.
    #[error("memory: no {bytes} bytes came free before the deadline; try again later")]
    Deadline {
        /// What was asked for as the minimum, in bytes.
        bytes: u64,
    },
}

/// How a load ended for someone who waited for it or read along.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FlightError {
    /// The leader gave up for this reason. The next claim of the key starts afresh.
    #[error("load of a block failed: {0}")]
    Failed(#[source] LoadError),
    /// The load ended without a word (its leader went away), or the block was published and is already gone. Claim the key again.
    #[error("load of a block was abandoned; look it up again")]
    Abandoned,
}

/// A block was published before all of its bytes were there. Its load has failed with this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("block is incomplete: {missing} bytes of {len} missing; load it again")]
pub struct Incomplete {
    /// Bytes still missing.
    pub missing: usize,
    /// The block's length; 0 if no frame was attached.
    pub len: usize,
}
