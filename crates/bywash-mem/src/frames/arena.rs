//! Where frames live: a range of addresses a size class, reserved at start, committed by first touch, never moved.

use std::ptr::NonNull;

use crate::error::PoolError;

/// The smallest frame, in bytes: one page of the machines we run on, the unit in which memory is committed.
pub const MIN_FRAME: usize = 1 << MIN_SHIFT;
/// The largest frame, in bytes: past it a copy gains nothing from being contiguous.
pub const MAX_FRAME: usize = 1 << MAX_SHIFT;

const MIN_SHIFT: u32 = 12;
const MAX_SHIFT: u32 = 22;
/// Number of classes.
pub(crate) const CLASSES: usize = (MAX_SHIFT - MIN_SHIFT + 1) as usize;

/// A power-of-two size of frames, by its place from the smallest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Class(u8);

impl Class {
    /// The smallest class that holds `len` bytes.
    pub(crate) fn of(len: usize) -> Option<Self> {
        if len > MAX_FRAME {
            return None;
        }
        let shift = len.max(MIN_FRAME).next_power_of_two().trailing_zeros();
        Some(Self((shift - MIN_SHIFT) as u8))
    }

    pub(crate) fn bytes(self) -> u64 {
        1 << (u32::from(self.0) + MIN_SHIFT)
    }

    pub(crate) fn len(self) -> usize {
        1 << (u32::from(self.0) + MIN_SHIFT)
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// All classes, from the smallest.
    pub(crate) fn all() -> impl DoubleEndedIterator<Item = Self> {
        (0..CLASSES as u8).map(Self)
    }
}

#[cfg(any(miri, loom))]
pub(crate) use heap::Arena;
#[cfg(not(any(miri, loom)))]
pub(crate) use mapped::Arena;

/// The frames of each class by number: `frame(class, i)` for `i` below `limit / class.bytes()`.
#[cfg(not(any(miri, loom)))]
mod mapped {
    use std::io;

    use super::{CLASSES, Class, MAX_FRAME, NonNull, PoolError};

    /// From this size on, the pages of a frame used for the first time are made in one call: a fault each costs more than
    /// clearing it. Smaller ones are left to faults, since a call costs as much as a few.
    #[cfg(target_os = "linux")]
    const POPULATE: usize = 64 << 10;

    /// Frames below this size shall not have huge pages, which would commit memory nobody charged. Others shall: copies into
    /// them took 0.6 to 1.0 of the time of copies into small pages.
    const HUGE_PAGE: u64 = 2 << 20;

    #[derive(Debug)]
    pub(crate) struct Arena {
        base: NonNull<u8>,
        /// Bytes mapped in all.
        mapped: usize,
        /// Where each class begins, in bytes from `base`.
        start: [usize; CLASSES],
    }

    // SAFETY: the arena owns its mapping and hands out addresses only; who may touch a frame is the ledger's affair.
    unsafe impl Send for Arena {}
    // SAFETY: as above; no method writes to the mapping through `&self` but `decommit`, whose caller owns the frame.
    unsafe impl Sync for Arena {}

    impl Arena {
        /// Reserves `limit` bytes of addresses for each class. Nothing is committed.
        pub(crate) fn new(limit: u64) -> Result<Self, PoolError> {
            let classes = CLASSES as u64;
            // Aligned to the largest frame, so that every frame is aligned to its size.
            let span = limit.next_multiple_of(MAX_FRAME as u64);
            let bytes = span
                .checked_mul(classes)
                .and_then(|all| all.checked_add(MAX_FRAME as u64));
            let mapped = bytes
                .and_then(|bytes| usize::try_from(bytes).ok())
                .ok_or_else(|| PoolError::AddressSpace {
                    bytes: limit,
                    source: io::ErrorKind::OutOfMemory.into(),
                })?;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: a new anonymous mapping, wherever the system likes.
            let base = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    mapped,
                    libc::PROT_READ | libc::PROT_WRITE,
                    flags,
                    -1,
                    0,
                )
            };
            let base = if base == libc::MAP_FAILED {
                None
            } else {
                NonNull::new(base.cast::<u8>())
            };
            let base = base.ok_or_else(|| PoolError::AddressSpace {
                bytes: mapped as u64,
                source: io::Error::last_os_error(),
            })?;
            let first = base.as_ptr().align_offset(MAX_FRAME);
            let mut start = [0; CLASSES];
            for class in Class::all() {
                start[class.index()] = first + class.index() * span as usize;
            }
            let arena = Self {
                base,
                mapped,
                start,
            };
            arena.advise_huge_pages(span as usize);
            Ok(arena)
        }

        #[cfg(target_os = "linux")]
        fn advise_huge_pages(&self, span: usize) {
            for class in Class::all() {
                let first = self.frame(class, 0);
                let advice = if class.bytes() < HUGE_PAGE {
                    libc::MADV_NOHUGEPAGE
                } else {
                    libc::MADV_HUGEPAGE
                };
                // SAFETY: the class's own range of this mapping. A refusal (no such feature) is no loss.
                unsafe { libc::madvise(first.as_ptr().cast(), span, advice) };
            }
        }

        #[cfg(not(target_os = "linux"))]
        fn advise_huge_pages(&self, _: usize) {}

