//! An insert-only map from names to values.

use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;

use crate::block::{FIRST, Table, Tables, max_entries};
use crate::cpu_prefetch::prefetch_line;
use crate::sync::{AtomicU32, HashState, Mutex, Ordering};

/// Entries of one chunk, a power of two.
#[cfg(not(any(loom, shuttle)))]
const CHUNK: usize = 256;
/// Models fill the first chunk.
#[cfg(any(loom, shuttle))]
const CHUNK: usize = 2;
/// Length of the longest name stored next to its value, in bytes: name, lock and a value of one word fill a cache line.
const SHORT: usize = 45;

/// An insert-only map from names to values: get or create.
///
/// Reading a known name costs a hash, a probe and a comparison: no lock, no write, no guard. The value is borrowed for as long as
/// the map lives. Ids are dense, in the order of insertion, and never reused: at most `u32::MAX` names.
///
/// A name may have two parts, as a series has a source and a metric. The split is part of the name: `("a", "bc")` and
/// `("ab", "c")` differ. A name given as one text is the pair of the empty string and that text.
///
/// Names may come from untrusted clients. The hash is foldhash (quality) under a random seed of this map. It is not predictable from
/// outside, but no cryptographic defence against a client that measures many lookups. A client that inserts names at will can also
/// fill memory, and must be limited elsewhere.
pub struct Names<V> {
    tables: Tables<Entries<V>>,
    hash_state: HashState,
    writer: CachePadded<NamesWriter>,
}

/// Side data of a table: the entries that its ids lead to. It shares the chunks of the table before it, and allocates further ones
/// as needed.
struct Entries<V>(Box<[OnceLock<Chunk<V>>]>);

type Chunk<V> = Arc<[EntrySlot<V>]>;

impl<V> Entries<V> {
    fn new(max: usize) -> Self {
        let chunks = std::iter::repeat_with(OnceLock::new);
        Self(chunks.take(side_len(max)).collect())
    }

    fn grown(&self, max: usize) -> Self {
        let grown = Self::new(max);
        for (chunk, existing) in grown.0.iter().zip(&self.0) {
            if let Some(existing) = existing.get() {
                chunk.get_or_init(|| Arc::clone(existing));
            }
        }
        grown
    }

    #[inline(always)]
    fn slot(&self, id: u32) -> Option<&EntrySlot<V>> {
        let id = id as usize;
        Some(&self.0.get(id / CHUNK)?.get()?[id % CHUNK])
    }

    #[inline(always)]
    fn get(&self, id: u32) -> Option<&Entry<V>> {
        self.slot(id)?.0.get()
    }

    /// Returns an id and its value if its name is `pair`.
    #[inline(always)]
    fn get_if_named(&self, id: u32, pair: Pair<'_>) -> Option<(u32, &V)> {
        let entry = self.get(id)?;
        entry.name.equals(pair).then_some((id, &entry.value))
    }

    /// Whether there is a chunk for this id.
    fn has_chunk(&self, id: u32) -> bool {
        let chunk = self.0.get(id as usize / CHUNK);
        chunk.is_some_and(|chunk| chunk.get().is_some())
    }

    /// Stores an entry. One writer at a time.
    fn put(&self, id: u32, entry: Entry<V>) -> &Entry<V> {
        let id = id as usize;
        let chunk = self.0[id / CHUNK].get_or_init(|| {
            let slots = std::iter::repeat_with(|| EntrySlot(OnceLock::new()));
            slots.take(CHUNK).collect()
        });
        chunk[id % CHUNK].0.get_or_init(|| entry)
    }

    /// Bytes of the tables that an entry at this id adds to a table of `cells` cells.
    fn growth(mut cells: usize, id: u32) -> usize {
        let mut bytes = 0;
        while side_len(max_entries(cells)) * CHUNK <= id as usize {
            cells *= 2;
            bytes += Self::table_bytes(cells);
        }
        if id as usize >= max_entries(cells) {
            bytes += Self::table_bytes(2 * cells);
        }
        bytes
    }

