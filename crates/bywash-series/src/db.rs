//! The database handle and the write path.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bywash_mem::Gated;

use crate::background::BackgroundWorker;
use crate::backpressure::{Backpressure, StoreFailure, Waits};
use crate::catalog::{Catalog, LOOKUP_BATCH, SeriesHandle};
use crate::grouping::{GROUPED_ROWS, Grouping, group_by_series};
use crate::manifest::DataFiles;
use crate::memtable::{Memtable, Series};
use crate::options::SeriesOptions;
use crate::stats::{Counters, SeriesStats};
use crate::wal::{Kind, Position, Wal, put_name_entry, put_rows};
use crate::write_batch::WriteBatch;
use crate::{Ack, Row, SeriesError};

mod opening;

pub use opening::PreparedDb;

/// Max rows of a log frame: some 100 KiB.
const ROWS_PER_FRAME: usize = GROUPED_ROWS;

/// A database of series. A cheap handle; clones share one database.
#[derive(Debug, Clone)]
pub struct SeriesDb(pub(crate) Arc<Inner>);

/// Owned by the handles: the shared state, and the background worker, which ends with the last handle.
#[derive(Debug)]
pub(crate) struct Inner {
    shared: Arc<Shared>,
    /// `None` of a database that is only read.
    worker: Option<BackgroundWorker>,
}

impl Deref for Inner {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

/// State shared by handles and background worker.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: SeriesOptions,
    pub(crate) memtable: Arc<Memtable>,
    pub(crate) wal: Option<Wal>,
    pub(crate) files: DataFiles,
    /// Generations of writers, each with its catalog.
    pub(crate) gate: Gated<Catalog>,
    pub(crate) opened: Instant,
    pub(crate) backpressure: Backpressure,
    pub(crate) counters: Counters,
    /// Whether writers must not write: the log has no space until a flush, or another process took the store over.
    blocked: AtomicBool,
    /// Whether another process took the store over.
    superseded: AtomicBool,
    /// Whether the database is closed. Read inside a generation, set before that generation is closed.
    closed: AtomicBool,
    recovery: RecoveryStats,
}

/// Counts of the recovery at open.
#[derive(Debug, Default)]
struct RecoveryStats {
    replayed_rows: u64,
    unnamed_rows: u64,
    unclean: bool,
}

impl SeriesDb {
    /// Returns the handle of a series, and creates the series if it is new. Lookups of known names take no lock.
    ///
    /// It is valid as long as the series is in memory: while it has rows there, and for [`SeriesOptions::idle_names`] after.
    /// Handles of a series that was in memory all the time stay valid.
    ///
    /// Does not wait for memory, as [`Self::insert_rows`] does.
    ///
    /// # Errors
    /// [`SeriesError::NameTooLong`]; [`SeriesError::TooManySeries`].
    pub fn handle(&self, source: &str, metric: &str) -> Result<SeriesHandle, SeriesError> {
        let inside = self.0.gate.enter();
        let handle = inside.handle(source, metric, &self.0.memtable)?;
        // It is not to leave before its first row.
        inside.series(handle).inspect(|series| series.touch());
        Ok(handle)
    }

    /// Writes one row, as [`Self::append_batch`] does.
    ///
    /// # Errors
    /// As [`Self::append_batch`].
    pub fn append(
        &self,
        series: SeriesHandle,
        timestamp: i64,
        value: f64,
    ) -> Result<(), SeriesError> {
        self.append_batch(&[(series, timestamp, value)])
    }

    /// Writes rows. A later row replaces an earlier one of the same series and timestamp. Among concurrent writers,
    /// the order in which they lock the series decides. Consecutive rows of one series are cheapest.
    ///
    /// Blocks the thread as [`SeriesOptions::ack`] requires, and up to [`SeriesOptions::write_timeout`] while memory
    /// or log are full, as they become while the store is down. Readers see rows before that. A batch is not atomic:
    /// after an error some of its rows may be stored.
    ///
    /// # Errors
    /// [`SeriesError::UnknownHandle`]; [`SeriesError::Departed`]; [`SeriesError::WriteStalled`];
    /// [`SeriesError::AnotherWriter`]; [`SeriesError::Closed`].
    pub fn append_batch(&self, rows: &[(SeriesHandle, i64, f64)]) -> Result<(), SeriesError> {
        let shared = &*self.0;
        let position = shared.write_rows(rows, &mut Waits::default())?;
        shared.acknowledge(position)
    }

