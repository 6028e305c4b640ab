//! The block cache: finds, pins, publishes and evicts resident blocks.

use std::sync::{Arc, OnceLock, Weak};

use crossbeam_utils::CachePadded;

use super::aging::LastUses;
use super::evict::Evictor;
use super::options::{Keep, Tag, TagCounters, TagStats};
use super::pin::{OwnedPin, Pin};
use super::registry::Registry;
use super::sharded_pins::{PinSlot, ShardedPins};
use super::slab::{BlockContents, BlockHeader, Slab};
use super::spill::Spill;
use super::word::{FastPinError, PinOutcome};
use crate::error::PoolError;
use crate::frames::{Budget, FrameAllocator, MIN_FRAME, PoolConfig, Reclaim};
use crate::key::{BlockHandle, BlockKey};
use crate::sync::{AtomicU64, Mutex, Ordering, Step, skipped};

/// Counters of a pool, read one after another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Blocks published and not evicted, including erased ones that are still pinned.
    pub resident_blocks: u64,
    /// Bytes of their frames.
    pub resident_bytes: u64,
    /// Loads in progress.
    pub flights: u64,
    /// Loads ever started.
    pub loads: u64,
    /// Blocks ever evicted or erased.
    pub evictions: u64,
    /// Of these, blocks that the spill hook accepted or stored.
    pub spilled: u64,
    /// Blocks with pins that are sharded because of contention.
    pub sharded_blocks: u64,
    /// Eviction passes that took longer than [`PoolConfig::slow_eviction`] or [`PoolConfig::slow_eviction_rounds`] rounds.
    pub slow_evictions: u64,
}

/// All resident blocks of a pool, under one [`Budget`].
#[derive(Debug)]
pub(crate) struct BlockCache {
    /// Itself, for pins that are made to outlive their borrow.
    this: Weak<Self>,
    budget: Budget,
    pub(super) registry: Registry,
    pub(super) slab: Slab,
    pub(super) sharded_pins: ShardedPins,
    pub(super) spill: OnceLock<Arc<dyn Spill>>,
    pub(super) last_uses: Mutex<LastUses>,
    pub(crate) evictor: CachePadded<Evictor>,
    /// Counters of `PoolStats`. Written by threads that publish or evict, read by `stats` and by allocating threads.
    pub(super) resident_blocks: AtomicU64,
    pub(super) resident_bytes: AtomicU64,
    pub(super) evictions: AtomicU64,
    pub(super) spilled: AtomicU64,
    slow_evictions: AtomicU64,
    tags: [TagCounters; Tag::COUNT],
}

impl Reclaim for BlockCache {
    fn reclaim(&self, bytes: u64) -> bool {
        self.evict(bytes)
    }

    fn reclaimable(&self) -> u64 {
        // Relaxed: only a bound; the allocating thread learns how much eviction frees.
        self.resident_bytes.load(Ordering::Relaxed)
    }
}

impl BlockCache {
    /// Creates an empty cache. Reserves address space, commits nothing.
    pub(crate) fn new(config: PoolConfig) -> Result<Arc<Self>, PoolError> {
        let budget = Budget(FrameAllocator::new(config)?);
        // Each block has a frame, and no frame is smaller.
        let slab = Slab::new(config.ceiling / MIN_FRAME as u64)?;
        let sharded_pins = ShardedPins::new()?;
        let cache = Arc::new_cyclic(|this: &Weak<Self>| Self {
            this: Weak::clone(this),
            budget,
            registry: Registry::new(),
            slab,
            sharded_pins,
            spill: OnceLock::new(),
            last_uses: Mutex::new(LastUses::default()),
            evictor: CachePadded::new(Evictor::new(&config)),
            resident_blocks: AtomicU64::new(0),
            resident_bytes: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            spilled: AtomicU64::new(0),
            slow_evictions: AtomicU64::new(0),
            tags: Default::default(),
        });
        let reclaimer: Arc<dyn Reclaim> = Arc::clone(&cache) as _;
        cache.allocator().set_reclaimer(Arc::downgrade(&reclaimer));
        Ok(cache)
    }