    /// Bytes of a table with this many cells, and of its side data.
    fn table_bytes(cells: usize) -> usize {
        Tables::<Self>::table_bytes(cells)
            + side_len(max_entries(cells)) * size_of::<OnceLock<Chunk<V>>>()
    }
}

/// Number of chunks for `max` entries.
fn side_len(max: usize) -> usize {
    max.div_ceil(CHUNK)
}

/// Aligned to a cache line, so that a lookup reads the table's line and this one.
#[repr(align(64))]
struct EntrySlot<V>(OnceLock<Entry<V>>);

/// The value starts with the entry's cache line, so that a type can place its fields by lines. The fields that a lookup reads, the name and
/// the state of the slot, follow.
#[repr(C)]
struct Entry<V> {
    value: V,
    name: StoredName,
}

/// The two parts of a name.
type Pair<'a> = (&'a str, &'a str);

/// The bytes of a name, and the start of its second part.
enum StoredName {
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

impl StoredName {
    fn new((first, second): Pair<'_>) -> Self {
        let (split, len) = (first.len(), first.len() + second.len());
        let mut bytes = [0; SHORT];
        match bytes.get_mut(..len) {
            Some(inline) => {
                inline[..split].copy_from_slice(first.as_bytes());
                inline[split..].copy_from_slice(second.as_bytes());
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

    /// Bytes of the name that lie apart from the entry.
    fn bytes_apart(&self) -> usize {
        match self {
            Self::Short { .. } => 0,
            Self::Long { text, .. } => text.len(),
        }
    }

    /// As [`Self::bytes_apart`], of a name of this length.
    fn bytes_apart_of(len: usize) -> usize {
        if len > SHORT { len } else { 0 }
    }

    #[inline(always)]
    fn equals(&self, (first, second): Pair<'_>) -> bool {
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
                std::str::from_utf8(&bytes[..usize::from(*len)]).expect("concatenated from two str")
            }
            Self::Long { text, .. } => text,
        }
    }
}

/// A lookup in progress: a name's hash and its likely id. See [`Names::start_lookup`].
#[derive(Debug, Clone, Copy, Default)]
pub struct NameLookup {
    hash: u64,
    likely: Option<u32>,
}

/// Bytes of entries, without tables.
#[derive(Default)]
struct EntryBytes {
    chunks: usize,
    /// Names that are stored apart.
    long: usize,
}

/// Written by writers, on a line apart from the fields that readers read.
struct NamesWriter {
    /// Held by the thread that inserts a name.
    lock: Mutex<EntryBytes>,
    /// Number of names. Written under the lock, read by `len`.
    len: AtomicU32,
}

impl<V> Names<V> {
    /// Creates an empty map.
    #[must_use]
    pub fn new() -> Self {
        Self {
            tables: Tables::new(Entries::new),
            hash_state: HashState::default(),
            writer: CachePadded::new(NamesWriter {
                lock: Mutex::new(EntryBytes::default()),
                len: AtomicU32::new(0),
            }),
        }
    }

    /// Returns the value of a name.
    #[inline]
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&V> {
        self.find(self.start_lookup("", name), ("", name))
            .map(|(_, value)| value)
    }

    /// Starts the lookup of a name of two parts, to be finished by [`Self::finish_lookup`]. Starting several lookups before finishing
    /// the first overlaps their cache misses.
    #[inline]
    #[must_use]
    pub fn start_lookup(&self, first: &str, second: &str) -> NameLookup {
        let mut hasher = self.hash_state.build_hasher();
        // Only the bytes: the hash covers their counts, so no terminator is needed.
        if !first.is_empty() {
            hasher.write(first.as_bytes());
        }
        hasher.write(second.as_bytes());
        let hash = hasher.finish();
        let table = self.tables.newest();
        let likely = table.first_match(hash);
        if let Some(slot) = likely.and_then(|id| table.side().slot(id)) {
            prefetch_line(std::ptr::from_ref(slot).addr() + size_of::<V>());
        }
        NameLookup { hash, likely }
    }

