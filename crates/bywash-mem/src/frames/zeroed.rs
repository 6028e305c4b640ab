//! Zeroed slices with pages that are committed on first touch.
//!
//! The global allocator does that only for small alignments. For cache-line alignment it clears all of the memory itself.

use std::io;
use std::marker::PhantomData;
use std::ops::Deref;

use memory::Memory;

use super::arena::MIN_FRAME;
use crate::error::PoolError;

/// A slice of `T` that starts as zeroes. Its elements are not dropped.
#[derive(Debug)]
pub(crate) struct ZeroedSlice<T> {
    memory: Memory,
    len: usize,
    owned: PhantomData<T>,
}

impl<T> ZeroedSlice<T> {
    /// Returns a slice of `len` zeroed elements.
    ///
    /// # Safety
    /// All-zero bytes are a valid `T`.
    pub(crate) unsafe fn new(len: usize) -> Result<Self, PoolError> {
        const { assert!(align_of::<T>() <= MIN_FRAME, "alignment of the memory") };
        let memory = match len.checked_mul(size_of::<T>()) {
            Some(bytes) => Memory::zeroed(bytes),
            None => Err(io::ErrorKind::OutOfMemory.into()),
        };
        let memory = memory.map_err(|source| PoolError::AddressSpace {
            bytes: (len as u64).saturating_mul(size_of::<T>() as u64),
            source,
        })?;
        Ok(Self {
            memory,
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
        unsafe { std::slice::from_raw_parts(self.memory.start().cast(), self.len) }
    }
}

#[cfg(not(miri))]
mod memory {
    use std::io;

    use memmap2::{MmapOptions, MmapRaw};

    /// Zeroed memory that starts at a page boundary.
    #[derive(Debug)]
    pub(super) struct Memory(MmapRaw);

    impl Memory {
        pub(super) fn zeroed(bytes: usize) -> io::Result<Self> {
            let memory = MmapOptions::new().len(bytes).no_reserve_swap().map_anon()?;
            Ok(Self(memory.into()))
        }

        #[inline]
        pub(super) fn start(&self) -> *const u8 {
            self.0.as_ptr()
        }
    }
}

/// Memory from the heap: Miri does not support this kind of `mmap`.
#[cfg(miri)]
mod memory {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::io;
    use std::ptr::NonNull;

    use super::MIN_FRAME;

    #[derive(Debug)]
    pub(super) struct Memory {
        start: NonNull<u8>,
        layout: Layout,
    }

    // SAFETY: it owns its memory as a box does.
    unsafe impl Send for Memory {}
    // SAFETY: as above.
    unsafe impl Sync for Memory {}

    impl Memory {
        pub(super) fn zeroed(bytes: usize) -> io::Result<Self> {
            let layout = Layout::from_size_align(bytes.max(1), MIN_FRAME)
                .map_err(|_| io::ErrorKind::OutOfMemory)?;
            // SAFETY: the layout is not empty.
            let start = NonNull::new(unsafe { alloc_zeroed(layout) });
            let start = start.ok_or(io::ErrorKind::OutOfMemory)?;
            Ok(Self { start, layout })
        }

        pub(super) fn start(&self) -> *const u8 {
            self.start.as_ptr()
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: allocated in `zeroed` with this layout.
            unsafe { dealloc(self.start.as_ptr(), self.layout) };
        }
    }
}