    /// Returns a reference that keeps the cache.
    pub(super) fn to_arc(&self) -> Arc<Self> {
        self.this.upgrade().expect("only `new` makes a cache")
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    #[inline]
    pub(crate) fn allocator(&self) -> &Arc<FrameAllocator> {
        &self.budget.0
    }

    pub(crate) fn slab(&self) -> &Slab {
        &self.slab
    }

    pub(crate) fn sharded_pins(&self) -> &ShardedPins {
        &self.sharded_pins
    }

    /// See [`crate::BlockPool::set_spill`].
    pub(crate) fn set_spill(&self, hook: Arc<dyn Spill>) -> bool {
        self.spill.set(hook).is_ok()
    }

    /// See [`crate::BlockPool::tag_stats`].
    pub(crate) fn tag_stats(&self, tag: Tag) -> TagStats {
        self.tag(tag).read()
    }

    pub(super) fn tag(&self, tag: Tag) -> &TagCounters {
        &self.tags[usize::from(tag.number())]
    }

    /// The counters, except the counters of loads.
    pub(crate) fn stats(&self) -> PoolStats {
        // Relaxed: counters that order nothing.
        PoolStats {
            resident_blocks: self.resident_blocks.load(Ordering::Relaxed),
            resident_bytes: self.resident_bytes.load(Ordering::Relaxed),
            flights: 0,
            loads: 0,
            evictions: self.evictions.load(Ordering::Relaxed),
            spilled: self.spilled.load(Ordering::Relaxed),
            sharded_blocks: self.sharded_pins.in_use(),
            slow_evictions: self.slow_evictions.load(Ordering::Relaxed),
        }
    }

    pub(super) fn count_slow_eviction(&self) {
        // Relaxed: a counter.
        self.slow_evictions.fetch_add(1, Ordering::Relaxed);
    }

    /// See [`crate::BlockPool::get`].
    #[inline]
    pub(crate) fn get(&self, key: BlockKey) -> Option<Pin<'_>> {
        // A slot may hold another block by now, or be leaving. The registry then offers the next one.
        self.registry
            .find(self.registry.hash(key), |slot| self.pin(slot, key))
    }

