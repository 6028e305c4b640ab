//! Memory of scratch blocks: frames and charges, waited for in the order of all requests.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use bywash_mem::{Frame, FrameError, Share};

use super::error::ScratchError;
use super::store::Store;

/// Memory of one block in the table of its scratch, at the table's lowest load.
const ENTRY_MEMORY: u64 = 192;
/// The charge of the table grows by so much.
const TABLE_STEP: u64 = 64 << 10;

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Store {
    /// Allocates a frame for a new block, and charges its entry in the table. Blocks the thread.
    pub(super) fn frame_of_new(&self, len: usize) -> Result<Frame, ScratchError> {
        let frame = self.frame(len)?;
        self.charge_entry(len)?;
        Ok(frame)
    }

    /// Allocates a frame, evicting blocks if necessary, and waits until the admission deadline. Blocks the thread.
    pub(super) fn frame(&self, len: usize) -> Result<Frame, ScratchError> {
        let pool = &self.engine.pool;
        let share = Share::Download;
        let frames = self.acquire(
            len,
            || pool.try_frames(share, len, 1, 1),
            || pool.frames(share, len, 1, 1),
        )?;
        let frame = frames.into_iter().next();
        Ok(frame.expect("at least the one frame asked for was granted"))
    }

    /// Counts a block, and charges the memory of the table.
    fn charge_entry(&self, len: usize) -> Result<(), ScratchError> {
        let pool = &self.engine.pool;
        let share = Share::Download;
        loop {
            {
                let mut table = self.charge.lock();
                if (table.blocks + 1) * ENTRY_MEMORY <= table.bytes() {
                    table.blocks += 1;
                    return Ok(());
                }
            }
            let more = self.acquire(
                len,
                || pool.try_reserve(share, TABLE_STEP),
                || pool.reserve(share, TABLE_STEP),
            )?;
            self.charge.lock().add(more);
        }
    }

    /// Counts a block out.
    pub(super) fn discharge_entry(&self) {
        let mut table = self.charge.lock();
        table.blocks -= 1;
        let needed = table.blocks * ENTRY_MEMORY;
        if table.bytes() > 2 * needed + 2 * TABLE_STEP {
            table.shrink_to(needed + TABLE_STEP);
        }
    }

    /// Tries, and waits until the admission deadline. Fails at once if blocks of this scratch were not evicted because their
    /// temporary files are full.
    fn acquire<T, F: Future<Output = Result<T, FrameError>>>(
        &self,
        len: usize,
        attempt: impl FnOnce() -> Option<T>,
        wait: impl FnOnce() -> F,
    ) -> Result<T, ScratchError> {
        let refusals = self.refusals();
        if let Some(memory) = attempt() {
            return Ok(memory);
        }
        // Release read-ahead memory before blocking: foreground requests take precedence.
        self.engine.readahead.release_all();
        let deadline = Instant::now() + self.engine.admission_deadline;
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut wait = pin!(wait());
        loop {
            match wait.as_mut().poll(&mut context) {
                Poll::Ready(Ok(memory)) => return Ok(memory),
                Poll::Ready(Err(FrameError::TooLarge { max, .. })) => {
                    return Err(ScratchError::TooLarge { bytes: len, max });
                }
                Poll::Ready(Err(_)) => return Err(self.no_memory(len)),
                Poll::Pending => {}
            }
            if let Some(source) = self.refused_since(refusals) {
                return Err(ScratchError::NotEvictable { bytes: len, source });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.no_memory(len));
            }
            thread::park_timeout(left);
        }
    }

    pub(super) fn no_memory(&self, len: usize) -> ScratchError {
        let budget = self.engine.pool.budget();
        ScratchError::NoMemory {
            bytes: len,
            waited_s: self.engine.admission_deadline.as_secs(),
            used: budget.used() - budget.idle(),
            limit: budget.limit(),
        }
    }
}
