//! Reads of blocks from the disk into loads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bywash_disk::{ReadJob, VersionKey};
use bywash_mem::{BlockPool, Load, Share};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::read_buffers::{ReadBuffer, ReadBuffers};

/// Time after which a read is slow, however fast the others are: an origin seldom takes less.
const SLOW_READ_FLOOR: Duration = Duration::from_millis(50);
/// Max time that a load waits for the disk. With the later steps, a client waits at most 100 ms longer than for the origin alone.
const SLOW_READ_CEILING: Duration = Duration::from_millis(80);
/// Multiple of the mean time above which a read is slow.
const SLOW_READ_MEANS: u32 = 8;
/// Slow reads in a row after which the disk is slower than the origin: loads stop waiting for it.
const SLOW_READS_IN_ROW: u32 = 8;
/// Time between two reads that try a disk which is too slow.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Recent {
    /// Moving mean.
    mean: Duration,
    /// Reads that were given up as slow, and reads not tried because the disk was too slow.
    slow: u64,
    /// Reads given up since the last one that was fast.
    slow_in_row: u32,
    /// When the disk is tried next, if it is too slow.
    next_probe: Option<tokio::time::Instant>,
}

impl Recent {
    fn is_too_slow(&self, now: tokio::time::Instant) -> bool {
        let waits = self.next_probe.is_some_and(|at| now < at);
        self.slow_in_row >= SLOW_READS_IN_ROW && waits
    }
}

/// Times of recent reads. Written by reader threads, read by loads.
#[derive(Debug, Default)]
pub(super) struct ReadTimes(Mutex<Recent>);

impl ReadTimes {
    /// Records a read that a thread has ended, from its beginning in the thread.
    fn record(&self, took: Duration) {
        let mut recent = self.0.lock();
        // One read that hangs does not make the others wait.
        let counted = took.min(SLOW_READ_CEILING);
        recent.mean = recent.mean - recent.mean / 16 + counted / 16;
        if took < SLOW_READ_CEILING {
            recent.slow_in_row = 0;
        }
    }

    /// Whether loads are not to wait for the disk now.
    pub(super) fn is_too_slow(&self) -> bool {
        self.0.lock().is_too_slow(tokio::time::Instant::now())
    }

    /// Whether a load is to wait for the disk. Counts it otherwise.
    pub(super) fn accepts(&self) -> bool {
        let mut recent = self.0.lock();
        let too_slow = recent.is_too_slow(tokio::time::Instant::now());
        recent.slow += u64::from(too_slow);
        !too_slow
    }

    /// The time after which a read is slow; `None` if the disk is too slow now. The next read is then the one that tries it.
    fn limit(&self) -> Option<Duration> {
        let now = tokio::time::Instant::now();
        let mut recent = self.0.lock();
        if recent.is_too_slow(now) {
            recent.slow += 1;
            return None;
        }
        if recent.slow_in_row >= SLOW_READS_IN_ROW {
            recent.next_probe = Some(now + PROBE_INTERVAL);
        }
        Some((recent.mean * SLOW_READ_MEANS).clamp(SLOW_READ_FLOOR, SLOW_READ_CEILING))
    }

    /// Counts a read that was given up.
    fn give_up(&self) {
        let mut recent = self.0.lock();
        recent.slow += 1;
        recent.slow_in_row = recent.slow_in_row.saturating_add(1);
        if recent.slow_in_row == SLOW_READS_IN_ROW {
            recent.next_probe = Some(tokio::time::Instant::now() + PROBE_INTERVAL);
        }
    }

    pub(super) fn slow(&self) -> u64 {
        self.0.lock().slow
    }
}

/// A load on its way through a reader thread. The thread takes it out to fill it; if the thread is slow, a
/// fetch from the origin does.
type LoadSlot = Arc<Mutex<Option<Load>>>;

