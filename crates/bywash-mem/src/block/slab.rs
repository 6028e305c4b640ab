//! The slab: block headers of 64 bytes in one array that never moves, numbered by a u32.

use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use super::options::{BlockOptions, Priority};
use super::word::StateWord;
use crate::error::PoolError;
use crate::frames::Frame;
use crate::key::BlockKey;
use crate::sync::{Counted, Mutex, UnsafeCell};

/// The frame of a resident block.
#[derive(Debug)]
pub(crate) enum FrameRef {
    /// Owned by the block.
    Owned(Frame),
    /// Shared with readers of the load, which still held it when the block was published.
    Shared(Counted<Frame>),
}

/// A resident block without its state word.
#[derive(Debug)]
pub(crate) struct BlockContents {
    pub(crate) start: NonNull<u8>,
    pub(crate) len: u32,
    pub(crate) key: BlockKey,
    pub(crate) options: BlockOptions,
    pub(crate) frame: FrameRef,
}

/// Properties of a block that the evictor counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Account {
    pub(super) store: u32,
    pub(super) priority: Priority,
    /// Size of its frame.
    pub(super) bytes: u64,
}

impl Account {
    /// Its bytes if its priority is [`Priority::High`].
    pub(super) fn high_bytes(&self) -> u64 {
        match self.priority {
            Priority::High => self.bytes,
            Priority::Normal | Priority::Low => 0,
        }
    }
}

impl BlockContents {
    /// Returns the block's bytes, valid while the caller's pin lasts.
    pub(crate) fn bytes(&self) -> *const [u8] {
        match &self.frame {
            FrameRef::Owned(frame) => frame.note_read(0..self.len as usize),
            FrameRef::Shared(frame) => frame.note_read(0..self.len as usize),
        }
        std::ptr::slice_from_raw_parts(self.start.as_ptr(), self.len as usize)
    }

    /// Properties that the evictor counts.
    pub(super) fn account(&self) -> Account {
        Account {
            store: self.key.store,
            priority: self.options.priority,
            bytes: self.charge(),
        }
    }

    /// Size of its frame in bytes.
    pub(crate) fn charge(&self) -> u64 {
        match &self.frame {
            FrameRef::Owned(frame) => frame.capacity() as u64,
            FrameRef::Shared(frame) => frame.capacity() as u64,
        }
    }

    /// Releases the frame. Returns the bytes that came free: 0 while readers hold it.
    pub(crate) fn release(self) -> u64 {
        let charge = self.charge();
        match self.frame {
            FrameRef::Owned(frame) => {
                drop(frame);
                charge
            }
            FrameRef::Shared(frame) => Counted::try_unwrap(frame).map_or(0, |frame| {
                drop(frame);
                charge
            }),
        }
    }
}

/// Header of one slot. All zero is an empty slot.
#[repr(C, align(64))]
pub(crate) struct BlockHeader {
    pub(crate) word: StateWord,
    /// Initialised while the word is resident or owned. Written by the owner of the slot, read under a pin.
    contents: UnsafeCell<MaybeUninit<BlockContents>>,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<BlockHeader>() == 64, "a header is one cache line");

// SAFETY: `contents` moves between threads by the protocol of the word; its parts are Send and Sync except for the raw address.
unsafe impl Send for BlockHeader {}
// SAFETY: as above; `&BlockHeader` gives access to `contents` only through the unsafe functions below.
unsafe impl Sync for BlockHeader {}

impl BlockHeader {
    /// Key of the block.
    ///
    /// # Safety
    /// The caller holds a pin.
    #[inline]
    pub(crate) unsafe fn key(&self) -> BlockKey {
        // SAFETY: pinned, so initialised and not written.
        self.contents
            .with(|contents| unsafe { &*contents.cast::<BlockContents>() }.key)
    }

    /// Bytes of the block, valid while the pin lasts.
    ///
    /// # Safety
    /// The caller holds a pin.
    #[inline]
    pub(crate) unsafe fn bytes(&self) -> *const [u8] {
        // SAFETY: pinned, so initialised and not written.
        self.contents
            .with(|contents| unsafe { &*contents.cast::<BlockContents>() }.bytes())
    }

    /// Whether no reader of its load holds the block's frame.
    ///
    /// # Safety
    /// The caller holds a pin.
    pub(crate) unsafe fn is_frame_unshared(&self) -> bool {
        // SAFETY: pinned, so initialised and not written.
        self.contents.with(
            |contents| match &unsafe { &*contents.cast::<BlockContents>() }.frame {
                FrameRef::Owned(_) => true,
                FrameRef::Shared(frame) => Counted::strong_count(frame) == 1,
            },
        )
    }

