//! How bytes become chunks, and chunks leave.

use bytes::Bytes;
use bywash_mem::Share;
use object_store::{Error, Result};

use super::Upload;
use crate::error::EngineError;
use crate::origin::body_length_error;
use crate::upload::buffer::{Buffer, frames_for};

impl Upload {
    /// Puts what was taken into chunks, and sends those that are full when more comes.
    pub(super) async fn drive(&mut self) -> Result<()> {
        if let Some(length) = self.options.length
            && self.taken > length
        {
            return Err(body_length_error(&self.path, length, self.taken));
        }
        loop {
            let room = self.filling.room();
            let more = self.rest.iter().any(|bytes| !bytes.is_empty());
            // The last chunk of an upload waits for the end, which may take it along; side by side it need not.
            if self.filling.is_full() && (more || self.side_by_side()) {
                self.flush().await?;
                continue;
            }
            let Some(next) = self.rest.front_mut() else {
                return Ok(());
            };
            if next.is_empty() {
                self.rest.pop_front();
            } else if next.len() as u64 >= room && self.filling.whole.is_none() {
                let slice = next.split_to(room as usize);
                self.filling.complete_with(slice);
            } else {
                self.ready_buffer().await?;
                let next = self.rest.front_mut().expect("there was one before waiting");
                let copied = self.filling.copy_in(next);
                // What is empty goes at once: it would hold on to the caller's memory.
                *next = if copied == next.len() {
                    Bytes::new()
                } else {
                    next.slice(copied..)
                };
            }
        }
    }

    fn side_by_side(&self) -> bool {
        let driver = self.driver.as_ref();
        self.options.parallel > 1 && driver.is_some_and(|driver| driver.link.rule.parallel)
    }

    /// Sends the chunk that is full.
    async fn flush(&mut self) -> Result<()> {
        self.open().await?;
        if self.filling.room() > 0 {
            // The store wants longer chunks than was thought.
            return Ok(());
        }
        self.check_chunks()?;
        let side_by_side = self.side_by_side();
        let driver = self.driver.as_mut().expect("it was opened above");
        let before = driver.acknowledged;
        if side_by_side {
            driver.ask().await?;
        }
        if side_by_side && !driver.proving {
            while self.window.len() >= self.options.parallel {
                self.window.land(driver).await?;
            }
            let next = self.filling.next(&self.plan, self.window.spare());
            let full = std::mem::replace(&mut self.filling, next);
            self.window.send(full, driver);
        } else {
            let pieces = std::mem::take(&mut self.pieces);
            let mut chunk = self.filling.chunk(driver.acknowledged, pieces);
            driver.deliver(&mut chunk).await?;
            self.pieces = chunk.pieces;
            self.filling.advance(&self.plan);
        }
        if let Some(journaled) = &mut self.journaled
            && driver.acknowledged > before
        {
            // Gets to the disk while the next chunk is on its way.
            journaled
                .acknowledged(driver.acknowledged, driver.crc32c)
                .await?;
        }
        Ok(())
    }

    /// Whether the store takes the chunk that is being filled.
    pub(super) fn check_chunks(&self) -> Result<()> {
        match self.plan.chunks() {
            Some(most) if self.filling.index >= most => Err(self.too_many_chunks()),
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

    /// Sees to a buffer for what must wait. It holds the whole chunk from the beginning: who holds memory never waits for more.
    async fn ready_buffer(&mut self) -> Result<()> {
        let capacity = self.capacity();
        if self.filling.buffer_is_ready(capacity) {
            return Ok(());
        }
        if self.filling.length == 0 {
            // Some of it is still lent, or it is too small. Nobody is waited for.
            self.filling.buffer = None;
            // Who holds memory never waits for more, but for its own to come back.
            while self.window.len() > 0 {
                if let Some(buffer) = self.try_buffer(capacity) {
                    self.filling.move_to(buffer);
                    return Ok(());
                }
                let driver = self.driver.as_mut().expect("chunks are on their way");
                self.window.land(driver).await?;
                while let Some(buffer) = self.window.spare() {
                    self.filling.buffer = Some(buffer);
                    if self.filling.buffer_is_ready(capacity) {
                        return Ok(());
                    }
                    self.filling.buffer = None;
                }
            }
        }
        let (length, count) = self.frames_for(capacity);
        let engine = &self.bucket.shared().engine;
        let frames = engine
            .frames(Share::Upload, length, count, "upload", &self.path)
            .await?;
        self.buffers += 1;
        self.filling.move_to(Buffer::new(frames));
        Ok(())
    }

    /// Copies of `bytes` what has room without waiting; `None` if room must be made.
    pub(in crate::upload) fn copy_now(&mut self, bytes: &[u8]) -> Result<Option<usize>> {
        self.check_open()?;
        if let Some(length) = self.options.length
            && self.taken + bytes.len() as u64 > length
        {
            let got = self.taken + bytes.len() as u64;
            return Err(body_length_error(&self.path, length, got));
        }
        if !self.rest.is_empty() || !self.filling.buffer_is_ready(self.capacity()) {
            return Ok(None);
        }
        let copied = self.filling.copy_in(bytes);
        self.taken += copied as u64;
        Ok(Some(copied).filter(|copied| *copied > 0))
    }

    /// Makes room for bytes to copy, which come.
    pub(in crate::upload) async fn make_room(&mut self) -> Result<()> {
        self.drive().await?;
        while self.filling.is_full() {
            self.flush().await?;
        }
        self.ready_buffer().await
    }

    /// Bytes that the buffer of this chunk shall hold.
    fn capacity(&self) -> u64 {
        self.filling.end - self.filling.offset
    }

    fn frames_for(&self, capacity: u64) -> (usize, usize) {
        frames_for(capacity, self.plan.length_of(self.filling.index))
    }

    /// A buffer, if its memory is free now.
    fn try_buffer(&mut self, capacity: u64) -> Option<Buffer> {
        let (length, count) = self.frames_for(capacity);
        let pool = &self.bucket.shared().engine.pool;
        let frames = pool.try_frames(Share::Upload, length, count, count)?;
        self.buffers += 1;
        Some(Buffer::new(frames))
    }
}
