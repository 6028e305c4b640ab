//! The arena: one address range a size class, reserved at start, committed on first touch, never moved.

use std::ptr::NonNull;

use crate::error::PoolError;

/// Size of the smallest frame in bytes: one page, the unit in which memory is committed.
pub const MIN_FRAME: usize = 1 << MIN_SHIFT;
/// Size of the largest frame in bytes. A copy into more contiguous memory is not faster.
pub const MAX_FRAME: usize = 1 << MAX_SHIFT;

const MIN_SHIFT: u32 = 12;
const MAX_SHIFT: u32 = 22;
/// Number of size classes.
pub(super) const CLASSES: usize = (MAX_SHIFT - MIN_SHIFT + 1) as usize;

/// A power-of-two frame size, numbered from the smallest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SizeClass(u8);

impl SizeClass {
    /// Returns the smallest class that holds `len` bytes, or `None` above [`MAX_FRAME`].
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

    /// All classes in ascending order.
    pub(crate) fn all() -> impl DoubleEndedIterator<Item = Self> {
        (0..CLASSES as u8).map(Self)
    }
}

#[cfg(any(miri, loom))]
pub(crate) use heap::Arena;
#[cfg(not(any(miri, loom)))]
pub(crate) use mapped::Arena;

/// Frames as one anonymous mapping. A class has the frames `frame(class, i)` for `i` below `limit / class.bytes()`.
#[cfg(not(any(miri, loom)))]
mod mapped {
    use std::io;

    #[cfg(target_os = "linux")]
    use memmap2::Advice;
    use memmap2::{MmapOptions, MmapRaw, UncheckedAdvice};

    use super::{CLASSES, MAX_FRAME, MIN_FRAME, NonNull, PoolError, SizeClass};

    /// Frame size from which the pages of a new frame are populated by one call. A fault costs more than clearing the page;
    /// for smaller frames the call costs as much as the faults it saves.
    #[cfg(target_os = "linux")]
    const POPULATE: usize = 64 << 10;

    /// Frame size from which huge pages are requested: copies into them took 0.6 to 1.0 of the time of copies into small pages.
    /// Below it they are refused, because they would commit memory that no frame is charged for.
    #[cfg(target_os = "linux")]
    const HUGE_PAGE: u64 = 2 << 20;

    #[derive(Debug)]
    pub(crate) struct Arena {
        memory: MmapRaw,
        /// Offset of each class in `memory`, in bytes.
        start: [usize; CLASSES],
    }

    impl Arena {
        /// Reserves `limit` bytes of address space for each class. Commits nothing.
        pub(crate) fn new(limit: u64) -> Result<Self, PoolError> {
            let page = rustix::param::page_size();
            if page > MIN_FRAME {
                // Pages are given back in whole ones, which small frames would share.
                return Err(PoolError::PageSize { bytes: page });
            }
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
            let memory = MmapOptions::new().len(mapped).no_reserve_swap().map_anon();
            let memory = memory.map_err(|source| PoolError::AddressSpace {
                bytes: mapped as u64,
                source,
            })?;
            let memory = MmapRaw::from(memory);
            let first = memory.as_ptr().align_offset(MAX_FRAME);
            let mut start = [0; CLASSES];
            for class in SizeClass::all() {
                start[class.index()] = first + class.index() * span as usize;
            }
            let arena = Self { memory, start };
            arena.advise_huge_pages(span as usize);
            Ok(arena)
        }

        #[cfg(target_os = "linux")]
        fn advise_huge_pages(&self, span: usize) {
            for class in SizeClass::all() {
                let advice = if class.bytes() < HUGE_PAGE {
                    Advice::NoHugePage
                } else {
                    Advice::HugePage
                };
                // May fail on kernels without the feature.
                let _ = self
                    .memory
                    .advise_range(advice, self.start[class.index()], span);
            }
        }

        #[cfg(not(target_os = "linux"))]
        fn advise_huge_pages(&self, _: usize) {}

        /// Returns the offset of a frame in the mapping.
        fn offset(&self, class: SizeClass, index: u32) -> usize {
            let offset = self.start[class.index()] + index as usize * class.len();
            // The ledger numbers frames below `limit / class.bytes()`.
            debug_assert!(
                offset + class.len() <= self.memory.len(),
                "frame outside the arena"
            );
            offset
        }

