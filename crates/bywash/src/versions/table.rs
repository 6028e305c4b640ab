//! Concurrent map bounded in bytes, with second-chance eviction.
//!
//! Keys are spread over shards, each with a hash index and a FIFO queue under one lock. An eviction checks the oldest
//! entry. If it was used since it was queued, it moves to the newest end once (second chance), else it is evicted. At
//! most [`MAX_SCANNED`] entries are checked for one eviction, so no call takes time proportional to the table.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use crossbeam_utils::CachePadded;
use hashbrown::HashTable;
use object_store::path::Path;
use parking_lot::RwLock;

// A write to one of two keys that share a lock keeps responses about the other from being recorded. Clients cannot choose such keys, because
// the hash is seeded at random. In the simulation, two runs of a seed need the same hash.
#[cfg(feature = "testing")]
pub(super) use foldhash::fast::FixedState as HashState;
#[cfg(not(feature = "testing"))]
pub(super) use foldhash::fast::RandomState as HashState;

/// Shards of a table: far more than threads, so that two rarely contend for a lock.
const SHARDS: usize = 64;
/// Entries checked for one eviction. Readers could otherwise mark every entry of a shard as used, and the next
/// insertion would pay for all at once.
const MAX_SCANNED: usize = 32;
/// Index of no slot: the end of the queue.
const NONE: u32 = u32::MAX;

/// An entry of a [`BoundedTable`].
pub(super) trait TableEntry {
    /// The number of the bucket, and the key in it.
    fn key(&self) -> (u32, &Path);

    /// The bytes of memory that the entry owns, heap and shared parts included.
    fn bytes(&self) -> usize;
}

/// Bounded map from the key of a [`TableEntry`] to the entry.
#[derive(Debug)]
pub(super) struct BoundedTable<E> {
    shards: Box<[CachePadded<RwLock<Shard<E>>>]>,
    hasher: HashState,
    /// Maximum bytes of one shard.
    max_shard_bytes: AtomicUsize,
}

#[derive(Debug)]
struct Shard<E> {
    /// Slots by the hash of their key.
    index: HashTable<u32>,
    slots: Vec<TableSlot<E>>,
    /// First slot of the free list, which is linked by `newer`.
    free: u32,
    /// The end of the queue where entries are evicted.
    oldest: u32,
    /// The end where entries are added.
    newest: u32,
    /// Bytes of all entries, without their slots.
    bytes: usize,
}

#[derive(Debug)]
struct TableSlot<E> {
    entry: Option<E>,
    hash: u64,
    /// Bytes charged for the entry.
    bytes: u32,
    /// Neighbours in the queue.
    older: u32,
    newer: u32,
    /// Set by readers, which hold the lock shared; orders nothing, hence relaxed.
    used: AtomicBool,
}

/// Bytes of the table for one entry: its slot and its index entry, each in storage that doubles as it grows.
const fn slot_bytes<E>() -> usize {
    2 * (size_of::<TableSlot<E>>() + size_of::<u32>() + 1)
}

impl<E: TableEntry> BoundedTable<E> {
    /// Creates a table of at most `max_bytes`.
    pub(super) fn new(max_bytes: u64) -> Self {
        let shards = std::iter::repeat_with(|| CachePadded::new(RwLock::new(Shard::new())));
        Self {
            shards: shards.take(SHARDS).collect(),
            hasher: HashState::default(),
            max_shard_bytes: AtomicUsize::new(Self::per_shard(max_bytes)),
        }
    }

    fn per_shard(max_bytes: u64) -> usize {
        usize::try_from(max_bytes).unwrap_or(usize::MAX) / SHARDS
    }

    /// The bound in bytes.
    pub(super) fn max_bytes(&self) -> u64 {
        (self.max_shard_bytes.load(Relaxed) * SHARDS) as u64
    }

