//! The registry: from the key of a block to its slot.

use std::hash::{BuildHasher, Hash};

use crossbeam_utils::CachePadded;

use super::table::Tables;
use crate::sync::{AtomicU64, HashState, Mutex, Ordering, Step, skipped};

/// Slots of resident blocks under the hashes of their keys. A hint: the key in the slot, read under a pin, decides.
///
/// A hit reads the newest table's address and in most cases one group of its cells: no lock, no write, no guard. A miss counts only
/// if no entry moved while the cells were read.
///
/// Public only for the benchmarks, which measure it without the pins of `BlockPool::get`.
#[derive(Debug)]
pub struct Registry {
    tables: Tables,
    hash_state: HashState,
    writer: CachePadded<RegistryWriter>,
}

/// Written by writers, on a line apart from the fields that readers read.
#[derive(Debug)]
struct RegistryWriter {
    /// Number of entries in the newest table. Writers hold this lock.
    entries: Mutex<usize>,
    /// Odd while a removal moves entries, and 2 higher after it. Written under the lock, read by lookups that found nothing.
    moves: AtomicU64,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// Creates an empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self {
            tables: Tables::new(|_| ()),
            hash_state: HashState::default(),
            writer: CachePadded::new(RegistryWriter {
                entries: Mutex::new(0),
                moves: AtomicU64::new(0),
            }),
        }
    }

    /// Returns the hash of a key for the other functions. The seed is this registry's own.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: impl Hash) -> u64 {
        self.hash_state.hash_one(key)
    }

    /// Calls `check` on each slot under `hash` until it returns `Some`. `check` may be called for slots of other keys, for slots that
    /// are leaving, and for one slot twice.
    ///
    /// `None` means that at some moment during the call no slot matched. Takes the lock only if entries moved during the lookup.
    #[inline]
    pub fn find<R>(&self, hash: u64, mut check: impl FnMut(u32) -> Option<R>) -> Option<R> {
        let likely = self.tables.newest().first_match(hash);
        match likely.and_then(&mut check) {
            None => self.find_slow(hash, check),
            found => found,
        }
    }

    /// Looks beyond the first group, and detects entries that were moved past the lookup. After such a move it collects the slots
    /// under the lock and checks them after releasing it, because `check` may end in a removal.
    ///
    /// An old table needs no such care. It holds all entries of the time when it was replaced, and later ones were inserted during
    /// this call.
    #[inline(never)]
    fn find_slow<R>(&self, hash: u64, mut check: impl FnMut(u32) -> Option<R>) -> Option<R> {
        // Acquire: the completed moves of `remove`.
        let before = self.writer.moves.load(Ordering::Acquire);
        let found = self.tables.newest().probe(hash, &mut check);
        // Relaxed: if `probe` read one store of a move, its acquire makes the move's start visible here.
        let unmoved =
            before.is_multiple_of(2) && before == self.writer.moves.load(Ordering::Relaxed);
        if found.is_some() || unmoved || skipped(Step::Moves) {
            return found;
        }
        let mut slots = Vec::new();
        let entries = self.writer.entries.lock();
        self.tables.newest().probe(hash, |slot| {
            slots.push(slot);
            None::<()>
        });
        drop(entries);
        slots.into_iter().find_map(check)
    }

    /// Inserts a slot that holds the key of this hash. A slot of the same key that is leaving may be present too; its own removal
    /// removes it.
    ///
    /// If the table must grow, takes as long as moving every entry.
    pub fn insert(&self, hash: u64, slot: u32) {
        let mut entries = self.writer.entries.lock();
        let table = self.tables.grow_if_full(*entries, |(), _| ());
        table.insert(hash, slot);
        *entries += 1;
    }

    /// Removes this slot from under this hash. Returns whether it was there. Other slots of the same key stay.
    pub fn remove(&self, hash: u64, slot: u32) -> bool {
        let mut entries = self.writer.entries.lock();
        let moves = &self.writer.moves;
        // Relaxed: written only under the lock.
        let before = moves.load(Ordering::Relaxed);
        let table = self.tables.newest();
        // Relaxed: the stores of the move release it to `probe`.
        let moved = table.remove(hash, slot, || moves.store(before + 1, Ordering::Relaxed));
        if moved == Some(true) {
            // Release: the move, to `find_slow`.
            moves.store(before + 2, Ordering::Release);
        }
        *entries -= usize::from(moved.is_some());
        moved.is_some()
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        *self.writer.entries.lock()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of its tables: at most 22 an entry in the newest one when it has just grown, and less than that in all older ones. Never
    /// shrinks.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.tables.bytes()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
