//! Zeroed slices with pages that are committed on first touch.
//!
//! The global allocator does that only for small alignments. For cache-line alignment it clears all of the memory itself.

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::error::PoolError;

/// A slice of `T` that starts as zeroes. Its elements are not dropped.
#[derive(Debug)]
pub(crate) struct ZeroedSlice<T> {
    start: NonNull<T>,
    len: usize,
    owned: PhantomData<T>,
}

// SAFETY: it owns its elements as a box does.
unsafe impl<T: Send> Send for ZeroedSlice<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for ZeroedSlice<T> {}

impl<T> ZeroedSlice<T> {
    /// Returns a slice of `len` zeroed elements.
    ///
    /// # Safety
    /// All-zero bytes are a valid `T`.
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

impl<T> Deref for ZeroedSlice<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements, valid from the start as `new` requires.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> Drop for ZeroedSlice<T> {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated with this length; `&mut self` is the last reference.
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
                align_of::<T>() <= crate::frames::MIN_FRAME,
                "a mapping starts at a page boundary"
            )
        };
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the system's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Frees the memory of a slice.
    ///
    /// # Safety
    /// `start` came from `zeroed` with the same length.
    pub(super) unsafe fn free<T>(start: NonNull<T>, len: usize) {
        // SAFETY: the mapping made in `zeroed`.
        unsafe { libc::munmap(start.as_ptr().cast(), len * size_of::<T>()) };
    }
}

/// Memory from the heap: Miri does not support this kind of `mmap`.
#[cfg(miri)]
mod memory {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::io;
    use std::ptr::NonNull;

    pub(super) fn zeroed<T>(len: usize) -> io::Result<NonNull<T>> {
        let layout = Layout::array::<T>(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Frees the memory of a slice.
    ///
    /// # Safety
    /// `start` came from `zeroed` with the same length.
    pub(super) unsafe fn free<T>(start: NonNull<T>, len: usize) {
        let layout = Layout::array::<T>(len).expect("the layout it was allocated with");
        // SAFETY: allocated in `zeroed` with this layout.
        unsafe { dealloc(start.as_ptr().cast(), layout) };
    }
}