    /// Changes the bound, and evicts the excess.
    pub(super) fn set_max_bytes(&self, max_bytes: u64) {
        let max = Self::per_shard(max_bytes);
        self.max_shard_bytes.store(max, Relaxed);
        for shard in &self.shards {
            let mut evicted = Vec::new();
            shard.write().make_room(0, max, &mut evicted);
        }
    }

    fn hash(&self, store: u32, path: &str) -> u64 {
        self.hasher.hash_one((store, path))
    }

    /// Returns the shard of a hash, chosen by bits that its index does not use.
    fn shard(&self, hash: u64) -> &RwLock<Shard<E>> {
        &self.shards[(hash >> 32) as usize % SHARDS]
    }

    /// Returns the result of `read` for the entry of a key, and marks the entry as used.
    pub(super) fn get<R>(
        &self,
        store: u32,
        path: impl AsRef<str>,
        read: impl FnOnce(&E) -> R,
    ) -> Option<R> {
        self.read_slot(store, path.as_ref(), |slot| {
            // Entries read often are marked already: their cache line is not written again.
            if !slot.used.load(Relaxed) {
                slot.used.store(true, Relaxed);
            }
            slot.entry.as_ref().map(read)
        })
    }

    /// As [`Self::get`], without marking the entry as used.
    pub(super) fn peek<R>(&self, store: u32, path: &Path, read: impl FnOnce(&E) -> R) -> Option<R> {
        self.read_slot(store, path.as_ref(), |slot| slot.entry.as_ref().map(read))
    }

    fn read_slot<R>(
        &self,
        store: u32,
        path: &str,
        read: impl FnOnce(&TableSlot<E>) -> Option<R>,
    ) -> Option<R> {
        let hash = self.hash(store, path);
        let shard = self.shard(hash).read();
        let found = shard.find(hash, store, path)?;
        read(&shard.slots[found as usize])
    }

    /// Inserts `entry`, replacing the one with the same key, and evicts older entries as needed. An entry larger than
    /// an eighth of its shard is not stored, and the one it replaces is removed.
    pub(super) fn insert(&self, entry: E) {
        let (store, path) = entry.key();
        let path = path.as_ref();
        let hash = self.hash(store, path);
        let bytes = entry.bytes();
        let max = self.max_shard_bytes.load(Relaxed);
        let mut evicted = Vec::new();
        let mut shard = self.shard(hash).write();
        let found = shard.find(hash, store, path);
        let used = found.is_some_and(|slot| shard.slots[slot as usize].used.load(Relaxed));
        evicted.extend(found.and_then(|slot| shard.remove(slot)));
        // Evicts before it inserts, so that the bound holds at every instant.
        if bytes <= max / 8 && shard.make_room(bytes, max, &mut evicted) {
            shard.push(entry, hash, bytes as u32, used);
        }
        drop(shard);
        // Evicted entries are freed after the lock.
        drop(evicted);
    }

    /// Removes the entry of a key if `matches`; returns whether it did.
    pub(super) fn remove_if(
        &self,
        store: u32,
        path: &Path,
        matches: impl FnOnce(&E) -> bool,
    ) -> bool {
        let path = path.as_ref();
        let hash = self.hash(store, path);
        let shard = self.shard(hash);
        // Most written keys are unknown.
        if shard.read().find(hash, store, path).is_none() {
            return false;
        }
        let mut shard = shard.write();
        let Some(slot) = shard.find(hash, store, path) else {
            return false;
        };
        let entry = shard.slots[slot as usize].entry.as_ref();
        let removed = entry.is_some_and(matches).then(|| shard.remove(slot));
        drop(shard);
        removed.is_some()
    }

    /// Returns the results of `select` for all entries. Scans them one shard at a time: for administrators, not for
    /// requests.
    pub(super) fn collect<R>(&self, mut select: impl FnMut(&E) -> Option<R>) -> Vec<R> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            let entries = shard.slots.iter().filter_map(|slot| slot.entry.as_ref());
            found.extend(entries.filter_map(&mut select));
        }
        found
    }

    /// The number of entries, and the bytes charged for them.
    pub(super) fn size(&self) -> (usize, usize) {
        self.shards.iter().fold((0, 0), |(len, bytes), shard| {
            let shard = shard.read();
            (len + shard.index.len(), bytes + shard.charged(0))
        })
    }
}

