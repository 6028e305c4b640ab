//! The chunk that is being filled: copied bytes first, then at most one slice of the caller's own.

use bytes::Bytes;

use super::buffer::Buffer;
use super::checksum::{Running, crc32c};
use super::{Chunk, ChunkPlan};

/// A chunk that is not sent yet, or not acknowledged.
#[derive(Debug)]
pub(super) struct Filling {
    pub(super) index: u64,
    /// Where its first byte that is here lies in the object: the chunk's start, or behind it if a former process sent the rest.
    pub(super) offset: u64,
    /// Where the chunk ends in the object, when it is full: by the plan, or where the object does.
    pub(super) end: u64,
    /// The object's length, if known.
    object: Option<u64>,
    /// Bytes here.
    pub(super) length: u64,
    /// What was copied. It may be left over from the chunk before, while there is nothing here.
    pub(super) buffer: Option<Buffer>,
    /// CRC32C of what was copied, taken while the copy is in the processor's cache.
    copied_crc: Running,
    /// The caller's bytes that made it full, uncopied.
    pub(super) whole: Option<Bytes>,
}

impl Filling {
    /// The chunk that has the byte at `offset`, to be filled from there; of an object of this length, if known.
    pub(super) fn at(plan: &ChunkPlan, offset: u64, object: Option<u64>) -> Self {
        let mut filling = Self {
            index: plan.index_at(offset),
            offset,
            end: 0,
            object,
            length: 0,
            buffer: None,
            copied_crc: Running::default(),
            whole: None,
        };
        filling.fit(plan);
        filling
    }

    /// Ends where the plan says, or where the object ends.
    pub(super) fn fit(&mut self, plan: &ChunkPlan) {
        let end = plan.start_of(self.index) + plan.length_of(self.index);
        self.end = self.object.map_or(end, |object| end.min(object));
    }

    /// Bytes until it is full.
    pub(super) fn room(&self) -> u64 {
        self.end - self.offset - self.length
    }

    /// Whether it has bytes and no room for more. Behind the last byte of an object of known length there is neither.
    pub(super) fn is_full(&self) -> bool {
        self.length > 0 && self.room() == 0
    }

    /// Takes a slice that makes it full.
    pub(super) fn complete_with(&mut self, slice: Bytes) {
        self.length += slice.len() as u64;
        self.whole = Some(slice);
    }

    /// Copies what fits into the buffer, which is there; returns how much.
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

    /// Whether bytes can be copied into its buffer, which shall hold `capacity` bytes. Readies what the last chunk left.
    pub(super) fn buffer_is_ready(&mut self, capacity: u64) -> bool {
        let empty = self.length == 0;
        let Some(buffer) = &mut self.buffer else {
            return false;
        };
        let large = buffer.capacity() as u64 >= capacity;
        if empty {
            large && buffer.reclaim()
        } else {
            // What was copied may be lent only when the chunk is full, and then nothing is added.
            large && self.whole.is_none() && buffer.filled() as u64 == self.length
        }
    }

    /// Moves everything here into another buffer, which has room for it.
    pub(super) fn move_to(&mut self, mut buffer: Buffer) {
        if self.length > 0 {
            for slice in self.slices() {
                buffer.copy_in(slice);
            }
        }
        if let Some(whole) = self.whole.take() {
            self.copied_crc.update(&whole);
        }
        self.buffer = Some(buffer);
    }

    /// All bytes here, in order.
    pub(super) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        // While nothing is here, a buffer may still be full of the chunk before.
        let copied = self.buffer.iter().filter(|_| self.copied() > 0);
        let copied = copied.flat_map(Buffer::slices);
        copied.chain(self.whole.iter().map(|whole| whole.as_ref()))
    }

    fn copied(&self) -> u64 {
        self.length - self.whole.as_ref().map_or(0, |whole| whole.len() as u64)
    }

    /// The chunk from `offset` on, in `pieces`, which is empty. Nothing is copied.
    pub(super) fn chunk(&self, offset: u64, mut pieces: Vec<Bytes>) -> Chunk {
        let skip = (offset - self.offset) as usize;
        let copied = self.copied() as usize;
        if let Some(buffer) = self.buffer.as_ref().filter(|_| skip < copied) {
            buffer.lend(skip, &mut pieces);
        }
        if let Some(whole) = &self.whole {
            let rest = whole.slice(skip.saturating_sub(copied).min(whole.len())..);
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

    /// CRC32C of all bytes here.
    fn crc32c(&self) -> u32 {
        let mut crc = self.copied_crc.clone();
        if let Some(whole) = &self.whole {
            crc.update(whole);
        }
        crc.value()
    }

    /// The next chunk; the buffer is kept for it.
    pub(super) fn advance(&mut self, plan: &ChunkPlan) {
        self.whole = None;
        self.copied_crc = Running::default();
        self.length = 0;
        self.offset = self.end;
        self.index += 1;
        self.fit(plan);
    }

    /// The next chunk, with a buffer of its own.
    pub(super) fn next(&self, plan: &ChunkPlan, buffer: Option<Buffer>) -> Self {
        let mut next = Self {
            index: self.index + 1,
            offset: self.end,
            end: 0,
            object: self.object,
            length: 0,
            buffer,
            copied_crc: Running::default(),
            whole: None,
        };
        next.fit(plan);
        next
    }
}
