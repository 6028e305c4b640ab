//! Options of a bucket.

use std::time::Duration;

use crate::consistency::Consistency;
use crate::left_out::Unlistable;

/// Options of one bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BucketOptions {
    /// Time for which the known version of an object is trusted.
    pub consistency: Consistency,
    /// Size of a cached block in bytes, a power of two from 4 KiB to 4 MiB, and at most an eighth of the memory;
    /// `None`: the engine's. A block is the unit of caching, of eviction and of requests to the origin. Small blocks
    /// suit small random reads, large ones long scans.
    pub block_size: Option<usize>,
    /// Whether its listings leave out entries that they cannot list, or fail.
    pub unlistable: Unlistable,
    /// Time after the end of its consistency window for which a version is read as stale while the origin fails, if the bytes of the
    /// read are in memory or on the disk. `None`: never. For reads with [`crate::MayBeStale`], outside of clusters.
    pub stale_if_error: Option<Duration>,
}

impl From<Consistency> for BucketOptions {
    fn from(consistency: Consistency) -> Self {
        Self {
            consistency,
            ..Self::default()
        }
    }
}
