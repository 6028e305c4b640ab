//! Pins: a resident block held in place.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

use super::cache::BlockCache;
use super::options::BlockOptions;
use super::sharded_pins::PinSlot;
use super::slab::BlockHeader;
use crate::key::{BlockHandle, BlockKey};

/// A resident block that stays in place and unchanged until this is dropped. Dereferences to the block's bytes.
#[must_use = "dropping it unpins the block"]
pub struct Pin<'a> {
    cache: &'a BlockCache,
    header: &'a BlockHeader,
    slot: u32,
    pin_slot: PinSlot,
}

impl<'a> Pin<'a> {
    /// Takes over a pin that is already counted in `pin_slot`.
    #[inline]
    pub(super) fn adopt(
        cache: &'a BlockCache,
        header: &'a BlockHeader,
        slot: u32,
        pin_slot: PinSlot,
    ) -> Self {
        Self {
            cache,
            header,
            slot,
            pin_slot,
        }
    }

    pub(super) fn slot(&self) -> u32 {
        self.slot
    }

    /// Has the block evicted at its last unpin, this one or a later one.
    pub(super) fn evict_on_last_unpin(&self) {
        self.header.word.evict_on_last_unpin();
    }

    /// Key of the block.
    #[inline]
    #[must_use]
    pub fn key(&self) -> BlockKey {
        // SAFETY: this is a pin.
        unsafe { self.header.key() }
    }

    /// Options of the block.
    #[must_use]
    pub fn options(&self) -> BlockOptions {
        // SAFETY: this is a pin.
        unsafe { self.header.options() }
    }

    /// Bytes that evicting the block would free: none while readers of its load hold the frame.
    pub(super) fn reclaimable(&self) -> u64 {
        // SAFETY: this is a pin.
        let unshared = unsafe { self.header.is_frame_unshared() };
        // SAFETY: this is a pin.
        let charge = unsafe { self.header.charge() };
        if unshared { charge } else { 0 }
    }

    /// Returns a handle for pinning the block again without a lookup. Does not keep the block.
    #[must_use]
    pub fn handle(&self) -> BlockHandle {
        BlockHandle {
            slot: self.slot,
            key: self.key(),
        }
    }

    /// Converts to a pin without a lifetime. Touches no counter of the block, but one of the pool: readers of many blocks use
    /// [`PinScope::own`].
    pub fn into_owned(self) -> OwnedPin {
        PinScope(Arc::new(self.cache.to_arc())).own(self)
    }
}

impl Deref for Pin<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: this is a pin.
        let bytes = unsafe { self.header.bytes() };
        // SAFETY: the bytes were published and stay unwritten while the pin is held, and `&self` does not outlive the pin.
        unsafe { &*bytes }
    }
}

impl AsRef<[u8]> for Pin<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Pin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pin")
            .field("slot", &self.slot)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Drop for Pin<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.cache.unpin(self.header, self.slot, self.pin_slot);
    }
}

/// Reference of one reader to its pool, shared by the reader's owned pins. They are counted here, on a cache line that other
/// readers do not write; the pool's own reference count changes once a scope.
#[derive(Clone)]
#[allow(
    clippy::redundant_allocation,
    reason = "the outer count is this reader's own"
)]
pub struct PinScope(Arc<Arc<BlockCache>>);

impl PinScope {
    pub(crate) fn new(cache: &Arc<BlockCache>) -> Self {
        Self(Arc::new(Arc::clone(cache)))
    }

    pub(crate) fn cache(&self) -> &Arc<BlockCache> {
        &self.0
    }

    /// Converts to a pin without a lifetime. Touches no counter of the block.
    ///
    /// # Panics
    /// If the pin belongs to another pool.
    pub fn own(&self, pin: Pin<'_>) -> OwnedPin {
        assert!(
            std::ptr::eq(Arc::as_ptr(self.cache()), pin.cache),
            "a pin belongs to one pool"
        );
        let pin = ManuallyDrop::new(pin);
        OwnedPin {
            scope: self.clone(),
            slot: pin.slot,
            pin_slot: pin.pin_slot,
        }
    }

    /// Takes over a pin that is already counted in the slot's word.
    pub(crate) fn adopt(&self, slot: u32) -> OwnedPin {
        OwnedPin {
            scope: self.clone(),
            slot,
            pin_slot: PinSlot::WORD,
        }
    }
}

impl fmt::Debug for PinScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinScope").finish_non_exhaustive()
    }
}

/// A [`Pin`] that keeps its pool's blocks alive: for other threads, tasks, and `bytes::Bytes::from_owner`.
#[must_use = "dropping it unpins the block"]
pub struct OwnedPin {
    scope: PinScope,
    slot: u32,
    pin_slot: PinSlot,
}

impl OwnedPin {
    /// Key of the block.
    #[must_use]
    pub fn key(&self) -> BlockKey {
        // SAFETY: this is a pin.
        unsafe { self.header().key() }
    }

    /// Options of the block.
    #[must_use]
    pub fn options(&self) -> BlockOptions {
        // SAFETY: this is a pin.
        unsafe { self.header().options() }
    }

    /// Returns a handle for pinning the block again without a lookup. Does not keep the block.
    #[must_use]
    pub fn handle(&self) -> BlockHandle {
        BlockHandle {
            slot: self.slot,
            key: self.key(),
        }
    }

    /// Offset of the block's first byte in the memory that other processes can map. `None` if its frame is not in it. The bytes
    /// there stay unwritten while this pin is held.
    #[must_use]
    pub fn shared_offset(&self) -> Option<u64> {
        let arena = self.scope.cache().allocator().arena();
        arena.shared_offset(self.as_ptr())
    }

    pub(crate) fn header(&self) -> &BlockHeader {
        self.scope.cache().slab().header(self.slot)
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// Ends without unpinning. Returns where the pin is counted.
    pub(super) fn forget(self) -> PinSlot {
        let pin_slot = self.pin_slot;
        // Drops the reference to the pool, not the pin.
        let mut this = ManuallyDrop::new(self);
        // SAFETY: never used again.
        unsafe { std::ptr::drop_in_place(&raw mut this.scope) };
        pin_slot
    }

    pub(crate) fn is_of(&self, cache: &Arc<BlockCache>) -> bool {
        Arc::ptr_eq(cache, self.scope.cache())
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

impl fmt::Debug for OwnedPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedPin")
            .field("slot", &self.slot)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Drop for OwnedPin {
    fn drop(&mut self) {
        let cache = self.scope.cache();
        cache.unpin(self.header(), self.slot, self.pin_slot);
    }
}