    /// Begins a batch of rows with one acknowledgement: one log write and one sync, however many calls insert them.
    pub fn batch(&self) -> WriteBatch<'_> {
        WriteBatch::new(&self.0)
    }

    /// Writes rows by name, as [`Self::append_batch`] does. New names that do not fit in memory wait likewise, until others
    /// leave it. Lookups of neighbouring rows overlap.
    ///
    /// # Errors
    /// [`SeriesError::NameTooLong`]; as [`Self::append_batch`].
    pub fn insert_rows(&self, rows: &[Row<'_>]) -> Result<(), SeriesError> {
        let mut batch = self.batch();
        batch.insert_rows(rows)?;
        batch.commit()
    }

    /// Flushes all rows in memory to files. Afterwards all earlier rows are in files. Their log segments are deleted,
    /// except the one being written.
    ///
    /// # Errors
    /// [`SeriesError::Store`] and other errors of files; no row is lost, and a retry is safe.
    /// [`SeriesError::Closed`].
    pub async fn flush(&self) -> Result<(), SeriesError> {
        match &self.0.worker {
            Some(worker) => worker.flush().await,
            None => Err(SeriesError::Closed),
        }
    }

    /// Returns why rows do not leave memory and log, if flushes fail or one takes long.
    #[must_use]
    pub fn store_failure(&self) -> Option<StoreFailure> {
        self.0.backpressure.store_failure()
    }

    /// Returns counters and sizes.
    #[must_use]
    pub fn stats(&self) -> SeriesStats {
        let memtable = &self.0.memtable;
        let version = self.0.files.version();
        SeriesStats {
            files: version.files().len() as u64,
            file_bytes: version.bytes(),
            series: memtable.directory.current().len() as u64,
            memtable_bytes: memtable.memory.used(),
            memtable_limit: memtable.memory.limit(),
            wal_bytes: self.0.wal.as_ref().map_or(0, Wal::bytes),
            wal_limit: self.0.options.wal_bytes,
            replayed_rows: self.0.recovery.replayed_rows,
            unnamed_rows: self.0.recovery.unnamed_rows,
            unclean_stop: self.0.recovery.unclean,
            ..self.0.counters.read()
        }
    }
}

thread_local! {
    /// Buffer for the log frame under construction, reused between batches: at most some 128 KiB.
    static BODY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// Rows of the frame under construction by series, reused between batches.
    static GROUPING: RefCell<Grouping> = const { RefCell::new(Grouping::new()) };
}

impl Shared {
    fn is_closed(&self) -> bool {
        // SeqCst: pairs with `SeriesDb::close` around the gate: a writer that misses the store is waited for there.
        self.closed.load(Ordering::SeqCst)
    }

    /// The first partition that may still receive rows within the out-of-order window.
    pub(crate) fn first_open_partition(&self) -> i64 {
        let out_of_order_window =
            i64::try_from(self.options.out_of_order_window.as_nanos()).unwrap_or(i64::MAX);
        self.memtable
            .width
            .partition(self.options.clock.now().saturating_sub(out_of_order_window))
    }

    /// Blocks writers, or lets them write again, by the size of the log.
    pub(crate) fn update_log_full(&self, bytes: u64) {
        // Relaxed: see `write_rows`.
        let blocked = bytes >= self.options.wal_bytes || self.superseded.load(Ordering::Relaxed);
        // Relaxed: as above.
        if blocked != self.blocked.load(Ordering::Relaxed) {
            // Relaxed: as above.
            self.blocked.store(blocked, Ordering::Relaxed);
        }
    }

    /// Refuses all writes from now on if this outcome is that another process took the store over.
    pub(crate) fn check_superseded(&self, outcome: &Result<(), SeriesError>) {
        if matches!(outcome, Err(SeriesError::AnotherWriter)) {
            // Relaxed: a writer that misses it writes one more batch to its log, as it did before.
            self.superseded.store(true, Ordering::Relaxed);
            // Relaxed: as above.
            self.blocked.store(true, Ordering::Relaxed);
        }
    }

    /// Waits until a flush has ended, for a writer that found no space.
    fn wait_for_space(&self, stored: usize, waits: &mut Waits) -> Result<(), SeriesError> {
        self.check_writable()?;
        self.backpressure
            .wait(stored, waits, self.options.write_timeout)
    }

    /// Fails if a handle is not of this database.
    fn check_handles(&self, rows: &[(SeriesHandle, i64, f64)]) -> Result<(), SeriesError> {
        let highest = rows.iter().map(|(handle, ..)| handle.0).max();
        match highest {
            Some(highest) if highest >= self.memtable.directory.end_of_ids() => {
                Err(SeriesError::UnknownHandle(highest))
            }
            _ => Ok(()),
        }
    }