        /// Returns the address of a frame. Its memory is initialised: zero if it was never used.
        pub(crate) fn frame(&self, class: SizeClass, index: u32) -> NonNull<u8> {
            let offset = self.offset(class, index);
            NonNull::new(self.memory.as_mut_ptr().wrapping_add(offset))
                .expect("no address of a mapping is null")
        }

        /// Populates the pages of a new frame's first `len` bytes. Blocks for about 100 µs a MiB.
        #[cfg(target_os = "linux")]
        pub(crate) fn populate(&self, class: SizeClass, index: u32, len: usize) {
            let len = len.min(class.len());
            if len >= POPULATE {
                let offset = self.offset(class, index);
                // Fails on older kernels; the pages fault in.
                let _ = self.memory.advise_range(Advice::PopulateWrite, offset, len);
            }
        }

        /// Does nothing: pages are committed by faults.
        #[cfg(not(target_os = "linux"))]
        pub(crate) fn populate(&self, _: SizeClass, _: u32, _: usize) {}

        /// Returns the frame's pages to the system. They read as zero when next touched.
        ///
        /// # Safety
        /// The caller owns the frame.
        pub(crate) unsafe fn decommit(&self, class: SizeClass, index: u32) {
            let offset = self.offset(class, index);
            // SAFETY: whole pages of a frame, which the caller owns.
            let result = unsafe {
                self.memory
                    .unchecked_advise_range(UncheckedAdvice::DontNeed, offset, class.len())
            };
            // Fails only for a range outside the mapping or locked in memory.
            if let Err(error) = result {
                panic!("decommit of a frame failed: {error}");
            }
        }
    }
}

/// Frames from the heap, for tools without `mmap`.
#[cfg(any(miri, loom))]
mod heap {
    use std::alloc::Layout;
    use std::collections::HashMap;

    use super::{NonNull, PoolError, SizeClass};

    #[derive(Debug)]
    pub(crate) struct Arena {
        // Not from `sync`: this bookkeeping is not part of the protocols under test.
        frames: parking_lot::Mutex<HashMap<(usize, u32), NonNull<u8>>>,
        #[cfg(loom)]
        shadows: parking_lot::Mutex<HashMap<(usize, u32), std::sync::Arc<crate::sync::Shadow>>>,
    }

    // SAFETY: as for the mapped arena.
    unsafe impl Send for Arena {}
    // SAFETY: as for the mapped arena.
    unsafe impl Sync for Arena {}

    fn layout(class: SizeClass) -> Layout {
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

        /// Returns the cells that stand for a frame's bytes in loom.
        #[cfg(loom)]
        pub(crate) fn shadow(
            &self,
            class: SizeClass,
            index: u32,
        ) -> std::sync::Arc<crate::sync::Shadow> {
            let mut shadows = self.shadows.lock();
            std::sync::Arc::clone(
                shadows
                    .entry((class.index(), index))
                    .or_insert_with(crate::sync::Shadow::new),
            )
        }

        pub(crate) fn frame(&self, class: SizeClass, index: u32) -> NonNull<u8> {
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

        /// Does nothing: heap memory is always committed.
        #[expect(clippy::unused_self, reason = "the mapped arena needs `self`")]
        pub(crate) fn populate(&self, _: SizeClass, _: u32, _: usize) {}

        /// # Safety
        /// The caller owns the frame.
        pub(crate) unsafe fn decommit(&self, class: SizeClass, index: u32) {
            let frame = self.frame(class, index).as_ptr();
            // SAFETY: the frame has this length, and the caller owns it.
            unsafe { frame.write_bytes(0, class.len()) };
        }
    }

    impl Drop for Arena {
        fn drop(&mut self) {
            for class in SizeClass::all() {
                for (key, frame) in self.frames.get_mut().iter() {
                    if key.0 == class.index() {
                        // SAFETY: allocated in `frame` with this layout; no frame outlives the arena.
                        unsafe { std::alloc::dealloc(frame.as_ptr(), layout(class)) };
                    }
                }
            }
        }
    }
}
