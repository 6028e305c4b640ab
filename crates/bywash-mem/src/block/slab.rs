//! Block headers: 64 bytes each, in one array that never moves, named by a u32.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use crate::error::PoolError;
use crate::frame::Frame;
use crate::options::BlockOptions;
use crate::pool::BlockKey;
use crate::sync::{Counted, Mutex, UnsafeCell};
use crate::word::StateWord;

/// What a resident block's memory is.
#[derive(Debug)]
pub(crate) enum Body {
    /// The frame itself.
    Own(Frame),
    /// Followers of the load still held the frame when the block was published.
    Shared(Counted<Frame>),
}

/// A resident block, but for its state.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) start: NonNull<u8>,
    pub(crate) len: u32,
    pub(crate) key: BlockKey,
    pub(crate) options: BlockOptions,
    pub(crate) body: Body,
}

impl Contents {
    /// The block's bytes, for as long as the caller's pin lasts.
    pub(crate) fn bytes(&self) -> *const [u8] {
        match &self.body {
            Body::Own(frame) => frame.touch(0..self.len as usize),
            Body::Shared(frame) => frame.touch(0..self.len as usize),
        }
        std::ptr::slice_from_raw_parts(self.start.as_ptr(), self.len as usize)
    }

    /// Bytes of memory its eviction would free.
    pub(crate) fn charge(&self) -> u64 {
        match &self.body {
            Body::Own(frame) => frame.capacity() as u64,
            Body::Shared(frame) => frame.capacity() as u64,
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
            Body::Shared(frame) => Counted::try_unwrap(frame).map_or(0, |frame| {
                drop(frame);
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

    /// Whether the frame is the block's alone: no follower of its load holds it.
    ///
    /// # Safety
    /// The caller holds a pin.
    pub(crate) unsafe fn sole(&self) -> bool {
        // SAFETY: pinned, so initialised and not written.
        self.contents.with(
            |contents| match &unsafe { &*contents.cast::<Contents>() }.body {
                Body::Own(_) => true,
                Body::Shared(buffer) => Counted::strong_count(buffer) == 1,
            },
        )
    }

    /// Bytes of memory its frame takes.
    ///
    /// # Safety
    /// The caller holds a pin.
    pub(crate) unsafe fn charge(&self) -> u64 {
        // SAFETY: pinned, so initialised and not written.
        self.contents
            .with(|contents| unsafe { &*contents.cast::<Contents>() }.charge())
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
    /// The caller owns the contents (`StateWord::try_own`), or the whole slab.
    pub(crate) unsafe fn take(&self) -> Contents {
        // SAFETY: initialised when published, pinned by nobody, and taken once since the winner is one.
        self.contents
            .with_mut(|place| unsafe { place.cast::<Contents>().read() })
    }
}

#[cfg(not(any(loom, shuttle)))]
type Headers = crate::zeroed::Zeroed<Header>;
/// The tools make every header.
#[cfg(any(loom, shuttle))]
type Headers = Box<[Header]>;

/// All slots.
pub(crate) struct Slab {
    headers: Headers,
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    slots: Vec<u32>,
    /// Slots ever used.
    len: u32,
}

impl Slab {
    /// A slab of at most `most` slots. Memory is committed as they are used.
    pub(crate) fn new(most: u64) -> Result<Self, PoolError> {
        let slots = most.min(u64::from(u32::MAX)) as usize;
        Ok(Self {
            headers: headers(slots)?,
            free: Mutex::new(Free::default()),
        })
    }

    /// The header of a slot that was taken at some time.
    #[inline]
    pub(crate) fn header(&self, slot: u32) -> &Header {
        &self.headers[slot as usize]
    }

    /// Slots ever used. Under the lock, so that a taker in line sees every slot filled before it entered.
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
        assert!(
            (slot as usize) < self.headers.len(),
            "a slot for each frame, and each block has one"
        );
        free.len += 1;
        slot
    }

    /// Gives an empty slot back.
    pub(crate) fn put_back(&self, slot: u32) {
        self.free.lock().slots.push(slot);
    }
}

/// Slots of zeroes, so that pages are committed only as they are used.
#[cfg(not(any(loom, shuttle)))]
fn headers(len: usize) -> Result<Headers, PoolError> {
    // SAFETY: a header of zeroes is an empty slot: an atomic 0 and uninitialised contents.
    unsafe { Headers::new(len) }
}

#[cfg(any(loom, shuttle))]
fn headers(len: usize) -> Result<Headers, PoolError> {
    let empty = || Header {
        word: StateWord::new(),
        contents: UnsafeCell::new(MaybeUninit::uninit()),
    };
    Ok(std::iter::repeat_with(empty).take(len).collect())
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
