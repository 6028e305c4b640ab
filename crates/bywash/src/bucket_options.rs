//! Options of a bucket.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bywash_mem::Keep;

use crate::consistency::Consistency;
use crate::key_digest::DigestInKey;
use crate::left_out::Unlistable;

/// For how long the blocks of a bucket stay in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Caching {
    /// Until others need the memory.
    #[default]
    Kept,
    /// While a request reads them: requests that read at the same time share them, and nothing is on the disk tier. For objects that
    /// are read once, which would only evict others. Not in a cluster, whose nodes keep blocks for each other.
    WhileRead,
}

impl Caching {
    /// How long the pool keeps its blocks.
    pub(crate) fn keep(self) -> Keep {
        match self {
            Self::Kept => Keep::UntilEvicted,
            Self::WhileRead => Keep::WhilePinned,
        }
    }
}

impl FromStr for Caching {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "kept" => Ok(Self::Kept),
            "while-read" => Ok(Self::WhileRead),
            _ => Err(format!("{text:?} is neither kept nor while-read")),
        }
    }
}

impl fmt::Display for Caching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kept => "kept",
            Self::WhileRead => "while-read",
        })
    }
}

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
    /// For how long its blocks stay in memory.
    pub caching: Caching,
    /// Where its keys have the digest of their object, with which whole reads and all writes are compared. `None`: they have none.
    pub digest_in_key: Option<DigestInKey>,
}

impl From<Consistency> for BucketOptions {
    fn from(consistency: Consistency) -> Self {
        Self {
            consistency,
            ..Self::default()
        }
    }
}
