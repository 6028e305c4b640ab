//! Settings of the engine.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bywash_disk::{DiskError, Tier, TierOptions};
use bywash_mem::{BlockPool, PoolConfig, PoolError, Share};
use parking_lot::Mutex;

use super::Engine;
use super::checks::{
    CHUNK_MEMORY_DIVISOR, check_block_size, check_memory, chunk_bytes, max_fetch_bytes,
    readahead_limits,
};
use super::shares::MemoryShares;
use crate::byte_quota::{ByteQuota, Quotas};
use crate::cgroup::available_memory;
use crate::cluster::Cluster;
use crate::copy_memory::copies_bytes;
use crate::damage::DamagedFiles;
use crate::disk::{DiskOptions, DiskTier};
use crate::error::EngineError;
use crate::read::{AbandonedMemory, ForeignBlocks, Loans, PeerDemand, ReadaheadBudget};
use crate::retry::RetryPolicy;
use crate::shared::EngineShared;
use crate::spill::SpillRouter;
use crate::upload::journal::Journal;
use crate::verify::Verify;
use crate::versions::KnownObjects;
use crate::write_cache::WriteCache;

/// Default fraction of the machine's memory: a quarter leaves room for other programs.
const DEFAULT_MEMORY_DIVISOR: u64 = 4;
/// Default block size: large enough to amortise a request, small enough for random reads.
const DEFAULT_BLOCK_BYTES: usize = 1 << 20;
/// Default upload chunk, and maximum length of a body stored by one atomic put.
const DEFAULT_CHUNK_BYTES: u64 = 16 << 20;

/// Settings of an [`Engine`]. Checked by [`EngineBuilder::build`].
#[derive(Debug, Clone)]
pub struct EngineBuilder {
    memory: Option<u64>,
    shares: MemoryShares,
    block_size: usize,
    chunk_size: Option<u64>,
    root: Option<PathBuf>,
    journal: Option<Journal>,
    retry: RetryPolicy,
    hedge: bool,
    verify: Verify,
    write_cache: WriteCache,
    admission_deadline: Duration,
    slow_eviction: Option<Duration>,
    slow_eviction_rounds: Option<u32>,
    disk: Option<DiskOptions>,
    cluster: Option<Cluster>,
    shared_memory: bool,
    #[cfg(feature = "testing")]
    fake_disk: Option<bywash_disk::testing::FakeDisk>,
}

impl EngineBuilder {
    pub(super) fn new() -> Self {
        Self {
            memory: None,
            shares: MemoryShares::default(),
            block_size: DEFAULT_BLOCK_BYTES,
            chunk_size: None,
            root: None,
            journal: None,
            retry: RetryPolicy::default(),
            hedge: false,
            verify: Verify::default(),
            write_cache: WriteCache::default(),
            admission_deadline: Duration::from_secs(60),
            slow_eviction: None,
            slow_eviction_rounds: None,
            disk: None,
            cluster: None,
            shared_memory: false,
            #[cfg(feature = "testing")]
            fake_disk: None,
        }
    }

    /// Sets the memory ceiling in bytes, for blocks, downloads in flight and upload buffers together. Default: a
    /// quarter of the memory of the machine or its control group.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Sets which parts of the memory are guaranteed to reads and to writes. Default: a quarter each.
    #[must_use]
    pub fn memory_shares(mut self, shares: MemoryShares) -> Self {
        self.shares = shares;
        self
    }

    /// Sets the default size of a cached block in bytes, a power of two from 4 KiB to 4 MiB. Default 1 MiB.
    #[must_use]
    pub fn block_size(mut self, bytes: usize) -> Self {
        self.block_size = bytes;
        self
    }

    /// Sets the size of an upload chunk in bytes; longer bodies become uploads in parts. Default 16 MiB, or a quarter
    /// of the memory if that is less.
    #[must_use]
    pub fn chunk_size(mut self, bytes: usize) -> Self {
        self.chunk_size = Some(bytes as u64);
        self
    }

    /// Sets a folder with sub-folders that are buckets that can be created and deleted. Default: none.
    #[must_use]
    pub fn root(mut self, folder: impl Into<PathBuf>) -> Self {
        self.root = Some(folder.into());
        self
    }

