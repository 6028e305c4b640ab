//! State that the handles of an engine and of its buckets share.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bywash_mem::{BlockOptions, BlockPool, Frame, FrameError, Reservation, Share};
use bywash_store::{Capability, Metered, Origin, OriginHealth, VersionDeletes};
use crossbeam_utils::CachePadded;
use object_store::Result as StoreResult;
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::block_kind::BlockKind;
use crate::bucket_options::{BucketOptions, Caching};
use crate::byte_quota::{ByteQuota, Quotas};
use crate::cluster::{Cluster, PeerWaits};
use crate::consistency::Consistency;
use crate::damage::DamagedFiles;
use crate::disk::{DiskTier, DiskVersion};
use crate::error::EngineError;
use crate::key_digest::DigestInKey;
use crate::key_turns::KeyTurns;
use crate::left_out::{Unlistable, WarnedEntries};
use crate::limits::MAX_RANGED_GETS;
use crate::read::{
    AbandonedMemory, DownloadFlights, FileDownloadQueues, FileDownloads, FlightResult,
    ForeignBlocks, LatencyWindow, Loans, PeerDemand, ReadaheadBudget, SequentialDetector,
    SingleFlight,
};
use crate::retry::{BucketRetry, RetryPolicy};
use crate::spill::SpillRouter;
use crate::stats::{Counters, LocalStatsSource};
use crate::traffic::Traffic;
use crate::upload::journal::Journal;
use crate::verify::Verify;
use crate::versions::{KnownObjects, Version, Versions};
use crate::write_cache::WriteCache;

/// State shared by all handles and buckets of an engine.
#[derive(Debug)]
pub(crate) struct EngineShared {
    pub(crate) pool: Arc<BlockPool>,
    /// Default bytes of a cached block.
    pub(crate) block_size: u64,
    /// Bytes of an upload chunk at the start, the most that it becomes again.
    pub(crate) max_chunk_size: u64,
    /// Bytes of an upload chunk, for uploads that begin now.
    pub(crate) chunk_size: AtomicU64,
    /// Whether it was set: then it does not follow the memory limit.
    pub(crate) chunk_is_set: bool,
    /// Maximum bytes of one ranged GET, if the bucket's block is not larger.
    pub(crate) fetch_size: AtomicU64,
    /// Held while the memory limit changes, so that values derived from it are set in the same order.
    pub(crate) limit_change: Mutex<()>,
    /// The limit that a change in progress leads to; `u64::MAX` without one.
    pub(crate) announced_limit: AtomicU64,
    /// The quotas that follow the memory limit.
    pub(crate) quotas: Quotas,
    /// Memory of copies.
    pub(crate) copies: Arc<ByteQuota>,
    /// Blocks that bodies have read ahead.
    pub(crate) readahead: Arc<ReadaheadBudget>,
    /// Block memory lent to the bodies' consumers.
    pub(crate) loans: Arc<Loans>,
    /// Known objects of all buckets.
    pub(crate) objects: Arc<KnownObjects>,
    pub(crate) root: Option<PathBuf>,
    /// Journal of open uploads.
    pub(crate) journal: Option<Journal>,
    pub(crate) retry: RetryPolicy,
    /// Whether slow requests are hedged.
    pub(crate) hedge: bool,
    /// Reads that are compared with the digest that the store states.
    pub(crate) verify: Verify,
    /// Time at which the bytes of a write come into memory.
    pub(crate) write_cache: WriteCache,
    pub(crate) admission_deadline: Duration,
    /// Memory of requests that continue without readers.
    pub(crate) abandoned: AbandonedMemory,
    /// Counters of downloads to files.
    pub(crate) file_downloads: Arc<FileDownloads>,
    /// Statistics of the endpoints' requests.
    pub(crate) traffic: Arc<Traffic>,
    /// Bytes of blocks evicted because they were not used for a time.
    pub(crate) idle_evicted_bytes: AtomicU64,
    /// Requests that got no memory within the admission deadline. Written by any request, read by snapshots; it orders nothing, hence
    /// relaxed.
    pub(crate) refused: AtomicU64,
    /// Destination of evicted blocks that are to be kept.
    pub(crate) spill: Arc<SpillRouter>,
    /// The tier below memory.
    pub(crate) disk: Option<DiskTier>,
    /// Files of the server that cannot be used.
    pub(crate) damaged: DamagedFiles,
    /// Bucket numbers for the pool's keys; only uniqueness matters, hence relaxed.
    pub(crate) stores: AtomicU32,
    /// The cluster that it belongs to.
    pub(crate) cluster: Option<Cluster>,
    /// Blocks of other nodes' stripes.
    pub(crate) foreign: ForeignBlocks,
    /// Requests of other nodes, in a cluster.
    pub(crate) demand: Option<PeerDemand>,
    /// The local door, set once. It has a handle of the engine itself.
    pub(crate) local: OnceLock<Weak<dyn LocalStatsSource>>,
}

