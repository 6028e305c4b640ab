//! An upload as a blocking [`std::io::Write`].

use std::io::{self, Write};

use object_store::Result;
use tokio::runtime::Handle;

use super::{Upload, UploadResult};

/// Writes bytes into an [`Upload`] from a thread outside of the runtime. Each is copied once, into the buffer of its
/// chunk, so writes of any size cost no request of their own.
///
/// A write blocks while a chunk is sent or memory is short. Neither flush nor drop finishes the upload, because a
/// failing program flushes and drops its streams too: [`Self::finish`] does. A failed write has accepted nothing and
/// may be repeated.
///
/// # Panics
/// Writes and [`Self::finish`] panic on a thread that runs asynchronous tasks; use [`super::UploadWriter`] there.
#[derive(Debug)]
pub struct BlockingUploadWriter {
    upload: Upload,
    runtime: Handle,
}

impl Upload {
    /// Converts the upload into a blocking writer. `runtime` has threads of its own, or another thread runs it.
    #[must_use]
    pub fn into_blocking_writer(self, runtime: &Handle) -> BlockingUploadWriter {
        BlockingUploadWriter {
            upload: self,
            runtime: runtime.clone(),
        }
    }
}

impl BlockingUploadWriter {
    /// Completes the upload, as [`Upload::finish`] does.
    ///
    /// # Errors
    /// As [`Upload::finish`]; may be called again.
    pub fn finish(&mut self) -> Result<UploadResult> {
        self.runtime.block_on(self.upload.finish())
    }

    /// Returns the upload, to look at its progress or to change its chunks.
    pub fn upload(&mut self) -> &mut Upload {
        &mut self.upload
    }

    /// Returns the upload with all accepted bytes, to continue it otherwise.
    #[must_use]
    pub fn into_upload(self) -> Upload {
        self.upload
    }
}

impl Write for BlockingUploadWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        loop {
            if let Some(copied) = self.upload.copy_now(bytes).map_err(io::Error::other)? {
                return Ok(copied);
            }
            let room = self.runtime.block_on(self.upload.make_room());
            room.map_err(io::Error::other)?;
        }
    }

    /// Does nothing: bytes of a partial chunk stay in the buffer.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
