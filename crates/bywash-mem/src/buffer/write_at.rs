//! The public interface of the write-at buffer.

use std::ops::Range;

use super::block_slice::BlockSlice;
use super::core::{BufferCore, ClaimScope, Claimed, most_recently_used_first};
use super::error::{FreezeError, WriteAtError};
use super::layout::BufferLayout;
use super::listener::ChangeListener;
use super::segments::Segments;
use super::tail_reader::TailReader;
use super::write_claim::WriteClaim;
use crate::error::LoadError;
use crate::frames::{Budget, Frame, Share};
use crate::sync::Counted;

/// Rule for a write over bytes in flight. Bytes already written are kept in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overlap {
    /// The write waits until the other claim ends, and then writes the missing bytes.
    #[default]
    Wait,
    /// The write fails with [`WriteAtError::InFlight`] and writes nothing.
    Refuse,
}

/// Settings of a [`WriteAtBuffer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteAtOptions {
    /// Expected size in bytes, 0 if unknown. It may be wrong.
    pub size_hint: u64,
    /// Maximum size in bytes.
    pub limit: u64,
    /// Frame length in bytes, a power of two. `None` chooses it by the expected size.
    pub frame_len: Option<usize>,
    /// Rule for writes over bytes in flight.
    pub overlap: Overlap,
    /// Share that the memory is charged to.
    pub share: Share,
}

impl Default for WriteAtOptions {
    /// Unknown size, no limit, charged to downloads.
    fn default() -> Self {
        Self {
            size_hint: 0,
            limit: u64::MAX,
            frame_len: None,
            overlap: Overlap::Wait,
            share: Share::Download,
        }
    }
}

impl WriteAtOptions {
    fn layout(&self, min: u64) -> Result<BufferLayout, WriteAtError> {
        BufferLayout::new(self.size_hint.max(min), self.limit, self.frame_len)
    }
}

/// Bytes of one object, written at any offset by many threads and read as they arrive. A handle; clones share one buffer.
///
/// The first writer of a byte wins. Reads return written bytes only. Memory is charged to the budget frame by frame. When the last
/// handle is dropped, an open buffer is cancelled and its memory released.
///
/// ```
/// # use bywash_mem::{BlockPool, FreezeError, PoolConfig, WriteAtBuffer, WriteAtOptions};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = BlockPool::new(PoolConfig::new(1 << 20))?;
/// let options = WriteAtOptions { size_hint: 10, ..WriteAtOptions::default() };
/// let buffer = WriteAtBuffer::new(pool.budget(), options)?;
/// let mut claim = buffer.claim(5..10)?.expect("no other writer");
/// claim.write(b"world");
/// assert!(matches!(buffer.freeze(10), Err(FreezeError::Holes(holes)) if holes == [0..5]));
/// buffer.write_at(0, b"hello")?;
/// assert_eq!(&buffer.freeze(10)?.into_contiguous()[..], b"helloworld");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct WriteAtBuffer {
    handle: Counted<Handle>,
    overlap: Overlap,
}

#[derive(Debug)]
struct Handle(Counted<BufferCore>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.abort(WriteAtError::Cancelled);
    }
}

impl WriteAtBuffer {
    /// Creates an empty buffer. Allocates frames for the expected size if they are free now; if not, they are allocated as needed.
    ///
    /// # Errors
    /// [`WriteAtError::FrameLen`].
    pub fn new(budget: &Budget, options: WriteAtOptions) -> Result<Self, WriteAtError> {
        let layout = options.layout(0)?;
        let expected = layout.expected();
        let allocate = |len: u64, n: u64| {
            let n = usize::try_from(n).unwrap_or(usize::MAX);
            (n > 0).then(|| budget.0.try_frames(options.share, len as usize, n, n))?
        };
        let mut frames = Vec::new();
        if expected.full > 0 {
            let full = allocate(layout.frame_len(), expected.full).unwrap_or_default();
            frames.extend(most_recently_used_first(full));
        }
        if frames.len() as u64 == expected.full && expected.tail > 0 {
            frames.extend(allocate(expected.tail, 1).unwrap_or_default());
        }
        Ok(Self::with_frames(budget, &options, layout, frames))
    }

    /// Creates a buffer once frames for at least `min` bytes are allocated, waiting in the queue for them. A buffer waits only here,
    /// while it holds nothing. Dropping the future leaves the queue.
    ///
    /// # Errors
    /// [`WriteAtError::FrameLen`]; [`WriteAtError::Frames`] if the share can never hold `min` bytes.
    pub async fn reserved(
        budget: &Budget,
        options: WriteAtOptions,
        min: u64,
    ) -> Result<Self, WriteAtError> {
        let layout = options.layout(min)?;
        let mut frames = Vec::new();
        if let Some((len, min, max)) = initial_frames(&layout, min) {
            frames = budget.0.frames(options.share, len, min, max).await?;
        }
        Ok(Self::with_frames(budget, &options, layout, frames))
    }

    fn with_frames(
        budget: &Budget,
        options: &WriteAtOptions,
        layout: BufferLayout,
        frames: Vec<Frame>,
    ) -> Self {
        let core = BufferCore::new(&budget.0, options.share, layout, frames);
        Self {
            handle: Counted::new(Handle(core)),
            overlap: options.overlap,
        }
    }

    fn core(&self) -> &Counted<BufferCore> {
        &self.handle.0
    }

