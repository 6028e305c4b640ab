//! A frame: uniquely owned memory with its charge.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::arena::Class;
use crate::budget::{Memory, Share};

/// Uniquely owned memory of a power-of-two class, [`crate::MIN_FRAME`] to [`crate::MAX_FRAME`], with the charge for it.
///
/// Always initialised: zero when new, else whatever its last owner left. Dropping it keeps its pages and its charge as idle,
/// for the next taker of the class; under debug assertions the bytes are overwritten first.
pub struct Frame {
    start: NonNull<u8>,
    memory: Arc<Memory>,
    index: u32,
    class: Class,
    share: Share,
    /// Nobody has touched its pages yet.
    fresh: bool,
    #[cfg(loom)]
    shadow: Arc<crate::sync::Shadow>,
}

// SAFETY: a frame owns its memory as a box does; the ledger gives it to one owner at a time.
unsafe impl Send for Frame {}
// SAFETY: through `&Frame` memory is only read, but for `unwritten`, whose callers keep writer and readers apart.
unsafe impl Sync for Frame {}

impl Frame {
    /// Takes over a frame that the ledger has just charged to `share`.
    pub(crate) fn new(
        memory: &Arc<Memory>,
        class: Class,
        index: u32,
        share: Share,
        fresh: bool,
    ) -> Self {
        let frame = Self {
            start: memory.arena().frame(class, index),
            memory: Arc::clone(memory),
            index,
            class,
            share,
            fresh,
            #[cfg(loom)]
            shadow: memory.arena().shadow(class, index),
        };
        frame.touch_mut(0..frame.capacity());
        frame
    }

    /// Its length in bytes: the class, at least what was asked for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.class.len()
    }

    /// All of its bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.touch(0..self.capacity());
        // SAFETY: initialised memory of this length, which only this frame's owner may write, through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.capacity()) }
    }

    /// All of its bytes, to write.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.touch_mut(0..self.capacity());
        // SAFETY: as `as_slice`, and `&mut self` is the only way in.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.capacity()) }
    }

    /// Some of its bytes, of a frame that is being filled.
    ///
    /// # Safety
    /// The range is within the frame, and nobody writes it while the slice lives.
    pub(crate) unsafe fn written(&self, range: Range<usize>) -> &[u8] {
        self.touch(range.clone());
        // SAFETY: within the frame, as the caller promises.
        let first = unsafe { self.start.as_ptr().add(range.start) };
        // SAFETY: initialised memory that nobody writes, as the caller promises.
        unsafe { std::slice::from_raw_parts(first, range.len()) }
    }

    /// Some of its bytes, to write while others read elsewhere in the frame.
    ///
    /// # Safety
    /// The range is within the frame, and nobody else uses it while the slice lives.
    #[expect(
        clippy::mut_from_ref,
        reason = "writers and readers of parts are kept apart by `write_at`"
    )]
    pub(crate) unsafe fn unwritten(&self, range: Range<usize>) -> &mut [u8] {
        self.touch_mut(range.clone());
        // SAFETY: within the frame, as the caller promises.
        let first = unsafe { self.start.as_ptr().add(range.start) };
        // SAFETY: initialised memory that is the caller's alone, as it promises.
        unsafe { std::slice::from_raw_parts_mut(first, range.len()) }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Before its first `len` bytes are written for the first time: has their pages made in one call.
    pub(crate) fn commit(&self, len: usize) {
        if self.fresh {
            self.memory.arena().commit(self.class, self.index, len);
        }
    }

    /// Moves the charge to another share, as when an uploaded chunk becomes a cached block.
    pub(crate) fn charge_to(&mut self, share: Share) {
        if self.share != share {
            self.memory.transfer(self.share, share, self.class.bytes());
            self.share = share;
        }
    }

    /// Tells loom of a read of these bytes. Nothing otherwise.
    #[inline]
    pub(crate) fn touch(&self, _range: Range<usize>) {
        #[cfg(loom)]
        self.shadow.read(_range);
    }

    /// Tells loom of a write of these bytes. Nothing otherwise.
    #[inline]
    pub(crate) fn touch_mut(&self, _range: Range<usize>) {
        #[cfg(loom)]
        self.shadow.write(_range);
    }
}

impl AsRef<[u8]> for Frame {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frame")
            .field("capacity", &self.capacity())
            .field("share", &self.share)
            .finish_non_exhaustive()
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.touch_mut(0..self.capacity());
        #[cfg(debug_assertions)]
        {
            // SAFETY: still this frame's own memory. Whoever reads it late shall see it.
            unsafe { self.start.as_ptr().write_bytes(0xDB, self.capacity()) };
        }
        self.memory.put_back(self.share, self.class, self.index);
    }
}
