//! The disk tier of an engine: blocks of slow origins, kept on a disk below memory and found there after a restart.
//!
//! A block that was loaded from its origin is queued to be written while it stays in memory ([`write_queue`]). A load
//! looks for its block on the disk before it sends a request ([`read`]). Only blocks of versions with a strong ETag are
//! kept: the ETag is part of a block's name on the disk, so a version that changed while no process was running is
//! never found. The disk fails no read: the origin returns the blocks that it cannot return.

mod contents;
mod read;
mod read_buffers;
mod residents;
mod verify;
mod version;
mod write_queue;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bywash_disk::{DiskError, Readers, Tier, TierOptions, TierState, VersionKey};
use bywash_mem::{BlockKey, BlockOptions, BlockPool, Keep, Load, Reservation, Share};
use object_store::path::Path;

use crate::damage::{DamagedFile, DamagedFiles};
use crate::error::EngineError;
use crate::limits::{MAX_QUEUED_WRITES, MAX_RESIDENTS};
use crate::spill::SpillRouter;
use crate::stats::DiskStats;
use read::ReadTimes;
use read_buffers::ReadBuffers;
use residents::RESIDENT_MEMORY;
pub use verify::DiskVerification;
pub(crate) use verify::StopSignal;
pub(crate) use version::DiskVersion;
use write_queue::{QUEUED_WRITE_MEMORY, WriteQueue};

/// Bytes of a segment of a new folder: large compared with a block, small compared with a disk.
const SEGMENT_BYTES: u32 = 64 << 20;
/// Segments of a small tier are smaller, so that evicting one leaves most of it.
const MIN_SEGMENTS: u64 = 16;
/// Minimum bytes of a segment: several of the largest blocks.
const MIN_SEGMENT_BYTES: u32 = 16 << 20;
/// Fraction of the memory for the index, if the blocks of the tier need no more.
const INDEX_MEMORY_DIVISOR: u64 = 32;
/// Maximum fraction of the memory for the index.
const INDEX_CEILING_DIVISOR: u64 = 4;
/// Fraction of the memory that the reader threads keep.
const READ_BUFFERS_DIVISOR: u64 = 16;
/// Minimum number of blocks in memory whose time of arrival the tier knows: objects are smaller than blocks.
const MIN_RESIDENTS: u64 = 1024;
/// Fraction of the memory whose blocks may wait to be written while reads continue that are only for the disk.
const BEHIND_DIVISOR: u64 = 8;
/// Threads that read: enough to keep one disk busy, and the most that a disk that hangs can hold up.
const READER_THREADS: usize = 8;
/// Open files of a tier in addition to its segments: the lock, the marks, and files that an erasure or a start opens briefly.
const FOLDER_DESCRIPTORS: u64 = 8;
/// Max time that a caller waits for the record of its erasures.
const ERASURE_TIME: Duration = Duration::from_secs(5);

/// Settings of a disk tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskOptions {
    /// The folder; created if it is missing. One engine at a time uses it.
    pub path: PathBuf,
    /// Maximum bytes on the disk.
    pub size: u64,
    /// Maximum bytes written a day, for the endurance of the disk: summaries and blocks written again count, and a 24th may be
    /// written at once. `None`: no limit.
    pub daily_writes: Option<u64>,
    /// Bytes of the smallest blocks of the buckets: the index gets room for as many as fit into `size`, within a quarter of the
    /// memory. `None`: the blocks of the engine.
    pub min_block_size: Option<u64>,
}

/// Threads of a disk tier: readers, the one that watches them, and the writer.
pub const DISK_THREADS: usize = READER_THREADS + 2;

impl DiskOptions {
    /// The maximum open files of the tier: one a segment, and a few of the folder.
    #[must_use]
    pub fn max_descriptors(&self) -> u64 {
        self.size / u64::from(segment_size(self.size)) + FOLDER_DESCRIPTORS
    }
}

/// The disk tier of an engine.
#[derive(Debug)]
pub(crate) struct DiskTier {
    tier: Arc<Tier>,
    pool: Arc<BlockPool>,
    queue: Arc<WriteQueue>,
    readers: Readers,
    times: Arc<ReadTimes>,
    buffers: Arc<ReadBuffers>,
    block_size: u64,
    daily_writes: Option<u64>,
    /// A pass over all blocks is running.
    verifying: AtomicBool,
    /// Memory of the index and of the queue.
    _charge: Reservation,
}

