//! Names to values, for good.

use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU32, Hashing, Mutex, Ordering};
use crate::table::Tables;

/// Entries in the first segment; each further one holds as many as all before it and one first more.
const FIRST: u32 = 64;
/// Enough for every id.
const SEGMENTS: usize = 33 - FIRST.trailing_zeros() as usize;

/// A table of names that are entered once and stay: get or create.
///
/// Reading a known name costs a hash, a probe and a comparison: no lock, no write, no guard, and the value is borrowed for as
/// long as the table lives. Ids are dense, in the order of entry, and never used again: at most `u32::MAX` names.
///
/// Names may come from strangers. The hash is foldhash (quality) under a random seed of the table's own: not predictable from
/// outside, though no cryptographic defence against someone who measures many lookups; whoever may enter names at will can
/// also fill memory, and must be limited elsewhere.
pub struct Names<V> {
    tables: Tables,
    hashing: Hashing,
    segments: [OnceLock<Segment<V>>; SEGMENTS],
    writing: CachePadded<Writing>,
}

type Segment<V> = Box<[OnceLock<Entry<V>>]>;

struct Entry<V> {
    name: Box<str>,
    value: V,
}

/// What writers write, apart from what readers read.
struct Writing {
    /// Held by whoever enters a name.
    lock: Mutex<()>,
    /// Names entered. Written under the lock.
    len: AtomicU32,
}

impl<V> Names<V> {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self {
            tables: Tables::new(),
            hashing: Hashing::default(),
            segments: [const { OnceLock::new() }; SEGMENTS],
            writing: CachePadded::new(Writing {
                lock: Mutex::new(()),
                len: AtomicU32::new(0),
            }),
        }
    }

    /// The value of a name.
    #[inline]
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&V> {
        self.find(self.hash(name), name)
    }

    /// The value of a name, made by `init` if the name is new. Of many callers with one new name, one makes it and all get it.
    ///
    /// `init` runs while nobody else can enter a name: it must be short, and must not enter one here itself (that never
    /// returns). If it panics, nothing was entered.
    ///
    /// # Panics
    /// If `init` does, and beyond `u32::MAX` names.
    #[inline]
    pub fn get_or_insert_with(&self, name: &str, init: impl FnOnce() -> V) -> &V {
        self.get_or_insert_numbered(name, |_| init())
    }

    /// [`Self::get_or_insert_with`] for a value that knows its id.
    ///
    /// # Panics
    /// As that.
    #[inline]
    pub fn get_or_insert_numbered(&self, name: &str, init: impl FnOnce(u32) -> V) -> &V {
        let hash = self.hash(name);
        match self.find(hash, name) {
            Some(value) => value,
            None => self.insert(hash, name, init),
        }
    }

    /// The name and value of an id.
    #[must_use]
    pub fn by_id(&self, id: u32) -> Option<(&str, &V)> {
        let entry = self.entry(id)?;
        Some((&entry.name, &entry.value))
    }

    /// Names and values in the order of their ids, with what is entered meanwhile.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        (0..u32::MAX).map_while(|id| self.by_id(id))
    }

    /// Names entered: ids are below it.
    #[must_use]
    pub fn len(&self) -> usize {
        // Acquire: with `insert`, the entries counted.
        self.writing.len.load(Ordering::Acquire) as usize
    }

    /// Whether there is no name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn hash(&self, name: &str) -> u64 {
        let mut hasher = self.hashing.build_hasher();
        // The bytes alone: nothing follows them, so no mark of the end is needed, and their count is in the hash.
        hasher.write(name.as_bytes());
        hasher.finish()
    }

    #[inline]
    fn find(&self, hash: u64, name: &str) -> Option<&V> {
        // Nothing ever moves within a table, so a miss is one: the name was not there when the table was read.
        self.tables.newest().probe(hash, |id| {
            let entry = self.entry(id)?;
            (*entry.name == *name).then_some(&entry.value)
        })
    }

    #[inline]
    fn entry(&self, id: u32) -> Option<&Entry<V>> {
        let (segment, place) = locate(id);
        self.segments[segment].get()?[place].get()
    }

    #[inline(never)]
    fn insert(&self, hash: u64, name: &str, init: impl FnOnce(u32) -> V) -> &V {
        let entering = self.writing.lock.lock();
        // Entered since the caller looked?
        if let Some(value) = self.find(hash, name) {
            return value;
        }
        // Relaxed: written under the lock alone.
        let id = self.writing.len.load(Ordering::Relaxed);
        let after = id.checked_add(1).expect("at most u32::MAX names");
        let made = Entry {
            name: name.into(),
            value: init(id),
        };
        let (segment, place) = locate(id);
        let segment = self.segments[segment].get_or_init(|| {
            std::iter::repeat_with(OnceLock::new)
                .take((FIRST as usize) << segment)
                .collect()
        });
        let entry = segment[place].get_or_init(|| made);
        // Release: to `len`, the entry.
        self.writing.len.store(after, Ordering::Release);
        self.tables.with_room(id as usize).enter(hash, id);
        drop(entering);
        &entry.value
    }
}

/// Segment and place of an id.
#[inline]
fn locate(id: u32) -> (usize, usize) {
    let shifted = u64::from(id) + u64::from(FIRST);
    let top = shifted.ilog2();
    (
        (top - FIRST.trailing_zeros()) as usize,
        (shifted - (1 << top)) as usize,
    )
}

impl<V> Default for Names<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V: std::fmt::Debug> std::fmt::Debug for Names<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
