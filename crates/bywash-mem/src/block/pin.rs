//! Pins: a resident block held in place.

use std::ops::Deref;
use std::sync::Arc;

use crate::pool::{BlockHandle, BlockKey, BlockPool};
use crate::slab::Header;
use crate::stripes::Hold;

/// A resident block, in place and unchanged until this is dropped. Dereferences to exactly the block's bytes.
#[must_use = "dropping it unpins the block"]
pub struct Pin<'a> {
    pool: &'a BlockPool,
    header: &'a Header,
    slot: u32,
    hold: Hold,
}

impl<'a> Pin<'a> {
    /// Takes over a pin already counted where `hold` says.
    #[inline]
    pub(crate) fn adopt(pool: &'a BlockPool, header: &'a Header, slot: u32, hold: Hold) -> Self {
        Self {
            pool,
            header,
            slot,
            hold,
        }
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// Has the block evicted at its last unpin, this one or a later.
    pub(crate) fn mark_leaving(&self) {
        self.header.word.mark_leaving();
    }

    /// The block's key.
    #[inline]
    #[must_use]
    pub fn key(&self) -> BlockKey {
        // SAFETY: this is a pin.
        unsafe { self.header.key() }
    }

    /// Bytes that its eviction would free: none while followers hold the frame.
    pub(crate) fn sole_charge(&self) -> u64 {
        // SAFETY: this is a pin.
        let sole = unsafe { self.header.sole() };
        // SAFETY: this is a pin.
        let charge = unsafe { self.header.charge() };
        if sole { charge } else { 0 }
    }

    /// Where the block is, to pin it again without a lookup. Holds nothing.
    #[must_use]
    pub fn handle(&self) -> BlockHandle {
        BlockHandle {
            slot: self.slot,
            key: self.key(),
        }
    }

    /// The same pin with a life of its own. Touches no counter of the block.
    ///
    /// # Panics
    /// If `pool` is not the pool the pin came from.
    pub fn into_owned(self, pool: Arc<BlockPool>) -> OwnedPin {
        assert!(
            std::ptr::eq(self.pool, &raw const *pool),
            "a pin belongs to one pool"
        );
        let (slot, hold) = (self.slot, self.hold);
        std::mem::forget(self);
        OwnedPin { pool, slot, hold }
    }
}

impl Deref for Pin<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: this is a pin.
        let bytes = unsafe { self.header.bytes() };
        // SAFETY: the bytes were published and stay, unwritten, while the pin is held, which `&self` outlives not.
        unsafe { &*bytes }
    }
}

impl AsRef<[u8]> for Pin<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for Pin<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pin")
            .field("slot", &self.slot)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Drop for Pin<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.pool.unpin(self.header, self.slot, self.hold);
    }
}

/// A [`Pin`] that keeps its pool alive: for other threads, tasks, and `bytes::Bytes::from_owner`.
#[must_use = "dropping it unpins the block"]
pub struct OwnedPin {
    pool: Arc<BlockPool>,
    slot: u32,
    hold: Hold,
}

impl OwnedPin {
    /// Takes over a pin already counted in the slot's word.
    pub(crate) fn adopt(pool: Arc<BlockPool>, slot: u32) -> Self {
        Self {
            pool,
            slot,
            hold: Hold::WORD,
        }
    }

    /// The block's key.
    #[must_use]
    pub fn key(&self) -> BlockKey {
        // SAFETY: this is a pin.
        unsafe { self.header().key() }
    }

    /// Where the block is, to pin it again without a lookup. Holds nothing.
    #[must_use]
    pub fn handle(&self) -> BlockHandle {
        BlockHandle {
            slot: self.slot,
            key: self.key(),
        }
    }

    pub(crate) fn header(&self) -> &Header {
        self.pool.slab().header(self.slot)
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// Ends without unpinning; says where it was counted.
    pub(crate) fn forget(self) -> Hold {
        let hold = self.hold;
        // The pool's count of handles, not the block's.
        let mut this = std::mem::ManuallyDrop::new(self);
        // SAFETY: never used again.
        unsafe { std::ptr::drop_in_place(&raw mut this.pool) };
        hold
    }

    pub(crate) fn is_of(&self, pool: &BlockPool) -> bool {
        std::ptr::eq(pool, &raw const *self.pool)
    }
}

impl Deref for OwnedPin {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: this is a pin.
        let bytes = unsafe { self.header().bytes() };
        // SAFETY: as in `Pin::deref`.
        unsafe { &*bytes }
    }
}

impl AsRef<[u8]> for OwnedPin {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for OwnedPin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnedPin")
            .field("slot", &self.slot)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Drop for OwnedPin {
    fn drop(&mut self) {
        self.pool.unpin(self.header(), self.slot, self.hold);
    }
}