    /// Options of the block.
    ///
    /// # Safety
    /// The caller holds a pin.
    pub(crate) unsafe fn options(&self) -> BlockOptions {
        // SAFETY: pinned, so initialised and not written.
        self.contents
            .with(|contents| unsafe { &*contents.cast::<BlockContents>() }.options)
    }

    /// Size of the block's frame in bytes.
    ///
    /// # Safety
    /// The caller holds a pin.
    pub(crate) unsafe fn charge(&self) -> u64 {
        // SAFETY: pinned, so initialised and not written.
        self.contents
            .with(|contents| unsafe { &*contents.cast::<BlockContents>() }.charge())
    }

    /// Puts a block into a slot. `StateWord::publish` must follow.
    ///
    /// # Safety
    /// The slot came from [`Slab::allocate`], or its contents were taken; the caller owns it.
    pub(crate) unsafe fn fill(&self, contents: BlockContents) {
        // SAFETY: the contents of an empty slot have no reader, and the caller is its only owner.
        self.contents
            .with_mut(|place| unsafe { place.cast::<BlockContents>().write(contents) });
    }

    /// Takes the block out. `StateWord::vacate` must follow, or [`Self::fill`].
    ///
    /// # Safety
    /// The caller owns the contents (`StateWord::try_own`), or the whole slab.
    pub(crate) unsafe fn take(&self) -> BlockContents {
        // SAFETY: initialised when published, without pins, and taken only once because ownership has one winner.
        self.contents
            .with_mut(|place| unsafe { place.cast::<BlockContents>().read() })
    }
}

#[cfg(not(any(loom, shuttle)))]
type Headers = crate::frames::ZeroedSlice<BlockHeader>;
/// The model checkers' atomics have no zeroed form: each header is constructed.
#[cfg(any(loom, shuttle))]
type Headers = Box<[BlockHeader]>;

/// All slots of a pool.
pub(crate) struct Slab {
    headers: Headers,
    free: Mutex<FreeSlots>,
}

#[derive(Debug, Default)]
struct FreeSlots {
    released: Vec<u32>,
    /// Number of slots ever used.
    len: u32,
}

impl Slab {
    /// Creates a slab of at most `max` slots. Memory is committed as they are used.
    pub(crate) fn new(max: u64) -> Result<Self, PoolError> {
        let slots = max.min(u64::from(u32::MAX)) as usize;
        Ok(Self {
            headers: headers(slots)?,
            free: Mutex::new(FreeSlots::default()),
        })
    }

    /// Header of a slot that was allocated at some time.
    #[inline]
    pub(crate) fn header(&self, slot: u32) -> &BlockHeader {
        &self.headers[slot as usize]
    }

    /// Number of slots ever used. Read under the lock, so a queued waiter sees every slot filled before it joined the queue.
    pub(crate) fn len(&self) -> u32 {
        self.free.lock().len
    }

    /// Allocates an empty slot, which the caller owns.
    pub(crate) fn allocate(&self) -> u32 {
        let mut free = self.free.lock();
        if let Some(slot) = free.released.pop() {
            return slot;
        }
        let slot = free.len;
        assert!(
            (slot as usize) < self.headers.len(),
            "there is a slot for each frame, and each block has a frame"
        );
        free.len += 1;
        slot
    }

    /// Releases an empty slot.
    pub(crate) fn release(&self, slot: u32) {
        self.free.lock().released.push(slot);
    }
}

/// Returns zeroed headers, in pages that are committed only as they are used.
#[cfg(not(any(loom, shuttle)))]
fn headers(len: usize) -> Result<Headers, PoolError> {
    // SAFETY: a zeroed header is an empty slot: an atomic 0 and uninitialised contents.
    unsafe { Headers::new(len) }
}

#[cfg(any(loom, shuttle))]
fn headers(len: usize) -> Result<Headers, PoolError> {
    let empty = || BlockHeader {
        word: StateWord::new(),
        contents: UnsafeCell::new(MaybeUninit::uninit()),
    };
    Ok(std::iter::repeat_with(empty).take(len).collect())
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab")
            .field("free", &self.free)
            .finish_non_exhaustive()
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        for slot in 0..self.len() {
            let header = self.header(slot);
            if header.word.load().is_resident() {
                // SAFETY: `&mut self` is exclusive, and pins keep the cache alive, so no pin exists.
                drop(unsafe { header.take() });
            }
        }
    }
}
