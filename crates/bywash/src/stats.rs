//! Counters: requests, cache hits, and requests to the origin.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use crate::cluster::ClusterStatus;
use crate::damage::DamagedFile;

/// Maximum hedged requests, in percent of a bucket's data requests: five, as those slower than 95 % of their peers
/// are hedged.
pub const HEDGED_PERCENT: u64 = 5;

/// Snapshot of the whole engine's counters.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Stats {
    /// By bucket name.
    pub buckets: BTreeMap<String, BucketStats>,
    /// The block pool.
    pub pool: PoolStats,
    /// Memory of blocks, by kind and by bucket.
    pub memory: MemoryStats,
    /// The memory budget.
    pub budget: BudgetStats,
    /// The known objects.
    pub objects: ObjectStats,
    /// Downloads to files.
    pub file_downloads: FileDownloadStats,
    /// The disk tier, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskStats>,
    /// The cluster, if the engine belongs to one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterStatus>,
    /// Files of the server that cannot be used, and the service without them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<DamagedFile>,
    /// The local door, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalStats>,
}

/// The local door: programs of this machine that read blocks in the engine's memory. Counters are since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalStats {
    /// Open connections of clients.
    pub clients: u64,
    /// Leases held by clients.
    pub leases: u64,
    /// Bytes of frames that leases keep in memory. A frame that several leases hold counts once.
    pub leased_bytes: u64,
    /// Bytes of objects returned by lease.
    pub shared_bytes: u64,
    /// Bytes of objects copied into replies.
    pub copied_bytes: u64,
    /// Reads that were to be leased and were copied, for lack of loans or memory.
    pub refused: u64,
    /// Requests of clients.
    pub requests: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Connections refused: of another user, of another protocol, beyond their limit.
    pub rejected: u64,
    /// Seconds since the oldest lease began.
    pub oldest_lease_seconds: u64,
    /// Whether blocks are in memory that clients can map.
    pub shares_memory: bool,
}

/// A local door, as the engine's statistics see it.
pub trait LocalStatsSource: std::fmt::Debug + Send + Sync {
    /// Its state and counters.
    fn local_stats(&self) -> LocalStats;
}

/// Counters of one bucket since it was mounted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct BucketStats {
    /// Operations of every kind on the bucket.
    pub requests: u64,
    /// Bytes of object data returned to readers.
    pub bytes: u64,
    /// Blocks found in memory by readers.
    pub hits: u64,
    /// Blocks that were absent or still loading.
    pub misses: u64,
    /// Reads of keys known to be absent, without a request.
    pub absences: u64,
    /// Requests sent to the origin, of every kind, each attempt counted.
    pub origin_requests: u64,
    /// Requests for object data among them.
    pub origin_data_requests: u64,
    /// Bytes of object data received from the origin.
    pub origin_bytes: u64,
    /// Requests to the origin repeated after a failure or a stall.
    pub retries: u64,
    /// Hedged requests: sent a second time because the first was slow.
    pub hedges: u64,
    /// Hedged requests that returned the data first.
    pub hedges_won: u64,
    /// Whole reads with bytes that do not have the object's digest.
    pub digest_mismatches: u64,
    /// Entries that listings left out.
    pub left_out: u64,
    /// Reads of versions that were not confirmed in time because the origin failed.
    pub stale_reads: u64,
    /// Requests for object data that another node of the cluster responded to.
    pub peer_hits: u64,
    /// Bytes of object data received from other nodes.
    pub peer_bytes: u64,
    /// Responses of other nodes that failed or ended early, and were continued at the origin.
    pub peer_fallbacks: u64,
    /// Bytes of object data sent to other nodes.
    pub peer_served_bytes: u64,
}

/// The block pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct PoolStats {
    /// Loads in progress.
    pub flights: u64,
    /// Blocks evicted since start.
    pub evictions: u64,
    /// Passes of eviction above [`crate::EngineBuilder::slow_eviction`] or [`crate::EngineBuilder::slow_eviction_rounds`].
    pub slow_evictions: u64,
    /// Bytes of blocks evicted since start because they were not used for a time ([`crate::Engine::evict_idle`]).
    pub idle_evicted_bytes: u64,
    /// Blocks in memory.
    pub resident_blocks: u64,
    /// Bytes of their frames.
    pub resident_bytes: u64,
}

/// Memory of blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MemoryStats {
    /// By kind: `data`, `small` (objects of one block), `footer` (read by requests for the end of an object alone), `readahead`
    /// (loaded beyond the ranges requested), by the read that loaded the block; `scratch`, blocks of [`crate::Engine::scratch`];
    /// `foreign`, blocks of stripes that other nodes of the cluster own.
    pub kinds: BTreeMap<&'static str, KindStats>,
    /// By name of the bucket.
    pub buckets: BTreeMap<String, BucketMemory>,
}