impl<E: TableEntry> Shard<E> {
    fn new() -> Self {
        Self {
            index: HashTable::new(),
            slots: Vec::new(),
            free: NONE,
            oldest: NONE,
            newest: NONE,
            bytes: 0,
        }
    }

    fn find(&self, hash: u64, store: u32, path: &str) -> Option<u32> {
        let is_named = |entry: &E| {
            let (found, name) = entry.key();
            found == store && name.as_ref() == path
        };
        let same = |slot: &u32| {
            let slot = &self.slots[*slot as usize];
            slot.hash == hash && slot.entry.as_ref().is_some_and(is_named)
        };
        self.index.find(hash, same).copied()
    }

    /// Adds an entry at the newest end of the queue. Its key must be absent.
    fn push(&mut self, entry: E, hash: u64, bytes: u32, used: bool) {
        let slot = TableSlot {
            entry: Some(entry),
            hash,
            bytes,
            older: NONE,
            newer: NONE,
            used: AtomicBool::new(used),
        };
        let at = match self.free {
            NONE => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
            at => {
                self.free = self.slots[at as usize].newer;
                self.slots[at as usize] = slot;
                at
            }
        };
        self.link(at);
        self.bytes += bytes as usize;
        let slots = &self.slots;
        self.index
            .insert_unique(hash, at, |slot| slots[*slot as usize].hash);
    }

    /// Removes an entry from the shard.
    fn remove(&mut self, at: u32) -> Option<E> {
        self.unlink(at);
        let slot = &mut self.slots[at as usize];
        let (hash, bytes) = (slot.hash, slot.bytes);
        let entry = slot.entry.take();
        slot.newer = self.free;
        self.free = at;
        self.bytes -= bytes as usize;
        if let Ok(found) = self.index.find_entry(hash, |slot| *slot == at) {
            found.remove();
        }
        entry
    }

    /// Returns the bytes of all entries and slots, with `more` further slots.
    fn charged(&self, more: usize) -> usize {
        self.bytes + (self.slots.len() + more) * slot_bytes::<E>()
    }

    /// Evicts entries until one of `bytes` fits below `max`; returns whether it does. Slots stay for later entries,
    /// and stay charged.
    fn make_room(&mut self, bytes: usize, max: usize, evicted: &mut Vec<E>) -> bool {
        let mut scanned = 0;
        loop {
            let more = usize::from(self.free == NONE);
            if self.charged(more) + bytes <= max {
                return true;
            }
            let at = self.oldest;
            if at == NONE {
                // Only slots are left, from a time when the bound was higher or entries were smaller.
                *self = Self::new();
                return self.charged(1) + bytes <= max;
            }
            scanned += 1;
            let used = self.slots[at as usize].used.get_mut();
            if std::mem::take(used) && scanned < MAX_SCANNED {
                self.unlink(at);
                self.link(at);
                continue;
            }
            scanned = 0;
            evicted.extend(self.remove(at));
        }
    }

    /// Adds a slot at the newest end of the queue.
    fn link(&mut self, at: u32) {
        let older = std::mem::replace(&mut self.newest, at);
        let slot = &mut self.slots[at as usize];
        (slot.older, slot.newer) = (older, NONE);
        match older {
            NONE => self.oldest = at,
            older => self.slots[older as usize].newer = at,
        }
    }

    /// Removes a slot from the queue.
    fn unlink(&mut self, at: u32) {
        let (older, newer) = {
            let slot = &self.slots[at as usize];
            (slot.older, slot.newer)
        };
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
    }
}

#[cfg(test)]
mod tests;
