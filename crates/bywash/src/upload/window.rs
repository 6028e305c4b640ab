//! Chunks in flight in parallel, for stores that accept them so. Each stays here until it and all before it are
//! acknowledged, so the bytes held have no gap.

use std::collections::VecDeque;

use bywash_store::Chunk;
use object_store::{Error, Result};
use tokio::task::JoinSet;

use super::driver::Driver;
use super::part_buffer::PartBuffer;
use super::session_client::TransferStats;
use crate::frame_buffer::FrameBuffer;

/// The chunks between the acknowledged offset and the chunk being filled.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// In order, without a gap.
    parts: VecDeque<PartInFlight>,
    /// Run without being polled; aborted when this is dropped.
    tasks: JoinSet<PartResult>,
    /// Buffers of acknowledged chunks.
    spare: Vec<FrameBuffer>,
}

#[derive(Debug)]
struct PartInFlight {
    part: PartBuffer,
    state: PartState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PartState {
    Sending,
    Failed,
    /// Stored, with its CRC32C.
    Stored(u32),
}

/// Result of sending a chunk.
#[derive(Debug)]
struct PartResult {
    index: u64,
    crc32c: u32,
    stats: TransferStats,
    result: Result<()>,
}

impl Window {
    /// The number of chunks in it.
    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Returns a buffer for reuse.
    pub(super) fn spare(&mut self) -> Option<FrameBuffer> {
        self.spare.pop()
    }

    /// The offset of the first byte here, if there is one.
    pub(super) fn offset(&self) -> Option<u64> {
        self.parts.front().map(|in_flight| in_flight.part.offset)
    }

    /// All bytes here, in order.
    pub(super) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.parts
            .iter()
            .flat_map(|in_flight| in_flight.part.slices())
    }

    /// Sends a full chunk, unless the store reported a matching range.
    pub(super) fn send(&mut self, part: PartBuffer, driver: &mut Driver) {
        let chunk = part.chunk(part.offset, Vec::new());
        let state = if driver.has(&chunk) {
            PartState::Stored(chunk.crc32c)
        } else {
            self.start(chunk, driver, false);
            PartState::Sending
        };
        self.parts.push_back(PartInFlight { part, state });
        self.release_stored(driver);
    }

    fn start(&mut self, mut chunk: Chunk, driver: &Driver, again: bool) {
        let mut driver = driver.of_chunk(&chunk, again);
        let index = chunk.index;
        self.tasks.spawn(async move {
            let result = driver.deliver(&mut chunk).await;
            PartResult {
                index,
                crc32c: driver.crc32c,
                stats: driver.stats,
                result,
            }
        });
    }

    /// Waits until one more chunk is stored; first resends failed ones. Cancel-safe.
    ///
    /// # Errors
    /// The error of the chunk. It stays here, and is sent again by the next call.
    pub(super) async fn wait_one(&mut self, driver: &mut Driver) -> Result<()> {
        let failed = |in_flight: &&mut PartInFlight| in_flight.state == PartState::Failed;
        let mut parts = std::mem::take(&mut self.parts);
        for in_flight in parts.iter_mut().filter(failed) {
            let part = &in_flight.part;
            self.start(part.chunk(part.offset, Vec::new()), driver, true);
            in_flight.state = PartState::Sending;
        }
        self.parts = parts;
        let result = match self.tasks.join_next().await {
            None => return Ok(()),
            Some(Ok(result)) => result,
            Some(Err(source)) => {
                // The chunk is unknown; sending a part twice does no harm.
                self.parts.iter_mut().for_each(|in_flight| {
                    if in_flight.state == PartState::Sending {
                        in_flight.state = PartState::Failed;
                    }
                });
                return Err(Error::JoinError { source });
            }
        };
        driver.stats.add(&result.stats);
        let mut parts = self.parts.iter_mut();
        if let Some(in_flight) = parts.find(|in_flight| in_flight.part.index == result.index) {
            in_flight.state = match result.result {
                Ok(()) => PartState::Stored(result.crc32c),
                Err(_) => PartState::Failed,
            };
        }
        self.release_stored(driver);
        result.result
    }

    /// Waits until all chunks are stored.
    pub(super) async fn drain(&mut self, driver: &mut Driver) -> Result<()> {
        while !self.parts.is_empty() {
            self.wait_one(driver).await?;
        }
        Ok(())
    }

    /// Releases the stored chunks at the front.
    fn release_stored(&mut self, driver: &mut Driver) {
        while let Some(PartInFlight {
            state: PartState::Stored(crc32c),
            ..
        }) = self.parts.front()
        {
            driver.fold(*crc32c, self.parts[0].part.end);
            let done = self.parts.pop_front();
            let buffer = done.and_then(|in_flight| in_flight.part.buffer);
            if let Some(mut buffer) = buffer
                && buffer.reclaim()
            {
                self.spare.push(buffer);
            }
        }
    }

    /// Aborts all tasks and releases all chunks.
    pub(super) async fn clear(&mut self) {
        self.tasks.shutdown().await;
        self.parts.clear();
        self.spare.clear();
    }
}
