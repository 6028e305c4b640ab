//! The directory: which catalogs a database has, and which ids its series have in all catalogs.
//!
//! Mostly there is one catalog. While it is being replaced, writers of two generations each have
//! one of two: a series is then made in one catalog, under an id that no series of the other has,
//! and copied from the other where a writer needs it. Both happen under one lock, which only new
//! names and handles of a catalog before take.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::SeriesError;
use crate::catalog::{Catalog, SeriesHandle};
use crate::memtable::{MemoryReservation, RowMemory};

/// Catalogs of a database, and ids of its series.
#[derive(Debug)]
pub(crate) struct Directory {
    state: Mutex<DirectoryState>,
    /// All ids given out are below it.
    end: AtomicU32,
    /// Bytes charged for series, without their rows: the bytes of catalogs beyond empty ones.
    bytes: AtomicU64,
    /// Bytes of an empty catalog, which are not charged.
    empty: u64,
    /// Series made since the last sweep.
    created: AtomicU64,
    /// Whether a new series, or rows, found no memory since the last sweep began.
    refused: AtomicBool,
}

#[derive(Debug)]
struct DirectoryState {
    /// Epoch of new series: the epoch of the newest catalog without one that it replaces.
    epoch: u32,
    /// Ids of series that left, the lowest first, so that few parts of the catalog are in use.
    free: BinaryHeap<Reverse<u32>>,
    catalogs: Catalogs,
    /// Readers during which no replacement begins.
    holders: usize,
}

/// Catalogs that a reader holds: no replacement begins until it drops them.
struct HeldCatalogs<'a> {
    directory: &'a Directory,
    catalogs: Catalogs,
}

impl<'a> HeldCatalogs<'a> {
    fn new(directory: &'a Directory) -> Self {
        let mut state = directory.state.lock();
        state.holders += 1;
        let catalogs = state.catalogs.clone();
        Self {
            directory,
            catalogs,
        }
    }
}

impl Drop for HeldCatalogs<'_> {
    fn drop(&mut self) {
        self.directory.state.lock().holders -= 1;
    }
}

/// Catalogs of one moment.
#[derive(Debug, Clone)]
pub(crate) struct Catalogs {
    /// Number of replacements begun.
    begun: u64,
    /// The catalog being replaced. Rows move from it to the other one.
    pub(crate) before: Option<Arc<Catalog>>,
    pub(crate) current: Arc<Catalog>,
}

impl Catalogs {
    /// In the order in which rows move, so that a reader that visits them in turn misses none.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Catalog> {
        let catalogs = self.before.iter().chain([&self.current]);
        catalogs.map(|catalog| &**catalog)
    }

    /// The catalog that is not `one`.
    fn other(&self, one: &Catalog) -> Option<&Catalog> {
        self.iter().find(|catalog| !std::ptr::eq(*catalog, one))
    }
}

impl Default for Directory {
    fn default() -> Self {
        let current = Arc::new(Catalog::new(0));
        let empty = current.bytes();
        let catalogs = Catalogs {
            begun: 0,
            before: None,
            current,
        };
        Self {
            state: Mutex::new(DirectoryState {
                epoch: 0,
                free: BinaryHeap::new(),
                catalogs,
                holders: 0,
            }),
            end: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            empty,
            created: AtomicU64::new(0),
            refused: AtomicBool::new(false),
        }
    }
}

impl Directory {
    pub(crate) fn catalogs(&self) -> Catalogs {
        self.state.lock().catalogs.clone()
    }

    /// The catalog of the newest generation.
    pub(crate) fn current(&self) -> Arc<Catalog> {
        Arc::clone(&self.state.lock().catalogs.current)
    }

    /// Reads all catalogs by `read`, and once more if a replacement began during that: rows may
    /// have moved to a catalog that was not read. None begins during the second time, so that there
    /// is no third.
    pub(crate) fn read<T>(&self, mut read: impl FnMut(&Catalogs) -> T) -> T {
        let catalogs = self.catalogs();
        let result = read(&catalogs);
        if self.state.lock().catalogs.begun == catalogs.begun {
            return result;
        }
        drop((result, catalogs));
        let held = HeldCatalogs::new(self);
        read(&held.catalogs)
    }

