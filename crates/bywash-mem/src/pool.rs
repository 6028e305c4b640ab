//! The block pool: the public interface of the budget, the blocks and their loads. Without a caller: `resize`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::block::{
    BlockCache, Evicted, LimitError, OwnedPin, Pin, PinScope, PoolStats, Spill, StoreStats, Tag,
    TagStats,
};
use crate::error::PoolError;
use crate::frames::{
    Budget, Frame, FrameWait, PoolConfig, Reservation, ReserveWait, Share, SharedMemory,
};
use crate::key::{BlockHandle, BlockKey};
use crate::load::{Claim, FlightTable, LoadRun, Refused};

/// Blocks that threads share, under one [`Budget`]. Always behind an `Arc`.
///
/// A block is loaded once however many callers claim it ([`Self::claim`]). It is published only when complete, is immutable from
/// then on, and stays in place while pinned. No method blocks for longer than a short critical section.
#[derive(Debug)]
pub struct BlockPool {
    pub(crate) cache: Arc<BlockCache>,
    flights: Arc<FlightTable>,
}

impl BlockPool {
    /// Creates an empty pool. Reserves address space, commits nothing.
    ///
    /// # Errors
    /// [`PoolError::Config`] if the sizes are inconsistent, [`PoolError::AddressSpace`] if the system refuses.
    pub fn new(config: PoolConfig) -> Result<Arc<Self>, PoolError> {
        let cache = BlockCache::new(config)?;
        let flights = FlightTable::new(&cache);
        Ok(Arc::new(Self { cache, flights }))
    }

