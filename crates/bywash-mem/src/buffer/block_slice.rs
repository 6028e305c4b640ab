//! Bytes that were read in place.

use std::ops::Deref;

use crate::frame::Frame;
use crate::sync::Counted;

/// Some bytes of a buffer or of a block whose load was in progress. Keeps their frame, whatever becomes of the rest; not a pin.
pub struct Followed {
    frame: Counted<Frame>,
    start: usize,
    len: usize,
}

impl Followed {
    /// # Safety
    /// The range lies in the frame and was found written, so that nobody writes it while the frame lives.
    pub(super) unsafe fn new(frame: &Counted<Frame>, start: usize, len: usize) -> Self {
        Self {
            frame: Counted::clone(frame),
            start,
            len,
        }
    }
}

impl Deref for Followed {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `new` was promised that the range is written and stays.
        unsafe { self.frame.written(self.start..self.start + self.len) }
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
