//! A frame: uniquely owned memory together with its charge.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use super::allocator::FrameAllocator;
use super::arena::SizeClass;
use super::config::Share;

/// Uniquely owned memory of a power-of-two size class, from [`crate::MIN_FRAME`] to [`crate::MAX_FRAME`], and its charge.
///
/// Always initialised: zero when new, else the bytes of its last owner. Dropping it keeps its pages and charge as idle for the
/// next allocation of the class. Debug builds overwrite the bytes first.
pub struct Frame {
    start: NonNull<u8>,
    allocator: Arc<FrameAllocator>,
    index: u32,
    class: SizeClass,
    share: Share,
    /// Its pages were never touched.
    fresh: bool,
    #[cfg(loom)]
    shadow: Arc<crate::sync::Shadow>,
}

// SAFETY: a frame owns its memory as a box does; the ledger gives it to one owner at a time.
unsafe impl Send for Frame {}
// SAFETY: `&Frame` only reads memory. The exception is `slice_mut_unchecked`: its callers keep the writer apart from readers.
unsafe impl Sync for Frame {}

impl Frame {
    /// Takes over a frame that the ledger has just charged to `share`.
    pub(super) fn new(
        allocator: &Arc<FrameAllocator>,
        class: SizeClass,
        index: u32,
        share: Share,
        fresh: bool,
    ) -> Self {
        let frame = Self {
            start: allocator.arena().frame(class, index),
            allocator: Arc::clone(allocator),
            index,
            class,
            share,
            fresh,
            #[cfg(loom)]
            shadow: allocator.arena().shadow(class, index),
        };
        frame.note_write(0..frame.capacity());
        frame
    }

    /// Length in bytes: the length of the size class, at least the length requested.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.class.len()
    }

    /// Returns all of its bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.note_read(0..self.capacity());
        // SAFETY: initialised memory of this length, which only this frame's owner may write, through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.capacity()) }
    }

    /// Returns all of its bytes for writing.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.note_write(0..self.capacity());
        // SAFETY: as in `as_slice`, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.capacity()) }
    }

    /// Returns a range of a frame that is being filled.
    ///
    /// # Safety
    /// The range is within the frame, and no thread writes it while the slice lives.
    pub(crate) unsafe fn slice_unchecked(&self, range: Range<usize>) -> &[u8] {
        self.note_read(range.clone());
        // SAFETY: within the frame, as the caller promises.
        let first = unsafe { self.start.as_ptr().add(range.start) };
        // SAFETY: initialised memory without writers, as the caller promises.
        unsafe { std::slice::from_raw_parts(first, range.len()) }
    }

    /// Returns a range for writing while other threads read elsewhere in the frame.
    ///
    /// # Safety
    /// The range is within the frame, and no other thread accesses it while the slice lives.
    #[expect(
        clippy::mut_from_ref,
        reason = "claims of the write-at buffer keep writers and readers of a range apart"
    )]
    pub(crate) unsafe fn slice_mut_unchecked(&self, range: Range<usize>) -> &mut [u8] {
        self.note_write(range.clone());
        // SAFETY: within the frame, as the caller promises.
        let first = unsafe { self.start.as_ptr().add(range.start) };
        // SAFETY: initialised memory that only the caller accesses, as it promises.
        unsafe { std::slice::from_raw_parts_mut(first, range.len()) }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Populates the pages of the first `len` bytes in one call. Useful before they are written for the first time.
    pub(crate) fn populate(&self, len: usize) {
        if self.fresh {
            self.allocator.arena().populate(self.class, self.index, len);
        }
    }

    /// Moves the charge to another share, as when an uploaded chunk becomes a cached block.
    pub(crate) fn charge_to(&mut self, share: Share) {
        if self.share != share {
            self.allocator
                .transfer(self.share, share, self.class.bytes());
            self.share = share;
        }
    }

    /// Reports a read of these bytes to loom. Does nothing otherwise.
    #[inline]
    pub(crate) fn note_read(&self, _range: Range<usize>) {
        #[cfg(loom)]
        self.shadow.read(_range);
    }

    /// Reports a write of these bytes to loom. Does nothing otherwise.
    #[inline]
    pub(crate) fn note_write(&self, _range: Range<usize>) {
        #[cfg(loom)]
        self.shadow.write(_range);
    }
}

impl AsRef<[u8]> for Frame {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("capacity", &self.capacity())
            .field("share", &self.share)
            .finish_non_exhaustive()
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.note_write(0..self.capacity());
        #[cfg(debug_assertions)]
        {
            // SAFETY: still this frame's own memory. A late reader sees the pattern and fails a test.
            unsafe { self.start.as_ptr().write_bytes(0xDB, self.capacity()) };
        }
        self.allocator
            .release_frame(self.share, self.class, self.index);
    }
}
