//! The public face.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::core::{Audience, Claimed, Core, Parts, in_order_of_use};
use super::cursor::WriteAtCursor;
use super::error::{FreezeError, WriteAtError};
use super::layout::Layout;
use super::prefix::PrefixReader;
use super::segments::Segments;
use super::shard::Shard;
use crate::budget::Share;
use crate::error::LoadError;
use crate::frame::Frame;
use crate::pool::BlockPool;
use crate::sync::Counted;

/// What a second writer of bytes in flight gets. Bytes already written are kept in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overlap {
    /// It waits until the other's claim ends, and writes what is missing then.
    #[default]
    Wait,
    /// [`WriteAtError::InFlight`], with nothing written.
    Refuse,
}

/// How a [`WriteAtBuffer`] is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteAtOptions {
    /// The expected size in bytes, 0 if unknown. It may be wrong.
    pub size_hint: u64,
    /// Bytes the buffer may ever grow to.
    pub limit: u64,
    /// Bytes of a frame, a power of two; chosen by the expected size if not given.
    pub frame_len: Option<usize>,
    /// The rule for writes over bytes in flight.
    pub overlap: Overlap,
    /// Whose memory it is.
    pub share: Share,
}

impl Default for WriteAtOptions {
    /// Of unknown size and no limit, for a download.
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
    fn layout(&self, at_least: u64) -> Result<Layout, WriteAtError> {
        Layout::new(self.size_hint.max(at_least), self.limit, self.frame_len)
    }
}

/// One object's bytes, written at any offset by many threads and read as they arrive. A handle; clones are the same buffer.
///
/// Of two writers of a byte the first wins. Reads answer written bytes only. Memory is charged to the pool's budget and comes
/// from it frame by frame; when the last handle is dropped, an open buffer is cancelled and its memory goes back.
///
/// ```
/// # use bywash_mem::{BlockPool, PoolConfig, WriteAtBuffer, WriteAtOptions};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = BlockPool::new(PoolConfig::new(1 << 20))?;
/// let buffer = WriteAtBuffer::new(&pool, WriteAtOptions { size_hint: 10, ..WriteAtOptions::default() })?;
/// let mut shard = buffer.claim(5..10)?.expect("nobody else writes it");
/// shard.write(b"world");
/// assert!(buffer.freeze(10).is_err(), "a hole is never handed out");
/// assert_eq!(buffer.holes(10), [0..5]);
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
struct Handle(Counted<Core>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.end(WriteAtError::Cancelled);
    }
}

impl WriteAtBuffer {
    /// An empty buffer. Takes frames for the expected size at once if they are free; if not, they are taken as needed.
    ///
    /// # Errors
    /// [`WriteAtError::FrameLen`].
    pub fn new(pool: &Arc<BlockPool>, options: WriteAtOptions) -> Result<Self, WriteAtError> {
        let layout = options.layout(0)?;
        let expected = layout.expected();
        let take = |len: u64, n: u64| {
            let n = usize::try_from(n).unwrap_or(usize::MAX);
            (n > 0).then(|| pool.try_frames(options.share, len as usize, n, n))?
        };
        let mut frames = Vec::new();
        if expected.whole > 0 {
            let whole = take(layout.frame_len(), expected.whole).unwrap_or_default();
            frames.extend(in_order_of_use(whole));
        }
        if frames.len() as u64 == expected.whole && expected.tail > 0 {
            frames.extend(take(expected.tail, 1).unwrap_or_default());
        }
        Ok(Self::with(pool, &options, layout, frames))
    }

    /// As [`Self::new`], but waits in line until frames for at least `min` bytes are there. A buffer waits only here, while it
    /// holds nothing. Dropping the future leaves the line.
    ///
    /// # Errors
    /// [`WriteAtError::FrameLen`]; [`WriteAtError::Frames`] if so much can never be had.
    pub async fn reserved(
        pool: &Arc<BlockPool>,
        options: WriteAtOptions,
        min: u64,
    ) -> Result<Self, WriteAtError> {
        let layout = options.layout(min)?;
        let mut frames = Vec::new();
        if let Some((len, least, most)) = first_frames(&layout, min) {
            frames = pool.frames(options.share, len, least, most).await?;
        }
        Ok(Self::with(pool, &options, layout, frames))
    }

