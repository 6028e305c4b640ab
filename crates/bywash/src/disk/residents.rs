//! Blocks in memory that the disk tier may have, and since when they are there.
//!
//! A block in steady use stays in memory while others come and go, so no load offers it to the disk again. Its copy there is
//! the oldest some day, and makes room. The writer then looks here for blocks that have been in memory while twice as many bytes
//! were loaded as the memory holds, and writes them again: the blocks used most are on the disk when the process is killed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bywash_mem::BlockKey;
use foldhash::fast::RandomState;
use parking_lot::Mutex;

use super::version::DiskVersion;

/// Memories of loads after which a block that is still there is in steady use: others were evicted by then.
const SETTLED_EPOCHS: u64 = 2;
/// Memory of a block: its entry, its key's, and the name of its version.
pub(super) const RESIDENT_MEMORY: u64 = 512;
/// Blocks that one step looks at.
const STEP: usize = 256;

/// A block in memory.
#[derive(Debug)]
struct Resident {
    key: BlockKey,
    version: Arc<DiskVersion>,
    /// Epoch of its load, or of its last write as a settled block.
    since: u64,
}

#[derive(Debug, Default)]
struct ResidentTable {
    blocks: Vec<Option<Resident>>,
    /// Positions in `blocks`.
    by_key: HashMap<BlockKey, usize, RandomState>,
    free: Vec<usize>,
}

impl ResidentTable {
    fn remove(&mut self, key: BlockKey) {
        if let Some(position) = self.by_key.remove(&key) {
            self.blocks[position] = None;
            self.free.push(position);
        }
    }
}

/// The blocks in memory of versions that the tier keeps; further ones than it has room for are left out.
#[derive(Debug)]
pub(super) struct Residents {
    table: Mutex<ResidentTable>,
    /// Bytes loaded. A count, hence relaxed.
    loaded: AtomicU64,
    epoch_bytes: u64,
    max: usize,
}

impl Residents {
    /// `memory`: bytes that are loaded in an epoch. `max`: blocks.
    pub(super) fn new(memory: u64, max: usize) -> Self {
        Self {
            table: Mutex::default(),
            loaded: AtomicU64::new(0),
            epoch_bytes: memory.max(1),
            max,
        }
    }

    /// The number of the epoch, in which as many bytes are loaded as the memory holds.
    pub(super) fn epoch(&self) -> u64 {
        self.loaded.load(Relaxed) / self.epoch_bytes
    }

    /// Notes a block that came into memory. Returns whether an epoch ended.
    pub(super) fn loaded(&self, version: &Arc<DiskVersion>, key: BlockKey, bytes: u64) -> bool {
        let before = self.loaded.fetch_add(bytes, Relaxed);
        let since = (before + bytes) / self.epoch_bytes;
        let mut table = self.table.lock();
        table.remove(key);
        let position = match table.free.pop() {
            Some(position) => position,
            None if table.blocks.len() < self.max => {
                table.blocks.push(None);
                table.blocks.len() - 1
            }
            None => return since > before / self.epoch_bytes,
        };
        let version = Arc::clone(version);
        table.blocks[position] = Some(Resident {
            key,
            version,
            since,
        });
        table.by_key.insert(key, position);
        since > before / self.epoch_bytes
    }

    /// Notes that a block left the memory.
    pub(super) fn evicted(&self, key: BlockKey) {
        self.table.lock().remove(key);
    }

    /// Notes that the blocks of versions are erased.
    pub(super) fn forget(&self, is_erased: impl Fn(&DiskVersion) -> bool) {
        let mut table = self.table.lock();
        let blocks = table.blocks.iter().flatten();
        let erased = blocks.filter(|block| is_erased(&block.version));
        for key in erased.map(|block| block.key).collect::<Vec<_>>() {
            table.remove(key);
        }
    }

    /// Calls `write` with each block in steady use; if it returns `true`, the block counts as new.
    pub(super) fn for_each_settled(&self, write: impl Fn(&Arc<DiskVersion>, BlockKey) -> bool) {
        let epoch = self.epoch();
        let mut first = 0;
        loop {
            let settled: Vec<_> = {
                let table = self.table.lock();
                if first >= table.blocks.len() {
                    return;
                }
                let end = table.blocks.len().min(first + STEP);
                let blocks = table.blocks[first..end].iter().flatten();
                let settled = blocks.filter(|block| block.since + SETTLED_EPOCHS <= epoch);
                let names = settled.map(|block| (Arc::clone(&block.version), block.key));
                names.collect()
            };
            first += STEP;
            for (version, key) in settled {
                if write(&version, key) {
                    let mut table = self.table.lock();
                    let position = table.by_key.get(&key).copied();
                    let block = position.and_then(|position| table.blocks[position].as_mut());
                    if let Some(block) = block {
                        block.since = epoch;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bywash_disk::{VersionKey, VersionRecord};

    use super::*;

    fn key(block: u32) -> BlockKey {
        BlockKey {
            store: 0,
            object: 1,
            block,
        }
    }

    fn version() -> Arc<DiskVersion> {
        let record = VersionRecord {
            url: "s3://data".to_owned(),
            object: "object".to_owned(),
            validator: "\"1\"".to_owned(),
            size: 1 << 40,
            block_size: 4096,
        };
        let key = VersionKey::of(&record);
        Arc::new(DiskVersion { record, key })
    }

    fn settled(residents: &Residents) -> Vec<u32> {
        let found = Mutex::new(Vec::new());
        residents.for_each_settled(|_, key| {
            found.lock().push(key.block);
            true
        });
        found.into_inner()
    }

    #[test]
    fn blocks_are_settled_that_stay_while_two_memories_are_loaded() {
        let (residents, version) = (Residents::new(1000, 100), version());
        for block in 0..10 {
            residents.loaded(&version, key(block), 1);
        }
        residents.evicted(key(3));
        assert!(residents.loaded(&version, key(10), 1000));
        assert!(settled(&residents).is_empty());
        assert!(!residents.loaded(&version, key(11), 980));
        // Loaded again, so it was not in memory all the time.
        residents.loaded(&version, key(4), 30);
        assert_eq!(settled(&residents), [0, 1, 2, 5, 6, 7, 8, 9]);
        assert!(settled(&residents).is_empty(), "they count as new");
        residents.forget(|erased| erased.key == version.key);
        residents.loaded(&version, key(12), 5000);
        assert!(settled(&residents).is_empty());
    }

    #[test]
    fn further_blocks_than_there_is_room_for_are_left_out() {
        let (residents, version) = (Residents::new(1000, 3), version());
        for block in 0..5 {
            residents.loaded(&version, key(block), 1);
        }
        residents.evicted(key(1));
        residents.loaded(&version, key(5), 1);
        residents.loaded(&version, key(4), 2000);
        assert_eq!(settled(&residents), [0, 5, 2]);
    }
}
