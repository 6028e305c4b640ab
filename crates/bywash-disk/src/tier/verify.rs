//! A pass over all blocks: each is read and compared with its checksum.

use super::Tier;
use super::read::BlockRead;
use crate::format::{PAGE, VersionKey, pages_of};
use crate::index::{Cell, FoundBlock};
use crate::segment::Segment;
use crate::storage::Pages;
use crate::sync::Counted;

/// Cells of the index that one step looks at, under the lock of their shard.
const CELLS_AT_ONCE: usize = 1024;

/// Result of a pass over all blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verification {
    /// Blocks as they were written.
    pub good_blocks: u64,
    /// Bytes of these blocks.
    pub good_bytes: u64,
    /// Blocks with other bytes. They are no longer found.
    pub damaged_blocks: u64,
    /// Blocks that the disk did not return. They are no longer found, unless the tier was turned off.
    pub unreadable_blocks: u64,
    /// Whether the pass reached its end: it stops when the tier is off, or at the caller's wish.
    pub complete: bool,
}

impl Tier {
    /// Reads each block, and removes blocks that are damaged or cannot be read. Blocks the thread:
    /// calls `proceed` with the bytes of each block before it is read, which may wait, and stops
    /// when that returns `false`. Has the memory of one block. Scans the index in steps, and holds
    /// no lock while it reads; blocks that are written during the pass may be left out. Counts no
    /// hits.
    pub fn verify(&self, mut proceed: impl FnMut(u64) -> bool) -> Verification {
        let mut found = Verification::default();
        let mut buffer = Pages::zeroed(1);
        let mut next = Some(Cell::default());
        while let Some(cell) = next {
            let (mut blocks, after) = self.index.blocks_from(cell, CELLS_AT_ONCE);
            next = after;
            // In the order of the disk.
            blocks.sort_unstable_by_key(|block| (block.place.segment, block.place.page));
            for block in blocks {
                let Some((segment, version)) = self.hold(&block) else {
                    continue;
                };
                let length = u64::from(block.place.length);
                if !proceed(length) || !self.health.begin_read() {
                    return found;
                }
                let pages = pages_of(block.place.length as usize);
                if buffer.as_ref().len() < pages as usize * PAGE {
                    buffer = Pages::zeroed(pages);
                }
                let name = (version, block.version, block.block);
                match self.read_held(&segment, name, block.place, buffer.as_mut()) {
                    BlockRead::Exact => {
                        found.good_blocks += 1;
                        found.good_bytes += length;
                    }
                    BlockRead::Damaged => found.damaged_blocks += 1,
                    BlockRead::Unreadable => found.unreadable_blocks += 1,
                }
            }
        }
        found.complete = true;
        found
    }

    /// Segment of a block, held, and the key of its version; `None` if the block is no longer
    /// there.
    fn hold(&self, block: &FoundBlock) -> Option<(Counted<Segment>, VersionKey)> {
        let place = block.place;
        let held = || {
            let here = |now| (now == place).then(|| self.segments.lock().get(place.segment))?;
            self.index.find(block.version, block.block, here)?
        };
        let segment = held()?;
        let version = self.versions.lock().key(block.version)?;
        // The segment is not used again while it is held. Thus the number was not given to another version before the key was
        // looked up, if the block is still there.
        let still_there = held().is_some();
        still_there.then_some((segment, version))
    }
}
