//! Which slot holds which block.

use std::hash::{BuildHasher, Hash};

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, Hashing, Mutex, Ordering, Step, skipped};
use crate::table::Tables;

/// Keys of resident blocks to slots: a table of slot numbers under the hashes of their keys. A hint: the key in the slot, read
/// under a pin, decides.
///
/// A hit reads the newest table's address and mostly one group of its cells: no lock, no write, no guard. A miss is believed only
/// if no entry moved while the cells were read.
///
/// Public for the benchmarks alone, which measure it without the pins of `BlockPool::get`.
#[derive(Debug)]
pub struct Registry {
    tables: Tables,
    hashing: Hashing,
    writing: CachePadded<Writing>,
}

/// What writers write, apart from what readers read.
#[derive(Debug)]
struct Writing {
    /// Entries in the newest table. Locked by whoever writes to it.
    entries: Mutex<usize>,
    /// Odd while a removal moves entries, and then 2 higher. Written under the lock, read by who found nothing.
    moves: AtomicU64,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self {
            tables: Tables::new(|_| ()),
            hashing: Hashing::default(),
            writing: CachePadded::new(Writing {
                entries: Mutex::new(0),
                moves: AtomicU64::new(0),
            }),
        }
    }

    /// What the other functions know a key by. The seed is this registry's own.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: impl Hash) -> u64 {
        self.hashing.hash_one(key)
    }

    /// The answer of `check` to the first slot entered under this hash that it has one for. It may be asked about slots of other
    /// keys, about slots on their way out, and about one slot twice.
    ///
    /// `None` means that at some moment during the call there was no such slot. Never waits but in the worst case: if
    /// entries moved during the look, for one insertion or removal.
    #[inline]
    pub fn find<R>(&self, hash: u64, mut check: impl FnMut(u32) -> Option<R>) -> Option<R> {
        let likely = self.tables.newest().likely(hash);
        match likely.and_then(&mut check) {
            None => self.find_again(hash, check),
            found => found,
        }
    }

    /// A look beyond the first group, which can tell whether it may have overlooked an entry that was moved past it. If so, the
    /// slots that the lock shows are asked, after it is released: `check` may end in a removal.
    ///
    /// An old table needs no such care. It holds all that was there when it was replaced, and what came after that came during
    /// this call.
    #[inline(never)]
    fn find_again<R>(&self, hash: u64, mut check: impl FnMut(u32) -> Option<R>) -> Option<R> {
        // Acquire: with `remove`, the moves that are over.
        let before = self.writing.moves.load(Ordering::Acquire);
        let found = self.tables.newest().probe(hash, &mut check);
        // Relaxed: if `probe` read one store of a move, its acquire makes the move's beginning visible here.
        let unmoved =
            before.is_multiple_of(2) && before == self.writing.moves.load(Ordering::Relaxed);
        if found.is_some() || unmoved || skipped(Step::Moves) {
            return found;
        }
        let mut slots = Vec::new();
        let entries = self.writing.entries.lock();
        self.tables.newest().probe(hash, |slot| {
            slots.push(slot);
            None::<()>
        });
        drop(entries);
        slots.into_iter().find_map(check)
    }

    /// Enters a slot that the key of this hash can be read in. A slot of the same key on its way out may be there as well; it
    /// leaves by its own removal.
    ///
    /// Takes as long as moving every entry if the table must grow.
    pub fn insert(&self, hash: u64, slot: u32) {
        let mut entries = self.writing.entries.lock();
        let table = self.tables.with_room(*entries, |(), _| ());
        table.enter(hash, slot);
        *entries += 1;
    }

    /// Removes this slot from under this hash, and answers whether it was there. Another slot of the same key stays.
    pub fn remove(&self, hash: u64, slot: u32) -> bool {
        let mut entries = self.writing.entries.lock();
        let moves = &self.writing.moves;
        // Relaxed: written under the lock alone.
        let before = moves.load(Ordering::Relaxed);
        let table = self.tables.newest();
        // Relaxed: the stores of the move release it to `probe`.
        let moved = table.take_out(hash, slot, || moves.store(before + 1, Ordering::Relaxed));
        if moved == Some(true) {
            // Release: to `find_again`, the move.
            moves.store(before + 2, Ordering::Release);
        }
        *entries -= usize::from(moved.is_some());
        moved.is_some()
    }

    /// Entries.
    #[must_use]
    pub fn len(&self) -> usize {
        *self.writing.entries.lock()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory of its tables, in bytes: at most 22 an entry in the newest when it has just grown, and less than as much again in
    /// those before it. It never shrinks.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.tables.bytes()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[path = "registry/tests.rs"]
mod tests;