    /// See [`crate::BlockPool::peek`].
    pub(crate) fn peek(&self, key: BlockKey) -> Option<Pin<'_>> {
        self.registry.find(self.registry.hash(key), |slot| {
            self.pin_untracked(slot).filter(|pin| pin.key() == key)
        })
    }

    /// See [`crate::BlockPool::try_pin`].
    #[inline(always)]
    pub(crate) fn try_pin(&self, handle: &BlockHandle) -> Option<Pin<'_>> {
        let header = self.slab.header(handle.slot);
        let (pin_slot, fast) = match header.word.try_pin_fast() {
            Ok(()) => (PinSlot::WORD, true),
            Err(error) => (self.pin_slow(handle.slot, error)?, false),
        };
        let pin = Pin::adopt(self, header, handle.slot, pin_slot);
        let found = pin.key() == handle.key || skipped(Step::Key);
        (found && (fast || !self.is_erased(&pin) || planted!("mem-pin-of-an-erased-block")))
            .then_some(pin)
    }

    /// Whether a pinned block was erased: it is doomed and not in the registry, unlike one kept while pinned. Erasure dooms the block
    /// before it removes the key and before it returns, so later pins see both.
    fn is_erased(&self, pin: &Pin<'_>) -> bool {
        let doomed = self.slab.header(pin.slot()).word.load().is_doomed();
        doomed && !self.is_findable(pin.key(), pin.slot())
    }

    /// Pins the block in `slot` if its key is `key`.
    #[inline(always)]
    pub(crate) fn pin(&self, slot: u32, key: BlockKey) -> Option<Pin<'_>> {
        let pin = self.pin_slot(slot)?;
        (pin.key() == key || skipped(Step::Key)).then_some(pin)
    }

    /// Pins the block in `slot`, of any key.
    #[inline(always)]
    fn pin_slot(&self, slot: u32) -> Option<Pin<'_>> {
        let header = self.slab.header(slot);
        let pin_slot = match header.word.try_pin_fast() {
            Ok(()) => PinSlot::WORD,
            Err(error) => self.pin_slow(slot, error)?,
        };
        Some(Pin::adopt(self, header, slot, pin_slot))
    }

    /// Slow path of a pin, after the fast path failed.
    #[inline(always)]
    fn pin_slow(&self, slot: u32, error: FastPinError) -> Option<PinSlot> {
        match error {
            FastPinError::NotTried(before) if before.open_counters() != 0 => {
                self.pin_sharded(self.slab.header(slot), before.open_counters())
            }
            error => self.pin_slow_cold(slot, error),
        }
    }

    /// The rest of `pin_slow`, not inlined so that the fast path is.
    #[inline(never)]
    fn pin_slow_cold(&self, slot: u32, error: FastPinError) -> Option<PinSlot> {
        let header = self.slab.header(slot);
        match header.word.try_pin(error) {
            PinOutcome::Pinned => Some(PinSlot::WORD),
            PinOutcome::NotResident => None,
            PinOutcome::Contended => {
                self.sharded_pins.note_contention(&self.slab, slot);
                Some(PinSlot::WORD)
            }
            PinOutcome::Sharded(counters) => self.pin_sharded(header, counters),
        }
    }

    #[inline(never)]
    fn pin_sharded(&self, header: &BlockHeader, counters: u8) -> Option<PinSlot> {
        match self.sharded_pins.pin(&header.word, counters) {
            Ok(pin_slot) => Some(pin_slot),
            Err(pin_slot) => self.pin_fallback(header, pin_slot),
        }
    }

    /// Takes back an ineffective pin in a shard, and pins in the word.
    #[cold]
    fn pin_fallback(&self, header: &BlockHeader, pin_slot: PinSlot) -> Option<PinSlot> {
        self.release_shard_pin(pin_slot);
        header.word.pin_in_word().map(|_| PinSlot::WORD)
    }

    /// Pins the block in `slot`, of any key, without counting a use.
    pub(super) fn pin_untracked(&self, slot: u32) -> Option<Pin<'_>> {
        let header = self.slab.header(slot);
        header.word.pin_in_word()?;
        Some(Pin::adopt(self, header, slot, PinSlot::WORD))
    }

    /// Makes a resident block unfindable and dooms it. Returns its pin; dropping it may evict the block.
    pub(crate) fn erase(&self, key: BlockKey) -> Option<Pin<'_>> {
        let pin = self.get(key)?;
        pin.evict_on_last_unpin();
        self.registry.remove(self.registry.hash(key), pin.slot());
        Some(pin)
    }

    /// Erases all resident blocks with a key that matches. Returns how many there were.
    pub(crate) fn erase_matching(&self, matches: impl Fn(BlockKey) -> bool) -> u64 {
        let mut erased = 0;
        for slot in 0..self.slab.len() {
            if let Some(pin) = self.pin_untracked(slot)
                && matches(pin.key())
            {
                pin.evict_on_last_unpin();
                erased += u64::from(self.registry.remove(self.registry.hash(pin.key()), slot));
            }
        }
        erased
    }

    /// Releases a pin. The last unpin also evicts a doomed block, or wakes waiters for memory.
    #[inline(always)]
    pub(super) fn unpin(&self, header: &BlockHeader, slot: u32, pin_slot: PinSlot) {
        if !pin_slot.in_word() {
            return self.unpin_sharded(header, slot, pin_slot);
        }
        let before = header.word.unpin();
        if before.is_last_pin_of_kept() {
            self.allocator().wait_queue().wake();
        } else if before.pins() == 1 {
            self.unpin_doomed(slot);
        }
    }

    #[inline(never)]
    fn unpin_sharded(&self, header: &BlockHeader, slot: u32, pin_slot: PinSlot) {
        if self.sharded_pins.unpin(pin_slot) {
            if header.word.load().is_doomed() {
                self.evict_doomed(slot);
            }
            self.allocator().wait_queue().wake();
        }
    }

    #[cold]
    fn unpin_doomed(&self, slot: u32) {
        self.evict_doomed(slot);
        self.allocator().wait_queue().wake();
    }

    /// Releases a pin in a shard that was ineffective, or that outlived its block. Another block may own the counters now, and a prober
    /// may have counted this pin for that block.
    #[cold]
    fn release_shard_pin(&self, pin_slot: PinSlot) {
        if self.sharded_pins.unpin(pin_slot) {
            self.evict_doomed(self.sharded_pins.slot_of(pin_slot));
            self.allocator().wait_queue().wake();
        }
    }

    /// Discards a pin of a block that was taken out together with it.
    pub(crate) fn discard_pin(&self, pin: OwnedPin) {
        let pin_slot = pin.forget();
        if !pin_slot.in_word() {
            self.release_shard_pin(pin_slot);
        }
    }

    /// Whether the registry leads from a key to this slot.
    pub(crate) fn is_findable(&self, key: BlockKey, slot: u32) -> bool {
        let is_slot = |found| (found == slot).then_some(());
        self.registry
            .find(self.registry.hash(key), is_slot)
            .is_some()
    }

    /// Publishes a block with `pins` handed off. Called under the flight table's lock, with the flight removed from it.
    pub(crate) fn publish(&self, contents: BlockContents, pins: u64, erased: bool) -> u32 {
        let hash = self.registry.hash(contents.key);
        let account = contents.account();
        let doomed = erased || contents.options.keep == Keep::WhilePinned;
        // Relaxed: counters.
        self.resident_blocks.fetch_add(1, Ordering::Relaxed);
        self.resident_bytes
            .fetch_add(contents.charge(), Ordering::Relaxed);
        self.tag(contents.options.tag).add(contents.charge());
        let slot = self.slab.allocate();
        let header = self.slab.header(slot);
        // SAFETY: the slot was just allocated.
        unsafe { header.fill(contents) };
        self.evictor.admit(slot, hash, account);
        header.word.publish(pins, doomed);
        if !erased {
            self.registry.insert(hash, slot);
        }
        slot
    }
}

#[cfg(all(test, not(loom)))]
impl BlockCache {
    /// Number of keys in the registry.
    pub(crate) fn registered_keys(&self) -> u64 {
        self.registry.len() as u64
    }

    /// Slots that hold a block, in order.
    pub(crate) fn resident_slots(&self) -> Vec<u32> {
        let resident = |slot: &u32| self.slab.header(*slot).word.load().is_resident();
        (0..self.slab.len()).filter(resident).collect()
    }
}
