//! A buffer of frames of the pool, lent out as `Bytes` and reused once they are returned: of uploads, and of reads of copies.

use std::sync::Arc;

use bytes::Bytes;
use bywash_mem::Frame;
use tokio::sync::Notify;

/// A huge page. Larger frames save nothing, and more frame lengths leave more frames idle.
pub(crate) const LARGEST_FRAME_BYTES: u64 = 2 << 20;
/// Minimum length of a frame.
const SMALLEST_FRAME_BYTES: u64 = 64 << 10;
/// Fraction of a chunk that a buffer may be longer than requested.
const WASTE_DIVISOR: u64 = 8;

/// Returns length and number of the frames that hold `bytes` of a chunk of `chunk` bytes.
///
/// The length depends on the chunk, not on `bytes`: frames of one length serve every upload in turn, and frames of
/// other lengths would lie idle.
pub(crate) fn frames_for(bytes: u64, chunk: u64) -> (usize, usize) {
    let mut frame = bytes.next_power_of_two().min(LARGEST_FRAME_BYTES);
    while frame > SMALLEST_FRAME_BYTES
        && bytes.next_multiple_of(frame) - bytes > chunk / WASTE_DIVISOR
    {
        frame /= 2;
    }
    (frame as usize, bytes.div_ceil(frame) as usize)
}

/// A frame lent to a consumer such as the HTTP client, which drops it when it is done.
struct LentFrame {
    frame: Arc<Frame>,
    _returned: Returned,
}

impl AsRef<[u8]> for LentFrame {
    fn as_ref(&self) -> &[u8] {
        self.frame.as_slice()
    }
}

/// Tells the buffer that a lent frame is back. Declared after the frame, and so dropped after it.
struct Returned(Arc<Notify>);

impl Drop for Returned {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// Frames filled from the front.
#[derive(Debug)]
pub(crate) struct FrameBuffer {
    /// Frames of one capacity.
    frames: Vec<Arc<Frame>>,
    filled: usize,
    /// Notified when a lent frame is back.
    returned: Arc<Notify>,
}

impl FrameBuffer {
    pub(crate) fn new(frames: Vec<Frame>) -> Self {
        Self {
            frames: frames.into_iter().map(Arc::new).collect(),
            filled: 0,
            returned: Arc::default(),
        }
    }

    /// Notifies `returned` when a lent frame is back.
    pub(crate) fn notifying(self, returned: &Arc<Notify>) -> Self {
        Self {
            returned: Arc::clone(returned),
            ..self
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.frames.len() * self.frame_capacity()
    }

    pub(crate) fn filled(&self) -> usize {
        self.filled
    }

    fn frame_capacity(&self) -> usize {
        self.frames.first().map_or(0, |frame| frame.capacity())
    }

    /// Empties the buffer for the next chunk; returns `false` if some of it is still lent and cannot be overwritten.
    pub(crate) fn reclaim(&mut self) -> bool {
        self.filled = 0;
        self.frames
            .iter_mut()
            .all(|frame| Arc::get_mut(frame).is_some())
    }

    /// As [`Self::reclaim`], after waiting until all of it is back.
    pub(crate) async fn reclaimed(&mut self) {
        while !self.reclaim() {
            // A frame that is back in between has left its notice.
            self.returned.notified().await;
        }
    }

    /// Appends as many bytes as fit; returns how many. Nothing may be lent.
    pub(crate) fn copy_in(&mut self, mut bytes: &[u8]) -> usize {
        let size = self.frame_capacity();
        let before = self.filled;
        while !bytes.is_empty() && self.filled < self.capacity() {
            let (index, at) = (self.filled / size, self.filled % size);
            let count = bytes.len().min(size - at);
            let frame = Arc::get_mut(&mut self.frames[index])
                .expect("nothing is lent of a buffer that is being filled");
            frame.as_mut_slice()[at..at + count].copy_from_slice(&bytes[..count]);
            self.filled += count;
            bytes = &bytes[count..];
        }
        self.filled - before
    }

    /// The contents in order, frame by frame.
    pub(crate) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let size = self.frame_capacity();
        self.frames
            .iter()
            .enumerate()
            .map(move |(index, frame)| {
                let end = self.filled.saturating_sub(index * size).min(size);
                &frame.as_slice()[..end]
            })
            .filter(|slice| !slice.is_empty())
    }

