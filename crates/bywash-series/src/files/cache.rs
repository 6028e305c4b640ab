//! The tails of files, kept as long as the budget has room for them.

use std::collections::HashMap;
use std::sync::Arc;

use bywash_mem::{Budget, Reservation, Share};
use object_store::ObjectStore;
use parking_lot::Mutex;

use super::layout::Layout;
use super::manifest::FileEntry;
use super::read::{FileReader, layout};
use crate::SeriesError;

/// Tails take at most one part in this many of the budget.
const PART_OF_BUDGET: u64 = 8;

/// Decoded tails by the name of their file. Those used least recently give way.
#[derive(Debug)]
pub(super) struct LayoutCache {
    store: Arc<dyn ObjectStore>,
    budget: Budget,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    layouts: HashMap<String, Entry>,
    bytes: u64,
    /// Counts the uses.
    uses: u64,
}

#[derive(Debug)]
struct Entry {
    layout: Arc<Layout>,
    used: u64,
    charge: Reservation,
}

impl Kept {
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
    pub(super) fn new(store: Arc<dyn ObjectStore>, budget: Budget) -> Self {
        Self {
            store,
            budget,
            kept: Mutex::default(),
        }
    }

    /// A reader of the file. A tail that finds no room in the budget is read again next time.
    pub(super) async fn open(&self, file: &FileEntry) -> Result<FileReader, SeriesError> {
        let layout = match self.known(&file.name) {
            Some(layout) => layout,
            None => {
                let layout = Arc::new(layout(&*self.store, file).await?);
                self.keep(&file.name, &layout);
                layout
            }
        };
        Ok(FileReader::new(
            Arc::clone(&self.store),
            file.clone(),
            layout,
        ))
    }

    fn known(&self, name: &str) -> Option<Arc<Layout>> {
        let mut kept = self.kept.lock();
        kept.uses += 1;
        let now = kept.uses;
        let entry = kept.layouts.get_mut(name)?;
        entry.used = now;
        Some(Arc::clone(&entry.layout))
    }

    fn keep(&self, name: &str, layout: &Arc<Layout>) {
        let most = self.budget.limit() / PART_OF_BUDGET;
        let mut kept = self.kept.lock();
        kept.remove(name);
        while kept.bytes + layout.memory > most {
            if !kept.remove_oldest() {
                return;
            }
        }
        let Some(charge) = self.budget.try_reserve(Share::Download, layout.memory) else {
            return;
        };
        kept.bytes += layout.memory;
        kept.uses += 1;
        let entry = Entry {
            layout: Arc::clone(layout),
            used: kept.uses,
            charge,
        };
        kept.layouts.insert(name.to_owned(), entry);
    }

    pub(super) fn forget(&self, name: &str) {
        self.kept.lock().remove(name);
    }
}