    /// Maximum size in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.core().layout().limit()
    }

    fn check_range(&self, offset: u64, len: u64) -> Result<Range<u64>, WriteAtError> {
        let limit = self.limit();
        match offset.checked_add(len) {
            Some(end) if end <= limit => Ok(offset..end),
            _ => Err(WriteAtError::Offset { offset, len, limit }),
        }
    }

    /// Claims the first part of `range` that is neither written nor claimed. Returns `None` if all of it is written. Never waits.
    ///
    /// # Errors
    /// [`WriteAtError::InFlight`] if everything missing is claimed; [`WriteAtError::Offset`]; [`WriteAtError::Memory`], after which
    /// a smaller range may succeed; the buffer's own error if it ended.
    pub fn claim(&self, range: Range<u64>) -> Result<Option<WriteClaim>, WriteAtError> {
        let range = self.check_range(range.start, range.end.saturating_sub(range.start))?;
        let Claimed {
            mut claims,
            in_flight,
        } = BufferCore::claim(self.core(), range, ClaimScope::First)?;
        match (claims.pop(), in_flight) {
            (None, Some(range)) => Err(WriteAtError::InFlight { range }),
            (claim, _) => Ok(claim),
        }
    }

    /// Writes `bytes` at `offset` and returns their number. Bytes already written there are kept. Does nothing if `bytes` is empty.
    /// Where part of the range is in flight, [`Overlap`] decides. By default the thread blocks; it blocks forever if it holds the
    /// other claim itself.
    ///
    /// # Errors
    /// [`WriteAtError::Offset`], [`WriteAtError::InFlight`], or the buffer's own error: nothing was written.
    /// [`WriteAtError::Memory`]: nothing was written, unless the call had to wait.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<usize, WriteAtError> {
        let attempt = || self.try_write_at(offset, bytes).transpose();
        attempt().unwrap_or_else(|| ChangeListener::new(self.core()).block_until(attempt))
    }

    /// Writes the unclaimed parts of the range. Returns `None` while parts of it are in flight.
    fn try_write_at(&self, offset: u64, bytes: &[u8]) -> Result<Option<usize>, WriteAtError> {
        if bytes.is_empty() {
            return Ok(Some(0));
        }
        let range = self.check_range(offset, bytes.len() as u64)?;
        let scope = match self.overlap {
            Overlap::Wait => ClaimScope::All,
            Overlap::Refuse => ClaimScope::AllUnlessInFlight,
        };
        let Claimed { claims, in_flight } = BufferCore::claim(self.core(), range, scope)?;
        for mut claim in claims {
            claim.write(&bytes[(claim.range().start - offset) as usize..]);
        }
        Ok(in_flight.is_none().then_some(bytes.len()))
    }

    /// Copies written bytes from `offset` on and returns their number: fewer than requested before a hole or the end, 0 at or past the
    /// end.
    ///
    /// # Errors
    /// [`WriteAtError::Hole`] if the first byte is missing and later ones are not; [`WriteAtError::Failed`];
    /// [`WriteAtError::Cancelled`].
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, WriteAtError> {
        let mut read = 0;
        while read < into.len() {
            match self.core().slice(offset + read as u64, into.len() - read) {
                Ok(Some(bytes)) => {
                    into[read..read + bytes.len()].copy_from_slice(&bytes);
                    read += bytes.len();
                }
                Err(WriteAtError::Hole { .. }) if read > 0 => break,
                Ok(None) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    /// Returns the written bytes from `offset` on without a copy, at most `max` and to the end of their frame. Returns `None` at or past
    /// the end.
    ///
    /// # Errors
    /// As [`Self::read_at`].
    pub fn slice(&self, offset: u64, max: usize) -> Result<Option<BlockSlice>, WriteAtError> {
        self.core().slice(offset, max)
    }

    /// One past the last written byte, whether or not there are holes before it.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.core().with_extents(|extents| extents.size())
    }

    /// Number of bytes written from the start without a hole.
    #[must_use]
    pub fn contiguous(&self) -> u64 {
        self.core().with_extents(|extents| extents.contiguous())
    }

    /// Written ranges in order; adjacent ones are merged.
    #[must_use]
    pub fn written(&self) -> Vec<Range<u64>> {
        self.core().with_extents(|extents| extents.written())
    }

    /// Returns a reader of the bytes from `offset` on, as they arrive.
    #[must_use]
    pub fn reader(&self, offset: u64) -> TailReader {
        TailReader::new(self.core(), offset)
    }

    /// Closes the buffer if everything up to its last byte is written, and returns its size. Readers end; writes fail from now on.
    ///
    /// # Errors
    /// The missing ranges; the buffer stays open.
    pub fn commit(&self) -> Result<u64, FreezeError> {
        self.core().close(None)?;
        Ok(self.size())
    }

    /// Closes the buffer as [`Self::commit`] does if exactly its first `len` bytes are written, and returns them without a copy.
    /// Frames after them are released.
    ///
    /// # Errors
    /// The missing or excess ranges; the buffer stays open.
    pub fn freeze(&self, len: u64) -> Result<Segments, FreezeError> {
        Ok(Segments::new(self.core().close(Some(len))?))
    }

    /// Cancels an open buffer: readers and writers get [`WriteAtError::Cancelled`]. Releases the memory, but for frames that claims
    /// and slices still hold.
    pub fn cancel(&self) {
        self.core().abort(WriteAtError::Cancelled);
    }

    /// Fails an open buffer with a reason, as [`Self::cancel`]. The first reason stays.
    pub fn fail(&self, error: LoadError) {
        self.core().abort(WriteAtError::Failed(error));
    }
}

/// Frame length, and minimum and maximum number of frames, to wait for.
fn initial_frames(layout: &BufferLayout, min: u64) -> Option<(usize, usize, usize)> {
    let expected = layout.expected();
    let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    if expected.full == 0 {
        return (expected.tail > 0).then_some((expected.tail as usize, 1, 1));
    }
    let min = min.min(layout.limit()).div_ceil(layout.frame_len()).max(1);
    let max = expected.full.max(min);
    Some((layout.frame_len() as usize, count(min), count(max)))
}