impl EngineShared {
    /// The number of a new bucket.
    pub(crate) fn next_store(&self) -> u32 {
        self.stores.fetch_add(1, Relaxed)
    }

    /// Allocates a frame for a block of `length` bytes, waiting in order until the admission deadline.
    pub(crate) async fn frame(
        &self,
        length: usize,
        operation: &'static str,
        object: &Path,
    ) -> StoreResult<Frame> {
        let mut frames = self
            .frames(Share::Download, length, 1, operation, object)
            .await?;
        Ok(frames
            .pop()
            .expect("at least the one frame asked for was granted"))
    }

    /// Allocates `count` frames of `length` bytes each, all or none, waiting in order until the deadline.
    pub(crate) async fn frames(
        &self,
        share: Share,
        length: usize,
        count: usize,
        operation: &'static str,
        object: &Path,
    ) -> StoreResult<Vec<Frame>> {
        if let Some(frames) = self.pool.try_frames(share, length, count, count) {
            return Ok(frames);
        }
        let wait = self.pool.frames(share, length, count, count);
        Ok(self.admitted(wait, operation, object.as_ref()).await?)
    }

    /// Charges `bytes` that are not a frame to `share`, waiting in order until the admission deadline.
    pub(crate) async fn reserve(
        &self,
        share: Share,
        bytes: u64,
        operation: &'static str,
        object: &str,
    ) -> Result<Reservation, EngineError> {
        if let Some(charge) = self.pool.try_reserve(share, bytes) {
            return Ok(charge);
        }
        let wait = self.pool.reserve(share, bytes);
        self.admitted(wait, operation, object).await
    }

    /// Waits for memory until the admission deadline.
    pub(crate) async fn admitted<T>(
        &self,
        wait: impl Future<Output = Result<T, FrameError>>,
        operation: &'static str,
        object: &str,
    ) -> Result<T, EngineError> {
        // Release read-ahead memory before blocking: foreground requests take precedence.
        self.readahead.release_all();
        match tokio::time::timeout(self.admission_deadline, wait).await {
            Ok(Ok(memory)) => Ok(memory),
            Ok(Err(error @ FrameError::TooLarge { .. })) => Err(EngineError::InvalidSetting {
                setting: "memory",
                reason: error.to_string(),
            }),
            Ok(Err(_)) | Err(_) => Err(self.slow_down(operation, object)),
        }
    }

    /// Counts a request that waited for memory until the deadline, and returns its error.
    pub(crate) fn slow_down(&self, operation: &'static str, object: &str) -> EngineError {
        self.refused.fetch_add(1, Relaxed);
        EngineError::SlowDown {
            operation,
            object: object.to_owned(),
            waited_s: self.admission_deadline.as_secs(),
        }
    }
}

/// State shared by all handles of a bucket.
#[derive(Debug)]
pub(crate) struct BucketShared {
    pub(crate) name: String,
    /// The origin behind [`Metered`].
    pub(crate) origin: Arc<dyn Origin>,
    pub(crate) health: Arc<OriginHealth>,
    pub(crate) consistency: Consistency,
    /// Whether its listings leave out entries that they cannot list, or fail.
    pub(crate) unlistable: Unlistable,
    /// See [`BucketOptions::stale_if_error`].
    pub(crate) stale_if_error: Option<Duration>,
    /// For how long its blocks stay in memory.
    pub(crate) caching: Caching,
    /// Where its keys have the digest of their object.
    pub(crate) digest_in_key: Option<DigestInKey>,
    pub(crate) warned_entries: WarnedEntries,
    /// Bytes of a cached block.
    pub(crate) block_size: u64,
    /// Identity of the origin on the disk tier, if there is one and blocks of this origin are kept there.
    disk_identity: Option<String>,
    pub(crate) counters: CachePadded<Counters>,
    pub(crate) versions: Versions,
    /// Requests in flight for the version of an object.
    pub(crate) flights: Arc<SingleFlight<Arc<FlightResult>>>,
    /// Downloads of whole objects into memory in progress.
    pub(crate) downloads: DownloadFlights,
    /// Queues of downloads to files.
    pub(crate) file_queues: FileDownloadQueues,
    pub(crate) sequential: SequentialDetector,
    pub(crate) latencies: LatencyWindow,
    /// Permits for ranged GETs in flight. One semaphore per bucket: an origin that hangs must not block other
    /// buckets.
    pub(crate) fetch_permits: Arc<Semaphore>,
    /// The cluster that the engine belongs to.
    pub(crate) cluster: Option<Cluster>,
    /// Turns of writes, over a store without conditional deletes.
    pub(crate) key_turns: Option<Arc<KeyTurns>>,
    /// Turns of changes that read the object first. Their writes have turns of their own.
    pub(crate) change_turns: Arc<KeyTurns>,
    /// Loads that wait for other nodes.
    pub(crate) peer_waits: Arc<PeerWaits>,
    pub(crate) engine: Arc<EngineShared>,
}

