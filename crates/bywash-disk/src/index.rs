//! Where each block is: a table of fixed size in shards, one lock a shard.

use hashbrown::HashTable;

use crate::format;
use crate::sync::{AtomicUsize, Mutex, Ordering};

/// Shards of the table, at most; at least half as many.
const SHARDS: usize = 128;
/// Memory of an entry: 24 bytes and one of the table's own, at its highest load of 7/8.
pub(crate) const ENTRY_MEMORY: u64 = 29;

/// A block on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) segment: u32,
    /// First page in the segment.
    pub(crate) page: u32,
    /// Bytes of the block.
    pub(crate) length: u32,
    pub(crate) crc: u32,
}

impl Place {
    pub(crate) fn of(segment: u32, entry: &format::Entry) -> Self {
        Self {
            segment,
            page: entry.page,
            length: entry.length,
            crc: entry.crc,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    version: u32,
    block: u32,
    /// With [`READ`] in the number of its segment.
    place: Place,
}

/// A bit of an entry: a reader has looked the block up.
const READ: u32 = 1 << 31;

const _: () = assert!(size_of::<Entry>() == 24);

/// The places of all blocks, by version slot and block number.
#[derive(Debug)]
pub(crate) struct Index {
    shards: Box<[Mutex<HashTable<Entry>>]>,
    /// Max entries of a shard.
    shard_capacity: usize,
    capacity: usize,
    /// Number of entries. It orders nothing, hence relaxed.
    length: AtomicUsize,
}

/// A position in the table.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cell {
    shard: usize,
    cell: usize,
}

/// A block of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FoundBlock {
    pub(crate) version: u32,
    pub(crate) block: u32,
    pub(crate) place: Place,
}

/// The index has no room for another block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct IndexFull;

impl Index {
    /// Creates an index with memory for at least `capacity` blocks, all of it now.
    pub(crate) fn new(capacity: usize) -> Self {
        // A table of hashbrown has 7/8 of a power of two: of these the smallest with which the shards are few.
        let mut shard_capacity: usize = 7;
        let count = loop {
            // Blocks do not spread evenly: room for an eighth more or, in small shards, four standard deviations.
            let spare = (shard_capacity / 9).max(4 * shard_capacity.isqrt());
            let mean = shard_capacity.saturating_sub(spare).max(1);
            match capacity.div_ceil(mean) {
                shards if shards <= SHARDS => break shards.max(1),
                _ => shard_capacity *= 2,
            }
        };
        let shards = (0..count)
            .map(|_| Mutex::new(HashTable::with_capacity(shard_capacity)))
            .collect();
        Self {
            shards,
            shard_capacity,
            capacity,
            length: AtomicUsize::new(0),
        }
    }

    fn shard(&self, hash: u64) -> &Mutex<HashTable<Entry>> {
        // The table uses the low and the top seven bits.
        let bits = (hash >> 24) & u64::from(u32::MAX);
        &self.shards[((bits * self.shards.len() as u64) >> 32) as usize]
    }

    /// Calls `hold` with the block's place while the entry cannot be removed.
    pub(crate) fn find<T>(
        &self,
        version: u32,
        block: u32,
        hold: impl FnOnce(Place) -> T,
    ) -> Option<T> {
        let hash = hash(version, block);
        let shard = self.shard(hash).lock();
        let entry = shard.find(hash, |entry| entry.is(version, block))?;
        Some(hold(entry.place()))
    }

    /// As [`Self::find`], for a reader of the block.
    pub(crate) fn find_to_read<T>(
        &self,
        version: u32,
        block: u32,
        hold: impl FnOnce(Place) -> T,
    ) -> Option<T> {
        let hash = hash(version, block);
        let mut shard = self.shard(hash).lock();
        let entry = shard.find_mut(hash, |entry| entry.is(version, block))?;
        entry.place.segment |= READ;
        Some(hold(entry.place()))
    }

    /// Whether a block is at this place, and was looked up by a reader since it came there.
    pub(crate) fn was_read_at(&self, version: u32, block: u32, segment: u32, page: u32) -> bool {
        let hash = hash(version, block);
        let shard = self.shard(hash).lock();
        let entry = shard.find(hash, |entry| entry.is(version, block));
        entry.is_some_and(|entry| entry.place.segment & READ != 0 && entry.is_at(segment, page))
    }

    /// Inserts a block, or replaces its place and returns the former one.
    pub(crate) fn insert(
        &self,
        version: u32,
        block: u32,
        place: Place,
    ) -> Result<Option<Place>, IndexFull> {
        let hash = hash(version, block);
        let mut shard = self.shard(hash).lock();
        if let Some(entry) = shard.find_mut(hash, |entry| entry.is(version, block)) {
            let former = entry.place();
            entry.place = place;
            return Ok(Some(former));
        }
        if shard.len() >= self.shard_capacity || self.is_full() {
            return Err(IndexFull);
        }
        let entry = Entry {
            version,
            block,
            place,
        };
        shard.insert_unique(hash, entry, Entry::hash);
        self.length.fetch_add(1, Ordering::Relaxed);
        Ok(None)
    }

