//! The block pool: who has which block, and who loads it.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;

use crate::budget::{Budget, Memory, PoolConfig};
use crate::error::PoolError;
use crate::evict::Evictor;
use crate::flight::Flight;
use crate::load::Load;
use crate::options::{Keep, Spill, Spilled, Tag, TagCounters, TagStats};
use crate::pin::{OwnedPin, Pin};
use crate::registry::Registry;
use crate::slab::{Contents, Header, Slab};
use crate::stripes::{Hold, Owning, Stripes};
use crate::sync::{AtomicU64, Mutex, Ordering, Step, skipped, yield_now};
use crate::unused::LastUses;
use crate::word::{Pinned, Tried, Word};

/// Names a block. What it holds never changes: another version of an object is another `object`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockKey {
    /// The store it is from, as the caller numbers them: many share a pool.
    pub store: u32,
    /// One version of one object, as the caller numbers them.
    pub object: u64,
    /// The block's place in it.
    pub block: u32,
}

/// Where a block was found, to pin it again without a lookup ([`BlockPool::try_pin`]). Holds nothing: the block may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHandle {
    pub(crate) slot: u32,
    pub(crate) key: BlockKey,
}

/// What [`BlockPool::claim`] found.
#[derive(Debug)]
pub enum Claim<'a> {
    /// It is here.
    Resident(Pin<'a>),
    /// Somebody loads it: wait, or read along.
    Loading(Arc<Flight>),
    /// Nobody loads it: it is yours to load, and others will wait for you.
    Vacant(Load),
}

/// Counters of a pool, read one after another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Blocks published and not evicted, erased ones still pinned included.
    pub resident_blocks: u64,
    /// Memory of their frames, in bytes.
    pub resident_bytes: u64,
    /// Loads in progress.
    pub flights: u64,
    /// Loads ever begun.
    pub loads: u64,
    /// Blocks ever taken out, by eviction or by erasure.
    pub evictions: u64,
    /// Of these, blocks that the spill hook took over.
    pub spilled: u64,
    /// Blocks so hot that their pins are spread over stripes.
    pub striped_blocks: u64,
    /// Evictions that took longer than [`PoolConfig::slow_eviction`] or [`PoolConfig::slow_eviction_rounds`] say.
    pub slow_evictions: u64,
}

/// Blocks that threads share, under one [`Budget`]. Always behind an `Arc`.
///
/// A block is loaded once however many ask for it ([`Self::claim`]), is published only complete, is immutable from then on,
/// and stays in place while pinned. No method but the `*_blocking` ones blocks for longer than a short critical section.
#[derive(Debug)]
pub struct BlockPool {
    budget: Budget,
    registry: Registry,
    slab: Slab,
    stripes: Stripes,
    spill: OnceLock<Arc<dyn Spill>>,
    pub(crate) last_uses: Mutex<LastUses>,
    /// Loads in progress, but for erased ones. Holds a flight until it ends; never locked during I/O or a sweep of the clock.
    pub(crate) flights: Mutex<HashMap<BlockKey, Arc<Flight>>>,
    pub(crate) evictor: CachePadded<Evictor>,
    /// The counters of `PoolStats`. Written by whoever publishes, evicts or begins a load; read by `stats` and by takers.
    resident_blocks: AtomicU64,
    resident_bytes: AtomicU64,
    loads: AtomicU64,
    evictions: AtomicU64,
    spilled: AtomicU64,
    slow_evictions: AtomicU64,
    tags: [TagCounters; Tag::COUNT],
}

impl BlockPool {
    /// An empty pool. Reserves address space, commits nothing.
    ///
    /// # Errors
    /// [`PoolError::Config`] if the sizes make no sense, [`PoolError::AddressSpace`] if the system refuses.
    pub fn new(config: PoolConfig) -> Result<Arc<Self>, PoolError> {
        Ok(Arc::new(Self {
            budget: Budget(Memory::new(config)?),
            registry: Registry::new(),
            // A block has a frame, and no frame is smaller.
            slab: Slab::new(config.ceiling / crate::MIN_FRAME as u64)?,
            stripes: Stripes::new()?,
            spill: OnceLock::new(),
            last_uses: Mutex::new(LastUses::default()),
            flights: Mutex::new(HashMap::new()),
            evictor: CachePadded::new(Evictor::new(&config)),
            resident_blocks: AtomicU64::new(0),
            resident_bytes: AtomicU64::new(0),
            loads: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            spilled: AtomicU64::new(0),
            slow_evictions: AtomicU64::new(0),
            tags: Default::default(),
        }))
    }