impl BucketShared {
    /// The retry policy of the bucket's requests, with their count.
    pub(crate) fn retry(&self) -> BucketRetry {
        BucketRetry {
            policy: self.engine.retry,
            count: Arc::clone(self.counters.retries()),
        }
    }

    pub(crate) fn new(
        name: &str,
        origin: Arc<dyn Origin>,
        options: &BucketOptions,
        engine: Arc<EngineShared>,
    ) -> Self {
        let consistency = options.consistency;
        let block_size = options
            .block_size
            .map_or(engine.block_size, |size| size as u64);
        let pool = Arc::clone(&engine.pool);
        let health = Arc::new(OriginHealth::default());
        let stays = engine.disk.is_some() && options.caching == Caching::Kept;
        let disk_identity = stays.then(|| origin.identity()).flatten();
        let disk_identity = disk_identity.map(|identity| identity.reads);
        // Turns are of this process: nodes of a cluster have none, and so no looks before deletes.
        let looks = engine.cluster.is_none()
            && origin.capabilities().version_deletes == VersionDeletes::ByLook;
        let needs_turns = looks && origin.capabilities().can(Capability::Write);
        let traffic = Arc::clone(&engine.traffic);
        let note = move |request, latency| traffic.note_origin(request, latency);
        let metered = Metered::new(origin, Arc::clone(&health), Arc::new(note));
        Self {
            name: name.to_owned(),
            origin: Arc::new(metered),
            health,
            consistency,
            unlistable: options.unlistable,
            stale_if_error: options.stale_if_error,
            caching: options.caching,
            digest_in_key: options.digest_in_key,
            warned_entries: WarnedEntries::default(),
            block_size,
            disk_identity,
            counters: CachePadded::default(),
            versions: Versions::new(
                pool,
                Arc::clone(&engine.objects),
                engine.next_store(),
                block_size,
                consistency.max_age(),
            ),
            flights: Arc::default(),
            downloads: DownloadFlights::default(),
            file_queues: FileDownloadQueues::default(),
            sequential: SequentialDetector::default(),
            latencies: LatencyWindow::default(),
            fetch_permits: Arc::new(Semaphore::new(MAX_RANGED_GETS)),
            cluster: engine.cluster.clone(),
            key_turns: needs_turns.then(Arc::default),
            change_turns: Arc::default(),
            peer_waits: Arc::default(),
            engine,
        }
    }

    /// The options of its blocks of a kind.
    pub(crate) fn block_options(&self, kind: BlockKind) -> BlockOptions {
        BlockOptions {
            keep: self.caching.keep(),
            ..kind.options()
        }
    }

    /// Whether the bytes of its writes come into memory with the write.
    pub(crate) fn keeps_writes(&self) -> bool {
        self.engine.write_cache == WriteCache::OnWrite && self.caching == Caching::Kept
    }

    /// The disk tier and the origin's identity there, if blocks of this origin are kept.
    pub(crate) fn disk(&self) -> Option<(&DiskTier, &str)> {
        self.engine.disk.as_ref().zip(self.disk_identity.as_deref())
    }

    /// Returns the disk tier and how it names `version`, if it keeps blocks of that.
    pub(crate) fn disk_version(&self, version: &Version) -> Option<(&DiskTier, Arc<DiskVersion>)> {
        let (disk, identity) = self.disk()?;
        let version = DiskVersion::of(identity, version, self.block_size)?;
        Some((disk, Arc::new(version)))
    }

    /// Erases the blocks of `version`, in memory and on the disk. May scan the pool: for operators.
    pub(crate) fn drop_blocks(&self, version: &Version) {
        self.versions.drop_blocks(version);
        if let Some((disk, stored)) = self.disk_version(version) {
            disk.erase(&stored);
        }
    }

    /// Returns whether any version of an object may be on the disk tier.
    pub(crate) fn is_on_disk(&self, path: &Path) -> bool {
        self.disk()
            .is_some_and(|(disk, identity)| disk.has_object(identity, path))
    }

    /// The maximum blocks of one ranged GET, at least 1.
    pub(crate) fn max_fetch_blocks(&self) -> u32 {
        (self.engine.fetch_size.load(Relaxed) / self.block_size).max(1) as u32
    }

    /// Counts a request that is about to be sent, unless the origin sends no requests of this kind.
    pub(crate) fn origin_request(&self, needs: Capability) {
        if self.origin.capabilities().can(needs) {
            self.counters.origin_request();
        }
    }

    /// Drops the known version of `path` after a write, successful or not; later reads do not share requests in flight.
    pub(crate) fn invalidate(&self, path: &Path) {
        self.versions.invalidate(path);
        self.flights.forget(path);
    }
}