/// Blocks of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct KindStats {
    /// Blocks in memory.
    pub blocks: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// Blocks evicted since start.
    pub evicted_blocks: u64,
    /// Bytes of their frames.
    pub evicted_bytes: u64,
}

/// Blocks of one bucket in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct BucketMemory {
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of their frames.
    pub bytes: u64,
}

/// The disk tier. Counters are since the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DiskStats {
    /// `on`; `read-only` after a failed write; `off` after failed reads. The tier tries again by itself.
    pub state: String,
    /// Seconds since the state began.
    pub state_seconds: u64,
    /// Maximum bytes on the disk.
    pub size: u64,
    /// Blocks that can be read from the disk.
    pub blocks: u64,
    /// Versions of objects they belong to.
    pub versions: u64,
    /// Blocks read from the disk.
    pub hits: u64,
    /// Bytes of these blocks.
    pub hit_bytes: u64,
    /// Reads that found other bytes than were written; the origin returned the block.
    pub mismatches: u64,
    /// Reads that failed; the origin returned the block.
    pub failed_reads: u64,
    /// Reads that took too long, or were not tried because those before did; the origin returned the block.
    pub slow_reads: u64,
    /// Blocks written.
    pub written_blocks: u64,
    /// Bytes of these blocks.
    pub written_block_bytes: u64,
    /// Bytes written: blocks, their summaries and padding.
    pub written_bytes: u64,
    /// Segments whose blocks made room for others.
    pub recycled_segments: u64,
    /// Segments that the last start could not read, kept for the next one.
    pub unread_segments: u64,
    /// Blocks not written because the index has no room.
    pub index_full: u64,
    /// Bytes of memory of the index.
    pub index_bytes: u64,
    /// Blocks that wait to be written.
    pub queued_blocks: u64,
    /// Bytes of memory of queued blocks that were evicted while they waited.
    pub spilled_bytes: u64,
    /// Blocks not written because too many waited.
    pub queue_full: u64,
    /// Writes that failed.
    pub failed_writes: u64,
    /// Blocks not written because they are larger than a segment takes.
    pub declined_large: u64,
    /// Blocks not written because the tier was read-only or off.
    pub declined_state: u64,
    /// Blocks not written because each segment was being read or written.
    pub declined_segments: u64,
    /// Blocks not written because of the limit of bytes a day.
    pub declined_rate: u64,
    /// Maximum bytes written a day; `None`: no limit.
    pub daily_writes: Option<u64>,
    /// Blocks not written to a full disk because they were not read before.
    pub declined_new: u64,
    /// Blocks written again, as they were read since, when their segment made room.
    pub reinserted_blocks: u64,
    /// Bytes written for each byte of blocks that the engine wrote.
    pub write_amplification: Option<f64>,
    /// The last failure of the disk.
    pub last_error: Option<String>,
}

/// Known objects and absent keys of all buckets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ObjectStats {
    /// Objects with a known version.
    pub known: u64,
    /// Bytes of their entries; never above `known_limit_bytes`.
    pub known_bytes: u64,
    /// The limit of `known_bytes`.
    pub known_limit_bytes: u64,
    /// Keys known to be absent.
    pub absent: u64,
    /// Bytes of their entries; never above `absent_limit_bytes`.
    pub absent_bytes: u64,
    /// The limit of `absent_bytes`.
    pub absent_limit_bytes: u64,
}

/// Downloads to files ([`crate::Bucket::download_to`]). Counters are since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FileDownloadStats {
    /// Downloads in progress or waiting.
    pub in_progress: u64,
    /// Bytes of their objects, which are not durable yet.
    pub waiting_bytes: u64,
    /// Files that became durable.
    pub finished: u64,
    /// Bytes of these files.
    pub finished_bytes: u64,
    /// Milliseconds from the beginnings of their downloads until they were durable, summed.
    pub finished_ms: u64,
    /// Attempts repeated after a failure, or after a wait for a full disk.
    pub retried: u64,
    /// Downloads that failed.
    pub failed: u64,
    /// Downloads cancelled by their callers, or by a shutdown.
    pub cancelled: u64,
    /// Downloads refused before they began: their targets may not be written.
    pub refused: u64,
    /// Milliseconds since the beginning of the oldest download in progress or waiting; 0 without one.
    pub oldest_ms: u64,
}

/// The memory budget, in bytes (`waiting` and `refused`: counts).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct BudgetStats {
    /// Bytes charged now; never above `limit`.
    pub used: u64,
    /// The ceiling.
    pub limit: u64,
    /// Requests that wait for memory.
    pub waiting: u64,
    /// Bytes of `used` in free frames, ready for reuse.
    pub idle: u64,
    /// Bytes of `used` held by reads: blocks in memory, loads, responses on their way.
    pub downloads: u64,
    /// Bytes of `used` held by writes and tables.
    pub uploads: u64,
    /// Requests that got no memory within the admission deadline, since the start.
    pub refused: u64,
}