/// A read of one block into memory of its own, so that the load never waits for the disk.
struct BlockRead {
    pool: Arc<BlockPool>,
    buffers: Arc<ReadBuffers>,
    times: Arc<ReadTimes>,
    version: VersionKey,
    block: u32,
    slot: LoadSlot,
    buffer: Option<ReadBuffer>,
    /// When a thread began it.
    began: Option<Instant>,
    done: Option<oneshot::Sender<()>>,
}

impl BlockRead {
    fn put_back(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.buffers.put_back(buffer);
        }
    }
}

impl ReadJob for BlockRead {
    fn block(&self) -> (VersionKey, u32) {
        (self.version, self.block)
    }

    fn buffer(&mut self, bytes: usize) -> Option<&mut [u8]> {
        // Given up while it was queued.
        self.slot.lock().as_ref()?;
        self.began = Some(Instant::now());
        let frame = || self.pool.try_frames(Share::Download, bytes, 1, 1)?.pop();
        let spare = self.buffers.pop(bytes);
        self.buffer = spare.or_else(|| frame().map(ReadBuffer::Frame));
        self.buffer.as_mut().map(ReadBuffer::as_mut_slice)
    }

    fn finish(mut self: Box<Self>, read: Option<usize>) {
        if let Some(began) = self.began {
            self.times.record(began.elapsed());
        }
        let load = self.slot.lock().take();
        if let Some(mut load) = load {
            if read == Some(load.remaining()) {
                self.buffer = self.buffer.take().and_then(|buffer| buffer.fill(&mut load));
            }
            *self.slot.lock() = Some(load);
        }
        // Before the waiter is woken, which may want the memory.
        self.put_back();
        if let Some(done) = self.done.take() {
            // An error means that the load was taken out.
            let _ = done.send(());
        }
    }
}

