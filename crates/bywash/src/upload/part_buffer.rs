//! Buffer of one chunk: copied bytes first, then at most one slice of the caller's own.

use bytes::Bytes;
use bywash_store::Chunk;

use super::ChunkPlan;
use super::checksum::{RunningCrc32c, crc32c};
use crate::frame_buffer::FrameBuffer;

/// A chunk that is not sent, or not acknowledged yet.
#[derive(Debug)]
pub(super) struct PartBuffer {
    pub(super) index: u64,
    /// Offset of its first byte here: the chunk's start, or later if a previous process sent the bytes before.
    pub(super) offset: u64,
    /// Offset of its end when it is full: the end of the chunk by the plan, or of the object.
    pub(super) end: u64,
    /// The object's length, if known.
    object: Option<u64>,
    /// Number of bytes here.
    pub(super) length: u64,
    /// Copied bytes. May hold bytes of the previous chunk while `length` is 0.
    pub(super) buffer: Option<FrameBuffer>,
    /// CRC32C of the copied bytes, computed while they are in the processor's cache.
    copied_crc: RunningCrc32c,
    /// The caller's slice that filled it, uncopied.
    pub(super) tail: Option<Bytes>,
}

impl PartBuffer {
    /// Creates the chunk that contains `offset`, to be filled from there; `object` is the object's length, if known.
    pub(super) fn at(plan: &ChunkPlan, offset: u64, object: Option<u64>) -> Self {
        let mut filling = Self {
            index: plan.index_at(offset),
            offset,
            end: 0,
            object,
            length: 0,
            buffer: None,
            copied_crc: RunningCrc32c::default(),
            tail: None,
        };
        filling.fit(plan);
        filling
    }

    /// Sets the end by the plan, or to the object's end.
    pub(super) fn fit(&mut self, plan: &ChunkPlan) {
        let end = plan.start_of(self.index) + plan.length_of(self.index);
        self.end = self.object.map_or(end, |object| end.min(object));
    }

    /// The number of bytes until it is full.
    pub(super) fn room(&self) -> u64 {
        self.end - self.offset - self.length
    }

    /// Whether it has bytes and no room for more. Past the end of an object of known length it has neither.
    pub(super) fn is_full(&self) -> bool {
        self.length > 0 && self.room() == 0
    }

    /// Appends a slice that fills it.
    pub(super) fn complete_with(&mut self, slice: Bytes) {
        self.length += slice.len() as u64;
        self.tail = Some(slice);
    }

    /// Copies as many bytes as fit into the buffer, which must be present; returns how many.
    pub(super) fn copy_in(&mut self, bytes: &[u8]) -> usize {
        let room = usize::try_from(self.room()).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(room)];
        let copied = self
            .buffer
            .as_mut()
            .map_or(0, |buffer| buffer.copy_in(bytes));
        self.copied_crc.update(&bytes[..copied]);
        self.length += copied as u64;
        copied
    }

    /// Returns whether bytes can be copied into a buffer of `capacity` bytes. Empties the buffer of the previous
    /// chunk.
    pub(super) fn buffer_is_ready(&mut self, capacity: u64) -> bool {
        let empty = self.length == 0;
        let Some(buffer) = &mut self.buffer else {
            return false;
        };
        let large = buffer.capacity() as u64 >= capacity;
        if empty {
            large && buffer.reclaim()
        } else {
            // Copied bytes are lent only when the chunk is full, and then nothing is appended.
            large && self.tail.is_none() && buffer.filled() as u64 == self.length
        }
    }

    /// Moves all bytes here into another buffer that has room for them.
    pub(super) fn move_to(&mut self, mut buffer: FrameBuffer) {
        if self.length > 0 {
            for slice in self.slices() {
                buffer.copy_in(slice);
            }
        }
        if let Some(tail) = self.tail.take() {
            self.copied_crc.update(&tail);
        }
        self.buffer = Some(buffer);
    }

    /// All bytes here, in order.
    pub(super) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        // While this chunk is empty, the buffer may still hold the previous one.
        let copied = self.buffer.iter().filter(|_| self.copied() > 0);
        let copied = copied.flat_map(FrameBuffer::slices);
        copied.chain(self.tail.iter().map(|tail| tail.as_ref()))
    }

    fn copied(&self) -> u64 {
        self.length - self.tail.as_ref().map_or(0, |tail| tail.len() as u64)
    }

    /// Returns the chunk from `offset` on, in `pieces`, which must be empty. Copies nothing.
    pub(super) fn chunk(&self, offset: u64, mut pieces: Vec<Bytes>) -> Chunk {
        let skip = (offset - self.offset) as usize;
        let copied = self.copied() as usize;
        if let Some(buffer) = self.buffer.as_ref().filter(|_| skip < copied) {
            buffer.lend(skip, &mut pieces);
        }
        if let Some(tail) = &self.tail {
            let rest = tail.slice(skip.saturating_sub(copied).min(tail.len())..);
            if !rest.is_empty() {
                pieces.push(rest);
            }
        }
        let crc32c = if skip == 0 {
            self.crc32c()
        } else {
            crc32c(&pieces)
        };
        Chunk {
            index: self.index,
            offset,
            crc32c,
            pieces,
        }
    }

    /// The CRC32C of all bytes here.
    fn crc32c(&self) -> u32 {
        let mut crc = self.copied_crc.clone();
        if let Some(tail) = &self.tail {
            crc.update(tail);
        }
        crc.value()
    }

    /// Starts the next chunk in the same buffer.
    pub(super) fn advance(&mut self, plan: &ChunkPlan) {
        self.tail = None;
        self.copied_crc = RunningCrc32c::default();
        self.length = 0;
        self.offset = self.end;
        self.index += 1;
        self.fit(plan);
    }

    /// Returns the next chunk, with a buffer of its own.
    pub(super) fn next(&self, plan: &ChunkPlan, buffer: Option<FrameBuffer>) -> Self {
        let mut next = Self {
            index: self.index + 1,
            offset: self.end,
            end: 0,
            object: self.object,
            length: 0,
            buffer,
            copied_crc: RunningCrc32c::default(),
            tail: None,
        };
        next.fit(plan);
        next
    }
}