    /// The budget that all of the pool's memory is charged to.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        self.cache.budget()
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        PoolStats {
            flights: self.flights.in_progress(),
            loads: self.flights.started(),
            ..self.cache.stats()
        }
    }

    // --- blocks

    /// Returns the block if it is resident: a hash, a probe and one atomic add. Counts as a use.
    #[inline]
    #[must_use]
    pub fn get(&self, key: BlockKey) -> Option<Pin<'_>> {
        self.cache.get(key)
    }

    /// As [`Self::get`], but does not count as a use.
    #[must_use]
    pub fn peek(&self, key: BlockKey) -> Option<Pin<'_>> {
        self.cache.peek(key)
    }

    /// Whether the block is resident: a hint, because it may be evicted at once. Never waits, and does not count as a use.
    #[must_use]
    pub fn contains(&self, key: BlockKey) -> bool {
        self.cache.peek(key).is_some()
    }

    /// Whether a load of the block is in progress: a hint, because it may end at once. Never waits, and starts nothing.
    #[must_use]
    pub fn is_loading(&self, key: BlockKey) -> bool {
        self.flights.is_loading(key)
    }

    /// Pins the block at `handle` without a lookup; `None` if the slot was reused. One atomic add; never waits, never loads. Counts
    /// as a use.
    ///
    /// An erased block is not found, even if others have it pinned. A resized block is found if it returned to its slot. If another
    /// block was published there before that, only [`Self::get`] finds it.
    #[inline(always)]
    #[must_use]
    pub fn try_pin(&self, handle: &BlockHandle) -> Option<Pin<'_>> {
        self.cache.try_pin(handle)
    }

    /// Returns a scope for the owned pins of one reader.
    #[must_use]
    pub fn pin_scope(&self) -> PinScope {
        PinScope::new(&self.cache)
    }

    /// Returns the block, or the load in progress, or the right to load it.
    #[must_use]
    pub fn claim(&self, key: BlockKey) -> Claim<'_> {
        self.flights.claim(key)
    }

    /// Starts loads of those `blocks` (with their lengths in bytes) that are neither resident nor loading, consecutive ones together
    /// in runs of at most `max_run`. The caller fills and publishes them.
    ///
    /// Uses free memory, or the memory of blocks not used since the policy last looked at them. Never evicts a block in use, never
    /// overtakes a waiter, never waits. Leaves out the rest when memory ends.
    #[must_use]
    pub fn start_readahead(
        &self,
        blocks: impl IntoIterator<Item = (BlockKey, usize)>,
        max_run: usize,
    ) -> Vec<LoadRun> {
        self.flights.start_readahead(blocks, max_run)
    }

    /// Evicts a block now, or at its last unpin. From now on the key is not found and can be loaded again. A load in progress
    /// completes for its waiters and is not kept. Returns whether there was a block or a load.
    pub fn erase(&self, key: BlockKey) -> bool {
        self.flights.erase(key)
    }

    /// Erases every block and load of one version of an object, as [`Self::erase`]. Visits each resident block, some 10 ns each;
    /// blocks published during the call may stay. Returns how many there were.
    pub fn erase_object(&self, store: u32, object: u64) -> u64 {
        self.flights
            .erase_matching(|key| key.store == store && key.object == object)
    }

    /// As [`Self::erase_object`], for all objects of a store.
    pub fn erase_store(&self, store: u32) -> u64 {
        self.flights.erase_matching(|key| key.store == store)
    }

    // --- memory

    /// Allocates at least `min` and at most `max` frames of the class that holds `len` bytes, or none. Never waits, and never
    /// overtakes a waiter of the same share.
    ///
    /// Sources in order: idle frames of the class, room in the budget, idle frames of other classes, unpinned blocks.
    #[must_use]
    pub fn try_frames(
        &self,
        share: Share,
        len: usize,
        min: usize,
        max: usize,
    ) -> Option<Vec<Frame>> {
        self.cache.allocator().try_frames(share, len, min, max)
    }

    /// As [`Self::try_frames`], waiting in a queue: first come, first served within a share. Dropping the future leaves the queue; for
    /// a deadline, put a timeout around it. Callers that hold memory should not wait for more.
    ///
    /// # Errors
    /// The future fails with [`crate::FrameError::TooLarge`] at once if waiting cannot help.
    pub fn frames(&self, share: Share, len: usize, min: usize, max: usize) -> FrameWait {
        self.cache.allocator().frames(share, len, min, max)
    }

    /// Charges `bytes` that are not a frame, or nothing. Evicts unpinned blocks if necessary. Never waits, and never overtakes a
    /// waiter of the same share.
    #[must_use]
    pub fn try_reserve(&self, share: Share, bytes: u64) -> Option<Reservation> {
        self.cache.allocator().try_reserve(share, bytes)
    }

    /// As [`Self::try_reserve`], waiting in the same queue as [`Self::frames`].
    ///
    /// # Errors
    /// The future fails with [`crate::FrameError::TooLarge`] at once if waiting cannot help.
    pub fn reserve(&self, share: Share, bytes: u64) -> ReserveWait {
        self.cache.allocator().reserve_waiting(share, bytes)
    }

    /// Adds `more` bytes to a reservation, all or nothing, as [`Self::try_reserve`]. Returns whether it did.
    #[must_use]
    pub fn try_grow(&self, reservation: &mut Reservation, more: u64) -> bool {
        let added = self.try_reserve(reservation.share(), more);
        added.map(|added| reservation.merge(added)).is_some()
    }

    /// Wakes the callers that wait for memory, to try again: for the spill hook, when it can store blocks that it could not before.
    pub fn retry_waiters(&self) {
        self.cache.allocator().wait_queue().wake();
    }

    /// Changes the limit; the guarantees keep their fraction of it. Raising it up to [`PoolConfig::ceiling`] takes effect at once.
    /// Lowering it evicts blocks first, and takes effect when all used memory fits. Visits every slot and decommits pages, both
    /// in steps, so that threads that allocate during it wait for one step at most.
    ///
    /// # Errors
    /// [`LimitError`]; the limit is unchanged. If it was clear from the start that too much is held, nothing was evicted.
    pub fn set_limit(&self, limit: u64) -> Result<(), LimitError> {
        self.cache.set_limit(limit)
    }

    /// Evicts blocks that were not used for at least `min_age`, except pinned ones. `now` is the caller's clock. A block's age counts
    /// from the last call that found it used, so call this a few times within `min_age`. Visits every slot, some 10 ns each;
    /// calls exclude each other.
    pub fn evict_unused(&self, min_age: Duration, now: Instant) -> Evicted {
        self.cache.evict_unused(min_age, now)
    }

    /// Gives the pages of up to `bytes` of idle frames back to the system. They leave the charge.
    pub fn decommit_idle(&self, bytes: u64) {
        let target = self.budget().used().saturating_sub(bytes);
        self.cache.allocator().decommit_idle(target);
    }

    /// Memory counted on a tag.
    #[must_use]
    pub fn tag_stats(&self, tag: Tag) -> TagStats {
        self.cache.tag_stats(tag)
    }

    /// Resident blocks by store. Stores without a block are left out.
    #[must_use]
    pub fn store_stats(&self) -> HashMap<u32, StoreStats> {
        self.cache.evictor.store_stats()
    }

    // --- for other processes

    /// Memory that other processes can map to read pinned blocks, with [`PoolConfig::shared`].
    #[must_use]
    pub fn shared_memory(&self) -> Option<SharedMemory<'_>> {
        self.cache.allocator().arena().shared_memory()
    }

    // --- for the disk tier and for scratch

    /// Offers evicted blocks of [`crate::Keep::Spill`] and [`crate::Keep::OnlyCopy`] to `hook`. Only the first call has an effect; returns whether this was it.
    pub fn set_spill(&self, hook: Arc<dyn Spill>) -> bool {
        self.cache.set_spill(hook)
    }

    /// Gives a block another key without copying it. The old key is not found any more, and handles to it are stale.
    ///
    /// # Errors
    /// [`Refused`] if other readers hold the block, or the new key has a block or a load.
    ///
    /// # Panics
    /// If the pin belongs to another pool.
    pub fn adopt(&self, pin: OwnedPin, key: BlockKey) -> Result<OwnedPin, Refused> {
        self.flights.adopt(pin, key)
    }

    /// Takes a block out of the pool. Its key is not found any more, and its frame is the caller's, to write to.
    ///
    /// # Errors
    /// [`Refused`] if other readers hold the block. A thread that looks at all blocks may hold it for a moment.
    ///
    /// # Panics
    /// If the pin belongs to another pool.
    pub fn take(&self, pin: OwnedPin) -> Result<Frame, Refused> {
        self.flights.take(pin)
    }

    /// Gives a block another length: truncated, or extended with zeros. In place if the frame's class fits, else copied to a frame
    /// that is free now. Callers that claim the block during the call wait for it. Older handles find it again if it returned to its slot,
    /// as it does unless another block was published there. The new pin's handle always does.
    ///
    /// # Errors
    /// [`Refused`] if other readers hold the block, it was erased, or there is no frame.
    ///
    /// # Panics
    /// If the pin belongs to another pool.
    pub fn resize(&self, pin: OwnedPin, len: usize) -> Result<OwnedPin, Refused> {
        self.flights.resize(pin, len)
    }
}