    /// Lends the contents from offset `skip` on, without a copy.
    pub(crate) fn lend(&self, mut skip: usize, into: &mut Vec<Bytes>) {
        let size = self.frame_capacity();
        for (index, frame) in self.frames.iter().enumerate() {
            let end = self.filled.saturating_sub(index * size).min(size);
            let begin = skip.min(end);
            skip -= begin;
            if begin < end {
                let lent = LentFrame {
                    frame: Arc::clone(frame),
                    _returned: Returned(Arc::clone(&self.returned)),
                };
                into.push(Bytes::from_owner(lent).slice(begin..end));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use bywash_mem::{BlockPool, PoolConfig, Share};

    fn buffer(bytes: u64) -> FrameBuffer {
        let pool = BlockPool::new(PoolConfig::new(16 << 20)).unwrap();
        let (length, count) = frames_for(bytes, bytes);
        FrameBuffer::new(
            pool.try_frames(Share::Upload, length, count, count)
                .unwrap(),
        )
    }

    #[test]
    fn frame_waste_is_bounded() {
        assert_eq!(frames_for(16 << 20, 16 << 20), (2 << 20, 8));
        assert_eq!(frames_for(5 << 20, 5 << 20), (1 << 20, 5));
        assert_eq!(frames_for(1, 16 << 20), (1, 1));
        for chunk in [100_000, 5_000_000, 17 << 20] {
            for bytes in [chunk / 7, chunk / 2 + 1, chunk] {
                let (length, count) = frames_for(bytes, chunk);
                let all = length as u64 * count as u64;
                assert!(all >= bytes && all <= bytes + chunk / 8 + SMALLEST_FRAME_BYTES);
            }
        }
    }

    #[test]
    fn short_objects_use_the_frame_length_of_whole_chunks() {
        let chunk = 16 << 20;
        for bytes in ((2 << 20) + 1..=chunk).step_by(100_003) {
            assert_eq!(frames_for(bytes, chunk).0, 2 << 20, "{bytes} bytes");
        }
    }

    #[test]
    fn lent_bytes_equal_copied_ones_and_are_reclaimed() {
        let mut buffer = buffer(300_000);
        let bytes: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
        assert_eq!(buffer.copy_in(&bytes[..7]), 7);
        assert_eq!(buffer.copy_in(&bytes[7..]), bytes.len() - 7);
        assert_eq!(buffer.slices().collect::<Vec<_>>().concat(), bytes);
        for skip in [0, 1, 65_536, 299_999, 300_000] {
            let mut lent = Vec::new();
            buffer.lend(skip, &mut lent);
            assert_eq!(lent.concat(), bytes[skip..], "but for {skip}");
        }
        let mut lent = Vec::new();
        buffer.lend(0, &mut lent);
        assert!(!buffer.reclaim(), "it is still out");
        drop(lent);
        assert!(buffer.reclaim());
        assert_eq!(buffer.filled(), 0);
    }

    #[tokio::test]
    async fn buffer_waits_until_each_lent_frame_is_back() {
        let mut buffer = buffer(300_000);
        buffer.copy_in(&[7; 300_000]);
        let mut lent = Vec::new();
        buffer.lend(0, &mut lent);
        assert!(lent.len() > 1);
        tokio::join!(buffer.reclaimed(), async {
            for frame in lent {
                tokio::task::yield_now().await;
                drop(frame);
            }
        });
        assert_eq!(buffer.filled(), 0);
    }
}
