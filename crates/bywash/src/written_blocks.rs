//! Blocks of an upload in progress: in memory under keys that no read looks up, until the store has confirmed the upload.

use std::fmt;
use std::sync::Arc;

use bywash_mem::{BlockKey, BlockOptions, BlockPool, Claim, Frame, Keep, OwnedPin, Share};

use crate::shared::BucketShared;
use crate::versions::{Version, next_object_id};

/// Max fraction of the memory for the blocks of one upload.
const MEMORY_DIVISOR: u64 = 4;

/// Copies of the bytes of an upload, as blocks. They are evicted as any others are, and a block for which no memory is free is left
/// out: an upload does not wait for memory that only a read would need. Dropping this erases them.
pub(crate) struct WrittenBlocks {
    pool: Arc<BlockPool>,
    store: u32,
    /// Stands for the object in the keys, in place of its version.
    object: u64,
    options: BlockOptions,
    block_size: usize,
    max_blocks: usize,
    /// Bytes seen.
    length: u64,
    /// The block being filled, unless it is left out.
    frame: Option<Frame>,
    /// Blocks in memory.
    blocks: Vec<u32>,
}

impl fmt::Debug for WrittenBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WrittenBlocks")
            .field("length", &self.length)
            .field("blocks", &self.blocks.len())
            .finish_non_exhaustive()
    }
}

impl WrittenBlocks {
    /// Begins an upload to a bucket; `None` if written bytes are not kept.
    pub(crate) fn of_upload(bucket: &BucketShared) -> Option<Self> {
        if !bucket.keeps_writes() {
            return None;
        }
        let pool = Arc::clone(&bucket.engine.pool);
        let max_bytes = pool.budget().limit() / MEMORY_DIVISOR;
        // The disk tier hears of the eviction of blocks that it keeps.
        let keep = bucket.disk().map_or(Keep::default(), |_| Keep::Spill);
        Some(Self {
            pool,
            store: bucket.versions.store(),
            object: next_object_id(),
            options: BlockOptions {
                keep,
                ..BlockOptions::default()
            },
            block_size: bucket.block_size as usize,
            max_blocks: (max_bytes / bucket.block_size) as usize,
            length: 0,
            frame: None,
            blocks: Vec::new(),
        })
    }

    /// Takes the bytes of `pieces`, which begin at `offset` of the object, except bytes that it has seen.
    pub(crate) fn take<'a>(&mut self, offset: u64, pieces: impl Iterator<Item = &'a [u8]>) {
        let mut skipped = self.length.saturating_sub(offset) as usize;
        for piece in pieces {
            let seen = skipped.min(piece.len());
            skipped -= seen;
            self.append(&piece[seen..]);
        }
    }

    fn append(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let at = (self.length % self.block_size as u64) as usize;
            if at == 0 && self.blocks.len() < self.max_blocks {
                self.frame = self.frame_of(self.block_size);
            }
            let count = bytes.len().min(self.block_size - at);
            if let Some(frame) = &mut self.frame {
                frame.as_mut_slice()[at..at + count].copy_from_slice(&bytes[..count]);
            }
            self.length += count as u64;
            bytes = &bytes[count..];
            if at + count == self.block_size {
                self.publish(self.block_size);
            }
        }
    }

    fn frame_of(&self, length: usize) -> Option<Frame> {
        let frames = self.pool.try_frames(Share::Download, length, 1, 1);
        frames.and_then(|mut frames| frames.pop())
    }

    fn key(&self, block: u32) -> BlockKey {
        BlockKey {
            store: self.store,
            object: self.object,
            block,
        }
    }

    /// Puts the block that ends at `self.length` into memory: the first bytes of the frame.
    fn publish(&mut self, length: usize) {
        let Some(frame) = self.frame.take() else {
            return;
        };
        let block = ((self.length - 1) / self.block_size as u64) as u32;
        let Claim::Vacant(mut load) = self.pool.claim(self.key(block)) else {
            return;
        };
        load.attach(frame, length);
        load.advance(length);
        load.set_options(self.options);
        if load.publish().is_ok() {
            self.blocks.push(block);
        }
    }

    /// Puts the last block, which is shorter, into memory of its own size.
    fn publish_rest(&mut self) {
        let length = (self.length % self.block_size as u64) as usize;
        let Some(filled) = self.frame.take().filter(|_| length > 0) else {
            return;
        };
        self.frame = self.frame_of(length);
        if let Some(frame) = &mut self.frame {
            frame.as_mut_slice()[..length].copy_from_slice(&filled.as_slice()[..length]);
            self.publish(length);
        }
    }

    /// Calls `adopt` with each block in memory and the key that it has as a block of `version`. A block that it does not give that
    /// key is erased. None is kept if this has not seen all of the version's bytes.
    pub(crate) fn become_blocks_of(
        mut self,
        version: &Version,
        mut adopt: impl FnMut(OwnedPin, BlockKey),
    ) {
        if version.meta.size != self.length {
            return;
        }
        self.publish_rest();
        for block in &self.blocks {
            // Some were evicted since.
            if let Some(pin) = self.pool.peek(self.key(*block)) {
                adopt(pin.into_owned(), version.key(*block));
            }
        }
    }
}

impl Drop for WrittenBlocks {
    fn drop(&mut self) {
        for block in &self.blocks {
            self.pool.erase(self.key(*block));
        }
    }
}
