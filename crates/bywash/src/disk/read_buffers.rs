//! Memory that the reader threads read into.

use std::fmt;
use std::sync::Arc;

use bywash_mem::{BlockPool, Frame, FrameVec, Load, Share, SharedFrame};
use parking_lot::Mutex;

/// Frame size from which the pool requests huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Block size from which slots in huge pages are used.
const MIN_SLOT_BYTES: usize = 16 << 10;

/// Memory for one read.
pub(super) enum ReadBuffer {
    /// A part of a frame in huge pages. The block is copied out of it.
    Slot(FrameVec<u8>),
    /// A frame that becomes the block.
    Frame(Frame),
}

impl ReadBuffer {
    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            Self::Slot(slot) => slot,
            Self::Frame(frame) => frame.as_mut_slice(),
        }
    }

    /// Fills the load with the block that was read. Returns memory that the load does not keep.
    pub(super) fn fill(self, load: &mut Load) -> Option<Self> {
        match self {
            Self::Slot(slot) => {
                let length = load.remaining();
                load.write(&slot[..length]);
                Some(Self::Slot(slot))
            }
            Self::Frame(frame) => load.fill(frame).map(Self::Frame),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Slot(slot) => slot.len(),
            Self::Frame(frame) => frame.capacity(),
        }
    }
}

/// Memory kept for the reader threads: with it, the disk is read also while requests wait for memory.
///
/// For blocks of 16 KiB to 1 MiB it consists of slots in huge pages. Direct I/O into pages of 4 KiB is a request with a segment a
/// page, and virtual disks take time for each segment: reads of 1 MiB took three times as long (docs/decisions/0031). Frames of these
/// sizes have small pages, because a huge page would commit memory that no frame is charged for; so the block is copied.
pub(super) struct ReadBuffers {
    spare: Mutex<Vec<ReadBuffer>>,
    /// Frames that are kept; 0 if slots are.
    max_frames: usize,
    /// Minimum capacity of a frame that is kept: the capacity of the frames at the start.
    frame_bytes: usize,
}

impl ReadBuffers {
    /// Takes memory for at most `count` reads, and at most `bytes`, from the pool; less if it has no more.
    pub(super) fn take(pool: &Arc<BlockPool>, block_size: usize, bytes: u64, count: usize) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let frames = |size: usize, count: usize| {
            let one = move |_| pool.try_frames(Share::Download, size, 1, 1)?.pop();
            (0..count.min(bytes / size)).map_while(one)
        };
        let in_slots = (MIN_SLOT_BYTES..HUGE_PAGE_BYTES).contains(&block_size);
        let spare: Vec<_> = if in_slots && bytes >= HUGE_PAGE_BYTES {
            let slot_bytes = block_size.next_power_of_two();
            let frames = frames(
                HUGE_PAGE_BYTES,
                (count * slot_bytes).div_ceil(HUGE_PAGE_BYTES),
            );
            let slots = frames
                .flat_map(|frame| slots(frame, slot_bytes))
                .take(count);
            slots.map(ReadBuffer::Slot).collect()
        } else {
            frames(block_size, count).map(ReadBuffer::Frame).collect()
        };
        let frames = spare.iter();
        let frames = frames.filter(|buffer| matches!(buffer, ReadBuffer::Frame(_)));
        let frames: Vec<_> = frames.map(ReadBuffer::len).collect();
        Self {
            max_frames: frames.len(),
            frame_bytes: frames.into_iter().min().unwrap_or(0),
            spare: Mutex::new(spare),
        }
    }

    /// Takes spare memory of at least `bytes`.
    pub(super) fn pop(&self, bytes: usize) -> Option<ReadBuffer> {
        let mut spare = self.spare.lock();
        spare.pop_if(|buffer| buffer.len() >= bytes)
    }

    /// Puts memory back among the spare. A frame is released if it is smaller than those at the start, or if there are as many.
    pub(super) fn put_back(&self, buffer: ReadBuffer) {
        let mut spare = self.spare.lock();
        let is_kept = match &buffer {
            ReadBuffer::Slot(_) => true,
            ReadBuffer::Frame(frame) => {
                frame.capacity() >= self.frame_bytes && spare.len() < self.max_frames
            }
        };
        if is_kept {
            spare.push(buffer);
        }
    }

    #[cfg(test)]
    pub(super) fn spare(&self) -> usize {
        self.spare.lock().len()
    }
}

