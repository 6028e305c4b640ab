//! Memory of a copy through the engine, which reads an object and writes its bytes at the same time.
//!
//! All of it, the chunk to be sent and the buffers to read into, is one reservation in the share of uploads, made before the copy
//! reads anything. From then on the copy waits for no memory, so copies and readers never wait for each other, and copies
//! never hold memory of the readers' guarantee. Copies together have a quota; further ones wait in order and hold nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bywash_mem::{MIN_FRAME, Share};
use object_store::Result;
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::byte_quota::QuotaPermit;
use crate::frame_buffer::{FrameBuffer, LARGEST_FRAME_BYTES};
use crate::limits::MAX_COPIES_MEMORY_DIVISOR;
use crate::shared::EngineShared;

/// Buffers of one copy to read into: one is filled while the other is written. A consumer that keeps its last piece until it has the
/// next keeps one buffer.
const READ_BUFFERS: usize = 2;

/// Memory of one copy. Released with it, and with the last handle of its part for reads.
#[derive(Debug)]
pub struct CopyMemory {
    /// Of the chunk that is filled and sent; `None` if the copy needs none.
    chunk: Option<FrameBuffer>,
    reads: CopyReads,
}

/// The part of a [`CopyMemory`] that the copy reads into; cheap to clone.
#[derive(Debug, Clone)]
pub struct CopyReads(Arc<ReadBuffers>);

/// Buffers that the body of a copy reads into.
#[derive(Debug)]
pub(crate) struct ReadBuffers {
    /// Buffers that are not being filled. Pieces may be lent to the consumer.
    filled: Mutex<Vec<FrameBuffer>>,
    /// Notified when a lent piece is back.
    returned: Arc<Notify>,
    /// After the buffers: their memory is released before the quota.
    _permit: QuotaPermit,
}

/// Returns the bytes of all copies at a memory limit: at least the bytes of one, with a chunk of `chunk` bytes and buffers of together
/// `read` bytes.
pub(crate) fn copies_bytes(limit: u64, chunk: u64, read: u64) -> u64 {
    (limit / MAX_COPIES_MEMORY_DIVISOR).max(chunk + read)
}

/// Bytes that a copy needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CopySizes {
    /// Bytes to copy.
    pub(crate) length: u64,
    /// Length of a chunk of its upload; 0 if its bytes are passed on as they are read.
    pub(crate) chunk: u64,
}

impl CopyMemory {
    /// Reserves the memory of a copy, after earlier copies, up to the admission deadline.
    pub(crate) async fn reserve(
        engine: &EngineShared,
        sizes: CopySizes,
        object: &Path,
    ) -> Result<Self> {
        let CopySizes { length, chunk } = sizes;
        let read = engine.fetch_size.load(Relaxed) / READ_BUFFERS as u64;
        let read = read.min(length).max(1);
        let sent = chunk.min(length);
        // Frames of one length, so that one request allocates all.
        let frame = (1 << read.ilog2()).min(LARGEST_FRAME_BYTES);
        let frames = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let sent_frames = frames(sent.div_ceil(frame));
        let read_frames = frames((read / frame).max(1));
        let count = sent_frames.saturating_add(read_frames.saturating_mul(READ_BUFFERS));
        let bytes = frame.max(MIN_FRAME as u64).saturating_mul(count as u64);
        let operation = "copy to";
        let reserved = async {
            let permit = engine.copies.acquire(bytes).await;
            let frames = engine.frames(Share::Upload, frame as usize, count, operation, object);
            (permit, frames.await)
        };
        let waited = tokio::time::timeout(engine.admission_deadline, reserved).await;
        let (permit, frames) = waited.map_err(|_| engine.slow_down(operation, object.as_ref()))?;
        let mut frames = frames?;
        let chunk = frames.split_off(count - sent_frames);
        let returned = Arc::default();
        let buffers = (0..READ_BUFFERS).map(|_| {
            let frames = frames.drain(..read_frames).collect();
            FrameBuffer::new(frames).notifying(&returned)
        });
        Ok(Self {
            chunk: (sent_frames > 0).then(|| FrameBuffer::new(chunk)),
            reads: CopyReads(Arc::new(ReadBuffers {
                filled: Mutex::new(buffers.collect()),
                returned,
                _permit: permit,
            })),
        })
    }

    /// Takes the buffer of the chunk, once.
    pub(crate) fn take_chunk(&mut self) -> Option<FrameBuffer> {
        self.chunk.take()
    }

    /// The memory to read into.
    #[must_use]
    pub fn reads(&self) -> &CopyReads {
        &self.reads
    }
}

impl CopyReads {
    pub(crate) fn buffers(&self) -> &Arc<ReadBuffers> {
        &self.0
    }
}

impl ReadBuffers {
    /// Takes a buffer without lent pieces, if there is one now.
    pub(crate) fn take(&self) -> Option<FrameBuffer> {
        let mut filled = self.filled.lock();
        let at = filled.iter_mut().position(FrameBuffer::reclaim)?;
        Some(filled.swap_remove(at))
    }

    /// As [`Self::take`], after waiting for the consumer. `None` if all buffers are lost with bodies that were dropped.
    pub(crate) async fn taken(&self) -> Option<FrameBuffer> {
        while !self.filled.lock().is_empty() {
            if let Some(buffer) = self.take() {
                return Some(buffer);
            }
            // A piece that is back in between has left its notice.
            self.returned.notified().await;
        }
        None
    }

    /// Puts a buffer back. Pieces of it may be lent.
    pub(crate) fn put_back(&self, buffer: FrameBuffer) {
        self.filled.lock().push(buffer);
    }
}