    /// Returns the id of the name that the lookup was started for.
    #[inline]
    #[must_use]
    pub fn finish_lookup(&self, lookup: NameLookup, first: &str, second: &str) -> Option<u32> {
        self.find(lookup, (first, second)).map(|(id, _)| id)
    }

    /// Returns the value of a name, inserting the result of `init` if the name is new. If several callers insert one name at once, one
    /// calls `init` and all get its result.
    ///
    /// `init` runs under the lock of insertions: it must be short, and must not insert into this map (that would deadlock). If it
    /// panics, nothing is inserted.
    ///
    /// # Panics
    /// If `init` does, or above `u32::MAX` names.
    #[inline]
    pub fn get_or_insert_with(&self, name: &str, init: impl FnOnce() -> V) -> &V {
        self.get_or_insert_with_id("", name, |_| init())
    }

    /// As [`Self::get_or_insert_with`], for a name of two parts and an `init` that gets the new id.
    ///
    /// # Panics
    /// If `init` does, or above `u32::MAX` names.
    #[inline]
    pub fn get_or_insert_with_id(
        &self,
        first: &str,
        second: &str,
        init: impl FnOnce(u32) -> V,
    ) -> &V {
        let lookup = self.start_lookup(first, second);
        match self.find(lookup, (first, second)) {
            Some((_, value)) => value,
            None => self.insert(lookup.hash, (first, second), init),
        }
    }

    /// Inserts a name under an id of the caller's choice, for maps whose ids have gaps. Afterwards [`Self::len`] is above the
    /// highest id, and the map has no other insertions.
    ///
    /// # Panics
    /// If the map has the name or the id.
    pub fn insert_at(&self, id: u32, first: &str, second: &str, value: V) -> &V {
        let hash = self.start_lookup(first, second).hash;
        let mut inserting = self.writer.lock.lock();
        let known = Self::find_slow(self.tables.newest(), hash, (first, second));
        assert!(known.is_none(), "the name is there");
        // Capacities double: the table is as large as if all ids below were there.
        while self.tables.newest().side().0.len() * CHUNK <= id as usize {
            let capacity = self.tables.newest().capacity();
            self.tables.grow_if_full(capacity, Entries::grown);
        }
        assert!(self.by_id(id).is_none(), "the id is there");
        let entry = Entry {
            value,
            name: StoredName::new((first, second)),
        };
        let entry = self.put(hash, id, entry, &mut inserting);
        &entry.value
    }

    /// Stores an entry. Under the lock of insertions.
    fn put(&self, hash: u64, id: u32, entry: Entry<V>, bytes: &mut EntryBytes) -> &Entry<V> {
        let table = self.tables.grow_if_full(id as usize, Entries::grown);
        if !table.side().has_chunk(id) {
            bytes.chunks += Self::CHUNK_BYTES;
        }
        bytes.long += entry.name.bytes_apart();
        let entry = table.side().put(id, entry);
        // Relaxed: written only under the lock.
        let len = self.writer.len.load(Ordering::Relaxed).max(id + 1);
        // Release: the entry, to `len`.
        self.writer.len.store(len, Ordering::Release);
        table.insert(hash, id);
        entry
    }

    /// Returns the name and value of an id.
    fn by_id(&self, id: u32) -> Option<(&str, &V)> {
        let entry = self.tables.newest().side().get(id)?;
        Some((entry.name.as_str(), &entry.value))
    }

    /// Returns the value of an id.
    #[inline]
    #[must_use]
    pub fn value(&self, id: u32) -> Option<&V> {
        self.tables
            .newest()
            .side()
            .get(id)
            .map(|entry| &entry.value)
    }