/// Counters behind [`BucketStats`].
///
/// Written by any thread, read by snapshots. They order nothing, hence relaxed. On cache lines of their own: the bucket's
/// other fields are read by every request.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    requests: AtomicU64,
    bytes: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    absences: AtomicU64,
    origin_requests: AtomicU64,
    origin_data_requests: AtomicU64,
    origin_bytes: AtomicU64,
    retries: Arc<RetryCount>,
    hedges: AtomicU64,
    hedges_won: AtomicU64,
    digest_mismatches: AtomicU64,
    left_out: AtomicU64,
    stale_reads: AtomicU64,
    peer_hits: AtomicU64,
    peer_bytes: AtomicU64,
    peer_fallbacks: AtomicU64,
    peer_served_bytes: AtomicU64,
}

/// Number of repeated requests of a bucket.
#[derive(Debug, Default)]
pub(crate) struct RetryCount(AtomicU64);

impl RetryCount {
    pub(crate) fn add(&self) {
        // Relaxed, as all counters.
        self.0.fetch_add(1, Relaxed);
    }
}

impl Counters {
    pub(crate) fn request(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    pub(crate) fn bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// Counts resident blocks found by a body, and bytes it returned.
    pub(crate) fn body(&self, hits: u64, bytes: u64) {
        if hits > 0 {
            self.hits.fetch_add(hits, Relaxed);
        }
        if bytes > 0 {
            self.bytes.fetch_add(bytes, Relaxed);
        }
    }

    pub(crate) fn miss(&self) {
        self.misses.fetch_add(1, Relaxed);
    }

    /// Counts a read of a key known to be absent.
    pub(crate) fn absence(&self) {
        self.absences.fetch_add(1, Relaxed);
    }

    /// Counts a request to the origin without object data.
    pub(crate) fn origin_request(&self) {
        self.origin_requests.fetch_add(1, Relaxed);
    }

    /// Counts a request to the origin for object data.
    pub(crate) fn origin_data_request(&self) {
        self.origin_requests.fetch_add(1, Relaxed);
        self.origin_data_requests.fetch_add(1, Relaxed);
    }

    pub(crate) fn origin_bytes(&self, bytes: u64) {
        self.origin_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn retries(&self) -> &Arc<RetryCount> {
        &self.retries
    }

    /// Counts a hedged request.
    pub(crate) fn hedge(&self) {
        self.hedges.fetch_add(1, Relaxed);
    }

    pub(crate) fn hedge_won(&self) {
        self.hedges_won.fetch_add(1, Relaxed);
    }

    /// Counts a whole read with another digest than its object's.
    pub(crate) fn digest_mismatch(&self) {
        self.digest_mismatches.fetch_add(1, Relaxed);
    }

    /// Counts entries that a listing leaves out.
    pub(crate) fn left_out(&self, entries: u64) {
        self.left_out.fetch_add(entries, Relaxed);
    }

    /// Counts a read of a version that the origin could not confirm.
    pub(crate) fn stale_read(&self) {
        self.stale_reads.fetch_add(1, Relaxed);
    }

    /// Counts a response of another node.
    pub(crate) fn peer_hit(&self) {
        self.peer_hits.fetch_add(1, Relaxed);
    }

    pub(crate) fn peer_bytes(&self, bytes: u64) {
        self.peer_bytes.fetch_add(bytes, Relaxed);
    }

    /// Counts a response of another node that the origin continued.
    pub(crate) fn peer_fallback(&self) {
        self.peer_fallbacks.fetch_add(1, Relaxed);
    }

    pub(crate) fn peer_served(&self, bytes: u64) {
        self.peer_served_bytes.fetch_add(bytes, Relaxed);
    }

    /// Whether one more hedged request stays within [`HEDGED_PERCENT`]. Approximate: two concurrent calls may
    /// both return `true`.
    pub(crate) fn may_hedge(&self) -> bool {
        let all = self.origin_data_requests.load(Relaxed);
        (self.hedges.load(Relaxed) + 1) * 100 <= all * HEDGED_PERCENT
    }

    pub(crate) fn snapshot(&self) -> BucketStats {
        BucketStats {
            requests: self.requests.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            absences: self.absences.load(Relaxed),
            origin_requests: self.origin_requests.load(Relaxed),
            origin_data_requests: self.origin_data_requests.load(Relaxed),
            origin_bytes: self.origin_bytes.load(Relaxed),
            retries: self.retries.0.load(Relaxed),
            hedges: self.hedges.load(Relaxed),
            hedges_won: self.hedges_won.load(Relaxed),
            digest_mismatches: self.digest_mismatches.load(Relaxed),
            left_out: self.left_out.load(Relaxed),
            stale_reads: self.stale_reads.load(Relaxed),
            peer_hits: self.peer_hits.load(Relaxed),
            peer_bytes: self.peer_bytes.load(Relaxed),
            peer_fallbacks: self.peer_fallbacks.load(Relaxed),
            peer_served_bytes: self.peer_served_bytes.load(Relaxed),
        }
    }
}
