//! Bytes read in place.

use std::fmt;
use std::ops::Deref;

use crate::frames::Frame;
use crate::sync::Counted;

/// Bytes of a buffer, or of a block while it was loaded. Keeps the frame alive even if buffer or load fail. Not a pin.
pub struct BlockSlice {
    frame: Counted<Frame>,
    start: usize,
    len: usize,
}

impl BlockSlice {
    /// Refers to a range of `frame` and keeps the frame alive.
    ///
    /// # Safety
    /// The range is in the frame and is written, so no thread writes it while the frame lives.
    pub(super) unsafe fn new(frame: &Counted<Frame>, start: usize, len: usize) -> Self {
        Self {
            frame: Counted::clone(frame),
            start,
            len,
        }
    }

    /// Returns the frame and the number of its first bytes that this refers to.
    ///
    /// # Panics
    /// If the bytes do not begin where the frame begins.
    pub(crate) fn into_frame(self) -> (Counted<Frame>, usize) {
        assert_eq!(self.start, 0, "bytes from the middle of a frame");
        (self.frame, self.len)
    }
}

impl Deref for BlockSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `new` requires that the range is written and stays.
        unsafe {
            self.frame
                .slice_unchecked(self.start..self.start + self.len)
        }
    }
}

impl AsRef<[u8]> for BlockSlice {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for BlockSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockSlice")
            .field("start", &self.start)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
