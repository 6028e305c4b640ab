//! The disk tier of an engine: its limit, a pass over its blocks, and its end.

use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use crate::disk::{DiskTier, DiskVerification, StopSignal};
use crate::error::EngineError;

/// Ends a pass over all blocks when its caller is gone.
struct StopOnDrop(Arc<StopSignal>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Engine {
    /// Changes the limit of the disk tier at run time. A lower one removes the oldest blocks; a higher one is bounded by
    /// the index, whose memory is fixed at the start. Blocks the thread.
    ///
    /// # Errors
    /// [`EngineError::InvalidSetting`] if there is no disk tier, or the limit is too low. Nothing is changed.
    pub fn set_disk(&self, bytes: u64) -> Result<(), EngineError> {
        self.disk()?.resize(bytes)
    }

    /// The disk tier, or an error without one.
    fn disk(&self) -> Result<&DiskTier, EngineError> {
        let disk = self.shared.disk.as_ref();
        disk.ok_or_else(|| EngineError::InvalidSetting {
            setting: "disk",
            reason: "there is no disk tier; start the server with --disk DIR:SIZE".to_owned(),
        })
    }

    /// Ends the writes to the disk tier: writes the blocks that wait, until `deadline` has passed. Without this call,
    /// blocks loaded in the last moments are not on the disk. Returns whether all was written.
    pub async fn close_disk(&self, deadline: Duration) -> bool {
        if self.shared.disk.is_none() {
            return true;
        }
        let shared = Arc::clone(&self.shared);
        let closed = tokio::task::spawn_blocking(move || {
            shared.disk.as_ref().is_none_or(|disk| disk.close(deadline))
        });
        closed.await.unwrap_or(false)
    }

    /// Reads all blocks of the disk tier, at most `rate` bytes a second, and compares each with its checksum. Blocks that are
    /// damaged or cannot be read are dropped. One block is read at a time, so readers wait for the disk at most that much
    /// longer. Blocks that are written during the pass may be left out. Dropping the future ends the pass.
    ///
    /// # Errors
    /// [`EngineError::InvalidSetting`] if there is no disk tier, [`EngineError::DiskVerifying`] if a pass is running,
    /// [`EngineError::SlowDown`] if there is no memory for a block.
    pub async fn verify_disk(&self, rate: Option<u64>) -> Result<DiskVerification, EngineError> {
        self.disk()?;
        let stop = StopOnDrop(Arc::default());
        let (engine, stopped) = (self.clone(), Arc::clone(&stop.0));
        let pass = tokio::task::spawn_blocking(move || {
            let block_size = engine.shared.block_size;
            engine.disk()?.verify(rate, block_size, &stopped)
        });
        pass.await.map_err(|error| EngineError::Io {
            bucket: "the disk tier".to_owned(),
            source: error.into(),
        })?
    }
}
