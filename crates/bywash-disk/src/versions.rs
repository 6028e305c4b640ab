//! Numbers of versions: an entry of the index has 4 bytes for its version in place of 16.

use hashbrown::HashTable;

use crate::format::{NameHash, VersionKey};
use crate::index::spread;

/// Memory of a version: its slot, the slot's number when it is free, and its entries in both tables, at their highest load
/// of 7/8.
pub(crate) const VERSION_MEMORY: u64 = size_of::<Slot>() as u64 + 4 + 6 + 11;

#[derive(Debug)]
struct Slot {
    key: VersionKey,
    name: NameHash,
    /// Blocks of the version in the index.
    blocks: u32,
    /// Its blocks are no longer found.
    erased: bool,
}

/// Versions of one name.
#[derive(Debug)]
struct Name {
    hash: NameHash,
    versions: u32,
}

/// The versions that have blocks in the index. All memory is allocated at the start.
#[derive(Debug)]
pub(crate) struct Versions {
    /// Numbers by key.
    by_key: HashTable<u32>,
    names: HashTable<Name>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Blocks of erased versions that have not left the index.
    erased_blocks: u64,
}

impl Versions {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self {
            by_key: HashTable::with_capacity(capacity),
            names: HashTable::with_capacity(capacity),
            slots: Vec::with_capacity(capacity),
            free: Vec::with_capacity(capacity),
            erased_blocks: 0,
        }
    }

    /// Memory of the tables in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let tables = self.by_key.allocation_size() + self.names.allocation_size();
        let slots = size_of::<Slot>() * self.slots.capacity();
        (tables + slots + size_of::<u32>() * self.free.capacity()) as u64
    }

    /// Number of a version whose blocks can be found.
    pub(crate) fn find(&self, key: VersionKey) -> Option<u32> {
        let is_key = |number: &u32| self.slots[*number as usize].key == key;
        self.by_key.find(hash(key), is_key).copied()
    }

    /// Key of a version whose blocks can be found.
    pub(crate) fn key(&self, number: u32) -> Option<VersionKey> {
        let slot = self.slots.get(number as usize)?;
        (slot.blocks > 0 && !slot.erased).then_some(slot.key)
    }

    /// Number of blocks of a version that can be found.
    pub(crate) fn blocks(&self, key: VersionKey) -> u32 {
        let number = self.find(key);
        number.map_or(0, |number| self.slots[number as usize].blocks)
    }

    /// Whether blocks of any version of an object can be found. Objects whose names have the same
    /// hash are taken for one.
    pub(crate) fn has_name(&self, name: NameHash) -> bool {
        self.names
            .find(spread(name.0.into()), |entry| entry.hash == name)
            .is_some()
    }

    /// Counts one block of a version, and returns its number.
    pub(crate) fn add_block(&mut self, key: VersionKey, name: NameHash) -> u32 {
        let number = self.find(key).unwrap_or_else(|| self.new_slot(key, name));
        self.slots[number as usize].blocks += 1;
        number
    }

    fn new_slot(&mut self, key: VersionKey, name: NameHash) -> u32 {
        let slot = Slot {
            key,
            name,
            blocks: 0,
            erased: false,
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.slots[number as usize] = slot;
                number
            }
            None => {
                self.slots.push(slot);
                u32::try_from(self.slots.len() - 1).expect("the index has fewer than 2^32 blocks")
            }
        };
        let slots = &self.slots;
        let rehash = |number: &u32| hash(slots[*number as usize].key);
        self.by_key.insert_unique(hash(key), number, rehash);
        let rehash = |entry: &Name| spread(entry.hash.0.into());
        let entry = self
            .names
            .entry(spread(name.0.into()), |entry| entry.hash == name, rehash)
            .or_insert(Name {
                hash: name,
                versions: 0,
            });
        entry.into_mut().versions += 1;
        number
    }

    /// Discounts one block; the last one releases the number.
    pub(crate) fn remove_block(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        slot.blocks -= 1;
        self.erased_blocks -= u64::from(slot.erased);
        if slot.blocks == 0 {
            if !slot.erased {
                let key = slot.key;
                self.unlink(key);
            }
            self.free.push(number);
        }
    }

    /// Makes the blocks of a version unfindable. They leave the index with their segments.
    pub(crate) fn erase(&mut self, key: VersionKey) -> bool {
        let number = self.unlink(key);
        if let Some(number) = number {
            let slot = &mut self.slots[number as usize];
            slot.erased = true;
            self.erased_blocks += u64::from(slot.blocks);
        }
        number.is_some()
    }

    /// Removes a version from both tables.
    fn unlink(&mut self, key: VersionKey) -> Option<u32> {
        let slots = &self.slots;
        let is_key = |number: &u32| slots[*number as usize].key == key;
        let found = self.by_key.find_entry(hash(key), is_key).ok()?;
        let (number, _) = found.remove();
        let name = self.slots[number as usize].name;
        let found = self
            .names
            .find_entry(spread(name.0.into()), |entry| entry.hash == name);
        if let Ok(mut entry) = found {
            entry.get_mut().versions -= 1;
            if entry.get().versions == 0 {
                entry.remove();
            }
        }
        Some(number)
    }

    /// Number of blocks in the index that cannot be found.
    pub(crate) fn erased_blocks(&self) -> u64 {
        self.erased_blocks
    }

    /// Number of versions whose blocks can be found.
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }
}

/// Keys are parts of SHA-256, and so are their first bytes.
fn hash(key: VersionKey) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&key.0[..8]);
    u64::from_le_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_while_a_version_of_them_has_blocks() {
        let mut versions = Versions::with_capacity(4);
        let (name, other) = (NameHash(7), NameHash(8));
        let first = versions.add_block(VersionKey([1; 16]), name);
        let second = versions.add_block(VersionKey([2; 16]), name);
        assert!(versions.has_name(name) && !versions.has_name(other));
        versions.remove_block(first);
        assert!(versions.has_name(name));
        assert!(versions.erase(VersionKey([2; 16])));
        assert!(!versions.has_name(name));
        assert_eq!(versions.erased_blocks(), 1);
        versions.remove_block(second);
        assert_eq!((versions.len(), versions.erased_blocks()), (0, 0));
        // Both numbers are used again.
        for key in [3, 4] {
            assert!(versions.add_block(VersionKey([key; 16]), name) < 2);
        }
    }
}
