//! Names to values, for good.

use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;

use crate::ahead::fetch_ahead;
use crate::sync::{AtomicU32, Hashing, Mutex, Ordering};
use crate::table::{Table, Tables};

/// Names whose entries lie together, a power of two.
#[cfg(not(any(loom, shuttle)))]
const CHUNK: usize = 256;
/// Models fill the first.
#[cfg(any(loom, shuttle))]
const CHUNK: usize = 2;
/// The longest name that lies beside its value, in bytes: name, value of a word and lock fill a cache line.
const SHORT: usize = 45;

/// A table of names that are entered once and stay: get or create.
///
/// Reading a known name costs a hash, a probe and a comparison: no lock, no write, no guard, and the value is borrowed for as
/// long as the table lives. Ids are dense, in the order of entry, and never used again: at most `u32::MAX` names.
///
/// A name may have two parts, as a series has a source and a metric. Where the first ends is part of the name: `("a", "bc")` and
/// `("ab", "c")` are two. A name that is asked for as one text is the pair of nothing and that.
///
/// Names may come from strangers. The hash is foldhash (quality) under a random seed of the table's own: not predictable from
/// outside, though no cryptographic defence against someone who measures many lookups; whoever may enter names at will can
/// also fill memory, and must be limited elsewhere.
pub struct Names<V> {
    tables: Tables<Entries<V>>,
    hashing: Hashing,
    writing: CachePadded<Writing>,
}

/// Beside each table: where the entries are that it can name. The chunks are those of the table before, and those after them
/// as they are needed.
struct Entries<V>(Box<[OnceLock<Chunk<V>>]>);

type Chunk<V> = Arc<[Place<V>]>;

impl<V> Entries<V> {
    fn new(most: usize) -> Self {
        let chunks = std::iter::repeat_with(OnceLock::new);
        Self(chunks.take(most.div_ceil(CHUNK)).collect())
    }

    fn larger(&self, most: usize) -> Self {
        let larger = Self::new(most);
        for (chunk, there) in larger.0.iter().zip(&self.0) {
            if let Some(there) = there.get() {
                chunk.get_or_init(|| Arc::clone(there));
            }
        }
        larger
    }

    #[inline(always)]
    fn place(&self, id: u32) -> Option<&Place<V>> {
        let id = id as usize;
        Some(&self.0.get(id / CHUNK)?.get()?[id % CHUNK])
    }

    #[inline(always)]
    fn get(&self, id: u32) -> Option<&Entry<V>> {
        self.place(id)?.0.get()
    }

    /// An id and its value, if this is its name.
    #[inline(always)]
    fn named(&self, id: u32, pair: Pair<'_>) -> Option<(u32, &V)> {
        let entry = self.get(id)?;
        entry.name.is(pair).then_some((id, &entry.value))
    }

    /// One writer at a time.
    fn put(&self, id: u32, entry: Entry<V>) -> &Entry<V> {
        let id = id as usize;
        let chunk = self.0[id / CHUNK].get_or_init(|| {
            let places = std::iter::repeat_with(|| Place(OnceLock::new()));
            places.take(CHUNK).collect()
        });
        chunk[id % CHUNK].0.get_or_init(|| entry)
    }
}

/// Begins a cache line, so that a lookup reads the table's line and this one.
#[repr(align(64))]
struct Place<V>(OnceLock<Entry<V>>);

struct Entry<V> {
    name: Name,
    value: V,
}

/// The parts of a name.
type Pair<'a> = (&'a str, &'a str);

/// The bytes of a name, and where its second part begins.
enum Name {
    Short {
        len: u8,
        split: u8,
        bytes: [u8; SHORT],
    },
    Long {
        split: usize,
        text: Box<str>,
    },
}

impl Name {
    fn new((first, second): Pair<'_>) -> Self {
        let (split, len) = (first.len(), first.len() + second.len());
        let mut bytes = [0; SHORT];
        match bytes.get_mut(..len) {
            Some(place) => {
                place[..split].copy_from_slice(first.as_bytes());
                place[split..].copy_from_slice(second.as_bytes());
                Self::Short {
                    len: len as u8,
                    split: split as u8,
                    bytes,
                }
            }
            None => Self::Long {
                split,
                text: [first, second].concat().into(),
            },
        }
    }