/// Fills a load whose frame is attached, by a job that `submit` gives to a reader thread. Returns the load, complete or,
/// if the disk has not returned the block in time, as it was.
pub(super) async fn fill(
    submit: impl FnOnce(Box<dyn ReadJob>),
    memory: (&Arc<BlockPool>, &Arc<ReadBuffers>),
    times: &Arc<ReadTimes>,
    version: VersionKey,
    load: Load,
) -> Load {
    let Some(limit) = times.limit() else {
        return load;
    };
    let (done, mut finished) = oneshot::channel();
    let block = load.key().block;
    let slot: LoadSlot = Arc::new(Mutex::new(Some(load)));
    submit(Box::new(BlockRead {
        pool: Arc::clone(memory.0),
        buffers: Arc::clone(memory.1),
        times: Arc::clone(times),
        version,
        block,
        slot: Arc::clone(&slot),
        buffer: None,
        began: None,
        done: Some(done),
    }));
    // Errors of `finished` mean that the thread is gone, with the job.
    let in_time = tokio::time::timeout(limit, &mut finished).await;
    if in_time.is_err() {
        times.give_up();
        let taken = slot.lock().take();
        if let Some(load) = taken {
            return load;
        }
        // The thread has the bytes and is copying them.
        let _ = finished.await;
    }
    let load = slot.lock().take();
    load.expect("the thread puts the load back before it finishes")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use bywash_mem::{BlockKey, Claim, PoolConfig};

    use super::*;

    const BLOCK: usize = 4096;
    const KEY: VersionKey = VersionKey([7; 16]);

    fn load(pool: &Arc<BlockPool>) -> Load {
        let key = BlockKey {
            store: 0,
            object: 1,
            block: 2,
        };
        let Claim::Vacant(mut load) = pool.claim(key) else {
            panic!("the block is in memory");
        };
        let frame = pool.try_frames(Share::Download, BLOCK, 1, 1).unwrap().pop();
        load.attach(frame.unwrap(), BLOCK);
        load
    }

    fn buffers(pool: &Arc<BlockPool>, count: usize) -> Arc<ReadBuffers> {
        Arc::new(ReadBuffers::take(pool, BLOCK, 1 << 20, count))
    }

    /// Runs a reader thread.
    fn run(mut job: Box<dyn ReadJob>, content: u8) {
        begin(&mut *job, content);
        job.finish(Some(BLOCK));
    }

    fn begin(job: &mut dyn ReadJob, content: u8) {
        assert_eq!(job.block(), (KEY, 2));
        job.buffer(BLOCK).unwrap()[..BLOCK].fill(content);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_read_is_left_to_its_thread() {
        let pool = BlockPool::new(PoolConfig::new(1 << 20)).unwrap();
        let (buffers, times) = (buffers(&pool, 0), Arc::default());
        let memory = (&pool, &buffers);
        let mut kept = None;
        let submit = |mut job: Box<dyn ReadJob>| {
            begin(&mut *job, 1);
            kept = Some(job);
        };
        let returned = fill(submit, memory, &times, KEY, load(&pool)).await;
        assert_eq!((returned.remaining(), times.slow()), (BLOCK, 1));
        // The thread returns at last, and writes into no load.
        kept.unwrap().finish(Some(BLOCK));
        assert_eq!(returned.remaining(), BLOCK);
        drop(returned);

        let submit = |job| run(job, 2);
        let returned = fill(submit, memory, &times, KEY, load(&pool)).await;
        assert_eq!((returned.remaining(), times.slow()), (0, 1));
        assert!(returned.publish().unwrap().iter().all(|byte| *byte == 2));
    }

    #[tokio::test(start_paused = true)]
    async fn disk_that_hangs_or_is_slow_makes_no_load_wait_longer() {
        let times = ReadTimes::default();
        for took in [Duration::from_secs(30), Duration::from_millis(900)] {
            for _ in 0..100 {
                times.record(took);
            }
            assert_eq!(times.limit(), Some(SLOW_READ_CEILING));
        }
        for _ in 0..100 {
            times.record(Duration::from_micros(100));
        }
        assert_eq!(times.limit(), Some(SLOW_READ_FLOOR));
    }

    #[tokio::test(start_paused = true)]
    async fn disk_that_is_always_slow_is_tried_once_a_second() {
        let pool = BlockPool::new(PoolConfig::new(1 << 20)).unwrap();
        let (buffers, times) = (buffers(&pool, 0), Arc::default());
        let mut jobs: Vec<Box<dyn ReadJob>> = Vec::new();
        let start = tokio::time::Instant::now();
        for _ in 0..1000 {
            let submit = |job| jobs.push(job);
            drop(fill(submit, (&pool, &buffers), &times, KEY, load(&pool)).await);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let seconds = start.elapsed().as_secs() as usize;
        assert!(jobs.len() <= SLOW_READS_IN_ROW as usize + seconds);
        assert!(jobs.len() >= SLOW_READS_IN_ROW as usize + seconds / 2);
        assert!(times.is_too_slow());
        // Nothing is read for loads that were given up while they were queued.
        assert!(jobs.iter_mut().all(|job| job.buffer(BLOCK).is_none()));
        tokio::time::sleep(PROBE_INTERVAL).await;
        let submit = |job| run(job, 1);
        drop(fill(submit, (&pool, &buffers), &times, KEY, load(&pool)).await);
        assert!(!times.is_too_slow());
    }

    #[tokio::test(start_paused = true)]
    async fn reads_use_the_spare_memory_while_the_memory_is_full() {
        let pool = BlockPool::new(PoolConfig::new(16 << 12)).unwrap();
        let (buffers, times) = (buffers(&pool, 1), Arc::default());
        let load = load(&pool);
        let mut held = Vec::new();
        while let Some(frames) = pool.try_frames(Share::Download, BLOCK, 1, 1) {
            held.extend(frames);
        }
        let submit = |job| run(job, 3);
        let returned = fill(submit, (&pool, &buffers), &times, KEY, load).await;
        assert_eq!(returned.remaining(), 0);
        assert_eq!(buffers.spare(), 1, "the frame is back");
    }
}
