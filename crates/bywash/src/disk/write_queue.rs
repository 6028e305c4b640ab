//! Blocks on their way to the disk, and the thread that writes them.
//!
//! A block is queued by key when it was loaded; the writer pins it in memory while it writes. A block that is evicted
//! before its turn is handed over by the pool's spill hook and stays charged until it is written. If more than a
//! share of the memory waits so, such blocks are dropped: a slow disk holds no memory up.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use bywash_disk::{Block, Tier, VersionKey};
use bywash_mem::{BlockKey, BlockPool, OwnedPin, Spill, Spilled};
use foldhash::fast::RandomState;
use parking_lot::{Condvar, Mutex};

use super::residents::Residents;
use super::version::DiskVersion;
use crate::limits::MAX_QUEUED_WRITES;

/// Bytes of one batch: large enough for full speed, small enough to be lost in a crash.
const BATCH_BYTES: usize = 4 << 20;
/// Min batches of a segment.
const SEGMENT_BATCHES: u64 = 4;
/// Fraction of the memory for evicted blocks that wait, and the most of it.
const SPILLED_MEMORY_DIVISOR: u64 = 16;
const SPILLED_BYTES: u64 = 64 << 20;
/// Memory of a queued block: its place in the order and its entry, at the table's lowest load.
pub(super) const QUEUED_WRITE_MEMORY: u64 = 160;

/// A queued block.
#[derive(Debug)]
struct QueuedWrite {
    version: Arc<DiskVersion>,
    /// The block, if it was evicted.
    spilled: Option<Arc<Spilled>>,
}

#[derive(Debug, Default)]
struct QueueState {
    /// Keys in the order of their loads. Those without an entry in `waiting` are skipped.
    order: VecDeque<BlockKey>,
    waiting: HashMap<BlockKey, QueuedWrite, RandomState>,
    spilled_bytes: u64,
    declined: u64,
    /// The tier has marks to release.
    marks_due: bool,
    /// Erasures so far; how many the writer has tried to record on the disk, and how many are there.
    erasures: u64,
    tried_erasures: u64,
    recorded_erasures: u64,
    /// When to give up the rest; set by the end of the engine.
    close_at: Option<Instant>,
    /// The writer has ended, and this many blocks were left.
    ended: bool,
    left: usize,
}

/// Counters of the queue.
#[derive(Debug)]
pub(super) struct QueueStats {
    pub(super) queued: u64,
    pub(super) spilled_bytes: u64,
    pub(super) declined: u64,
}

/// The queue of blocks to be written.
#[derive(Debug)]
pub(super) struct WriteQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
    max_spilled: u64,
    residents: Residents,
}

/// Bytes of a block that is being written.
enum BlockBytes {
    Pinned(OwnedPin),
    Spilled(Arc<Spilled>),
}

impl BlockBytes {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Pinned(pin) => pin.as_ref(),
            Self::Spilled(block) => block.bytes(),
        }
    }
}

struct BatchBlock {
    key: BlockKey,
    version: Arc<DiskVersion>,
    source: BlockBytes,
}

/// Next task of the writer.
enum WriterTask {
    /// Writes a batch that begins with this block.
    Write(BlockKey),
    ReleaseMarks,
    /// Records as many erasures on the disk.
    RecordErasures(u64),
    /// Looks for blocks in steady use that are not on the disk.
    WriteSettled,
    End,
}

impl WriteQueue {
    /// Starts the writer.
    pub(super) fn start(
        tier: &Arc<Tier>,
        pool: &Arc<BlockPool>,
        max_residents: usize,
    ) -> io::Result<Arc<Self>> {
        let queue = Arc::new(Self {
            residents: Residents::new(pool.budget().limit(), max_residents),
            state: Mutex::default(),
            changed: Condvar::new(),
            max_spilled: (pool.budget().limit() / SPILLED_MEMORY_DIVISOR).min(SPILLED_BYTES),
        });
        let max_batch = (tier.segment_size() / SEGMENT_BATCHES) as usize;
        let writer = Writer {
            batch_bytes: BATCH_BYTES.min(max_batch),
            queue: Arc::clone(&queue),
            tier: Arc::clone(tier),
            pool: Arc::downgrade(pool),
        };
        thread::Builder::new()
            .name("bywash-disk-write".to_owned())
            .spawn(move || writer.run())?;
        Ok(queue)
    }

