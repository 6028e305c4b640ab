//! Cache of decoded file tails, charged to the budget.

use std::collections::HashMap;
use std::sync::Arc;

use bywash_mem::Budget;
use object_store::ObjectStore;
use parking_lot::Mutex;

use super::charge::Charge;
use super::layout::Layout;
use super::read::layout;
use crate::SeriesError;
use crate::manifest::FileEntry;

/// Tails use at most this fraction of the budget.
const PART_OF_BUDGET: u64 = 8;

/// Decoded tails by file name, with least-recently-used eviction.
#[derive(Debug)]
pub(crate) struct LayoutCache {
    pub(crate) store: Arc<dyn ObjectStore>,
    budget: Budget,
    cached: Mutex<CachedLayouts>,
}

#[derive(Debug, Default)]
struct CachedLayouts {
    layouts: HashMap<String, Entry>,
    bytes: u64,
    /// Counts uses, for the eviction order.
    uses: u64,
}

#[derive(Debug)]
struct Entry {
    layout: Arc<Layout>,
    used: u64,
}

impl CachedLayouts {
    fn remove(&mut self, name: &str) {
        if let Some(entry) = self.layouts.remove(name) {
            self.bytes -= entry.layout.memory();
        }
    }

    fn remove_oldest(&mut self) -> bool {
        let oldest = self.layouts.iter().min_by_key(|(_, entry)| entry.used);
        let Some(name) = oldest.map(|(name, _)| name.clone()) else {
            return false;
        };
        self.remove(&name);
        true
    }

    /// Evicts until `bytes` more are below `max`. Returns false if they exceed it alone.
    fn make_room(&mut self, bytes: u64, max: u64) -> bool {
        while self.bytes + bytes > max {
            if !self.remove_oldest() {
                return false;
            }
        }
        true
    }
}

impl LayoutCache {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, budget: Budget) -> Self {
        Self {
            store,
            budget,
            cached: Mutex::default(),
        }
    }

    /// A charge of a reader; one that charges nothing if its caller has charged the memory of its
    /// reads.
    pub(crate) fn charge(&self, charged_by_caller: bool) -> Charge {
        Charge::new((!charged_by_caller).then_some(&self.budget))
    }

    /// Reads and decodes a tail. One that exceeds its part of the budget, or that the caller has charged, is not cached.
    ///
    /// Fails with [`SeriesError::NoMemory`] before anything is read.
    pub(crate) async fn load(
        &self,
        file: &FileEntry,
        charged_by_caller: bool,
    ) -> Result<Arc<Layout>, SeriesError> {
        let mut charge = self.charge(charged_by_caller);
        if charge.grow(Layout::decoding_bytes(file)).is_err() {
            // Cached tails that no reader uses give up their memory.
            *self.cached.lock() = CachedLayouts::default();
            charge.grow(Layout::decoding_bytes(file))?;
        }
        let layout = layout(&*self.store, file, charge).await?;
        Ok(self.insert(&file.name, layout))
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Layout>> {
        let mut cached = self.cached.lock();
        cached.uses += 1;
        let now = cached.uses;
        let entry = cached.layouts.get_mut(name)?;
        entry.used = now;
        Some(Arc::clone(&entry.layout))
    }

    fn insert(&self, name: &str, mut layout: Layout) -> Arc<Layout> {
        let max = self.budget.limit() / PART_OF_BUDGET;
        let mut cached = self.cached.lock();
        cached.remove(name);
        let bytes = layout.memory();
        if !cached.make_room(bytes, max) || !layout.charge_as_cached() {
            return Arc::new(layout);
        }
        let layout = Arc::new(layout);
        cached.bytes += bytes;
        cached.uses += 1;
        let entry = Entry {
            layout: Arc::clone(&layout),
            used: cached.uses,
        };
        cached.layouts.insert(name.to_owned(), entry);
        layout
    }

    pub(crate) fn remove(&self, name: &str) {
        self.cached.lock().remove(name);
    }
}
