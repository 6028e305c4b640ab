//! Reading a block while it is being loaded.

use std::ops::Deref;
use std::sync::Arc;

use crate::error::FlightError;
use crate::flight::{Flight, Progress};
use crate::frame::Frame;
use crate::sync::{AtomicUsize, Counted, Listener, Ordering, Step, order};

/// A frame on its way to being a block: one leader appends, any number read what is below the mark.
#[derive(Debug)]
pub(crate) struct Buffer {
    frame: Frame,
    len: usize,
    /// Bytes written, from the start. Written by the leader, read by followers.
    written: AtomicUsize,
}

impl Buffer {
    pub(crate) fn new(frame: Frame, len: usize) -> Self {
        assert!(
            len <= frame.capacity(),
            "a block of {len} bytes does not fit a frame of {}",
            frame.capacity()
        );
        Self {
            frame,
            len,
            written: AtomicUsize::new(0),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn capacity(&self) -> usize {
        self.frame.capacity()
    }

    pub(crate) fn start(&self) -> std::ptr::NonNull<u8> {
        self.frame.start()
    }

    pub(crate) fn touch(&self, range: std::ops::Range<usize>) {
        self.frame.touch(range);
    }

    /// What a negative control does in place of letting go: the frame is used again while followers may read it.
    pub(crate) fn reuse(&self) {
        self.frame.touch_mut(0..self.len);
    }

    pub(crate) fn into_frame(self) -> Frame {
        self.frame
    }

    /// Bytes that may be read.
    pub(crate) fn written(&self) -> usize {
        // Acquire: the bytes below the mark, released by `advance`.
        self.written.load(Ordering::Acquire)
    }

    /// The rest, to be written.
    ///
    /// # Safety
    /// The caller is the leader, and the slice is gone before [`Self::advance`].
    #[expect(
        clippy::mut_from_ref,
        reason = "the leader alone writes, above the mark, where nobody reads"
    )]
    pub(crate) unsafe fn rest(&self) -> &mut [u8] {
        let written = self.written();
        self.frame.touch_mut(written..self.len);
        // SAFETY: `written <= len <= capacity`.
        let start = unsafe { self.frame.start().as_ptr().add(written) };
        // SAFETY: initialised memory of the frame that the leader alone uses.
        unsafe { std::slice::from_raw_parts_mut(start, self.len - written) }
    }

    /// Raises the mark by `n`.
    pub(crate) fn advance(&self, n: usize) {
        // Relaxed: the leader's own last store.
        let written = self.written.load(Ordering::Relaxed);
        assert!(
            n <= self.len - written,
            "{n} bytes do not fit the {} that remain",
            self.len - written
        );
        // Release: the bytes, for `written`.
        self.written
            .store(written + n, order(Step::Progress, Ordering::Release));
    }

    /// Bytes below the mark.
    ///
    /// # Safety
    /// The range is below what [`Self::written`] answered.
    unsafe fn slice(&self, start: usize, len: usize) -> &[u8] {
        self.frame.touch(start..start + len);
        // SAFETY: within the frame, as the range is below the mark.
        let first = unsafe { self.frame.start().as_ptr().add(start) };
        // SAFETY: below the mark nobody writes while the buffer lives.
        unsafe { std::slice::from_raw_parts(first, len) }
    }
}

/// Reads a block from some offset on as its bytes arrive: see [`Flight::follow`].
///
/// Bytes come before the load is known to succeed; the end comes only after. Dropping it leaves the load alone.
pub struct Follower {
    flight: Arc<Flight>,
    offset: usize,
    buffer: Option<Counted<Buffer>>,
}

impl Follower {
    pub(crate) fn new(flight: Arc<Flight>, offset: usize) -> Self {
        Self {
            flight,
            offset,
            buffer: None,
        }
    }

    /// The next bytes, at most `max` (at least 1 is asked for), as soon as there are any; `None` once the block is published and
    /// all of it was read. Cancelling loses nothing.
    ///
    /// # Errors
    /// [`FlightError::Failed`] if the load failed, even if bytes are left unread. [`FlightError::Abandoned`] if its leader went
    /// away, or if this follower came after publication: claim the block again, and go on from [`Self::offset`].
    pub async fn next(&mut self, max: usize) -> Result<Option<Followed>, FlightError> {
        loop {
            if let Some(answer) = self.poll_next(max) {
                return answer;
            }
            let listener = self.flight.listen_progress();
            if let Some(answer) = self.poll_next(max) {
                return answer;
            }
            listener.await;
        }
    }

    /// [`Self::next`], blocking the thread.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub fn next_blocking(&mut self, max: usize) -> Result<Option<Followed>, FlightError> {
        loop {
            if let Some(answer) = self.poll_next(max) {
                return answer;
            }
            let listener = self.flight.listen_progress();
            if let Some(answer) = self.poll_next(max) {
                return answer;
            }
            listener.wait();
        }
    }

    /// Where the next bytes will come from.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    fn poll_next(&mut self, max: usize) -> Option<Result<Option<Followed>, FlightError>> {
        let published = match self.flight.progress(&mut self.buffer) {
            Progress::Open => false,
            Progress::Published => true,
            Progress::Ended(error) => return Some(Err(error)),
        };
        let Some(buffer) = &self.buffer else {
            return published.then_some(Err(FlightError::Abandoned));
        };
        let written = buffer.written();
        if self.offset < written {
            let len = (written - self.offset).min(max.max(1));
            let followed = Followed::new(buffer, self.offset, len);
            self.offset += len;
            return Some(Ok(Some(followed)));
        }
        published.then_some(Ok(None))
    }
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follower")
            .field("key", &self.flight.key())
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.flight.unfollow();
    }
}

/// Some bytes of a block whose load was in progress. Keeps their frame, whatever becomes of the load; not a pin.
pub struct Followed {
    buffer: Counted<Buffer>,
    start: usize,
    len: usize,
}

impl Followed {
    /// The range is below the mark.
    fn new(buffer: &Counted<Buffer>, start: usize, len: usize) -> Self {
        Self {
            buffer: Counted::clone(buffer),
            start,
            len,
        }
    }
}

impl Deref for Followed {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: made from a range below the mark, which only rises.
        unsafe { self.buffer.slice(self.start, self.len) }
    }
}

impl AsRef<[u8]> for Followed {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for Followed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Followed")
            .field("start", &self.start)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