/// Cuts a frame into slots.
fn slots(frame: Frame, bytes: usize) -> impl Iterator<Item = FrameVec<u8>> {
    let mut frame = SharedFrame::new(frame);
    let parts = std::iter::from_fn(move || frame.vec(bytes));
    parts.map(move |mut slot| {
        slot.extend_within_capacity(std::iter::repeat_n(0, bytes));
        slot
    })
}

impl fmt::Debug for ReadBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBuffers")
            .field("spare", &self.spare.lock().len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use bywash_mem::{MAX_FRAME, PoolConfig};

    use super::*;

    fn take(memory: u64, block_size: usize) -> (Arc<BlockPool>, ReadBuffers) {
        let pool = BlockPool::new(PoolConfig::new(memory)).unwrap();
        let buffers = ReadBuffers::take(&pool, block_size, memory / 16, 8);
        (pool, buffers)
    }

    #[test]
    fn slots_share_huge_frames_and_are_aligned() {
        for (memory, block_size, slots, frames) in [
            (64 << 20, 1 << 20, 4, 2),
            (256 << 20, 1 << 20, 8, 4),
            (64 << 20, 64 << 10, 8, 1),
            (64 << 20, 20 << 10, 8, 1),
        ] {
            let (pool, buffers) = take(memory, block_size);
            assert_eq!(buffers.spare(), slots, "{block_size} of {memory}");
            assert_eq!(pool.budget().used(), frames * HUGE_PAGE_BYTES as u64);
            for _ in 0..slots {
                let mut slot = buffers.pop(block_size).unwrap();
                let slot = slot.as_mut_slice();
                assert!(slot.len() >= block_size);
                assert_eq!(slot.as_ptr().addr() % 4096, 0);
            }
        }
    }

    #[test]
    fn slots_come_back_and_frames_of_the_pool_take_no_place_of_them() {
        let (pool, buffers) = take(64 << 20, 1 << 20);
        let out: Vec<_> = (0..4).map(|_| buffers.pop(1 << 20).unwrap()).collect();
        assert!(buffers.pop(1).is_none());
        let frame = pool.try_frames(Share::Download, 1 << 20, 1, 1).unwrap();
        for frame in frame {
            buffers.put_back(ReadBuffer::Frame(frame));
        }
        assert_eq!(buffers.spare(), 0);
        out.into_iter().for_each(|slot| buffers.put_back(slot));
        assert_eq!(buffers.spare(), 4);
    }

    #[test]
    fn smaller_frames_of_the_pool_are_not_kept_in_place_of_frames_that_are_out() {
        const BLOCK: usize = 4 << 20;
        let (pool, buffers) = take(128 << 20, BLOCK);
        let out = buffers.pop(BLOCK).unwrap();
        // Of the short last block of an object.
        let small = pool.try_frames(Share::Download, 4096, 1, 1).unwrap();
        for frame in small {
            buffers.put_back(ReadBuffer::Frame(frame));
        }
        assert!(buffers.pop(BLOCK).is_some());
        buffers.put_back(out);
        assert_eq!(buffers.spare(), 1);
    }

    #[test]
    fn large_and_small_blocks_and_small_memories_have_frames_that_become_blocks() {
        for (memory, block_size, frames) in [
            (64 << 20, 4 << 10, 8),
            (128 << 20, 4 << 20, 2),
            (MAX_FRAME as u64 * 32, MAX_FRAME, 2),
            (16 << 20, 64 << 10, 8),
        ] {
            let (_pool, buffers) = take(memory, block_size);
            assert_eq!(buffers.spare(), frames, "{block_size} of {memory}");
            assert_eq!(buffers.max_frames, frames);
        }
    }
}