    #[inline(always)]
    fn is(&self, (first, second): Pair<'_>) -> bool {
        let (bytes, split) = match self {
            Self::Short { len, split, bytes } => (&bytes[..usize::from(*len)], usize::from(*split)),
            Self::Long { split, text } => (text.as_bytes(), *split),
        };
        let (one, other) = bytes.split_at(split);
        one == first.as_bytes() && other == second.as_bytes()
    }

    fn as_str(&self) -> &str {
        match self {
            Self::Short { len, bytes, .. } => {
                std::str::from_utf8(&bytes[..usize::from(*len)]).expect("made of two str")
            }
            Self::Long { text, .. } => text,
        }
    }
}

/// A name's hash and where it seems to be: see [`Names::begin`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Search {
    hash: u64,
    likely: Option<u32>,
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
            tables: Tables::new(Entries::new),
            hashing: Hashing::default(),
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
        self.find(self.begin("", name), ("", name))
            .map(|(_, value)| value)
    }

    /// Begins to look for a name of two parts; [`Self::end`] goes on. Who begins with several before it ends any has their
    /// memory come side by side.
    #[inline]
    #[must_use]
    pub fn begin(&self, first: &str, second: &str) -> Search {
        let mut hasher = self.hashing.build_hasher();
        // The bytes alone: their counts are in the hash, so no mark of an end is needed.
        if !first.is_empty() {
            hasher.write(first.as_bytes());
        }
        hasher.write(second.as_bytes());
        let hash = hasher.finish();
        let table = self.tables.newest();
        let likely = table.likely(hash);
        if let Some(place) = likely.and_then(|id| table.side().place(id)) {
            fetch_ahead(std::ptr::from_ref(place).addr());
        }
        Search { hash, likely }
    }

    /// The id of the name that the search was begun for.
    #[inline]
    #[must_use]
    pub fn end(&self, search: Search, first: &str, second: &str) -> Option<u32> {
        self.find(search, (first, second)).map(|(id, _)| id)
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
        self.get_or_insert_numbered("", name, |_| init())
    }

    /// [`Self::get_or_insert_with`] for a name of two parts, and a value that knows its id.
    ///
    /// # Panics
    /// As that.
    #[inline]
    pub fn get_or_insert_numbered(
        &self,
        first: &str,
        second: &str,
        init: impl FnOnce(u32) -> V,
    ) -> &V {
        let search = self.begin(first, second);
        match self.find(search, (first, second)) {
            Some((_, value)) => value,
            None => self.insert(search.hash, (first, second), init),
        }
    }

    /// The name and value of an id.
    #[must_use]
    pub fn by_id(&self, id: u32) -> Option<(&str, &V)> {
        let entry = self.tables.newest().side().get(id)?;
        Some((entry.name.as_str(), &entry.value))
    }

    /// The value of an id.
    #[inline]
    #[must_use]
    pub fn value(&self, id: u32) -> Option<&V> {
        self.tables
            .newest()
            .side()
            .get(id)
            .map(|entry| &entry.value)
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

    #[inline(always)]
    fn find(&self, search: Search, pair: Pair<'_>) -> Option<(u32, &V)> {
        let table = self.tables.newest();
        match search.likely.and_then(|id| table.side().named(id, pair)) {
            None => Self::find_again(table, search.hash, pair),
            found => found,
        }
    }

    /// A look beyond the first group of cells, and at what was entered since the search began.
    #[inline(never)]
    fn find_again<'a>(
        table: &'a Table<Entries<V>>,
        hash: u64,
        pair: Pair<'_>,
    ) -> Option<(u32, &'a V)> {
        // Nothing ever moves within a table, so a miss is one: the name was not there when the table was read.
        table.probe(hash, |id| table.side().named(id, pair))
    }

    #[inline(never)]
    fn insert(&self, hash: u64, pair: Pair<'_>, init: impl FnOnce(u32) -> V) -> &V {
        let entering = self.writing.lock.lock();
        // Entered since the caller looked?
        if let Some((_, value)) = Self::find_again(self.tables.newest(), hash, pair) {
            return value;
        }
        // Relaxed: written under the lock alone.
        let id = self.writing.len.load(Ordering::Relaxed);
        let after = id.checked_add(1).expect("at most u32::MAX names");
        let made = Entry {
            name: Name::new(pair),
            value: init(id),
        };
        let table = self.tables.with_room(id as usize, Entries::larger);
        let entry = table.side().put(id, made);
        // Release: to `len`, the entry.
        self.writing.len.store(after, Ordering::Release);
        table.enter(hash, id);
        drop(entering);
        &entry.value
    }
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
