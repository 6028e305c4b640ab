//! The limits of memory and disk at run time.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use bywash_mem::Share;
use serde::{Deserialize, Serialize};

use super::Engine;
use super::checks::{
    MIN_MEMORY_BLOCKS, check_memory, chunk_bytes, max_fetch_bytes, readahead_limits,
};
use crate::byte_quota::ByteQuota;
use crate::error::EngineError;

/// Limits of the cache, by tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheLimits {
    /// Memory.
    pub memory: MemoryLimit,
    /// The disk tier, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskLimit>,
}

/// The limit of the disk tier. In bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskLimit {
    /// The limit in force: whole segments, so at most the limit that was set.
    pub limit: u64,
    /// Blocks on the disk.
    pub blocks: u64,
}

/// The memory limit, and the range it can be set to. In bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLimit {
    /// The limit in force.
    pub limit: u64,
    /// Memory in use, idle frames included.
    pub used: u64,
    /// Minimum limit: eight of the largest blocks and two upload chunks must fit.
    pub min: u64,
    /// Maximum limit: the memory of the machine or its control group at start, or the limit at start if that was higher.
    pub max: u64,
}

impl Engine {
    /// Changes the memory limit at run time: upwards at once, within the memory of the machine; downwards by evicting
    /// blocks. Read-ahead, loans, range fetches and the chunks of uploads that begin later follow the limit.
    ///
    /// Blocks the thread: scans the pool and gives pages back. Requests continue.
    ///
    /// # Errors
    /// [`EngineError::InvalidSetting`] or [`EngineError::MemoryLimit`] if it is out of range, or if readers and writers
    /// hold more now. The limit is then unchanged.
    pub fn set_memory(&self, bytes: u64) -> Result<(), EngineError> {
        let shared = &self.shared;
        let _turn = shared.limit_change.lock();
        {
            let buckets = self.buckets.read();
            let blocks = buckets
                .values()
                .map(|mounted| mounted.bucket.shared().block_size);
            check_memory(bytes, blocks.fold(shared.block_size, u64::max))?;
            // Under the lock of the buckets, which orders it: a bucket mounted from now on fits this limit too.
            shared.announced_limit.store(bytes, Relaxed);
        }
        let changed = self.change_limit(bytes);
        // Release: `lowest_limit` sees the changed limit if it sees this.
        shared.announced_limit.store(u64::MAX, Release);
        changed
    }

    fn change_limit(&self, bytes: u64) -> Result<(), EngineError> {
        let shared = &self.shared;
        let chunk_size = shared.max_chunk_size;
        if chunk_size > bytes / 2 {
            return Err(EngineError::InvalidSetting {
                setting: "memory",
                reason: format!("{bytes} bytes are less than two upload chunks of {chunk_size}"),
            });
        }
        if bytes < shared.pool.budget().limit() {
            // Blocks read ahead are pinned, and can be evicted once they are not.
            shared.readahead.release_all();
        }
        // First, as the charge of the tables could exceed a lower limit.
        shared.objects.resize(&shared.pool, bytes);
        let changed = shared.pool.set_limit(bytes);
        shared.objects.resize(&shared.pool, u64::MAX);
        changed?;
        let downloads = shared.pool.budget().max_of_share(Share::Download);
        let limits = readahead_limits(bytes, downloads);
        shared.loans.set_downloads(limits.downloads);
        shared.readahead.set_limits(limits);
        // Relaxed: the size of the next range fetch, which orders nothing.
        let fetch_size = max_fetch_bytes(bytes);
        shared.fetch_size.store(fetch_size, Relaxed);
        if !shared.chunk_is_set {
            // Relaxed: as above, of the next upload.
            let chunk_size = chunk_bytes(bytes, shared.max_chunk_size);
            shared.chunk_size.store(chunk_size, Relaxed);
        }
        shared.quotas.set_limit(bytes);
        Ok(())
    }

    /// Returns a quota of `part` of the memory limit, at least one byte, which follows the limit.
    pub fn byte_quota(&self, part: impl Fn(u64) -> u64 + Send + Sync + 'static) -> Arc<ByteQuota> {
        // Under the lock of changes: the quota misses none.
        let _turn = self.shared.limit_change.lock();
        self.shared.quotas.create(self.budget().limit(), part)
    }

    /// The limit in force, or the one that is being set if that is lower.
    pub(super) fn lowest_limit(&self) -> u64 {
        // Acquire: pairs with the store of `set_memory`. The caller has the lock of the buckets, under which a lower limit is
        // announced.
        let announced = self.shared.announced_limit.load(Acquire);
        self.budget().limit().min(announced)
    }

    /// The limits of the cache.
    #[must_use]
    pub fn cache_limits(&self) -> CacheLimits {
        let shared = &self.shared;
        let buckets = self.buckets.read();
        let blocks = buckets
            .values()
            .map(|mounted| mounted.bucket.shared().block_size);
        let largest = blocks.fold(shared.block_size, u64::max);
        drop(buckets);
        let budget = self.budget();
        CacheLimits {
            memory: MemoryLimit {
                limit: budget.limit(),
                used: budget.used(),
                min: (MIN_MEMORY_BLOCKS * largest).max(2 * shared.max_chunk_size),
                max: budget.ceiling(),
            },
            disk: shared.disk.as_ref().map(|disk| {
                let stats = disk.stats();
                DiskLimit {
                    limit: stats.size,
                    blocks: stats.blocks,
                }
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn quotas_follow_the_memory_limit() {
        let engine = Engine::builder().memory(64 << 20).build().unwrap();
        let quota = engine.byte_quota(|limit| limit / 4);
        assert_eq!(quota.total(), 16 << 20);
        engine.set_memory(32 << 20).unwrap();
        assert_eq!(quota.total(), 8 << 20);
    }

    #[test]
    fn chunks_follow_the_memory_limit_unless_they_were_set() {
        let chunk = |engine: &Engine| engine.shared.chunk_size.load(Relaxed);
        let engine = Engine::builder().memory(64 << 20).build().unwrap();
        assert_eq!(chunk(&engine), 16 << 20);
        for (limit, expected) in [(40_u64, 10), (32, 8), (48, 12), (64, 16), (128, 16)] {
            engine.set_memory(limit << 20).unwrap();
            assert_eq!(chunk(&engine), expected << 20, "{limit}");
            // As at a start with this limit.
            let started = Engine::builder().memory(limit << 20).build();
            assert_eq!(chunk(&started.unwrap()).min(16 << 20), expected << 20);
        }
        let engine = Engine::builder().memory(64 << 20).chunk_size(16 << 20);
        let engine = engine.build().unwrap();
        engine.set_memory(40 << 20).unwrap();
        assert_eq!(chunk(&engine), 16 << 20);
    }
}
