//! Reads of blocks from the disk into loads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bywash_disk::{ReadJob, VersionKey};
use bywash_mem::{BlockPool, Frame, Load, Share};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Time after which a read is slow, however slow the others are: an origin seldom takes less.
const SLOW_READ: Duration = Duration::from_millis(50);
/// Multiple of the mean time above which a read is slow.
const SLOW_READ_MEANS: u32 = 8;

/// Times of recent reads. Written by reader threads, read by loads; they order nothing, hence relaxed.
#[derive(Debug, Default)]
pub(super) struct ReadTimes {
    /// Moving mean in microseconds.
    mean_us: AtomicU64,
    /// Reads that were given up as slow.
    slow: AtomicU64,
}

impl ReadTimes {
    /// Records a read. Two at once may count as one, which moves the mean no further than either.
    fn record(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let mean = self.mean_us.load(Relaxed);
        self.mean_us.store(mean - mean / 16 + took / 16, Relaxed);
    }

    /// Returns the time after which a read is slow.
    fn limit(&self) -> Duration {
        let mean = Duration::from_micros(self.mean_us.load(Relaxed));
        SLOW_READ.max(mean.saturating_mul(SLOW_READ_MEANS))
    }

    pub(super) fn slow(&self) -> u64 {
        self.slow.load(Relaxed)
    }
}

/// Frames of the reader threads: with them, the disk is read also while requests wait for memory.
pub(super) type SpareFrames = Arc<Mutex<Vec<Frame>>>;

/// A load on its way through a reader thread. The thread takes it out to fill it; if the thread is slow, a
/// fetch from the origin does.
type LoadSlot = Arc<Mutex<Option<Load>>>;

/// A read of one block into a frame of its own, so that the load never waits for the disk.
struct BlockRead {
    pool: Arc<BlockPool>,
    spare: SpareFrames,
    times: Arc<ReadTimes>,
    version: VersionKey,
    block: u32,
    slot: LoadSlot,
    frame: Option<Frame>,
    queued: Instant,
    done: Option<oneshot::Sender<()>>,
}

impl BlockRead {
    /// Puts the frame back among the spare ones, or releases it.
    fn put_back(&mut self) {
        let Some(frame) = self.frame.take() else {
            return;
        };
        let mut spare = self.spare.lock();
        if spare.len() < spare.capacity() {
            spare.push(frame);
        }
    }
}

impl ReadJob for BlockRead {
    fn block(&self) -> (VersionKey, u32) {
        (self.version, self.block)
    }

    fn buffer(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let spare = self.spare.lock().pop_if(|frame| frame.capacity() >= bytes);
        self.frame = match spare {
            Some(frame) => Some(frame),
            None => self.pool.try_frames(Share::Download, bytes, 1, 1)?.pop(),
        };
        self.frame.as_mut().map(Frame::as_mut_slice)
    }

    fn finish(mut self: Box<Self>, read: Option<usize>) {
        self.times.record(self.queued.elapsed());
        let load = self.slot.lock().take();
        if let Some(mut load) = load {
            if read == Some(load.remaining()) {
                self.frame = self.frame.take().and_then(|frame| load.fill(frame));
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
    memory: (&Arc<BlockPool>, &SpareFrames),
    times: &Arc<ReadTimes>,
    version: VersionKey,
    load: Load,
) -> Load {
    let (done, mut finished) = oneshot::channel();
    let block = load.key().block;
    let slot: LoadSlot = Arc::new(Mutex::new(Some(load)));
    submit(Box::new(BlockRead {
        pool: Arc::clone(memory.0),
        spare: Arc::clone(memory.1),
        times: Arc::clone(times),
        version,
        block,
        slot: Arc::clone(&slot),
        frame: None,
        queued: Instant::now(),
        done: Some(done),
    }));
    // Errors of `finished` mean that the thread is gone, with the job.
    let in_time = tokio::time::timeout(times.limit(), &mut finished).await;
    if in_time.is_err() {
        times.slow.fetch_add(1, Relaxed);
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

    /// Does what a reader thread does.
    fn run(mut job: Box<dyn ReadJob>, content: u8) {
        assert_eq!(job.block(), (KEY, 2));
        job.buffer(BLOCK).unwrap()[..BLOCK].fill(content);
        job.finish(Some(BLOCK));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_read_is_left_to_its_thread() {
        let pool = BlockPool::new(PoolConfig::new(1 << 20)).unwrap();
        let (spare, times) = (SpareFrames::default(), Arc::default());
        let memory = (&pool, &spare);
        let mut kept = None;
        let submit = |job| kept = Some(job);
        let returned = fill(submit, memory, &times, KEY, load(&pool)).await;
        assert_eq!((returned.remaining(), times.slow()), (BLOCK, 1));
        // The thread returns at last, and writes into no load.
        run(kept.unwrap(), 1);
        assert_eq!(returned.remaining(), BLOCK);
        drop(returned);

        let submit = |job| run(job, 2);
        let returned = fill(submit, memory, &times, KEY, load(&pool)).await;
        assert_eq!((returned.remaining(), times.slow()), (0, 1));
        assert!(returned.publish().unwrap().iter().all(|byte| *byte == 2));
    }

    #[tokio::test(start_paused = true)]
    async fn reads_use_the_spare_frames_while_the_memory_is_full() {
        let pool = BlockPool::new(PoolConfig::new(16 << 12)).unwrap();
        let mut frames = pool.try_frames(Share::Download, BLOCK, 1, 1).unwrap();
        let own = vec![frames.pop().unwrap()];
        let (spare, times) = (Arc::new(Mutex::new(own)), Arc::default());
        let load = load(&pool);
        let mut held = Vec::new();
        while let Some(frames) = pool.try_frames(Share::Download, BLOCK, 1, 1) {
            held.extend(frames);
        }
        let submit = |job| run(job, 3);
        let returned = fill(submit, (&pool, &spare), &times, KEY, load).await;
        assert_eq!(returned.remaining(), 0);
        assert_eq!(spare.lock().len(), 1, "the frame is back");
    }
}