    /// Names and values in the order of their ids, including those inserted during the iteration.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        (0..u32::MAX).map_while(|id| self.by_id(id))
    }

    /// Number of names. All ids are below it.
    #[must_use]
    pub fn len(&self) -> usize {
        // Acquire: with `insert`, the entries counted.
        self.writer.len.load(Ordering::Acquire) as usize
    }

    /// Bytes of a chunk of entries, which is allocated at once and freed with the map.
    const CHUNK_BYTES: usize = CHUNK * size_of::<EntrySlot<V>>();

    /// Bytes allocated for names and values: tables, entries, long names. Memory that values allocate is not included.
    ///
    /// Entries lie in chunks of 256 neighbouring ids, so a few entries at scattered ids take as much as all ids between them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let EntryBytes { chunks, long } = *self.writer.lock.lock();
        self.bytes_of_tables() + chunks + long
    }

    fn bytes_of_tables(&self) -> usize {
        let cells = self.tables.capacities();
        cells.map(Entries::<V>::table_bytes).sum()
    }

    /// Bytes by which [`Self::insert_at`] of this id and name would increase [`Self::bytes`], if no other thread inserts before.
    #[must_use]
    pub fn bytes_to_insert(&self, id: u32, first: &str, second: &str) -> usize {
        let table = self.tables.newest();
        let mut bytes = StoredName::bytes_apart_of(first.len() + second.len());
        if !table.side().has_chunk(id) {
            bytes += Self::CHUNK_BYTES;
        }
        bytes + Entries::<V>::growth(table.capacity(), id)
    }

    /// Bytes of a map with copies of the entries of these ids, at the same ids and in ascending order.
    #[must_use]
    pub fn bytes_of_copy(&self, ids: impl Iterator<Item = u32>) -> usize {
        let (mut chunks, mut long) = (0, 0);
        let mut last = None;
        for id in ids {
            let entry = self.tables.newest().side().get(id);
            long += entry.map_or(0, |entry| entry.name.bytes_apart());
            let is_new = last.is_none_or(|last: u32| last as usize / CHUNK != id as usize / CHUNK);
            chunks += usize::from(is_new);
            last = Some(id);
        }
        let first = Entries::<V>::table_bytes(FIRST);
        let grown = last.map_or(0, |last| Entries::<V>::growth(FIRST, last));
        first + grown + chunks * Self::CHUNK_BYTES + long
    }

    /// Whether there is no name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline(always)]
    fn find(&self, lookup: NameLookup, pair: Pair<'_>) -> Option<(u32, &V)> {
        let table = self.tables.newest();
        match lookup
            .likely
            .and_then(|id| table.side().get_if_named(id, pair))
        {
            None => Self::find_slow(table, lookup.hash, pair),
            found => found,
        }
    }

    /// Looks beyond the first group of cells, and at names inserted since the lookup started.
    #[inline(never)]
    fn find_slow<'a>(
        table: &'a Table<Entries<V>>,
        hash: u64,
        pair: Pair<'_>,
    ) -> Option<(u32, &'a V)> {
        // Entries never move within a table, so after a miss the name was absent when the table was read.
        table.probe(hash, |id| table.side().get_if_named(id, pair))
    }

    #[inline(never)]
    fn insert(&self, hash: u64, pair: Pair<'_>, init: impl FnOnce(u32) -> V) -> &V {
        let mut inserting = self.writer.lock.lock();
        // Another thread may have inserted it since the caller looked.
        if let Some((_, value)) = Self::find_slow(self.tables.newest(), hash, pair) {
            return value;
        }
        // Relaxed: written only under the lock.
        let id = self.writer.len.load(Ordering::Relaxed);
        assert!(id < u32::MAX, "at most u32::MAX names");
        let entry = Entry {
            value: init(id),
            name: StoredName::new(pair),
        };
        let entry = self.put(hash, id, entry, &mut inserting);
        drop(inserting);
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