impl DiskTier {
    /// Opens the folder with its contents, and starts the threads. Takes the memory of the index from the pool.
    pub(crate) fn open(
        options: &DiskOptions,
        open_tier: impl FnOnce(&TierOptions) -> Result<Tier, DiskError>,
        pool: &Arc<BlockPool>,
        spill: &SpillRouter,
        block_size: u64,
        damaged: &DamagedFiles,
    ) -> Result<Option<Self>, EngineError> {
        let invalid = |reason: String| EngineError::InvalidSetting {
            setting: "disk",
            reason,
        };
        let memory = pool.budget().limit();
        let tier = Self::tier_options(options, memory, block_size);
        let tier = match open_tier(&tier) {
            Ok(tier) => tier,
            Err(error @ DiskError::DamagedFormat { .. }) => {
                damaged.note(DamagedFile {
                    file: options.path.display().to_string(),
                    reason: error.to_string(),
                    effect: "the disk tier is off until the next start with that folder removed"
                        .to_owned(),
                });
                return Ok(None);
            }
            Err(error) => return Err(invalid(error.to_string())),
        };
        let unread = tier.stats().unread_segments;
        if unread > 0 {
            tracing::warn!(
                segments = unread,
                error = tier.last_error(),
                "segments of the disk tier could not be read; they are kept for the next start while there is room"
            );
        }
        tier.set_daily_writes(options.daily_writes);
        let residents = (memory / block_size).clamp(MIN_RESIDENTS, MAX_RESIDENTS as u64);
        let queue = MAX_QUEUED_WRITES as u64 * QUEUED_WRITE_MEMORY;
        let bytes = tier.index_memory() + queue + residents * RESIDENT_MEMORY;
        let charge = pool.try_reserve(Share::Upload, bytes).ok_or_else(|| {
            invalid(format!(
                "the index takes {bytes} bytes, which the memory of {memory} does not leave; raise the memory, or give the disk tier less"
            ))
        })?;
        let bytes = memory / READ_BUFFERS_DIVISOR;
        let buffers = ReadBuffers::take(pool, block_size as usize, bytes, READER_THREADS);
        let tier = Arc::new(tier);
        let io = |source| EngineError::Io {
            bucket: options.path.display().to_string(),
            source,
        };
        let queue = WriteQueue::start(&tier, pool, residents as usize).map_err(io)?;
        let readers = Readers::start(&tier, READER_THREADS).map_err(io)?;
        spill.set_disk(Arc::<WriteQueue>::clone(&queue));
        Ok(Some(Self {
            tier,
            pool: Arc::clone(pool),
            queue,
            readers,
            times: Arc::default(),
            buffers: Arc::new(buffers),
            block_size,
            daily_writes: options.daily_writes,
            verifying: AtomicBool::new(false),
            _charge: charge,
        }))
    }

    /// Returns the options of the tier: its index may grow with the disk, up to a part of the memory.
    fn tier_options(options: &DiskOptions, memory: u64, block_size: u64) -> TierOptions {
        let smallest = options.min_block_size.unwrap_or(block_size);
        let smallest = smallest.clamp(1, block_size);
        let needed = Tier::index_memory_of(options.size / smallest);
        let ceiling = memory / INDEX_CEILING_DIVISOR;
        if needed > ceiling && smallest < block_size {
            tracing::warn!(
                needed_bytes = needed,
                index_bytes = ceiling,
                "the index of the disk tier may be full before the disk is: the blocks of one bucket are small; raise the memory"
            );
        }
        TierOptions {
            path: options.path.clone(),
            size: options.size,
            segment_size: segment_size(options.size),
            block_size: block_size as u32,
            index_memory: (memory / INDEX_MEMORY_DIVISOR).max(needed.min(ceiling)),
            max_index_memory: ceiling,
        }
    }

    /// Returns whether a block of `version` is on the disk, or in the queue of those to be written.
    pub(crate) fn contains(&self, version: &DiskVersion, key: BlockKey) -> bool {
        self.tier.contains(version.key, key.block) || self.queue.spilled(key).is_some()
    }

    /// Returns whether a load is to look for a block here: it is on the disk, which is not too slow now, or in the queue.
    pub(crate) fn offers(&self, version: &DiskVersion, key: BlockKey) -> bool {
        let on_disk = self.tier.contains(version.key, key.block) && self.times.accepts();
        on_disk || self.queue.spilled(key).is_some()
    }

    /// Fills a load whose frame is attached. Returns the load, complete or, if the disk has not returned the block in
    /// time, as it was.
    pub(crate) async fn read(&self, version: &Arc<DiskVersion>, load: Load) -> Load {
        let (key, bytes) = (load.key(), load.remaining() as u64);
        let mut load = self.read_unnoted(version, load).await;
        if load.remaining() == 0 {
            // Its eviction is noted.
            load.set_options(BlockOptions {
                keep: Keep::Spill,
                ..load.options()
            });
            self.queue.loaded(version, key, bytes);
        }
        load
    }

    async fn read_unnoted(&self, version: &DiskVersion, mut load: Load) -> Load {
        if let Some(block) = self.queue.spilled(load.key()) {
            load.write(block.bytes());
            return load;
        }
        let memory = (&self.pool, &self.buffers);
        let submit = |job| self.readers.read(job);
        read::fill(submit, memory, &self.times, version.key, load).await
    }

    /// Returns whether any version of an object may be on the disk, which is not too slow now.
    pub(crate) fn has_object(&self, identity: &str, path: &Path) -> bool {
        self.tier.has_object(identity, path.as_ref()) && !self.times.is_too_slow()
    }