    /// [`Self::reserved`], blocking the thread until `deadline`.
    ///
    /// # Errors
    /// As [`Self::reserved`], and [`WriteAtError::Frames`] at the deadline.
    pub fn reserved_blocking(
        pool: &Arc<BlockPool>,
        options: WriteAtOptions,
        min: u64,
        deadline: Instant,
    ) -> Result<Self, WriteAtError> {
        let layout = options.layout(min)?;
        let mut frames = Vec::new();
        if let Some((len, least, most)) = first_frames(&layout, min) {
            frames = pool.frames_blocking(options.share, len, least, most, deadline)?;
        }
        Ok(Self::with(pool, &options, layout, frames))
    }

    fn with(
        pool: &Arc<BlockPool>,
        options: &WriteAtOptions,
        layout: Layout,
        frames: Vec<Frame>,
    ) -> Self {
        Self {
            handle: Counted::new(Handle(Core::new(pool, options.share, layout, frames))),
            overlap: options.overlap,
        }
    }

    fn core(&self) -> &Counted<Core> {
        &self.handle.0
    }

    /// Bytes it may ever grow to.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.core().layout().limit()
    }

    fn check(&self, offset: u64, len: u64) -> Result<Range<u64>, WriteAtError> {
        let limit = self.limit();
        match offset.checked_add(len) {
            Some(end) if end <= limit => Ok(offset..end),
            _ => Err(WriteAtError::Offset { offset, len, limit }),
        }
    }

    /// Claims the first part of `range` that is neither written nor claimed; `None` if all of it is written. Never waits.
    ///
    /// # Errors
    /// [`WriteAtError::InFlight`] if all that is missing is being written; [`WriteAtError::Offset`];
    /// [`WriteAtError::Memory`]: a smaller range may do; how the buffer ended.
    pub fn claim(&self, range: Range<u64>) -> Result<Option<Shard>, WriteAtError> {
        let range = self.check(range.start, range.end.saturating_sub(range.start))?;
        let Claimed {
            mut shards,
            in_flight,
        } = Core::claim(self.core(), range, Parts::First)?;
        match (shards.pop(), in_flight) {
            (None, Some(range)) => Err(WriteAtError::InFlight { range }),
            (shard, _) => Ok(shard),
        }
    }

    /// As [`Self::claim`], waiting where all that is missing is in flight: for the rest of a shard that is dropped early, or
    /// for nothing, should it be completed. Dropping the future loses nothing.
    ///
    /// # Errors
    /// As [`Self::claim`], but not [`WriteAtError::InFlight`].
    pub async fn claim_async(&self, range: Range<u64>) -> Result<Option<Shard>, WriteAtError> {
        let look = || settled(self.claim(range.clone()));
        if let Some(claimed) = look() {
            return claimed;
        }
        Audience::new(self.core()).until(look).await
    }

    /// [`Self::claim_async`], blocking the thread.
    ///
    /// # Errors
    /// As [`Self::claim_async`].
    pub fn claim_blocking(&self, range: Range<u64>) -> Result<Option<Shard>, WriteAtError> {
        let look = || settled(self.claim(range.clone()));
        look().unwrap_or_else(|| Audience::new(self.core()).until_blocking(look))
    }

    /// Writes `bytes` at `offset` and answers their number: bytes already written there are kept, the rest land. Nothing
    /// happens if there are none. Where part of the range is in flight, [`Overlap`] decides; by default the thread blocks,
    /// for ever if it holds the other shard itself.
    ///
    /// # Errors
    /// [`WriteAtError::Offset`], [`WriteAtError::InFlight`], and how the buffer ended: nothing was written.
    /// [`WriteAtError::Memory`]: likewise, unless it had to wait in between.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<usize, WriteAtError> {
        let look = || self.write_free(offset, bytes).transpose();
        look().unwrap_or_else(|| Audience::new(self.core()).until_blocking(look))
    }

    /// [`Self::write_at`], waiting as a task. Dropping the future leaves written what was.
    ///
    /// # Errors
    /// As [`Self::write_at`].
    pub async fn write_at_async(&self, offset: u64, bytes: &[u8]) -> Result<usize, WriteAtError> {
        let look = || self.write_free(offset, bytes).transpose();
        if let Some(written) = look() {
            return written;
        }
        Audience::new(self.core()).until(look).await
    }

    /// Writes what is free of the range; nothing to answer while some of it is in flight.
    fn write_free(&self, offset: u64, bytes: &[u8]) -> Result<Option<usize>, WriteAtError> {
        if bytes.is_empty() {
            return Ok(Some(0));
        }
        let range = self.check(offset, bytes.len() as u64)?;
        let parts = match self.overlap {
            Overlap::Wait => Parts::Free,
            Overlap::Refuse => Parts::FreeUnlessInFlight,
        };
        let Claimed { shards, in_flight } = Core::claim(self.core(), range, parts)?;
        for mut shard in shards {
            shard.write(&bytes[(shard.range().start - offset) as usize..]);
        }
        Ok(in_flight.is_none().then_some(bytes.len()))
    }

    /// Copies written bytes from `offset` on and answers their number: fewer than asked for where a hole or the end comes
    /// first, 0 at or past the end.
    ///
    /// # Errors
    /// [`WriteAtError::Hole`] if the first byte is missing and later ones are not; [`WriteAtError::Failed`],
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

    /// One past the last byte written, holes before it or not.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.core().extents(|extents| extents.size())
    }

    /// Bytes written from the start without a hole.
    #[must_use]
    pub fn contiguous(&self) -> u64 {
        self.core().extents(|extents| extents.contiguous())
    }

    /// All written ranges, in order and not touching each other.
    #[must_use]
    pub fn written(&self) -> Vec<Range<u64>> {
        self.core().extents(|extents| extents.written())
    }

    /// What of the first `len` bytes is not written, claimed or not.
    #[must_use]
    pub fn holes(&self, len: u64) -> Vec<Range<u64>> {
        self.core().extents(|extents| extents.holes(len))
    }

    /// Reads from `offset` on as bytes arrive.
    #[must_use]
    pub fn follow(&self, offset: u64) -> PrefixReader {
        PrefixReader::new(self.core(), offset)
    }

    /// A position of its own to read and write from, at 0.
    #[must_use]
    pub fn cursor(&self) -> WriteAtCursor {
        WriteAtCursor::new(self.clone())
    }

    /// Closes the buffer if all up to its last byte is written, and answers its size. Followers end, reads go on, writes are
    /// refused.
    ///
    /// # Errors
    /// What is missing; the buffer stays open.
    pub fn commit(&self) -> Result<u64, FreezeError> {
        self.core().close(None)?;
        Ok(self.size())
    }

    /// Closes the buffer as [`Self::commit`] does if exactly its first `len` bytes are written, and hands them out uncopied.
    /// Frames past them go back.
    ///
    /// # Errors
    /// What is missing or too much; the buffer stays open.
    pub fn freeze(&self, len: u64) -> Result<Segments, FreezeError> {
        Ok(Segments::new(self.core().close(Some(len))?))
    }

    /// Ends an open buffer for everyone. Its memory goes back, but for what shards and slices still hold.
    pub fn cancel(&self) {
        self.core().end(WriteAtError::Cancelled);
    }

    /// As [`Self::cancel`], with a reason. The first one stays.
    pub fn fail(&self, error: LoadError) {
        self.core().end(WriteAtError::Failed(error));
    }
}

/// An answer for who waits, if there is one.
fn settled<T>(answer: Result<T, WriteAtError>) -> Option<Result<T, WriteAtError>> {
    (!matches!(answer, Err(WriteAtError::InFlight { .. }))).then_some(answer)
}

/// Length of a frame, and the least and most frames, to wait for.
fn first_frames(layout: &Layout, min: u64) -> Option<(usize, usize, usize)> {
    let expected = layout.expected();
    let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    if expected.whole == 0 {
        return (expected.tail > 0).then_some((expected.tail as usize, 1, 1));
    }
    let least = min.min(layout.limit()).div_ceil(layout.frame_len()).max(1);
    let most = expected.whole.max(least);
    Some((layout.frame_len() as usize, count(least), count(most)))
}
