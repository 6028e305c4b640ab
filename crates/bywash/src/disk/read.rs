//! Reads of blocks from the disk into loads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bywash_disk::{ReadJob, Readers, VersionKey};
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

/// A load on its way through a reader thread. Whoever takes it out fills it: the thread, or a fetch from the origin
/// when the thread is slow.
type LoadSlot = Arc<Mutex<Option<Load>>>;

/// A read of one block into a frame of its own, so that the load never waits for the disk.
struct BlockRead {
    pool: Arc<BlockPool>,
    times: Arc<ReadTimes>,
    version: VersionKey,
    block: u32,
    slot: LoadSlot,
    frame: Option<Frame>,
    queued: Instant,
    done: Option<oneshot::Sender<()>>,
}

impl ReadJob for BlockRead {
    fn block(&self) -> (VersionKey, u32) {
        (self.version, self.block)
    }

    fn buffer(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let frames = self.pool.try_frames(Share::Download, bytes, 1, 1);
        self.frame = frames?.pop();
        self.frame.as_mut().map(Frame::as_mut_slice)
    }

    fn finish(mut self: Box<Self>, read: Option<usize>) {
        self.times.record(self.queued.elapsed());
        let load = self.slot.lock().take();
        if let Some(mut load) = load {
            let bytes = read.zip(self.frame.as_ref());
            if let Some((length, frame)) = bytes.filter(|(length, _)| *length == load.remaining()) {
                load.write(&frame.as_slice()[..length]);
            }
            *self.slot.lock() = Some(load);
        }
        // Before the waiter is woken, which may want the memory.
        self.frame = None;
        if let Some(done) = self.done.take() {
            // An error means that the load was taken out.
            let _ = done.send(());
        }
    }
}

/// Fills a load whose frame is attached. Returns the load, complete or, if the disk has not returned the block in time,
/// as it was.
pub(super) async fn fill(
    readers: &Readers,
    pool: &Arc<BlockPool>,
    times: &Arc<ReadTimes>,
    version: VersionKey,
    load: Load,
) -> Load {
    let (done, mut finished) = oneshot::channel();
    let block = load.key().block;
    let slot: LoadSlot = Arc::new(Mutex::new(Some(load)));
    readers.read(Box::new(BlockRead {
        pool: Arc::clone(pool),
        times: Arc::clone(times),
        version,
        block,
        slot: Arc::clone(&slot),
        frame: None,
        queued: Instant::now(),
        done: Some(done),
    }));
    if tokio::time::timeout(times.limit(), &mut finished)
        .await
        .is_err()
    {
        times.slow.fetch_add(1, Relaxed);
        let taken = slot.lock().take();
        if let Some(load) = taken {
            return load;
        }
        // The thread has the bytes and is copying them.
    }
    // An error means that the thread is gone, with the job.
    let _ = finished.await;
    let load = slot.lock().take();
    load.expect("the thread puts the load back before it finishes")
}