    /// Has a block of `bytes` written that was just loaded from the origin and is in memory, if it is worth it.
    pub(crate) fn keep(&self, version: &Arc<DiskVersion>, key: BlockKey, bytes: usize) {
        self.queue.loaded(version, key, bytes as u64);
        if self.tier.wants(version.key, key.block, bytes as u32) {
            self.queue.push(version, key);
        }
    }

    /// Returns why the disk takes no block now; `None` if it may.
    pub(crate) fn refusal(&self) -> Option<String> {
        let status = self.tier.state();
        if status.state != TierState::On {
            let error = status.last_error.unwrap_or_default();
            return Some(format!("the disk tier is {}: {error}", status.state));
        }
        let daily = self.daily_writes.filter(|_| !self.tier.allows_writes())?;
        Some(format!(
            "the disk tier takes no blocks now: it may write {daily} bytes a day, evenly spread, and has refused {} blocks for that since \
             the start",
            self.tier.stats().declined_rate
        ))
    }

    /// Records that a version is being compared with its digest, until the result is dropped. If the process is killed before,
    /// blocks of it written until then are not found by the next one.
    pub(crate) fn check(&self, version: &DiskVersion) -> DiskCheck {
        self.tier.begin_check(version.key);
        DiskCheck {
            tier: Arc::clone(&self.tier),
            queue: Arc::clone(&self.queue),
            version: version.key,
        }
    }

    /// Removes the blocks of a version, those queued included. Has no I/O: the writer records it on the disk.
    pub(crate) fn erase(&self, version: &DiskVersion) {
        self.queue.forget(|queued| queued.key == version.key);
        self.tier.erase(version.key);
        self.queue.record_erasures();
    }

    /// Waits until erasures survive a crash. Blocks. Returns `false` if the disk fails or takes too long.
    pub(crate) fn wait_for_erasures(&self) -> bool {
        self.queue.wait_for_erasures(ERASURE_TIME)
    }

    /// Changes the maximum bytes on the disk. Removes the oldest blocks if it is lower.
    pub(crate) fn resize(&self, size: u64) -> Result<(), EngineError> {
        let resized = self.tier.resize(size);
        resized.map_err(|error| EngineError::InvalidSetting {
            setting: "disk",
            reason: error.to_string(),
        })
    }

    /// The maximum bytes on the disk.
    pub(crate) fn size(&self) -> u64 {
        self.tier.size()
    }

    /// Whether blocks that wait to be written take an eighth of the memory. Many more would be evicted before their
    /// turn, and not all of those are written.
    pub(crate) fn is_behind(&self) -> bool {
        let bytes = self.queue.stats().queued * self.block_size;
        bytes > self.pool.budget().limit() / BEHIND_DIVISOR
    }

    /// Writes the queued blocks, until `deadline` has passed, and ends the writer. Blocks. Returns whether all was written.
    pub(crate) fn close(&self, deadline: Duration) -> bool {
        self.queue.close(deadline)
    }

    pub(crate) fn stats(&self) -> DiskStats {
        let tier = self.tier.stats();
        let queue = self.queue.stats();
        let status = self.tier.state();
        DiskStats {
            state: status.state.to_string(),
            state_seconds: status.duration.as_secs(),
            size: self.tier.size(),
            blocks: tier.blocks,
            versions: tier.versions,
            hits: tier.hits,
            hit_bytes: tier.hit_bytes,
            mismatches: tier.mismatches,
            failed_reads: tier.failed_reads,
            slow_reads: self.times.slow(),
            written_blocks: tier.blocks_written,
            written_block_bytes: tier.block_bytes,
            written_bytes: tier.written_bytes,
            recycled_segments: tier.recycled_segments,
            unread_segments: tier.unread_segments,
            index_full: tier.index_full,
            index_bytes: self.tier.index_memory(),
            queued_blocks: queue.queued,
            spilled_bytes: queue.spilled_bytes,
            queue_full: queue.declined,
            failed_writes: tier.failed_writes,
            declined_large: tier.declined_large,
            declined_state: tier.declined_state,
            declined_segments: tier.declined_segments,
            declined_rate: tier.declined_rate,
            daily_writes: self.daily_writes,
            declined_new: tier.declined_new,
            reinserted_blocks: tier.reinserted_blocks,
            write_amplification: tier.write_amplification(),
            last_error: status.last_error,
        }
    }
}

/// A comparison of a version with its digest.
#[derive(Debug)]
pub(crate) struct DiskCheck {
    tier: Arc<Tier>,
    queue: Arc<WriteQueue>,
    version: VersionKey,
}

impl Drop for DiskCheck {
    fn drop(&mut self) {
        if self.tier.end_check(self.version) {
            self.queue.release_marks();
        }
    }
}

impl Drop for DiskTier {
    fn drop(&mut self) {
        self.queue.stop();
    }
}

/// Returns the bytes of a segment of a tier of `size` bytes.
fn segment_size(size: u64) -> u32 {
    let even = size / MIN_SEGMENTS;
    let size = even.clamp(u64::from(MIN_SEGMENT_BYTES), u64::from(SEGMENT_BYTES));
    (size as u32) & !0xfff
}

#[cfg(test)]
mod tests;