    /// Sets the folder of the journal, which records open uploads so that another process can continue them. It is
    /// created with the first upload, and processes may share it. Default: none, and an upload ends with its process.
    #[must_use]
    pub fn journal(mut self, folder: impl Into<PathBuf>) -> Self {
        self.journal = Some(Journal::at(folder));
        self
    }

    /// Sets how failed requests to origins are retried.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// Sets whether a data request slower than 95 % of its peers is hedged: sent a second time, with the first
    /// response used. At most [`crate::HEDGED_PERCENT`] of the requests are. Default: no, for each costs as much as a
    /// request.
    #[must_use]
    pub fn hedge(mut self, on: bool) -> Self {
        self.hedge = on;
        self
    }

    /// Sets which reads are compared with the digest that the store states. Default: reads of whole objects.
    #[must_use]
    pub fn verify(mut self, reads: Verify) -> Self {
        self.verify = reads;
        self
    }

    /// Sets when the bytes of a write come into memory. Default: at the first read.
    #[must_use]
    pub fn write_cache(mut self, when: WriteCache) -> Self {
        self.write_cache = when;
        self
    }

    /// Sets how long a request may wait for memory before it fails with SlowDown. Default 60 s.
    #[must_use]
    pub fn admission_deadline(mut self, deadline: Duration) -> Self {
        self.admission_deadline = deadline;
        self
    }

    /// Sets the time above which one pass of eviction counts as slow, and is logged. Default 1 s.
    #[must_use]
    pub fn slow_eviction(mut self, time: Duration) -> Self {
        self.slow_eviction = Some(time);
        self
    }

    /// Sets how often a pass of eviction may look at all blocks without success before it counts as slow. Default 2, which a pass reaches
    /// that finds all blocks pinned; a normal one takes less than 1.
    #[must_use]
    pub fn slow_eviction_rounds(mut self, rounds: u32) -> Self {
        self.slow_eviction_rounds = Some(rounds);
        self
    }

    /// Sets a disk tier below memory: blocks of slow origins (s3://, gs://, az://, http://) are kept there, and are read
    /// from there after a restart. Default: none.
    #[must_use]
    pub fn disk(mut self, options: DiskOptions) -> Self {
        self.disk = Some(options);
        self
    }

    /// Sets the cluster that the engine belongs to: nodes over the same origins that act as one. Default: none.
    #[must_use]
    pub fn cluster(mut self, cluster: Cluster) -> Self {
        self.cluster = Some(cluster);
        self
    }

    /// Sets whether blocks up to 1 MiB are in memory that other processes can map, for [`crate::Bucket::lease`]. Default: no. On a system
    /// without such memory the engine logs why and has none.
    #[must_use]
    pub fn shared_memory(mut self, on: bool) -> Self {
        self.shared_memory = on;
        self
    }