    /// Blocks in the next `max` cells of the table, and the cell to continue at; `None` after the
    /// last cell. Blocks that are inserted between the calls, or moved by an insertion, may be
    /// missing.
    pub(crate) fn blocks_from(&self, from: Cell, max: usize) -> (Vec<FoundBlock>, Option<Cell>) {
        let Some(shard) = self.shards.get(from.shard) else {
            return (Vec::new(), None);
        };
        let shard = shard.lock();
        let end = shard.num_buckets().min(from.cell + max);
        let entries = (from.cell..end).filter_map(|cell| shard.get_bucket(cell));
        let blocks = entries
            .map(|entry| FoundBlock {
                version: entry.version,
                block: entry.block,
                place: entry.place(),
            })
            .collect();
        let next = if end < shard.num_buckets() {
            Some(Cell { cell: end, ..from })
        } else {
            Some(from.shard + 1)
                .filter(|&next| next < self.shards.len())
                .map(|shard| Cell { shard, cell: 0 })
        };
        (blocks, next)
    }

    /// Removes a block if it is still at `place`; returns whether it was.
    pub(crate) fn remove_at(&self, version: u32, block: u32, segment: u32, page: u32) -> bool {
        let hash = hash(version, block);
        let mut shard = self.shard(hash).lock();
        let found = shard.find_entry(hash, |entry| {
            entry.is(version, block) && entry.is_at(segment, page)
        });
        let removed = found.map(|entry| entry.remove()).is_ok();
        self.length
            .fetch_sub(usize::from(removed), Ordering::Relaxed);
        removed
    }

    /// Removes all blocks of a segment, and returns the version of each. Reads the whole table, one shard at a time: for the
    /// writer, once a segment.
    pub(crate) fn remove_segment(&self, segment: u32) -> Vec<u32> {
        let mut versions = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            versions.extend(
                shard
                    .extract_if(|entry| entry.place().segment == segment)
                    .map(|entry| entry.version),
            );
        }
        self.length.fetch_sub(versions.len(), Ordering::Relaxed);
        versions
    }

    /// Whether there is no room for more blocks.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.capacity
    }

    /// Whether there is room for `blocks` more blocks.
    pub(crate) fn has_room(&self, blocks: usize) -> bool {
        self.len() + blocks <= self.capacity
    }

    /// Number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.length.load(Ordering::Relaxed)
    }

    /// Memory of the table in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let tables = self
            .shards
            .iter()
            .map(|shard| shard.lock().allocation_size());
        tables.sum::<usize>() as u64
    }
}

impl Entry {
    fn is(&self, version: u32, block: u32) -> bool {
        (self.version, self.block) == (version, block)
    }

    fn is_at(&self, segment: u32, page: u32) -> bool {
        let place = self.place();
        (place.segment, place.page) == (segment, page)
    }

    fn place(&self) -> Place {
        Place {
            segment: self.place.segment & !READ,
            ..self.place
        }
    }

    fn hash(&self) -> u64 {
        hash(self.version, self.block)
    }
}

fn hash(version: u32, block: u32) -> u64 {
    spread((u64::from(version) << 32) | u64::from(block))
}

/// Finalizer of splitmix64: neighbouring numbers spread over all bits.
pub(crate) fn spread(number: u64) -> u64 {
    let mut hash = number;
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn place(page: u32) -> Place {
        Place {
            segment: 1,
            page,
            length: 4096,
            crc: 0,
        }
    }

    #[test]
    fn replaces_and_removes_only_what_is_at_the_place() {
        let index = Index::new(100);
        assert_eq!(index.insert(1, 2, place(3)), Ok(None));
        assert_eq!(index.insert(1, 2, place(9)), Ok(Some(place(3))));
        assert!(!index.remove_at(1, 2, 1, 3), "an older place");
        assert_eq!(index.find(1, 2, |place| place.page), Some(9));
        assert!(index.remove_at(1, 2, 1, 9));
        assert_eq!(index.find(1, 2, |place| place), None);
    }

    #[test]
    fn declines_blocks_beyond_its_capacity_and_never_grows() {
        let index = Index::new(10_000);
        let memory = index.memory();
        let mut stored = 0;
        for block in 0..20_000 {
            stored += usize::from(index.insert(7, block, place(block)).is_ok());
        }
        assert_eq!(stored, 10_000);
        assert!(memory <= 10_000 * 40, "{memory} bytes");
        assert_eq!(index.len(), stored);
        assert_eq!(index.memory(), memory);
    }
}
