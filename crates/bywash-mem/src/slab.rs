//! Block headers: 64 bytes each, in segments that never move, named by a u32.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::follow::Buffer;
use crate::frame::Frame;
use crate::pool::BlockKey;
use crate::sync::{Counted, Mutex, UnsafeCell};
use crate::word::StateWord;

/// Headers in the first segment; each further one holds as many as all before it and one first more. 4 KiB to start with.
#[cfg(not(any(loom, shuttle)))]
const FIRST: u32 = 64;
/// The tools make every header, and loom counts them.
#[cfg(any(loom, shuttle))]
const FIRST: u32 = 2;
/// Enough for every u32.
const SEGMENTS: usize = 33 - FIRST.trailing_zeros() as usize;

/// What a resident block's memory is.
#[derive(Debug)]
pub(crate) enum Body {
    /// The frame itself.
    Own(Frame),
    /// Followers of the load still held the frame when the block was published.
    Shared(Counted<Buffer>),
}

/// A resident block, but for its state.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) start: NonNull<u8>,
    pub(crate) len: u32,
    pub(crate) key: BlockKey,
    pub(crate) body: Body,
}

impl Contents {
    /// The block's bytes, for as long as the caller's pin lasts.
    fn bytes(&self) -> *const [u8] {
        match &self.body {
            Body::Own(frame) => frame.touch(0..self.len as usize),
            Body::Shared(buffer) => buffer.touch(0..self.len as usize),
        }
        std::ptr::slice_from_raw_parts(self.start.as_ptr(), self.len as usize)
    }

    /// Bytes of memory its eviction would free.
    pub(crate) fn charge(&self) -> u64 {
        match &self.body {
            Body::Own(frame) => frame.capacity() as u64,
            Body::Shared(buffer) => buffer.capacity() as u64,
        }
    }

    /// Lets go of the frame. Answers the bytes that came free: none while followers hold it.
    pub(crate) fn give_back(self) -> u64 {
        let charge = self.charge();
        match self.body {
            Body::Own(frame) => {
                drop(frame);
                charge
            }
            Body::Shared(buffer) => Counted::try_unwrap(buffer).map_or(0, |buffer| {
                drop(buffer);
                charge
            }),
        }
    }
}

/// One slot. All zero is an empty one.
#[repr(C, align(64))]
pub(crate) struct Header {
    pub(crate) word: StateWord,
    /// Initialised while the word is resident or evicting. Written by the owner of the slot, read under a pin.
    contents: UnsafeCell<MaybeUninit<Contents>>,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Header>() == 64, "a header is one cache line");

// SAFETY: `contents` is handed between threads by the word's protocol; what it holds is Send and Sync but for the plain address.
unsafe impl Send for Header {}
// SAFETY: as above; `&Header` gives no access to `contents` but through the unsafe functions below.
unsafe impl Sync for Header {}

impl Header {
    /// The key of the block in it.
    ///
    /// # Safety
    /// The caller holds a pin.
    #[inline]
    pub(crate) unsafe fn key(&self) -> BlockKey {
        // SAFETY: pinned, so initialised and not written.
        self.contents
            .with(|contents| unsafe { &*contents.cast::<Contents>() }.key)
    }

    /// The bytes of the block in it, valid while the pin lasts.
    ///
    /// # Safety
    /// The caller holds a pin.
    #[inline]
    pub(crate) unsafe fn bytes(&self) -> *const [u8] {
        // SAFETY: pinned, so initialised and not written.
        self.contents
            .with(|contents| unsafe { &*contents.cast::<Contents>() }.bytes())
    }

    /// Puts a block into an empty slot. `StateWord::publish` follows.
    ///
    /// # Safety
    /// The slot came from [`Slab::take`] and is the caller's.
    pub(crate) unsafe fn fill(&self, contents: Contents) {
        // SAFETY: nobody reads an empty slot's contents, and nobody else owns it.
        self.contents
            .with_mut(|place| unsafe { place.cast::<Contents>().write(contents) });
    }

    /// Takes the block out. `StateWord::vacate` follows.
    ///
    /// # Safety
    /// The caller won `StateWord::try_evict`, or owns the whole slab.
    pub(crate) unsafe fn take(&self) -> Contents {
        // SAFETY: initialised when published, pinned by nobody, and taken once since the winner is one.
        self.contents
            .with_mut(|place| unsafe { place.cast::<Contents>().read() })
    }
}

/// All slots.
pub(crate) struct Slab {
    segments: [OnceLock<Box<[Header]>>; SEGMENTS],
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    slots: Vec<u32>,
    /// Slots ever used.
    len: u32,
}

/// Segment and place of a slot.
#[inline]
fn locate(slot: u32) -> (usize, usize) {
    let shifted = u64::from(slot) + u64::from(FIRST);
    let top = shifted.ilog2();
    (
        (top - FIRST.trailing_zeros()) as usize,
        (shifted - (1 << top)) as usize,
    )
}

impl Slab {
    pub(crate) fn new() -> Self {
        Self {
            segments: [const { OnceLock::new() }; SEGMENTS],
            free: Mutex::new(Free::default()),
        }
    }

    /// The header of a slot that was taken at some time.
    #[inline]
    pub(crate) fn header(&self, slot: u32) -> &Header {
        let (segment, place) = locate(slot);
        &self.segments[segment]
            .get()
            .expect("a slot's segment is made before its number is given out")[place]
    }

    /// Slots ever used: the clock's round. Under the lock, so that a taker in line sees every slot filled before it entered.
    pub(crate) fn len(&self) -> u32 {
        self.free.lock().len
    }

    /// An empty slot, the caller's alone.
    pub(crate) fn take(&self) -> u32 {
        let mut free = self.free.lock();
        if let Some(slot) = free.slots.pop() {
            return slot;
        }
        let slot = free.len;
        free.len = slot
            .checked_add(1)
            .expect("fewer blocks than u32 numbers, for each has a frame of 4 KiB");
        let (segment, _) = locate(slot);
        self.segments[segment].get_or_init(|| segment_of((FIRST as usize) << segment));
        slot
    }

    /// Gives an empty slot back.
    pub(crate) fn put_back(&self, slot: u32) {
        self.free.lock().slots.push(slot);
    }
}

/// Zeroed memory, so that pages are committed only as slots are used.
#[cfg(not(any(loom, shuttle)))]
fn segment_of(len: usize) -> Box<[Header]> {
    let zeroed = Box::<[Header]>::new_zeroed_slice(len);
    // SAFETY: a header of zeroes is an empty slot: an atomic 0 and uninitialised contents.
    unsafe { zeroed.assume_init() }
}

#[cfg(any(loom, shuttle))]
fn segment_of(len: usize) -> Box<[Header]> {
    let empty = || Header {
        word: StateWord::new(),
        contents: UnsafeCell::new(MaybeUninit::uninit()),
    };
    std::iter::repeat_with(empty).take(len).collect()
}

impl std::fmt::Debug for Slab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slab")
            .field("free", &self.free)
            .finish_non_exhaustive()
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        for slot in 0..self.len() {
            let header = self.header(slot);
            if header.word.look().resident() {
                // SAFETY: `&mut self`: nobody else has any slot, and pins keep the pool alive.
                drop(unsafe { header.take() });
            }
        }
    }
}