    /// For tests: uses a disk in memory for the tier that [`Self::disk`] sets.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn fake_disk(mut self, disk: bywash_disk::testing::FakeDisk) -> Self {
        self.fake_disk = Some(disk);
        self
    }

    fn open_tier(&self, options: &TierOptions) -> Result<Tier, DiskError> {
        #[cfg(feature = "testing")]
        if let Some(disk) = &self.fake_disk {
            return Tier::open_fake(options, disk);
        }
        Tier::open(options, rand::random())
    }

    fn open_pool(&self, memory: u64) -> Result<Arc<BlockPool>, EngineError> {
        let defaults = self.shares.of_pool(memory);
        let rounds = self.slow_eviction_rounds;
        let config = PoolConfig {
            ceiling: memory.max(available_memory()),
            slow_eviction: self.slow_eviction.unwrap_or(defaults.slow_eviction),
            slow_eviction_rounds: rounds.unwrap_or(defaults.slow_eviction_rounds),
            shared: self.shared_memory,
            ..defaults
        };
        new_pool(config)
    }

    fn open_disk(
        &self,
        pool: &Arc<BlockPool>,
        spill: &SpillRouter,
        block_size: u64,
        damaged: &DamagedFiles,
    ) -> Result<Option<DiskTier>, EngineError> {
        let Some(options) = &self.disk else {
            return Ok(None);
        };
        let open_tier = |options: &TierOptions| self.open_tier(options);
        DiskTier::open(options, open_tier, pool, spill, block_size, damaged)
    }

    fn create_root(&self) -> Result<(), EngineError> {
        let Some(root) = &self.root else {
            return Ok(());
        };
        std::fs::create_dir_all(root).map_err(|source| EngineError::Io {
            bucket: root.display().to_string(),
            source,
        })
    }

    /// Checks the settings and creates the engine. Creates the root folder if it is missing.
    pub fn build(self) -> Result<Engine, EngineError> {
        let memory = self
            .memory
            .unwrap_or_else(|| available_memory() / DEFAULT_MEMORY_DIVISOR);
        let invalid =
            |setting, reason: String| Err(EngineError::InvalidSetting { setting, reason });
        let block_size = check_block_size(self.block_size)?;
        check_memory(memory, block_size)?;
        let chunk_size = self
            .chunk_size
            .unwrap_or_else(|| DEFAULT_CHUNK_BYTES.min(memory / CHUNK_MEMORY_DIVISOR));
        if chunk_size == 0 || chunk_size > memory / 2 {
            return invalid(
                "chunk_size",
                format!("{chunk_size} is not between 1 and half of the memory ({memory})"),
            );
        }
        self.create_root()?;
        let pool = self.open_pool(memory)?;
        let downloads = pool.budget().max_of_share(Share::Download);
        let objects = Arc::new(KnownObjects::new(&pool));
        let spill = Arc::new(SpillRouter::default());
        pool.set_spill(Arc::<SpillRouter>::clone(&spill));
        let damaged = DamagedFiles::default();
        let disk = self.open_disk(&pool, &spill, block_size, &damaged)?;
        let quotas = Quotas::default();
        let chunk_is_set = self.chunk_size.is_some();
        let copies = copies_quota(&quotas, memory, chunk_size, chunk_is_set);
        let shared = EngineShared {
            pool,
            quotas,
            copies,
            block_size,
            max_chunk_size: chunk_size,
            chunk_size: AtomicU64::new(chunk_size),
            chunk_is_set,
            fetch_size: AtomicU64::new(max_fetch_bytes(memory)),
            limit_change: Mutex::default(),
            announced_limit: AtomicU64::new(u64::MAX),
            readahead: ReadaheadBudget::new(readahead_limits(memory, downloads)),
            loans: Loans::new(downloads),
            objects,
            root: self.root,
            journal: self.journal,
            retry: self.retry,
            hedge: self.hedge,
            verify: self.verify,
            write_cache: self.write_cache,
            admission_deadline: self.admission_deadline,
            abandoned: AbandonedMemory::default(),
            file_downloads: Arc::default(),
            traffic: Arc::default(),
            idle_evicted_bytes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            spill,
            disk,
            damaged,
            stores: AtomicU32::new(0),
            foreign: ForeignBlocks::default(),
            demand: self.cluster.as_ref().map(|_| PeerDemand::default()),
            cluster: self.cluster,
            local: OnceLock::new(),
        };
        Ok(Engine {
            shared: Arc::new(shared),
            buckets: Arc::default(),
        })
    }
}

/// Creates the pool, without shared memory if the system has none.
fn new_pool(config: PoolConfig) -> Result<Arc<BlockPool>, EngineError> {
    let pool = match BlockPool::new(config) {
        Err(error @ PoolError::SharedMemory { .. }) => {
            tracing::warn!(%error, "other processes get copies of blocks instead of views");
            BlockPool::new(PoolConfig {
                shared: false,
                ..config
            })
        }
        pool => pool,
    };
    pool.map_err(|error| EngineError::InvalidSetting {
        setting: "memory",
        reason: error.to_string(),
    })
}

/// Returns the quota of copies, enough for one at least.
fn copies_quota(quotas: &Quotas, memory: u64, max_chunk: u64, is_set: bool) -> Arc<ByteQuota> {
    quotas.create(memory, move |limit| {
        let chunk = if is_set {
            max_chunk
        } else {
            chunk_bytes(limit, max_chunk)
        };
        copies_bytes(limit, chunk, max_fetch_bytes(limit))
    })
}
