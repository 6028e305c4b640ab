//! A pass over all blocks of the disk, at an operator's request.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bywash_mem::Share;
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use super::DiskTier;
use crate::error::EngineError;

/// Result of a pass over all blocks of the disk tier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DiskVerification {
    /// Blocks as they were written.
    pub good_blocks: u64,
    /// Bytes of these blocks.
    pub good_bytes: u64,
    /// Blocks with other bytes, dropped.
    pub damaged_blocks: u64,
    /// Blocks that could not be read, dropped unless the tier was turned off.
    pub unreadable_blocks: u64,
    /// Duration of the pass in seconds.
    pub seconds: f64,
    /// Whether all blocks were read: a tier that is turned off ends the pass.
    pub complete: bool,
}

/// Ends a pass before its end.
#[derive(Debug, Default)]
pub(crate) struct StopSignal {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl StopSignal {
    pub(crate) fn stop(&self) {
        *self.stopped.lock() = true;
        self.changed.notify_all();
    }

    /// Waits until `time` has passed since `start`. Returns whether to continue.
    fn wait_until(&self, start: Instant, time: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        while !*stopped {
            let rest = time.saturating_sub(start.elapsed());
            if rest.is_zero() {
                return true;
            }
            self.changed.wait_for(&mut stopped, rest);
        }
        false
    }
}

/// Marks the pass as running.
struct RunningMark<'a>(&'a AtomicBool);

impl Drop for RunningMark<'_> {
    fn drop(&mut self) {
        // Relaxed: the mark guards no memory.
        self.0.store(false, Relaxed);
    }
}

impl DiskTier {
    /// Reads all blocks with one thread, which is blocked, at most `rate` bytes a second, until it is stopped.
    pub(crate) fn verify(
        &self,
        rate: Option<u64>,
        block_size: u64,
        stop: &StopSignal,
    ) -> Result<DiskVerification, EngineError> {
        // Relaxed: see `RunningMark`.
        if self.verifying.swap(true, Relaxed) {
            return Err(EngineError::DiskVerifying);
        }
        let _running = RunningMark(&self.verifying);
        let charged = self.pool.try_reserve(Share::Download, block_size);
        let _charge = charged.ok_or_else(|| EngineError::SlowDown {
            operation: "verify",
            object: "the disk tier".to_owned(),
            waited_s: 0,
        })?;
        let start = Instant::now();
        let mut due = Duration::ZERO;
        let found = self.tier.verify(|bytes| {
            if let Some(rate) = rate {
                due += Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            }
            stop.wait_until(start, due)
        });
        Ok(DiskVerification {
            good_blocks: found.good_blocks,
            good_bytes: found.good_bytes,
            damaged_blocks: found.damaged_blocks,
            unreadable_blocks: found.unreadable_blocks,
            seconds: start.elapsed().as_secs_f64(),
            complete: found.complete,
        })
    }
}
