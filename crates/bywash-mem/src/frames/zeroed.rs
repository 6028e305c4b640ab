//! Slices of zeroed memory whose pages are committed as they are touched.
//!
//! The allocator promises that only for small alignments: asked for cache lines, it clears all of the memory itself.

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::error::PoolError;

/// A slice of `T` that began as zeroes. Its elements are not dropped.
#[derive(Debug)]
pub(crate) struct Zeroed<T> {
    start: NonNull<T>,
    len: usize,
    owned: PhantomData<T>,
}

// SAFETY: it owns its elements as a box does.
unsafe impl<T: Send> Send for Zeroed<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Zeroed<T> {}

impl<T> Zeroed<T> {
    /// `len` elements of zeroes.
    ///
    /// # Safety
    /// A `T` of zeroes is valid.
    pub(crate) unsafe fn new(len: usize) -> Result<Self, PoolError> {
        let start = if len == 0 {
            Ok(NonNull::dangling())
        } else {
            memory::zeroed::<T>(len)
        };
        let start = start.map_err(|source| PoolError::AddressSpace {
            bytes: len as u64 * size_of::<T>() as u64,
            source,
        })?;
        Ok(Self {
            start,
            len,
            owned: PhantomData,
        })
    }
}

impl<T> Deref for Zeroed<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: so many elements, valid from the start, as `new` requires.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> Drop for Zeroed<T> {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: made with this length, and nobody has it any more.
            unsafe { memory::free(self.start, self.len) };
        }
    }
}

#[cfg(not(miri))]
mod memory {
    use std::io;
    use std::ptr::NonNull;

    pub(super) fn zeroed<T>(len: usize) -> io::Result<NonNull<T>> {
        const {
            assert!(
                align_of::<T>() <= crate::MIN_FRAME,
                "a mapping begins at a page"
            )
        };
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping, wherever the system likes.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// # Safety
    /// `start` came from `zeroed` with the same length.
    pub(super) unsafe fn free<T>(start: NonNull<T>, len: usize) {
        // SAFETY: the mapping made in `zeroed`.
        unsafe { libc::munmap(start.as_ptr().cast(), len * size_of::<T>()) };
    }
}

/// The same from the heap: Miri knows no `mmap` of this kind.
#[cfg(miri)]
mod memory {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::io;
    use std::ptr::NonNull;

    pub(super) fn zeroed<T>(len: usize) -> io::Result<NonNull<T>> {
        let layout = Layout::array::<T>(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: not empty.
        let start = unsafe { alloc_zeroed(layout) };
        NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// # Safety
    /// `start` came from `zeroed` with the same length.
    pub(super) unsafe fn free<T>(start: NonNull<T>, len: usize) {
        let layout = Layout::array::<T>(len).expect("it was allocated with it");
        // SAFETY: as allocated.
        unsafe { dealloc(start.as_ptr().cast(), layout) };
    }
}
