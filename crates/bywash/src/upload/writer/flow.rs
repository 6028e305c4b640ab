//! Flow of bytes into chunks, and of full chunks to the store.

use bytes::Bytes;
use bywash_mem::Share;
use bywash_store::body_length_error;
use object_store::{Error, Result};

use super::Upload;
use crate::error::EngineError;
use crate::frame_buffer::{FrameBuffer, frames_for};
use crate::upload::ChunkPlan;

impl Upload {
    /// Sends the chunk being filled if it is full, and waits until the store has all chunks that were sent.
    /// [`Self::capture`] then has few bytes: of a chunk that is not full, or of the last one where chunks go in
    /// order, which the completion may carry.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub async fn settle(&mut self) -> Result<()> {
        self.check_open()?;
        self.drive().await?;
        if self.part.is_full() && self.bucket.chunk_rule().parallel {
            self.flush().await?;
        }
        if let Some(driver) = &mut self.driver {
            self.window.drain(driver).await?;
        }
        Ok(())
    }

    /// Moves accepted bytes into chunks, and sends full ones when more bytes follow.
    pub(super) async fn drive(&mut self) -> Result<()> {
        if let Some(length) = self.options.length
            && self.accepted > length
        {
            return Err(body_length_error(&self.path, length, self.accepted));
        }
        self.change_chunk();
        loop {
            let room = self.part.room();
            let more = self.pending.iter().any(|bytes| !bytes.is_empty());
            // The last chunk waits for the completion, which may carry it; in parallel mode it need not.
            if self.part.is_full() && (more || self.window() > 1) {
                self.flush().await?;
                continue;
            }
            let Some(next) = self.pending.front_mut() else {
                return Ok(());
            };
            if next.is_empty() {
                self.pending.pop_front();
            } else if next.len() as u64 >= room && self.part.tail.is_none() {
                let slice = next.split_to(room as usize);
                self.part.complete_with(slice);
            } else {
                self.ready_buffer().await?;
                let next = self
                    .pending
                    .front_mut()
                    .expect("there was one before waiting");
                let copied = self.part.copy_in(next);
                // Empty slices are dropped at once, as they keep the caller's memory alive.
                *next = if copied == next.len() {
                    Bytes::new()
                } else {
                    next.slice(copied..)
                };
            }
        }
    }

    /// Returns how many chunks may be in flight; 1 while there is no session.
    fn window(&self) -> usize {
        let rule = self.driver.as_ref().map(|driver| driver.client.rule);
        rule.map_or(1, |rule| rule.window(self.options.parallel))
    }

    /// Sends the full chunk.
    async fn flush(&mut self) -> Result<()> {
        self.open().await?;
        self.check_chunks()?;
        self.keep_chunk();
        let window = self.window();
        let driver = self.driver.as_mut().expect("it was opened above");
        let before = driver.acknowledged;
        if window > 1 {
            driver.refresh_stored().await?;
        }
        if window > 1 && !driver.verify_only {
            while self.window.len() >= window {
                self.window.wait_one(driver).await?;
            }
            let next = self.part.next(&self.plan, self.window.spare());
            let full = std::mem::replace(&mut self.part, next);
            self.window.send(full, driver);
            if self.next_chunk.is_some() {
                // A captured upload is cut by one plan from its acknowledged offset on.
                self.window.drain(driver).await?;
            }
        } else {
            let pieces = std::mem::take(&mut self.pieces);
            let mut chunk = self.part.chunk(driver.acknowledged, pieces);
            driver.deliver(&mut chunk).await?;
            self.pieces = chunk.pieces;
            self.part.advance(&self.plan);
        }
        if let Some(journaled) = &mut self.journaled
            && driver.acknowledged > before
        {
            // Written to disk while the next chunk is being sent.
            journaled
                .acknowledged(driver.acknowledged, driver.crc32c)
                .await?;
        }
        self.change_chunk();
        Ok(())
    }

    /// Gives the chunk about to be filled, and those after it, the length of [`Self::set_chunk`]. Waits for the next
    /// chunk while this one has bytes, also at the store, and while chunks are in flight.
    pub(super) fn change_chunk(&mut self) {
        let at = (self.part.index, self.part.offset);
        let begins = self.part.length == 0 && at.1 == self.plan.start_of(at.0);
        if !begins || self.window.len() > 0 {
            return;
        }
        let Some(bytes) = self.next_chunk.take() else {
            return;
        };
        let rule = self.bucket.chunk_rule();
        // Checked when it was set: a chunk that is filled since leaves fewer bytes to send.
        if let Ok(plan) = ChunkPlan::changed_from(&rule, at, bytes, self.options.length) {
            self.plan = plan;
            self.part.fit(&plan);
        }
    }

    /// Copies the chunk into blocks, if they are kept and it was not copied before.
    pub(super) fn keep_chunk(&mut self) {
        if let Some(written) = &mut self.written {
            written.take(self.part.offset, self.part.slices());
        }
    }

    /// Checks that the store accepts the chunk being filled.
    pub(super) fn check_chunks(&self) -> Result<()> {
        match self.plan.chunks() {
            Some(max) if self.part.index >= max => Err(self.too_many_chunks()),
            _ => Ok(()),
        }
    }

    fn too_many_chunks(&self) -> Error {
        let limit = self.plan.chunks().unwrap_or(u64::MAX);
        EngineError::TooManyParts {
            object: self.path.to_string(),
            limit_parts: u16::try_from(limit).unwrap_or(u16::MAX),
        }
        .into()
    }

    /// Ensures a buffer for bytes that must wait. Its size is the whole chunk's: an upload that holds memory never
    /// waits for more.
    async fn ready_buffer(&mut self) -> Result<()> {
        let capacity = self.capacity();
        if self.part.buffer_is_ready(capacity) {
            return Ok(());
        }
        if self.is_reserved && self.reclaim_reserved(capacity).await? {
            return Ok(());
        }
        if self.part.length == 0 {
            // The old buffer is still lent, or too small: allocate another.
            self.part.buffer = None;
            // An upload that holds memory waits only for its own to be released.
            while self.window.len() > 0 {
                if let Some(buffer) = self.try_buffer(capacity) {
                    self.part.move_to(buffer);
                    return Ok(());
                }
                let driver = self.driver.as_mut().expect("chunks are on their way");
                self.window.wait_one(driver).await?;
                while let Some(buffer) = self.window.spare() {
                    self.part.buffer = Some(buffer);
                    if self.part.buffer_is_ready(capacity) {
                        return Ok(());
                    }
                    self.part.buffer = None;
                }
            }
        }
        let (length, count) = self.frames_for(capacity);
        let engine = &self.bucket.shared().engine;
        let frames = engine
            .frames(Share::Upload, length, count, "upload", &self.path)
            .await?;
        self.buffers += 1;
        self.part.move_to(FrameBuffer::new(frames));
        Ok(())
    }

    /// Waits until the store's client has dropped the reserved buffer. Returns whether it holds the chunk; it does unless the plan
    /// was changed.
    async fn reclaim_reserved(&mut self, capacity: u64) -> Result<bool> {
        let engine = &self.bucket.shared().engine;
        if let Some(buffer) = self.part.buffer.as_mut().filter(|_| self.part.length == 0) {
            let reclaimed = tokio::time::timeout(engine.admission_deadline, buffer.reclaimed());
            let reclaimed = reclaimed.await;
            reclaimed.map_err(|_| engine.slow_down("upload", self.path.as_ref()))?;
        }
        Ok(self.part.buffer_is_ready(capacity))
    }

    /// Copies as many of `bytes` as have room now; returns `None` if room must be made.
    pub(in crate::upload) fn copy_now(&mut self, bytes: &[u8]) -> Result<Option<usize>> {
        self.check_open()?;
        if let Some(length) = self.options.length
            && self.accepted + bytes.len() as u64 > length
        {
            let got = self.accepted + bytes.len() as u64;
            return Err(body_length_error(&self.path, length, got));
        }
        if !self.pending.is_empty() || !self.part.buffer_is_ready(self.capacity()) {
            return Ok(None);
        }
        let copied = self.part.copy_in(bytes);
        self.accepted += copied as u64;
        Ok(Some(copied).filter(|copied| *copied > 0))
    }

    /// Makes room for bytes about to be copied.
    pub(in crate::upload) async fn make_room(&mut self) -> Result<()> {
        self.drive().await?;
        while self.part.is_full() {
            self.flush().await?;
        }
        self.ready_buffer().await
    }

    /// The capacity needed for the rest of this chunk.
    fn capacity(&self) -> u64 {
        self.part.end - self.part.offset
    }

    fn frames_for(&self, capacity: u64) -> (usize, usize) {
        frames_for(capacity, self.plan.length_of(self.part.index))
    }

    /// Allocates a buffer if its memory is available now.
    fn try_buffer(&mut self, capacity: u64) -> Option<FrameBuffer> {
        let (length, count) = self.frames_for(capacity);
        let pool = &self.bucket.shared().engine.pool;
        let frames = pool.try_frames(Share::Upload, length, count, count)?;
        self.buffers += 1;
        Some(FrameBuffer::new(frames))
    }
}
