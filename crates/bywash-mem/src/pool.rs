//! The block pool: who has which block, and who loads it.

use std::collections::HashMap;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::budget::{Budget, Memory, PoolConfig};
use crate::error::PoolError;
use crate::flight::Flight;
use crate::load::Load;
use crate::pin::{OwnedPin, Pin};
use crate::registry::Registry;
use crate::slab::{Contents, Header, Slab};
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, Step, skipped};

/// Names a block. What it holds never changes: another version of an object is another `object`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockKey {
    /// One version of one object, as the caller numbers them.
    pub object: u64,
    /// The block's place in it.
    pub block: u32,
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
    /// Blocks ever taken out, by the clock or by erasure.
    pub evictions: u64,
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
    /// Loads in progress, but for erased ones. Holds a flight until it ends; never locked during I/O or a sweep of the clock.
    flights: Mutex<HashMap<BlockKey, Arc<Flight>>>,
    /// Where the clock's next round begins. Written and read by evicting takers; lost updates do no harm.
    pub(crate) hand: CachePadded<AtomicU32>,
    /// The counters of `PoolStats`. Written by whoever publishes, evicts or begins a load; read by `stats` and by takers.
    resident_blocks: AtomicU64,
    resident_bytes: AtomicU64,
    loads: AtomicU64,
    evictions: AtomicU64,
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
            slab: Slab::new(),
            flights: Mutex::new(HashMap::new()),
            hand: CachePadded::new(AtomicU32::new(0)),
            resident_blocks: AtomicU64::new(0),
            resident_bytes: AtomicU64::new(0),
            loads: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
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

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.budget.0
    }

    pub(crate) fn slab(&self) -> &Slab {
        &self.slab
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
        }
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        // Relaxed: a taker uses it as a bound on what evicting could give, and finds out.
        self.resident_bytes.load(Ordering::Relaxed)
    }

    /// The block if it is resident: a hash, a probe and one atomic add. Counts as a use.
    #[inline]
    #[must_use]
    pub fn get(&self, key: BlockKey) -> Option<Pin<'_>> {
        let mut slot = self.registry.get(&key)?;
        loop {
            if let Some(pin) = self.pin(slot, key) {
                return Some(pin);
            }
            // On its way out, or gone and the slot reused. Unless it is back in another slot meanwhile, it is a miss.
            let again = self.registry.get(&key)?;
            if again == slot {
                return None;
            }
            slot = again;
        }
    }

    /// Pins the block in `slot` if that is still `key`.
    #[inline]
    fn pin(&self, slot: u32, key: BlockKey) -> Option<Pin<'_>> {
        let header = self.slab.header(slot);
        if !header.word.try_pin() {
            return None;
        }
        let pin = Pin::adopt(self, header, slot);
        // SAFETY: pinned just now.
        let same = unsafe { header.key() } == key;
        (same || skipped(Step::Key)).then_some(pin)
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
            pin.mark_erased();
            self.registry.remove(&key, pin.slot());
        }
        let found = flight.is_some() || pin.is_some();
        drop(flights);
        // Only now: the last unpin evicts, and the pool's lock is not for that.
        drop((flight, pin));
        found
    }

    /// Gives a pin back, and does what the last one owes: evict an erased block, or wake whoever waits for memory.
    #[inline]
    pub(crate) fn unpin(&self, header: &Header, slot: u32) {
        let before = header.word.unpin();
        if before.pins() == 1 {
            if before.erased() {
                self.evict_erased(slot);
            }
            self.memory().turnstile().wake();
        }
    }

    #[cold]
    fn evict_erased(&self, slot: u32) {
        let seen = self.slab.header(slot).word.look();
        // By now the slot may hold another block, which its own last unpin or the clock looks after.
        if seen.erased() {
            self.evict_slot(slot, seen);
        }
    }

    /// Takes one block out if nothing changed since `seen`. Answers the bytes it gave back; 0 while followers hold the frame.
    pub(crate) fn evict_slot(&self, slot: u32, seen: crate::word::Word) -> Option<u64> {
        let header = self.slab.header(slot);
        if !header.word.try_evict(seen) {
            return None;
        }
        // SAFETY: this caller won the eviction.
        let contents = unsafe { header.take() };
        // The name goes before the slot can be used again, so that it never leads to another block under the same key.
        self.registry.remove(&contents.key, slot);
        header.word.vacate();
        self.slab.put_back(slot);
        // Relaxed: counters.
        self.evictions.fetch_add(1, Ordering::Relaxed);
        self.resident_blocks.fetch_sub(1, Ordering::Relaxed);
        self.resident_bytes
            .fetch_sub(contents.charge(), Ordering::Relaxed);
        Some(contents.give_back())
    }

    /// Makes a finished load's block resident, with `pins` handed off. Called with the flight closed, under the table's lock.
    pub(crate) fn admit(&self, contents: Contents, pins: u64, erased: bool) -> u32 {
        let key = contents.key;
        // Relaxed: counters.
        self.resident_blocks.fetch_add(1, Ordering::Relaxed);
        self.resident_bytes
            .fetch_add(contents.charge(), Ordering::Relaxed);
        let slot = self.slab.take();
        let header = self.slab.header(slot);
        // SAFETY: the slot was just taken off the free list.
        unsafe { header.fill(contents) };
        header.word.publish(pins, erased);
        if !erased {
            self.registry.insert(key, slot);
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