    /// The budget that all of the pool's memory comes from.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Keys that lead somewhere.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn names(&self) -> u64 {
        self.registry.len() as u64
    }

    /// Slots that hold a block, in order.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn slots(&self) -> Vec<u32> {
        let resident = |slot: &u32| self.slab.header(*slot).word.look().resident();
        (0..self.slab.len()).filter(resident).collect()
    }

    #[inline]
    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.budget.0
    }

    pub(crate) fn slab(&self) -> &Slab {
        &self.slab
    }

    pub(crate) fn stripes(&self) -> &Stripes {
        &self.stripes
    }

    /// Has blocks of [`Keep::Spill`] offered to `hook` when they are evicted. Once for a pool; answers whether this was the first.
    pub fn set_spill(&self, hook: Arc<dyn Spill>) -> bool {
        self.spill.set(hook).is_ok()
    }

    /// Memory on a tag's account.
    #[must_use]
    pub fn tag_stats(&self, tag: Tag) -> TagStats {
        self.tag(tag).read()
    }

    fn tag(&self, tag: Tag) -> &TagCounters {
        &self.tags[usize::from(tag.number())]
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        // Relaxed: counters that order nothing.
        PoolStats {
            resident_blocks: self.resident_blocks.load(Ordering::Relaxed),
            resident_bytes: self.resident_bytes(),
            flights: self.flights.lock().len() as u64,
            loads: self.loads.load(Ordering::Relaxed),
            evictions: self.evictions.load(Ordering::Relaxed),
            spilled: self.spilled.load(Ordering::Relaxed),
            striped_blocks: self.stripes.in_use(),
            slow_evictions: self.slow_evictions.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn note_slow_eviction(&self) {
        // Relaxed: a counter.
        self.slow_evictions.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        // Relaxed: a taker uses it as a bound on what evicting could give, and finds out.
        self.resident_bytes.load(Ordering::Relaxed)
    }

    /// The block if it is resident: a hash, a probe and one atomic add. Counts as a use.
    #[inline]
    #[must_use]
    pub fn get(&self, key: BlockKey) -> Option<Pin<'_>> {
        // A slot may be another's by now, or on its way out: the next one, if any, is asked then.
        self.registry
            .find(self.registry.hash(key), |slot| self.pin(slot, key))
    }

    /// Whether the block is resident: a hint, for it may be gone with the answer. Never waits, and counts as no use.
    #[must_use]
    pub fn contains(&self, key: BlockKey) -> bool {
        self.peek(key).is_some()
    }

    /// As [`Self::get`], but counts as no use: for who had the block loaded.
    #[must_use]
    pub fn peek(&self, key: BlockKey) -> Option<Pin<'_>> {
        self.registry.find(self.registry.hash(key), |slot| {
            self.pin_quietly(slot).filter(|pin| pin.key() == key)
        })
    }

    /// The block in hand, if it is still in the place the handle was made of: one atomic add, no lookup. Never waits, never
    /// loads. Counts as a use.
    ///
    /// An erased block is not found, though others may have it pinned. A block that was resized is, if it came back to its
    /// place; where another was published between, `None`, and [`Self::get`] finds it.
    #[inline(always)]
    #[must_use]
    pub fn try_pin(&self, at: &BlockHandle) -> Option<Pin<'_>> {
        let header = self.slab.header(at.slot);
        let (hold, plain) = match header.word.try_pin_plainly() {
            Ok(()) => (Hold::WORD, true),
            Err(tried) => (self.pin_tried(at.slot, tried)?, false),
        };
        let pin = Pin::adopt(self, header, at.slot, hold);
        let found = pin.key() == at.key || skipped(Step::Key);
        (found && (plain || !self.was_erased(&pin))).then_some(pin)
    }

    /// Whether a pinned block was erased: it leaves and has no name, unlike one kept while pinned. Erasure marks it before it
    /// takes the name and before it ends, so whoever pins later sees both.
    fn was_erased(&self, pin: &Pin<'_>) -> bool {
        let leaves = self.slab.header(pin.slot()).word.look().leaves();
        leaves && !self.leads_to(pin.key(), pin.slot())
    }

    /// Pins the block in `slot` if that is still `key`.
    #[inline(always)]
    pub(crate) fn pin(&self, slot: u32, key: BlockKey) -> Option<Pin<'_>> {
        let pin = self.pin_slot(slot)?;
        (pin.key() == key || skipped(Step::Key)).then_some(pin)
    }

    /// Pins whatever block is in `slot`.
    #[inline(always)]
    fn pin_slot(&self, slot: u32) -> Option<Pin<'_>> {
        let header = self.slab.header(slot);
        let hold = match header.word.try_pin_plainly() {
            Ok(()) => Hold::WORD,
            Err(tried) => self.pin_tried(slot, tried)?,
        };
        Some(Pin::adopt(self, header, slot, hold))
    }

    /// Goes on where the short way of a pin gave up.
    #[inline(always)]
    fn pin_tried(&self, slot: u32, tried: Tried) -> Option<Hold> {
        match tried {
            Tried::Not(before) if before.open_stripes() != 0 => {
                self.pin_striped(self.slab.header(slot), before.open_stripes())
            }
            tried => self.pin_otherwise(slot, tried),
        }
    }

    /// The long way of `pin_slot`, apart so that the short one is inlined.
    #[inline(never)]
    fn pin_otherwise(&self, slot: u32, tried: Tried) -> Option<Hold> {
        let header = self.slab.header(slot);
        match header.word.try_pin(tried) {
            Pinned::Yes => Some(Hold::WORD),
            Pinned::No => None,
            Pinned::Collided => {
                self.stripes.heat(&self.slab, slot);
                Some(Hold::WORD)
            }
            Pinned::Striped(array) => self.pin_striped(header, array),
        }
    }

    #[inline(never)]
    fn pin_striped(&self, header: &Header, array: u8) -> Option<Hold> {
        match self.stripes.pin(&header.word, array) {
            Ok(hold) => Some(hold),
            Err(hold) => self.pin_late(header, hold),
        }
    }

    /// Pins whatever block is in `slot`, without counting a use.
    pub(crate) fn pin_quietly(&self, slot: u32) -> Option<Pin<'_>> {
        let header = self.slab.header(slot);
        header.word.pin_here()?;
        Some(Pin::adopt(self, header, slot, Hold::WORD))
    }

    /// Takes back a pin in a lane that does not count, and pins in the word.
    #[cold]
    fn pin_late(&self, header: &Header, lane: Hold) -> Option<Hold> {
        self.unpin_lane(lane);
        header.word.pin_here().map(|_| Hold::WORD)
    }

    /// As `get`, for a caller that knows where the block was published.
    pub(crate) fn pin_owned(self: &Arc<Self>, slot: u32, key: BlockKey) -> Option<OwnedPin> {
        self.pin(slot, key)
            .map(|pin| pin.into_owned(Arc::clone(self)))
    }

    /// The block, or the load that is bringing it, or the right to load it.
    #[must_use]
    pub fn claim(self: &Arc<Self>, key: BlockKey) -> Claim<'_> {
        if let Some(pin) = self.get(key) {
            return Claim::Resident(pin);
        }
        let mut flights = self.flights.lock();
        if let Some(flight) = flights.get(&key) {
            return Claim::Loading(Arc::clone(flight));
        }
        // A load may have ended since the first look. Publication is under this lock, so this look is the last.
        if let Some(pin) = self.get(key) {
            return Claim::Resident(pin);
        }
        let flight = Flight::new(Arc::clone(self), key);
        flights.insert(key, Arc::clone(&flight));
        // Relaxed: a counter.
        self.loads.fetch_add(1, Ordering::Relaxed);
        Claim::Vacant(Load::new(flight))
    }

    /// Takes a block out: at once, or at its last unpin. From now on the key is not found, and may be loaded anew. A load in
    /// progress serves those who wait for it and is not kept. Answers whether there was a block or a load.
    pub fn erase(&self, key: BlockKey) -> bool {
        let mut flights = self.flights.lock();
        let flight = flights.remove(&key);
        if let Some(flight) = &flight {
            flight.erase();
        }
        let pin = self.get(key);
        if let Some(pin) = &pin {
            pin.mark_leaving();
            self.registry.remove(self.registry.hash(key), pin.slot());
        }
        let found = flight.is_some() || pin.is_some();
        drop(flights);
        // Only now: the last unpin evicts, and the pool's lock is not for that.
        drop((flight, pin));
        found
    }

    /// Erases every block and every load of one object's version, as [`Self::erase`]. Looks at each resident block of the pool,
    /// some 10 ns each; what is published meanwhile may stay. Answers how many there were.
    pub fn erase_object(&self, store: u32, object: u64) -> u64 {
        self.erase_all(|key| key.store == store && key.object == object)
    }

    /// As [`Self::erase_object`], for all of a store.
    pub fn erase_store(&self, store: u32) -> u64 {
        self.erase_all(|key| key.store == store)
    }

    fn erase_all(&self, matches: impl Fn(BlockKey) -> bool) -> u64 {
        let loading: Vec<Arc<Flight>> = {
            let mut flights = self.flights.lock();
            flights
                .extract_if(|key, _| matches(*key))
                .map(|(_, flight)| {
                    flight.erase();
                    flight
                })
                .collect()
        };
        let mut erased = loading.len() as u64;
        for slot in 0..self.slab.len() {
            if let Some(pin) = self.pin_quietly(slot)
                && matches(pin.key())
            {
                pin.mark_leaving();
                erased += u64::from(self.registry.remove(self.registry.hash(pin.key()), slot));
            }
        }
        erased
    }

    /// Gives a pin back, and does what the last one owes: evict a block that leaves, or wake whoever waits for memory.
    #[inline(always)]
    pub(crate) fn unpin(&self, header: &Header, slot: u32, hold: Hold) {
        if !hold.in_word() {
            return self.unpin_striped(header, slot, hold);
        }
        let before = header.word.unpin();
        if before.last_of_a_keeper() {
            self.memory().turnstile().wake();
        } else if before.pins() == 1 {
            self.unpin_leaving(slot);
        }
    }

    #[inline(never)]
    fn unpin_striped(&self, header: &Header, slot: u32, hold: Hold) {
        if self.stripes.unpin(hold) {
            if header.word.look().leaves() {
                self.evict_leaving(slot);
            }
            self.memory().turnstile().wake();
        }
    }

    #[cold]
    fn unpin_leaving(&self, slot: u32) {
        self.evict_leaving(slot);
        self.memory().turnstile().wake();
    }

    /// Gives back a pin in a lane that was nobody's for certain, or whose block is gone: whoever has the array now may have
    /// mistaken it for its own.
    #[cold]
    fn unpin_lane(&self, lane: Hold) {
        if self.stripes.unpin(lane) {
            self.evict_leaving(self.stripes.slot_of(lane));
            self.memory().turnstile().wake();
        }
    }

    /// Lets go of a pin whose block was taken out with it.
    pub(crate) fn forget_pin(&self, pin: OwnedPin) {
        let hold = pin.forget();
        if !hold.in_word() {
            self.unpin_lane(hold);
        }
    }

    /// Evicts the block in `slot` if it leaves and was unpinned. If it is pinned, that pin's end comes here too.
    #[cold]
    fn evict_leaving(&self, slot: u32) {
        loop {
            let seen = self.settled(slot);
            if !seen.resident() || !seen.leaves() || seen.pins() != 0 {
                return;
            }
            if self.try_evict(slot, seen) != Eviction::Changed {
                return;
            }
        }
    }

    /// The word of a slot at which nobody looks through its stripes: who does is soon done, and who skipped it meanwhile could
    /// miss a block that nobody has pinned.
    pub(crate) fn settled(&self, slot: u32) -> Word {
        loop {
            let seen = self.slab.header(slot).word.look();
            if !seen.probed() {
                return seen;
            }
            yield_now();
        }
    }

    /// Takes the uses off an unpinned block, and its stripes if it has cooled.
    pub(crate) fn age(&self, slot: u32, seen: Word) {
        let word = &self.slab.header(slot).word;
        word.age(seen);
        if seen.stripes() != 0 {
            self.stripes.cool(word, seen.stripes());
        }
    }

    /// Takes one block out if nothing changed since `seen`, however often it was used. Answers the bytes it gave back: 0 while
    /// followers hold the frame, or the spill hook.
    pub(crate) fn evict_even_if_used(&self, slot: u32, seen: Word) -> Option<u64> {
        match self.try_evict(slot, seen) {
            Eviction::Done(freed) => Some(freed),
            Eviction::Held | Eviction::Changed => None,
        }
    }

    pub(crate) fn try_evict(&self, slot: u32, seen: Word) -> Eviction {
        if !seen.resident() || seen.pins() != 0 {
            return Eviction::Held;
        }
        let header = self.slab.header(slot);
        if seen.stripes() == 0 {
            if !header.word.try_own(seen, 0) {
                return Eviction::Changed;
            }
        } else {
            match self.stripes.try_own(&header.word, seen, 0, || true) {
                Owning::Owned => {}
                Owning::Held => return Eviction::Held,
                Owning::Changed => return Eviction::Changed,
            }
        }
        // SAFETY: the contents are this caller's.
        let contents = unsafe { header.take() };
        // The erased and the short-lived come back by chance, and say nothing of the policy.
        self.retire(slot, &contents, !seen.leaves());
        // Relaxed: counters.
        self.evictions.fetch_add(1, Ordering::Relaxed);
        self.tag(contents.options.tag).evicted(contents.charge());
        Eviction::Done(self.let_go(contents, seen.leaves()))
    }

    /// Gives an evicted block's memory back, or to the spill hook. Answers the bytes that came free.
    fn let_go(&self, contents: Contents, leaves: bool) -> u64 {
        let hook = self.spill.get();
        match hook.filter(|_| contents.options.keep == Keep::Spill && !leaves) {
            None => contents.give_back(),
            Some(hook) => match hook.spill(Spilled(contents)) {
                Ok(()) => {
                    // Relaxed: a counter.
                    self.spilled.fetch_add(1, Ordering::Relaxed);
                    0
                }
                Err(declined) => declined.0.give_back(),
            },
        }
    }

    /// Leaves a slot whose contents were taken, by eviction or not.
    pub(crate) fn retire(&self, slot: u32, contents: &Contents, evicted: bool) {
        let hash = self.registry.hash(contents.key);
        // The name goes before the slot can be used again, so that it never leads to another block under the same key.
        self.registry.remove(hash, slot);
        let forget = || self.evictor.forget(slot, evicted.then_some(hash));
        // So does its place in the policy, or the next block's would go.
        if !skipped(Step::Unlink) {
            forget();
        }
        self.slab.header(slot).word.vacate();
        self.slab.put_back(slot);
        if skipped(Step::Unlink) {
            forget();
        }
        let bytes = contents.charge();
        // Relaxed: counters.
        self.resident_blocks.fetch_sub(1, Ordering::Relaxed);
        self.resident_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.tag(contents.options.tag).leave(bytes);
    }

    /// Whether a key leads to this slot.
    pub(crate) fn leads_to(&self, key: BlockKey, slot: u32) -> bool {
        let is_it = |found| (found == slot).then_some(());
        self.registry.find(self.registry.hash(key), is_it).is_some()
    }

    /// Makes a finished load's block resident, with `pins` handed off. Called with the flight closed, under the table's lock.
    pub(crate) fn admit(&self, contents: Contents, pins: u64, erased: bool) -> u32 {
        let hash = self.registry.hash(contents.key);
        let priority = contents.options.priority;
        let leaves = erased || contents.options.keep == Keep::WhilePinned;
        // Relaxed: counters.
        self.resident_blocks.fetch_add(1, Ordering::Relaxed);
        self.resident_bytes
            .fetch_add(contents.charge(), Ordering::Relaxed);
        self.tag(contents.options.tag).enter(contents.charge());
        let slot = self.slab.take();
        let header = self.slab.header(slot);
        // SAFETY: the slot was just taken off the free list.
        unsafe { header.fill(contents) };
        self.evictor.admit(slot, hash, priority);
        header.word.publish(pins, leaves);
        if !erased {
            self.registry.insert(hash, slot);
        }
        slot
    }

    /// Runs `end` with the flight out of the table, under the table's lock: a claim finds the flight, or what it left.
    pub(crate) fn end_flight<R>(&self, flight: &Arc<Flight>, end: impl FnOnce() -> R) -> R {
        let mut flights = self.flights.lock();
        // An erased flight is not in the table, and another load of the key may be.
        if flights
            .get(&flight.key())
            .is_some_and(|found| Arc::ptr_eq(found, flight))
        {
            flights.remove(&flight.key());
        }
        end()
    }
}

/// How an attempt to evict one block ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Eviction {
    /// It is out; so many bytes came free.
    Done(u64),
    /// It is pinned or in use.
    Held,
    /// Its word changed meanwhile.
    Changed,
}
