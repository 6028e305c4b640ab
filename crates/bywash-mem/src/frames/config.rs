//! Settings of a pool, and the two shares its memory is divided into.

use std::time::Duration;

use super::MIN_FRAME;
use crate::error::PoolError;

/// The share that a charge counts against. Each share has a guarantee that the other cannot take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Share {
    /// Blocks, resident or loading, and everything else that serves reads.
    Download = 0,
    /// Bytes of writes until the origin has stored them.
    Upload = 1,
}

impl Share {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Download => Self::Upload,
            Self::Upload => Self::Download,
        }
    }
}

/// Sizes of a [`crate::BlockPool`], in bytes, and the thresholds of its slow-eviction warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolConfig {
    /// Ceiling of all committed memory: frames in use, idle frames and reservations.
    pub limit: u64,
    /// Highest limit that can be set at run time. Address space of this size is reserved; memory is not.
    pub ceiling: u64,
    /// Bytes that uploads can never take from downloads.
    pub download_guarantee: u64,
    /// Bytes that downloads can never take from uploads. Resident blocks count as downloads.
    pub upload_guarantee: u64,
    /// Duration above which an eviction pass logs a warning and counts in [`crate::PoolStats::slow_evictions`].
    pub slow_eviction: Duration,
    /// Average number of fruitless looks at each block from which on an eviction pass counts as slow too. One round is normal, and no
    /// pass takes more than three unless other threads use blocks that it has looked at.
    pub slow_eviction_rounds: u32,
    /// Whether frames below 2 MiB are in memory that other processes can map ([`crate::BlockPool::shared_memory`]).
    pub shared: bool,
}

impl PoolConfig {
    /// Returns a configuration that guarantees a quarter of `limit` to each share.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            ceiling: limit,
            download_guarantee: limit / 4,
            upload_guarantee: limit / 4,
            // Readers notice a pause of a second. A pass that finds nothing takes two rounds or more.
            slow_eviction: Duration::from_secs(1),
            slow_eviction_rounds: 2,
            shared: false,
        }
    }

    pub(super) fn check(&self) -> Result<(), PoolError> {
        let guaranteed = self.download_guarantee.checked_add(self.upload_guarantee);
        if self.limit >= MIN_FRAME as u64
            && self.limit <= self.ceiling
            && guaranteed.is_some_and(|sum| sum <= self.limit)
        {
            return Ok(());
        }
        Err(PoolError::Config {
            limit: self.limit,
            ceiling: self.ceiling,
            download: self.download_guarantee,
            upload: self.upload_guarantee,
        })
    }

    /// Returns the same configuration with another limit. Each guarantee keeps its fraction of the limit.
    pub(crate) fn with_limit(&self, limit: u64) -> Self {
        let part = |guarantee: u64| {
            let part = u128::from(guarantee) * u128::from(limit) / u128::from(self.limit);
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        Self {
            limit,
            download_guarantee: part(self.download_guarantee),
            upload_guarantee: part(self.upload_guarantee),
            ..*self
        }
    }

    pub(super) fn guarantee(&self, share: Share) -> u64 {
        match share {
            Share::Download => self.download_guarantee,
            Share::Upload => self.upload_guarantee,
        }
    }

    /// Maximum that a share can ever hold: the limit minus the other share's guarantee.
    pub(crate) fn max_of_share(&self, share: Share) -> u64 {
        self.limit - self.guarantee(share.other())
    }
}
