//! Cache of decoded file tails, charged to the budget.

use std::collections::HashMap;
use std::sync::Arc;

use bywash_mem::{Budget, Reservation, Share};
use object_store::ObjectStore;
use parking_lot::Mutex;

use super::layout::Layout;
use super::read::{FileReader, layout};
use crate::SeriesError;
use crate::manifest::FileEntry;

/// Tails use at most this fraction of the budget.
const PART_OF_BUDGET: u64 = 8;

/// Decoded tails by file name, with least-recently-used eviction.
#[derive(Debug)]
pub(crate) struct LayoutCache {
    store: Arc<dyn ObjectStore>,
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
    charge: Reservation,
}

impl CachedLayouts {
    fn remove(&mut self, name: &str) {
        if let Some(entry) = self.layouts.remove(name) {
            self.bytes -= entry.charge.bytes();
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
}

impl LayoutCache {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, budget: Budget) -> Self {
        Self {
            store,
            budget,
            cached: Mutex::default(),
        }
    }

    /// Opens a reader of the file. A tail that exceeds the budget is not cached.
    pub(crate) async fn open(&self, file: &FileEntry) -> Result<FileReader, SeriesError> {
        let layout = match self.get(&file.name) {
            Some(layout) => layout,
            None => {
                let layout = Arc::new(layout(&*self.store, file).await?);
                self.insert(&file.name, &layout);
                layout
            }
        };
        Ok(FileReader::new(
            Arc::clone(&self.store),
            file.clone(),
            layout,
        ))
    }

    fn get(&self, name: &str) -> Option<Arc<Layout>> {
        let mut cached = self.cached.lock();
        cached.uses += 1;
        let now = cached.uses;
        let entry = cached.layouts.get_mut(name)?;
        entry.used = now;
        Some(Arc::clone(&entry.layout))
    }

    fn insert(&self, name: &str, layout: &Arc<Layout>) {
        let max = self.budget.limit() / PART_OF_BUDGET;
        let mut cached = self.cached.lock();
        cached.remove(name);
        while cached.bytes + layout.memory > max {
            if !cached.remove_oldest() {
                return;
            }
        }
        let Some(charge) = self.budget.try_reserve(Share::Download, layout.memory) else {
            return;
        };
        cached.bytes += layout.memory;
        cached.uses += 1;
        let entry = Entry {
            layout: Arc::clone(layout),
            used: cached.uses,
            charge,
        };
        cached.layouts.insert(name.to_owned(), entry);
    }

    pub(crate) fn remove(&self, name: &str) {
        self.cached.lock().remove(name);
    }
}
