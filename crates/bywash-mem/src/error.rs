//! Errors, grouped by the remedies that the caller has.

use std::sync::Arc;

/// Cause of a failed load as its leader reported it. Shared by all waiters and readers.
pub type LoadError = Arc<dyn std::error::Error + Send + Sync>;

/// The pool could not be created. Nothing was allocated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The guarantees exceed the limit, or the limit is below one frame or above the ceiling.
    #[error(
        "memory pool: limit {limit} bytes (ceiling {ceiling}) cannot hold one frame and guarantees of {download} and {upload} bytes; raise the limit, within the ceiling, or lower the guarantees"
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
    /// The system's pages are larger than the smallest frame ([`crate::MIN_FRAME`]).
    #[error(
        "memory pool: pages of {bytes} bytes are not supported; use a kernel with pages of 4096 bytes"
    )]
    PageSize {
        /// Bytes of a page.
        bytes: usize,
    },
    /// The system refused the address space (not memory) for the frames.
    #[error(
        "memory pool: cannot reserve {bytes} bytes of address space; check `ulimit -v` and `vm.overcommit_memory`, or lower the memory limit"
    )]
    AddressSpace {
        /// Bytes of address space requested.
        bytes: u64,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The system has no memory that other processes can map. The pool works without [`crate::PoolConfig::shared`].
    #[error(
        "memory pool: cannot share memory with other processes: {source}; memfd_create and its seals need Linux 4.14, and /proc"
    )]
    SharedMemory {
        /// The system's error.
        source: std::io::Error,
    },
}

/// Memory could not be acquired. Nothing was charged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Waiting cannot help: the minimum exceeds the maximum of the share, or the length exceeds the largest frame.
    #[error(
        "memory: {bytes} bytes exceed the maximum of {max}; ask for less or raise the memory limit"
    )]
    TooLarge {
        /// The minimum requested, in bytes.
        bytes: u64,
        /// The maximum, in bytes.
        max: u64,
    },
}

/// End of a load that published no block, as its waiters and readers see it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FlightError {
    /// The leader failed the load for this reason. The next claim of the key starts a new load.
    #[error("load of a block failed: {0}")]
    Failed(#[source] LoadError),
    /// The leader was dropped, or the block was published and is evicted already. Claim the key again.
    #[error("load of a block was abandoned; look it up again")]
    Abandoned,
}

/// A block was published before all of its bytes were written. Its load failed with this error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("block is incomplete: {missing} of {len} bytes missing; load it again")]
pub struct Incomplete {
    /// Bytes missing.
    pub missing: usize,
    /// Length of the block; 0 if no frame was attached.
    pub len: usize,
}
