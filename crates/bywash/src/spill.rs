//! The hook of the block pool for evicted blocks: blocks of scratch are written to temporary files, all others to the disk tier.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use bywash_mem::{Spill, Spilled};
use foldhash::fast::RandomState;
use parking_lot::RwLock;

/// Passes evicted blocks on.
#[derive(Debug, Default)]
pub(crate) struct SpillRouter {
    disk: OnceLock<Arc<dyn Spill>>,
    /// By number of the store ([`bywash_mem::BlockKey::store`]).
    scratches: RwLock<HashMap<u32, Weak<dyn Spill>, RandomState>>,
}

impl SpillRouter {
    /// Sets the queue of the disk tier. Once.
    pub(crate) fn set_disk(&self, queue: Arc<dyn Spill>) {
        let _ = self.disk.set(queue);
    }

    /// Adds the blocks of a store.
    pub(crate) fn add(&self, store: u32, scratch: Weak<dyn Spill>) {
        self.scratches.write().insert(store, scratch);
    }

    /// Removes the blocks of a store: all were dropped.
    pub(crate) fn remove(&self, store: u32) {
        self.scratches.write().remove(&store);
    }
}

impl Spill for SpillRouter {
    fn spill(&self, block: Spilled) -> Result<(), Spilled> {
        match self.disk.get() {
            Some(queue) => queue.spill(block),
            None => Err(block),
        }
    }

    fn store(&self, block: &Spilled) -> bool {
        let scratch = self.scratches.read().get(&block.key().store).cloned();
        let scratch = scratch.and_then(|scratch| scratch.upgrade());
        // Without a handle to the scratch no handle to the block exists.
        scratch.is_none_or(|scratch| scratch.store(block))
    }
}