    /// Writes rows to memory and to the pending frames of the log. Returns their end position in the log.
    pub(crate) fn write_rows(
        &self,
        rows: &[(SeriesHandle, i64, f64)],
        waits: &mut Waits,
    ) -> Result<Option<Position>, SeriesError> {
        self.check_handles(rows)?;
        let mut position = None;
        GROUPING.with_borrow_mut(|grouping| {
            for (frame, first) in rows
                .chunks(ROWS_PER_FRAME)
                .zip((0..).step_by(ROWS_PER_FRAME))
            {
                let mut rows = group_by_series(frame, grouping);
                while !rows.is_empty() {
                    // Relaxed: a writer that misses an update writes one more batch.
                    let blocked = self.blocked.load(Ordering::Relaxed);
                    let (count, at) = if blocked {
                        (0, None)
                    } else {
                        self.try_write(rows)?
                    };
                    if count == 0 {
                        if !blocked {
                            self.memtable.rows_refused();
                        }
                        // Rows of this frame are stored by series, not from its first on.
                        self.wait_for_space(first, waits)?;
                    }
                    rows = &rows[count..];
                    position = at.or(position);
                }
            }
            Ok(position)
        })
    }

    /// Writes as many leading rows as memory allows. Returns their number and their position in the log.
    fn try_write(
        &self,
        rows: &[(SeriesHandle, i64, f64)],
    ) -> Result<(usize, Option<Position>), SeriesError> {
        let inside = self.gate.enter();
        if self.is_closed() {
            return Err(SeriesError::Closed);
        }
        BODY.with_borrow_mut(|body| {
            body.clear();
            let stored = self.write_memtable(&inside, rows, inside.generation(), body)?;
            self.counters.rows(stored);
            let position = match &self.wal {
                Some(wal) if stored > 0 => {
                    let (position, bytes) = wal.append(Kind::Rows, inside.generation(), body)?;
                    self.update_log_full(bytes);
                    Some(position)
                }
                _ => None,
            };
            Ok((stored, position))
        })
    }

    /// Writes to the memtable first: the lock of a series orders concurrent writers, and the log records that order.
    fn write_memtable(
        &self,
        catalog: &Catalog,
        rows: &[(SeriesHandle, i64, f64)],
        generation: u64,
        body: &mut Vec<u8>,
    ) -> Result<usize, SeriesError> {
        let Memtable { width, memory, .. } = &*self.memtable;
        let mut stored = 0;
        let mut prefetched_until = 0;
        let mut last = 0;
        for run in rows.chunk_by(|a, b| a.0 == b.0) {
            if stored >= prefetched_until && run.len() < rows.len() {
                prefetched_until = (stored + LOOKUP_BATCH).min(rows.len());
                catalog.prefetch(rows[stored..prefetched_until].iter().map(|row| row.0));
            }
            let handle = run[0].0;
            let Some(series) = self.series_of(catalog, handle) else {
                if stored == 0 {
                    return Err(self.memtable.directory.unknown(handle));
                }
                // The rows before are logged first.
                break;
            };
            let mut guard = series.lock(generation);
            let write_seq = guard.write_seq();
            if write_seq == 0
                && let Some(wal) = &self.wal
            {
                // Under the series' lock: the name precedes all rows of the series in the log, whichever writer
                // appends first.
                self.log_name(wal, generation, (catalog, series))?;
            }
            let written = guard.write(*width, memory, run);
            if written > 0 && self.wal.is_some() {
                guard.advance_write_seq();
                drop(guard);
                put_rows((handle, write_seq), &run[..written], &mut last, body);
            }
            stored += written;
            if written < run.len() {
                break;
            }
        }
        Ok(stored)
    }

    /// Series of a handle in the catalog of a generation.
    #[inline]
    fn series_of<'c>(&self, catalog: &'c Catalog, handle: SeriesHandle) -> Option<&'c Series> {
        let known = catalog.series(handle);
        known.or_else(|| self.carried(catalog, handle))
    }

    /// Copies the series from a catalog that is being replaced.
    #[cold]
    fn carried<'c>(&self, catalog: &'c Catalog, handle: SeriesHandle) -> Option<&'c Series> {
        let carried = self.memtable.directory.carry(catalog, handle);
        carried.then(|| catalog.series(handle)).flatten()
    }

    #[cold]
    fn log_name(
        &self,
        wal: &Wal,
        generation: u64,
        (catalog, series): (&Catalog, &Series),
    ) -> Result<(), SeriesError> {
        let (source, metric) = catalog.names(series);
        let mut body = Vec::with_capacity(source.len() + metric.len() + 16);
        put_name_entry(series.handle, (source, metric), &mut body);
        wal.append(Kind::Names, generation, &body).map(drop)
    }

    /// Blocks until the log reaches `position` to the degree that `ack` requires.
    pub(crate) fn acknowledge(&self, position: Option<Position>) -> Result<(), SeriesError> {
        let (Some(wal), Some(position)) = (&self.wal, position) else {
            return Ok(());
        };
        match self.options.ack {
            Ack::Memory => wal.flush_if_large(),
            Ack::Written => wal.commit(position, false),
            Ack::Synced => wal.commit(position, true),
        }
    }
}

#[cfg(test)]
mod tests;
