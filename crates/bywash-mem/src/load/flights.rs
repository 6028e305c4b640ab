//! The flight table: from the key of a block to the load in progress.

use std::collections::HashMap;
use std::sync::Arc;

use super::flight::Flight;
use super::leader::Load;
use crate::block::{BlockCache, Pin, PinScope};
use crate::key::BlockKey;
use crate::sync::{AtomicU64, Mutex, Ordering};

/// Result of [`crate::BlockPool::claim`].
#[derive(Debug)]
pub enum Claim<'a> {
    /// The block is resident.
    Resident(Pin<'a>),
    /// Another caller is loading it: wait for the block, or read it as it arrives.
    Loading(Arc<Flight>),
    /// The caller is to load it; later callers wait for that.
    Vacant(Load),
}

/// Loads in progress, except erased ones.
#[derive(Debug)]
pub(crate) struct FlightTable {
    /// The cache, and the owned pins that loads hand out.
    pins: PinScope,
    /// Holds a flight until it ends. Never locked during I/O or an eviction pass.
    flights: Mutex<HashMap<BlockKey, Arc<Flight>>>,
    /// Number of loads ever started. Written by claims, read by `stats`.
    started: AtomicU64,
}

impl FlightTable {
    pub(crate) fn new(cache: &Arc<BlockCache>) -> Arc<Self> {
        Arc::new(Self {
            pins: PinScope::new(cache),
            flights: Mutex::new(HashMap::new()),
            started: AtomicU64::new(0),
        })
    }

    pub(super) fn cache(&self) -> &Arc<BlockCache> {
        self.pins.cache()
    }

    pub(super) fn pins(&self) -> &PinScope {
        &self.pins
    }

    /// Number of loads in progress.
    pub(crate) fn in_progress(&self) -> u64 {
        self.flights.lock().len() as u64
    }

    /// Number of loads ever started.
    pub(crate) fn started(&self) -> u64 {
        // Relaxed: a counter.
        self.started.load(Ordering::Relaxed)
    }

    /// See [`crate::BlockPool::is_loading`].
    pub(crate) fn is_loading(&self, key: BlockKey) -> bool {
        self.flights.lock().contains_key(&key)
    }

    /// See [`crate::BlockPool::claim`].
    pub(crate) fn claim(self: &Arc<Self>, key: BlockKey) -> Claim<'_> {
        if let Some(pin) = self.cache().get(key) {
            return Claim::Resident(pin);
        }
        let mut flights = self.flights.lock();
        if let Some(flight) = flights.get(&key) {
            return Claim::Loading(Arc::clone(flight));
        }
        // A load may have ended since the first lookup. Blocks are published under this lock, so this lookup is conclusive.
        if let Some(pin) = self.cache().get(key) {
            return Claim::Resident(pin);
        }
        let flight = Flight::new(Arc::clone(self), key);
        flights.insert(key, Arc::clone(&flight));
        // Relaxed: a counter.
        self.started.fetch_add(1, Ordering::Relaxed);
        Claim::Vacant(Load::new(flight))
    }

    /// Starts a load of a resident block that the caller has pinned, unless `is_erased` or another load of the key is in progress.
    /// Erasure takes the same lock.
    pub(super) fn claim_resident(
        self: &Arc<Self>,
        key: BlockKey,
        is_erased: impl FnOnce() -> bool,
    ) -> Option<Load> {
        let mut flights = self.flights.lock();
        if is_erased() || flights.contains_key(&key) {
            return None;
        }
        let flight = Flight::new(Arc::clone(self), key);
        flights.insert(key, Arc::clone(&flight));
        Some(Load::new(flight))
    }

    /// See [`crate::BlockPool::erase`].
    pub(crate) fn erase(&self, key: BlockKey) -> bool {
        let mut flights = self.flights.lock();
        let flight = flights.remove(&key);
        if let Some(flight) = &flight {
            flight.erase();
        }
        let pin = self.cache().erase(key);
        let found = flight.is_some() || pin.is_some();
        drop(flights);
        // Dropped after the lock: the last unpin evicts.
        drop((flight, pin));
        found
    }

    /// Erases all loads and blocks with a key that matches. Returns how many there were.
    pub(crate) fn erase_matching(&self, matches: impl Fn(BlockKey) -> bool) -> u64 {
        let erased: Vec<Arc<Flight>> = {
            let mut flights = self.flights.lock();
            flights
                .extract_if(|key, _| matches(*key))
                .map(|(_, flight)| {
                    flight.erase();
                    flight
                })
                .collect()
        };
        erased.len() as u64 + self.cache().erase_matching(matches)
    }

    /// Calls `end` under the table's lock, after removing the flight. So a claim finds either the flight or its result.
    pub(super) fn end_flight<R>(&self, flight: &Arc<Flight>, end: impl FnOnce() -> R) -> R {
        let mut flights = self.flights.lock();
        // An erased flight is not in the table, and another load of its key may be.
        if flights
            .get(&flight.key())
            .is_some_and(|found| Arc::ptr_eq(found, flight))
        {
            flights.remove(&flight.key());
        }
        end()
    }
}
