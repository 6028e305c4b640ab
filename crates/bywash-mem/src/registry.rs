//! Which slot holds which block.

use crate::pool::BlockKey;

/// Keys of resident blocks to slots. A hint: the key in the slot, read under a pin, decides.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct Registry {
    map: papaya::HashMap<BlockKey, u32, foldhash::fast::RandomState>,
}

#[cfg(not(loom))]
impl Registry {
    pub(crate) fn new() -> Self {
        Self {
            map: papaya::HashMap::with_hasher(foldhash::fast::RandomState::default()),
        }
    }

    #[inline]
    pub(crate) fn get(&self, key: &BlockKey) -> Option<u32> {
        self.map.pin().get(key).copied()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Enters a block, in place of one of the same key on its way out.
    pub(crate) fn insert(&self, key: BlockKey, slot: u32) {
        self.map.pin().insert(key, slot);
    }

    /// Removes the key if it still means this slot. Answers whether it did.
    pub(crate) fn remove(&self, key: &BlockKey, slot: u32) -> bool {
        // An entry for another slot is left alone; that is no error.
        matches!(
            self.map.pin().remove_if(key, |_, &found| found == slot),
            Ok(Some(_))
        )
    }
}

/// Under loom a locked map: papaya is not loom's to see, and its internals are not ours to check.
#[cfg(loom)]
#[derive(Debug)]
pub(crate) struct Registry {
    map: crate::sync::Mutex<std::collections::HashMap<BlockKey, u32>>,
}

#[cfg(loom)]
impl Registry {
    pub(crate) fn new() -> Self {
        Self {
            map: crate::sync::Mutex::new(std::collections::HashMap::new()),
        }
    }

    pub(crate) fn get(&self, key: &BlockKey) -> Option<u32> {
        self.map.lock().get(key).copied()
    }

    pub(crate) fn insert(&self, key: BlockKey, slot: u32) {
        self.map.lock().insert(key, slot);
    }

    pub(crate) fn remove(&self, key: &BlockKey, slot: u32) -> bool {
        let mut map = self.map.lock();
        map.get(key) == Some(&slot) && map.remove(key).is_some()
    }
}
