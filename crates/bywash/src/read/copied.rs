//! Body of a copy: reads a range into the copy's own buffers ([`crate::copy_memory`]), and so waits for no memory.
//!
//! Blocks in memory or on the disk tier are copied, all other bytes are fetched, up to the next resident block. No block is
//! loaded for a copy unless the disk has it and memory is free at once. While one buffer is written, the next one is filled.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use object_store::{Error, Result};
use tokio::task::JoinSet;

use super::fetch::{Sink, fetch};
use super::{plan, ranged};
use crate::copy_memory::ReadBuffers;
use crate::frame_buffer::FrameBuffer;
use crate::shared::BucketShared;
use crate::versions::{SharedFile, Version};

/// Body of a copy. Its consumer holds at most its last piece when it needs the next. Dropping it ends its requests.
pub(super) struct CopiedBody {
    bucket: Arc<BucketShared>,
    version: Arc<Version>,
    /// Holds the version's open file.
    _file: Arc<SharedFile>,
    buffers: Arc<ReadBuffers>,
    /// Buffers being filled, in order.
    filling: VecDeque<JoinSet<Result<FrameBuffer>>>,
    /// Pieces that the consumer has not taken yet.
    pieces: VecDeque<Bytes>,
    /// Bytes of the range not in any buffer yet.
    rest: Range<u64>,
}

impl CopiedBody {
    pub(super) fn new(
        bucket: &Arc<BucketShared>,
        version: Arc<Version>,
        range: Range<u64>,
        buffers: &Arc<ReadBuffers>,
    ) -> Self {
        Self {
            bucket: Arc::clone(bucket),
            _file: version.file(),
            version,
            buffers: Arc::clone(buffers),
            filling: VecDeque::new(),
            pieces: VecDeque::new(),
            rest: range,
        }
    }

    pub(super) fn bucket(&self) -> &BucketShared {
        &self.bucket
    }

    pub(super) fn version(&self) -> &Version {
        &self.version
    }

    /// Whether all of the range was returned.
    pub(super) fn is_done(&self) -> bool {
        self.pieces.is_empty() && self.filling.is_empty() && self.rest.is_empty()
    }

    /// Returns the next bytes; `None` after the range's end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>> {
        let bytes = self.advance().await?;
        let length = bytes.as_ref().map_or(0, Bytes::len);
        self.bucket.counters.bytes(length as u64);
        Ok(bytes)
    }

    /// As [`Self::next`], without counting the bytes.
    pub(super) async fn advance(&mut self) -> Result<Option<Bytes>> {
        if !self.pieces.is_empty() {
            return Ok(self.pieces.pop_front());
        }
        while !self.rest.is_empty()
            && let Some(buffer) = self.buffers.take()
        {
            self.begin_filling(buffer);
        }
        if self.filling.is_empty() && !self.rest.is_empty() {
            let buffer = self.buffers.taken().await;
            self.begin_filling(buffer.ok_or_else(|| {
                let detail = "a body of the same copy was dropped before its end".to_owned();
                ranged::bad_response(&self.version, detail)
            })?);
        }
        let Some(task) = self.filling.front_mut() else {
            return Ok(None);
        };
        let filled = task.join_next().await;
        self.filling.pop_front();
        let Some(filled) = filled else {
            return Ok(None);
        };
        let filled = filled.map_err(|source| Error::JoinError { source })??;
        let mut pieces = Vec::new();
        filled.lend(0, &mut pieces);
        self.pieces = pieces.into();
        self.buffers.put_back(filled);
        Ok(self.pieces.pop_front())
    }

    /// Begins to fill a free buffer.
    fn begin_filling(&mut self, buffer: FrameBuffer) {
        let room = buffer.capacity() as u64;
        let end = self.rest.end.min(self.rest.start.saturating_add(room));
        let range = self.rest.start..end;
        self.rest.start = end;
        let (bucket, version) = (Arc::clone(&self.bucket), Arc::clone(&self.version));
        let mut task = JoinSet::new();
        task.spawn(fill(bucket, version, buffer, range));
        self.filling.push_back(task);
    }
}

/// Fills an empty buffer with the bytes of `range`.
async fn fill(
    bucket: Arc<BucketShared>,
    version: Arc<Version>,
    mut buffer: FrameBuffer,
    range: Range<u64>,
) -> Result<FrameBuffer> {
    let stored = bucket.disk_version(&version).map(|(_, stored)| stored);
    let (pool, size) = (&bucket.engine.pool, bucket.block_size);
    let mut at = range.start;
    while at < range.end {
        let block = (at / size) as u32;
        let mut copy = |block_bytes: &[u8]| {
            let wanted = (range.end - at) as usize;
            let bytes = &block_bytes[(at % size) as usize..];
            buffer.copy_in(&bytes[..bytes.len().min(wanted)]) as u64
        };
        let resident = pool.peek(version.key(block)).map(|pin| copy(&pin));
        if let Some(copied) = resident {
            bucket.counters.body(1, 0);
            at += copied;
            continue;
        }
        bucket.counters.miss();
        if let Some(pin) = plan::load_from_disk(&bucket, &version, stored.as_ref(), block).await {
            at += copy(&pin);
            continue;
        }
        let last = range.end.div_ceil(size) as u32;
        let present = (block + 1..last).find(|block| pool.contains(version.key(*block)));
        let end = present.map_or(range.end, |block| u64::from(block) * size);
        let mut sink = BufferSink {
            range: at..end,
            buffer: &mut buffer,
        };
        fetch(&bucket, &version, "copy", &mut sink, None).await?;
        at = end;
    }
    Ok(buffer)
}

/// Destination of a fetch that fills a buffer.
struct BufferSink<'a> {
    /// Bytes not received yet.
    range: Range<u64>,
    buffer: &'a mut FrameBuffer,
}

impl Sink for BufferSink<'_> {
    fn missing(&self) -> Range<u64> {
        self.range.clone()
    }

    fn write(&mut self, bytes: &[u8]) -> Result<bool> {
        let missing = (self.range.end - self.range.start) as usize;
        let bytes = &bytes[..bytes.len().min(missing)];
        self.range.start += self.buffer.copy_in(bytes) as u64;
        Ok(self.range.is_empty())
    }
}
