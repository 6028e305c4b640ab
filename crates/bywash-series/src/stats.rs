//! Counters.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// Counters since the database was opened, and its current sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct SeriesStats {
    /// Series whose names are in memory.
    pub series: u64,
    /// Series that have left memory since the database was opened.
    pub departed_series: u64,
    /// Rows appended.
    pub rows: u64,
    /// Bytes of rows and names in memory.
    pub memtable_bytes: u64,
    /// Max bytes of rows and names in memory.
    pub memtable_limit: u64,
    /// Bytes of log.
    pub wal_bytes: u64,
    /// Bytes of log at which writers wait for a flush.
    pub wal_limit: u64,
    /// Rows replayed from the log at open.
    pub replayed_rows: u64,
    /// Rows skipped at open because the names of their series were in skipped damage.
    pub unnamed_rows: u64,
    /// Whether the database was not closed the last time.
    pub unclean_stop: bool,
    /// Data files.
    pub files: u64,
    /// Their bytes.
    pub file_bytes: u64,
    /// Flushes completed.
    pub flushes: u64,
    /// Flushes failed; they are retried.
    pub failed_flushes: u64,
}

/// Counters updated by writers and the background worker.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    rows: AtomicU64,
    flushes: AtomicU64,
    failed_flushes: AtomicU64,
    departed_series: AtomicU64,
}

impl Counters {
    /// Counts the rows of a batch.
    pub(crate) fn rows(&self, rows: usize) {
        // Relaxed: a count.
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// Counts series that have left memory.
    pub(crate) fn departed(&self, series: u64) {
        // Relaxed: a count.
        self.departed_series.fetch_add(series, Ordering::Relaxed);
    }

    /// Counts an attempted flush.
    pub(crate) fn flush(&self, succeeded: bool) {
        let count = if succeeded {
            &self.flushes
        } else {
            &self.failed_flushes
        };
        // Relaxed: a count.
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> SeriesStats {
        SeriesStats {
            // Relaxed: counts.
            rows: self.rows.load(Ordering::Relaxed),
            flushes: self.flushes.load(Ordering::Relaxed),
            failed_flushes: self.failed_flushes.load(Ordering::Relaxed),
            departed_series: self.departed_series.load(Ordering::Relaxed),
            ..SeriesStats::default()
        }
    }
}