        /// The address of a frame. Its memory is initialised, zero if never used.
        pub(crate) fn frame(&self, class: Class, index: u32) -> NonNull<u8> {
            let offset = self.start[class.index()] + index as usize * class.len();
            debug_assert!(
                offset + class.len() <= self.mapped,
                "frame outside the arena"
            );
            // SAFETY: inside the mapping, as the ledger numbers frames below `limit / class.bytes()`.
            unsafe { self.base.add(offset) }
        }

        /// Makes the pages of a frame's first `len` bytes, if it has none yet. Blocks for some 100 µs a MiB.
        #[cfg(target_os = "linux")]
        pub(crate) fn commit(&self, class: Class, index: u32, len: usize) {
            let len = len.min(class.len());
            if len >= POPULATE {
                let frame = self.frame(class, index).as_ptr();
                // SAFETY: within this mapping; no byte changes. A refusal (an older kernel) leaves it to faults.
                unsafe { libc::madvise(frame.cast(), len, libc::MADV_POPULATE_WRITE) };
            }
        }

        /// Pages are made as they are touched.
        #[cfg(not(target_os = "linux"))]
        pub(crate) fn commit(&self, _: Class, _: u32, _: usize) {}

        /// Gives the frame's pages back to the system; they read as zero when next touched.
        ///
        /// # Safety
        /// Nobody else may use the frame.
        pub(crate) unsafe fn decommit(&self, class: Class, index: u32) {
            let frame = self.frame(class, index).as_ptr();
            // SAFETY: whole pages of this mapping that only the caller uses.
            let failed =
                unsafe { libc::madvise(frame.cast(), class.len(), libc::MADV_DONTNEED) } != 0;
            // Only a range that is not ours, or is locked in memory, is refused.
            assert!(
                !failed,
                "decommit of a frame refused: {}",
                io::Error::last_os_error()
            );
        }
    }

    impl Drop for Arena {
        fn drop(&mut self) {
            // SAFETY: the mapping made in `new`; every frame keeps the arena alive, so none is left.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped) };
        }
    }
}

/// The same from the heap, for tools that know no `mmap`.
#[cfg(any(miri, loom))]
mod heap {
    use std::alloc::Layout;
    use std::collections::HashMap;

    use super::{Class, NonNull, PoolError};

    #[derive(Debug)]
    pub(crate) struct Arena {
        // Not of `sync`: a tool's own bookkeeping is no part of the protocols.
        frames: parking_lot::Mutex<HashMap<(usize, u32), NonNull<u8>>>,
        #[cfg(loom)]
        shadows: parking_lot::Mutex<HashMap<(usize, u32), std::sync::Arc<crate::sync::Shadow>>>,
    }

    // SAFETY: as for the mapped arena.
    unsafe impl Send for Arena {}
    // SAFETY: as for the mapped arena.
    unsafe impl Sync for Arena {}

    fn layout(class: Class) -> Layout {
        Layout::from_size_align(class.len(), super::MIN_FRAME)
            .expect("a class is a power of two of at least a page")
    }

    impl Arena {
        #[expect(clippy::unnecessary_wraps, reason = "the mapped arena can fail")]
        pub(crate) fn new(_: u64) -> Result<Self, PoolError> {
            Ok(Self {
                frames: parking_lot::Mutex::new(HashMap::new()),
                #[cfg(loom)]
                shadows: parking_lot::Mutex::new(HashMap::new()),
            })
        }

        /// What loom knows of a frame's bytes.
        #[cfg(loom)]
        pub(crate) fn shadow(
            &self,
            class: Class,
            index: u32,
        ) -> std::sync::Arc<crate::sync::Shadow> {
            let mut shadows = self.shadows.lock();
            std::sync::Arc::clone(
                shadows
                    .entry((class.index(), index))
                    .or_insert_with(crate::sync::Shadow::new),
            )
        }

        pub(crate) fn frame(&self, class: Class, index: u32) -> NonNull<u8> {
            *self
                .frames
                .lock()
                .entry((class.index(), index))
                .or_insert_with(|| {
                    // SAFETY: the layout is not empty.
                    let frame = unsafe { std::alloc::alloc_zeroed(layout(class)) };
                    NonNull::new(frame).expect("a few small frames for a tool")
                })
        }

        /// The heap's own affair.
        #[expect(clippy::unused_self, reason = "the mapped arena needs itself")]
        pub(crate) fn commit(&self, _: Class, _: u32, _: usize) {}

        /// # Safety
        /// Nobody else may use the frame.
        pub(crate) unsafe fn decommit(&self, class: Class, index: u32) {
            let frame = self.frame(class, index).as_ptr();
            // SAFETY: the frame is of this length and the caller's alone.
            unsafe { frame.write_bytes(0, class.len()) };
        }
    }

    impl Drop for Arena {
        fn drop(&mut self) {
            for class in Class::all() {
                for (key, frame) in self.frames.get_mut().iter() {
                    if key.0 == class.index() {
                        // SAFETY: made in `frame` with this layout; no frame outlives the arena.
                        unsafe { std::alloc::dealloc(frame.as_ptr(), layout(class)) };
                    }
                }
            }
        }
    }
}
