//! The arena: one address range a size class, reserved at start, committed on first touch, never moved.

use std::os::fd::BorrowedFd;
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

/// Memory of frames that other processes of the machine can map, to read blocks that are leased to them.
#[derive(Debug, Clone, Copy)]
pub struct SharedMemory<'a> {
    /// Descriptor of the memory, for reading only. Sealed: it neither shrinks nor grows.
    pub descriptor: BorrowedFd<'a>,
    /// Length in bytes. Most of it is a hole.
    pub len: u64,
}

/// Frames as one mapping: anonymous, or in part the mapping of a memfd. A class has the frames `frame(class, i)` for `i` below
/// `limit / class.bytes()`.
#[cfg(not(any(miri, loom)))]
mod mapped {
    use std::io;
    use std::ops::Range;
    use std::os::fd::{AsFd, OwnedFd};

    #[cfg(target_os = "linux")]
    use memmap2::Advice;
    use memmap2::{MmapOptions, MmapRaw, UncheckedAdvice};

    use super::{CLASSES, MAX_FRAME, MIN_FRAME, NonNull, PoolError, SharedMemory, SizeClass};

    /// Frame size from which the pages of a new frame are populated by one call. A fault costs more than clearing the page;
    /// for smaller frames the call costs as much as the faults it saves.
    #[cfg(target_os = "linux")]
    const POPULATE: usize = 64 << 10;

    /// Frame size from which huge pages are requested: copies into them took 0.6 to 1.0 of the time of copies into small pages.
    /// Below it they are refused, because they would commit memory that no frame is charged for.
    pub(super) const HUGE_PAGE: u64 = 2 << 20;

    #[derive(Debug)]
    pub(crate) struct Arena {
        memory: MmapRaw,
        /// Offset of each class in `memory`, in bytes.
        start: [usize; CLASSES],
        shared: Option<SharedPart>,
    }

    /// The classes below [`HUGE_PAGE`], mapped from a memfd. Larger frames stay anonymous: a memfd has no huge pages by default.
    #[derive(Debug)]
    struct SharedPart {
        /// An open file description for reading only.
        descriptor: OwnedFd,
        /// Place of the memfd's bytes in the arena's mapping.
        range: Range<usize>,
    }

    impl Arena {
        /// Reserves `limit` bytes of address space for each class. Commits nothing. With `shared`, frames below [`HUGE_PAGE`] are
        /// in a memfd.
        pub(crate) fn new(limit: u64, shared: bool) -> Result<Self, PoolError> {
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
            let mut arena = Self {
                memory,
                start,
                shared: None,
            };
            if shared {
                let classes = SizeClass::all().filter(|class| class.bytes() < HUGE_PAGE);
                let range = first..first + classes.count() * span as usize;
                let part = arena.map_memfd(range);
                arena.shared = Some(part.map_err(|source| PoolError::SharedMemory { source })?);
            }
            arena.advise_huge_pages(span as usize);
            Ok(arena)
        }

        /// Maps a new memfd over `range` of the reserved addresses.
        #[cfg(target_os = "linux")]
        fn map_memfd(&self, range: Range<usize>) -> io::Result<SharedPart> {
            use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
            use rustix::mm::{MapFlags, ProtFlags};

            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let memfd = rustix::fs::memfd_create("bywash-frames", flags)?;
            rustix::fs::ftruncate(&memfd, range.len() as u64)?;
            // A hole punch needs a file without `FUTURE_WRITE`, so clients get a description for reading instead of that seal.
            let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW;
            rustix::fs::fcntl_add_seals(&memfd, seals)?;
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&memfd));
            let reading = OFlags::RDONLY | OFlags::CLOEXEC;
            let descriptor = rustix::fs::open(path, reading, Mode::empty())?;
            let address = self.memory.as_mut_ptr().wrapping_add(range.start).cast();
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
            // SAFETY: the range is inside this arena's own mapping, which nothing refers to yet. Unmapping the arena unmaps it too.
            unsafe { rustix::mm::mmap(address, range.len(), protection, flags, &memfd, 0) }?;
            Ok(SharedPart { descriptor, range })
        }

        #[cfg(not(target_os = "linux"))]
        fn map_memfd(&self, _: Range<usize>) -> io::Result<SharedPart> {
            Err(io::ErrorKind::Unsupported.into())
        }

        /// Memory that other processes can map.
        pub(crate) fn shared_memory(&self) -> Option<SharedMemory<'_>> {
            self.shared.as_ref().map(|shared| SharedMemory {
                descriptor: shared.descriptor.as_fd(),
                len: shared.range.len() as u64,
            })
        }

        /// Returns where the byte at `address`, of a frame, is in the shared memory. `None` if the frame is anonymous.
        pub(crate) fn shared_offset(&self, address: *const u8) -> Option<u64> {
            let range = &self.shared.as_ref()?.range;
            let offset = (address as usize).checked_sub(self.memory.as_ptr() as usize)?;
            range
                .contains(&offset)
                .then(|| (offset - range.start) as u64)
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
            let is_shared = |shared: &SharedPart| shared.range.contains(&offset);
            let advice = if self.shared.as_ref().is_some_and(is_shared) {
                // A hole in the memfd: `DontNeed` would only unmap its pages.
                UncheckedAdvice::Remove
            } else {
                UncheckedAdvice::DontNeed
            };
            // SAFETY: whole pages of a frame, which the caller owns.
            let result = unsafe {
                self.memory
                    .unchecked_advise_range(advice, offset, class.len())
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

    use super::{NonNull, PoolError, SharedMemory, SizeClass};

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
        pub(crate) fn new(_: u64, _: bool) -> Result<Self, PoolError> {
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

        /// Returns `None`: memory of the heap is this process's own.
        #[expect(clippy::unused_self, reason = "the mapped arena needs `self`")]
        pub(crate) fn shared_memory(&self) -> Option<SharedMemory<'_>> {
            None
        }

        #[expect(clippy::unused_self, reason = "the mapped arena needs `self`")]
        pub(crate) fn shared_offset(&self, _: *const u8) -> Option<u64> {
            None
        }

        /// Does nothing: heap memory is always committed.
        #[expect(clippy::unused_self, reason = "the mapped arena needs `self`")]
        pub(crate) fn populate(&self, _: SizeClass, _: u32, _: usize) {}

        /// # Safety
        /// The caller owns the frame.
        pub(crate) unsafe fn decommit(&self, class: SizeClass, index: u32) {
            #[cfg(loom)]
            self.shadow(class, index).write(0..class.len());
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