    /// Notes a block that came into memory, from wherever.
    pub(super) fn loaded(&self, version: &Arc<DiskVersion>, key: BlockKey, bytes: u64) {
        if self.residents.loaded(version, key, bytes) {
            self.changed.notify_all();
        }
    }

    /// Queues a block that is in memory, unless the queue is full. Returns whether it is queued.
    pub(super) fn push(&self, version: &Arc<DiskVersion>, key: BlockKey) -> bool {
        let mut state = self.state.lock();
        // A block that was evicted and loaded again has the same bytes.
        if state.waiting.contains_key(&key) {
            return true;
        }
        if state.order.len() >= MAX_QUEUED_WRITES || state.close_at.is_some() {
            state.declined += 1;
            return false;
        }
        let waiting = QueuedWrite {
            version: Arc::clone(version),
            spilled: None,
        };
        state.waiting.insert(key, waiting);
        state.order.push_back(key);
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Returns a block that was evicted and waits to be written.
    pub(super) fn spilled(&self, key: BlockKey) -> Option<Arc<Spilled>> {
        self.state.lock().waiting.get(&key)?.spilled.clone()
    }

    /// Drops the queued blocks of versions. Looks at all of the queue: for operators and for versions that failed
    /// their check, not for requests. Returns their versions, once a block.
    pub(super) fn forget(&self, is_dropped: impl Fn(&DiskVersion) -> bool) -> Vec<VersionKey> {
        self.residents.forget(&is_dropped);
        let mut state = self.state.lock();
        let (mut freed, mut dropped) = (0, Vec::new());
        state.waiting.retain(|_, waiting| {
            let keep = !is_dropped(&waiting.version);
            if !keep {
                dropped.push(waiting.version.key);
            }
            if let Some(block) = waiting.spilled.as_ref().filter(|_| !keep) {
                freed += block.bytes().len() as u64;
            }
            keep
        });
        state.spilled_bytes -= freed;
        dropped
    }

    /// Has the writer write the rest until `deadline` has passed, and waits for its end. Returns whether all was written.
    pub(super) fn close(&self, deadline: Duration) -> bool {
        let close_at = Instant::now() + deadline;
        let mut state = self.state.lock();
        state.close_at.get_or_insert(close_at);
        self.changed.notify_all();
        while !state.ended {
            if self.changed.wait_until(&mut state, close_at).timed_out() {
                break;
            }
        }
        state.ended && state.left == 0
    }

    /// Ends the writer after the batch it is at.
    pub(super) fn stop(&self) {
        self.state.lock().close_at = Some(Instant::now());
        self.changed.notify_all();
    }

    pub(super) fn stats(&self) -> QueueStats {
        let state = self.state.lock();
        QueueStats {
            queued: state.waiting.len() as u64,
            spilled_bytes: state.spilled_bytes,
            declined: state.declined,
        }
    }

    /// Has the writer release the marks of versions that are compared no more.
    pub(super) fn release_marks(&self) {
        self.state.lock().marks_due = true;
        self.changed.notify_all();
    }

    /// Has the writer record erasures of the tier, before further blocks.
    pub(super) fn record_erasures(&self) {
        self.state.lock().erasures += 1;
        self.changed.notify_all();
    }

    /// Waits until the disk has a record of all erasures so far, or the writer has ended. Returns `false` if it takes longer than
    /// `max_wait`, or fails.
    pub(super) fn wait_for_erasures(&self, max_wait: Duration) -> bool {
        let until = Instant::now() + max_wait;
        let mut state = self.state.lock();
        let wanted = state.erasures;
        while state.recorded_erasures < wanted && !state.ended {
            if self.changed.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        state.recorded_erasures >= wanted
    }

    /// Queues those blocks in steady use that `wants` selects.
    fn queue_settled(&self, pool: &BlockPool, wants: impl Fn(&DiskVersion, BlockKey) -> bool) {
        self.residents.for_each_settled(|version, key| {
            if !pool.contains(key) {
                // Erased, or evicted before its load was noted: it would never release its place.
                self.residents.evicted(key);
                return false;
            }
            wants(version, key) && self.push(version, key)
        });
    }

    /// Waits for work, or for the end of `epoch`.
    fn wait(&self, epoch: u64) -> WriterTask {
        let mut state = self.state.lock();
        loop {
            if state.close_at.is_some_and(|at| Instant::now() >= at) {
                return WriterTask::End;
            }
            if state.erasures > state.tried_erasures {
                state.tried_erasures = state.erasures;
                return WriterTask::RecordErasures(state.erasures);
            }
            if let Some(key) = state.order.pop_front() {
                return WriterTask::Write(key);
            }
            if std::mem::take(&mut state.marks_due) {
                return WriterTask::ReleaseMarks;
            }
            if state.close_at.is_some() {
                return WriterTask::End;
            }
            if self.residents.epoch() > epoch {
                return WriterTask::WriteSettled;
            }
            self.changed.wait(&mut state);
        }
    }

    fn next(&self) -> Option<BlockKey> {
        self.state.lock().order.pop_front()
    }

    /// Returns version and bytes of a queued block; `None` if it was dropped.
    fn entry(&self, key: BlockKey, pool: &BlockPool) -> Option<BatchBlock> {
        let spilled = |key| {
            let state = self.state.lock();
            let waiting = state.waiting.get(&key)?;
            Some((Arc::clone(&waiting.version), waiting.spilled.clone()))
        };
        let (version, block) = spilled(key)?;
        let source = match block {
            Some(block) => BlockBytes::Spilled(block),
            None => match pool.peek(key) {
                Some(pin) => BlockBytes::Pinned(pin.into_owned()),
                // It may have been evicted since.
                None => BlockBytes::Spilled(spilled(key)?.1?),
            },
        };
        Some(BatchBlock {
            key,
            version,
            source,
        })
    }

    /// Removes a block that was written or cannot be.
    fn remove(&self, key: BlockKey) {
        let mut state = self.state.lock();
        let removed = state.waiting.remove(&key);
        let bytes = removed.and_then(|waiting| Some(waiting.spilled?.bytes().len() as u64));
        state.spilled_bytes -= bytes.unwrap_or(0);
    }
}

impl Spill for WriteQueue {
    /// Takes a block that is queued and was not written yet.
    fn spill(&self, block: Spilled) -> Result<(), Spilled> {
        self.residents.evicted(block.key());
        let mut state = self.state.lock();
        let bytes = block.bytes().len() as u64;
        let room = state.spilled_bytes + bytes <= self.max_spilled && state.close_at.is_none();
        let waiting = state.waiting.get_mut(&block.key());
        // Without an entry it was written; with a block of its own, it was evicted before and loaded again.
        let Some(waiting) = waiting.filter(|waiting| waiting.spilled.is_none()) else {
            return Err(block);
        };
        if !room {
            state.waiting.remove(&block.key());
            state.declined += 1;
            return Err(block);
        }
        waiting.spilled = Some(Arc::new(block));
        state.spilled_bytes += bytes;
        Ok(())
    }
}

/// The thread that writes. It does not keep the pool alive.
struct Writer {
    batch_bytes: usize,
    queue: Arc<WriteQueue>,
    tier: Arc<Tier>,
    pool: Weak<BlockPool>,
}

impl Writer {
    fn run(self) {
        let (mut epoch, mut recycled) = (0, 0);
        loop {
            let work = self.queue.wait(epoch);
            let Some(pool) = self.pool.upgrade() else {
                break;
            };
            match work {
                WriterTask::Write(first) => self.write_batch(first, &pool),
                WriterTask::ReleaseMarks => {}
                WriterTask::RecordErasures(erasures) => self.record_erasures(erasures),
                WriterTask::WriteSettled => epoch = self.queue.residents.epoch(),
                WriterTask::End => break,
            }
            self.tier.release_marks();
            let now_recycled = self.tier.stats().recycled_segments;
            if now_recycled > recycled || matches!(work, WriterTask::WriteSettled) {
                recycled = now_recycled;
                self.queue_settled(&pool);
            }
        }
        let erasures = self.queue.state.lock().erasures;
        let closed = self.tier.close();
        if let Err(error) = &closed {
            tracing::warn!(%error, "the disk tier could not seal its last segment; the next start reads it by batches");
        }
        let mut state = self.queue.state.lock();
        if closed.is_ok() {
            state.recorded_erasures = erasures;
        }
        state.left = std::mem::take(&mut state.waiting).len();
        state.spilled_bytes = 0;
        state.ended = true;
        drop(state);
        self.queue.changed.notify_all();
    }

    /// Queues blocks in steady use whose copies on the disk made room for others, or that never had one.
    fn queue_settled(&self, pool: &BlockPool) {
        let wants =
            |version: &DiskVersion, key: BlockKey| self.tier.wants_settled(version.key, key.block);
        self.queue.queue_settled(pool, wants);
    }

    /// Records all erasures so far; `erasures` is their number.
    fn record_erasures(&self, erasures: u64) {
        if let Err(declined) = self.tier.record_erasures() {
            tracing::warn!(
                ?declined,
                "objects dropped from the cache may be on the disk tier again after a crash"
            );
            return;
        }
        self.queue.state.lock().recorded_erasures = erasures;
        self.queue.changed.notify_all();
    }

    /// Writes a block and as many of the next as a batch has room for.
    fn write_batch(&self, first: BlockKey, pool: &BlockPool) {
        // Before the blocks are looked up: an erasure in between must not be missed.
        let batch = self.tier.begin_batch();
        let (mut entries, mut bytes) = (Vec::new(), 0);
        let mut next = Some(first);
        while let Some(key) = next {
            match self.queue.entry(key, pool) {
                Some(entry) => {
                    bytes += entry.source.bytes().len();
                    entries.push(entry);
                }
                None => self.queue.remove(key),
            }
            next = (bytes < self.batch_bytes)
                .then(|| self.queue.next())
                .flatten();
        }
        let blocks: Vec<_> = entries.iter().map(BatchBlock::block).collect();
        if blocks.is_empty() {
            return;
        }
        let written = batch.write(&blocks);
        drop(blocks);
        if let Err(declined) = written {
            tracing::debug!(
                ?declined,
                blocks = entries.len(),
                "blocks were not written to the disk tier"
            );
        }
        for entry in entries {
            self.queue.remove(entry.key);
        }
    }
}

impl BatchBlock {
    fn block(&self) -> Block<'_> {
        Block {
            record: &self.version.record,
            version: self.version.key,
            number: self.key.block,
            bytes: self.source.bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use bywash_disk::{VersionKey, VersionRecord};
    use bywash_mem::{BlockOptions, Claim, Keep, PoolConfig, Share};

    use super::*;

    fn version() -> Arc<DiskVersion> {
        let record = VersionRecord {
            url: "s3://data".to_owned(),
            object: "object".to_owned(),
            validator: "\"1\"".to_owned(),
            size: 1 << 40,
            block_size: 4096,
        };
        let key = VersionKey::of(&record);
        Arc::new(DiskVersion { record, key })
    }

    fn queue(max_spilled: u64) -> WriteQueue {
        WriteQueue {
            state: Mutex::default(),
            changed: Condvar::new(),
            max_spilled,
            residents: Residents::new(1 << 20, 16),
        }
    }

    #[test]
    fn blocks_beyond_the_limit_are_not_queued() {
        let (queue, version) = (queue(0), version());
        for block in 0..=MAX_QUEUED_WRITES as u32 {
            let key = BlockKey {
                store: 0,
                object: 1,
                block,
            };
            queue.push(&version, key);
        }
        let stats = queue.stats();
        assert_eq!(
            (stats.queued, stats.declined),
            (MAX_QUEUED_WRITES as u64, 1)
        );
        queue.forget(|queued| queued.key == version.key);
        assert_eq!(queue.stats().queued, 0);
    }

    /// Loads a block of 4 KiB, with the hook of its eviction, into a frame that may take an eviction. `None` if all of the
    /// memory is pinned.
    fn load(pool: &Arc<BlockPool>, key: BlockKey) -> Option<OwnedPin> {
        const BLOCK: usize = 4096;
        let frame = pool.try_frames(Share::Download, BLOCK, 1, 1)?.pop()?;
        let Claim::Vacant(mut load) = pool.claim(key) else {
            panic!("the block is in memory");
        };
        load.attach(frame, BLOCK);
        load.write(&[7; BLOCK]);
        load.set_options(BlockOptions {
            keep: Keep::Spill,
            ..load.options()
        });
        Some(load.publish().unwrap())
    }

    fn key(block: u32) -> BlockKey {
        BlockKey {
            store: 0,
            object: 1,
            block,
        }
    }

    /// The memory is full, its blocks wait for a disk that does not return, and as many as may wait were evicted.
    #[test]
    fn full_queue_before_a_stuck_disk_holds_no_eviction_up() {
        const MAX_SPILLED: u64 = 4 * 4096;
        const MEMORY: u64 = 1 << 20;
        let pool = BlockPool::new(PoolConfig::new(MEMORY)).unwrap();
        let (queue, version) = (Arc::new(queue(MAX_SPILLED)), version());
        assert!(pool.set_spill(Arc::<WriteQueue>::clone(&queue)));
        thread::scope(|scope| {
            for first in 0..4 {
                let (pool, queue, version) = (&pool, &queue, &version);
                scope.spawn(move || {
                    for block in (first..4000).step_by(4) {
                        let loaded = load(pool, key(block));
                        assert!(loaded.is_some(), "block {block} waits for the disk");
                        queue.push(version, key(block));
                    }
                });
            }
        });
        let stats = queue.stats();
        assert!(stats.spilled_bytes == MAX_SPILLED && stats.declined > 0);
        // All of it pinned: no memory, at once, until a pin is released.
        let next = |block| load(&pool, key(block));
        let mut pins: Vec<_> = (4000..8000).map_while(next).collect();
        assert!(pins.len() < 300);
        assert!(next(9000).is_none());
        pins.pop();
        assert!(next(9001).is_some());
        assert!(pool.budget().held(Share::Download) <= MEMORY);
    }

    #[test]
    fn blocks_that_left_the_memory_unnoticed_leave_their_places_to_others() {
        let pool = BlockPool::new(PoolConfig::new(1 << 20)).unwrap();
        let (queue, version) = (Arc::new(queue(1 << 20)), version());
        assert!(pool.set_spill(Arc::<WriteQueue>::clone(&queue)));
        for block in 0..16 {
            drop(load(&pool, key(block)));
            queue.loaded(&version, key(block), 4096);
        }
        for block in 0..8 {
            // No hook is called for an erased block.
            pool.erase(key(block));
        }
        for block in 8..16 {
            // Noted after its eviction.
            pool.erase(key(block));
            queue.loaded(&version, key(block), 4096);
        }
        let epochs = |count: u64| queue.loaded(&version, key(999), count << 20);
        epochs(3);
        queue.queue_settled(&pool, |_, _| true);
        assert_eq!(queue.stats().queued, 0);
        drop(load(&pool, key(100)));
        queue.loaded(&version, key(100), 4096);
        epochs(3);
        queue.queue_settled(&pool, |_, _| true);
        assert_eq!(queue.stats().queued, 1, "a block in steady use has a place");
    }

    #[test]
    fn block_that_was_evicted_and_loaded_again_is_counted_once() {
        const BLOCK: usize = 4096;
        let pool = BlockPool::new(PoolConfig::new(1 << 20)).unwrap();
        let (queue, version) = (Arc::new(queue(BLOCK as u64)), version());
        assert!(pool.set_spill(Arc::<WriteQueue>::clone(&queue)));
        let key = BlockKey {
            store: 0,
            object: 1,
            block: 0,
        };
        for _ in 0..3 {
            drop(load(&pool, key));
            queue.push(&version, key);
            let evicted = pool.evict_unused(Duration::ZERO, Instant::now());
            let again = pool.evict_unused(Duration::ZERO, Instant::now());
            assert_eq!(evicted.blocks + again.blocks, 1);
            assert!(
                queue
                    .spilled(key)
                    .unwrap()
                    .bytes()
                    .iter()
                    .all(|byte| *byte == 7)
            );
            assert_eq!(queue.stats().spilled_bytes, BLOCK as u64);
        }
        queue.remove(key);
        assert_eq!((queue.stats().spilled_bytes, queue.stats().queued), (0, 0));
    }
}