    /// Makes a series in `catalog`, which belongs to the caller's generation: a new one, or the
    /// other catalog's. Does nothing if it exists. Charges its bytes, while all series together
    /// take at most `max_bytes`.
    pub(crate) fn create(
        &self,
        catalog: &Catalog,
        names: (&str, &str),
        (memory, max_bytes): (&MemoryReservation, u64),
    ) -> Result<(), SeriesError> {
        let mut state = self.state.lock();
        if catalog.find(names.0, names.1).is_some() {
            return Ok(());
        }
        let other = state.catalogs.other(catalog);
        if let Some(series) = other.and_then(|other| other.find(names.0, names.1)) {
            catalog.add(series.handle, names, Some(series));
            return Ok(());
        }
        // Relaxed: written under the lock.
        let end = self.end.load(Ordering::Relaxed);
        let too_many = || SeriesError::TooManySeries {
            series: state.catalogs.current.len(),
            limit: max_bytes,
        };
        let id = state.free.peek().map_or(end, |Reverse(id)| *id);
        let charge = catalog.bytes_to_add(id, names);
        if id == u32::MAX || self.bytes() + charge > max_bytes || !memory.try_charge(charge) {
            self.mark_refused();
            return Err(too_many());
        }
        state.free.pop();
        // Relaxed: as above; a reader of `end` has a handle, which it got after this.
        self.end.store(end.max(id + 1), Ordering::Relaxed);
        let before = catalog.bytes();
        catalog.add(SeriesHandle(id, state.epoch), names, None);
        let bytes = catalog.bytes() - before;
        if bytes < charge {
            memory.release(RowMemory::heap(charge - bytes));
        }
        // Relaxed: counts.
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        // Relaxed: as above.
        self.created.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Copies the series of a handle into `catalog` if it does not have it and another catalog does. Returns whether it has it
    /// now.
    pub(crate) fn carry(&self, catalog: &Catalog, handle: SeriesHandle) -> bool {
        let state = self.state.lock();
        if catalog.by_id(handle.0).is_some() {
            return catalog.series(handle).is_some();
        }
        let Some(other) = state.catalogs.other(catalog) else {
            return false;
        };
        let Some(series) = other.series(handle) else {
            return false;
        };
        let (source, metric) = other.names(series);
        catalog.add(series.handle, (source, metric), Some(series));
        true
    }

    /// Begins a replacement: readers visit `next` too. Returns false, and does nothing, while a reader holds the catalogs.
    #[must_use]
    pub(crate) fn begin(&self, next: Arc<Catalog>) -> bool {
        let mut state = self.state.lock();
        if state.holders > 0 {
            return false;
        }
        let before = std::mem::replace(&mut state.catalogs.current, next);
        state.catalogs.before = Some(before);
        state.catalogs.begun += 1;
        true
    }

    /// Ends a replacement: no writer has the catalog before, and its rows are in the other one. A
    /// series that was not copied until now has left. Returns the catalog before.
    pub(crate) fn end(&self) -> Option<Arc<Catalog>> {
        let mut state = self.state.lock();
        state.epoch = state.catalogs.current.epoch;
        state.catalogs.before.take()
    }

    /// Gives back the ids of series that have left.
    pub(crate) fn free(&self, ids: &[u32]) {
        let mut state = self.state.lock();
        state.free.extend(ids.iter().map(|id| Reverse(*id)));
    }

    /// Releases the charge that the replaced catalog no longer needs.
    pub(crate) fn settle(&self, memory: &MemoryReservation) {
        let freed = {
            let state = self.state.lock();
            let bytes = state.catalogs.current.bytes();
            let charged = self.bytes();
            let freed = (charged + self.empty).saturating_sub(bytes).min(charged);
            // Relaxed: written under the lock.
            self.bytes.store(charged - freed, Ordering::Relaxed);
            freed
        };
        memory.release(RowMemory::heap(freed));
    }

    /// Error of a handle that no catalog has.
    pub(crate) fn unknown(&self, handle: SeriesHandle) -> SeriesError {
        // Relaxed: as in `create`.
        if handle.0 < self.end.load(Ordering::Relaxed) {
            SeriesError::Departed
        } else {
            SeriesError::UnknownHandle(handle.0)
        }
    }

    /// All ids given out are below it.
    pub(crate) fn end_of_ids(&self) -> u32 {
        // Relaxed: as in `create`.
        self.end.load(Ordering::Relaxed)
    }

    /// Bytes charged for series, without their rows.
    pub(crate) fn bytes(&self) -> u64 {
        // Relaxed: a count.
        self.bytes.load(Ordering::Relaxed)
    }

    /// Series made since the last sweep.
    pub(crate) fn created(&self) -> u64 {
        // Relaxed: a count.
        self.created.load(Ordering::Relaxed)
    }

    /// Makes a sweep due: names leave too little memory for a writer.
    pub(crate) fn mark_refused(&self) {
        // Relaxed: the writer waits for the end of a sweep, and calls this again if it found no
        // memory since that began.
        self.refused.store(true, Ordering::Relaxed);
    }

    /// Whether a writer waits for names to leave.
    pub(crate) fn is_refused(&self) -> bool {
        // Relaxed: as above.
        self.refused.load(Ordering::Relaxed)
    }

    /// Restarts the count of series made since the last sweep.
    pub(crate) fn swept(&self) {
        // Relaxed: a count.
        self.created.store(0, Ordering::Relaxed);
        // Relaxed: as in `mark_refused`.
        self.refused.store(false, Ordering::Relaxed);
    }
}
