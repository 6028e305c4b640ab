//! Counters.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a database did since it was opened, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SeriesStats {
    /// Series named since it was opened.
    pub series: u64,
    /// Rows appended.
    pub rows: u64,
    /// Bytes of rows and names in memory.
    pub head_bytes: u64,
    /// The most there may be.
    pub head_limit: u64,
    /// Bytes of log.
    pub wal_bytes: u64,
    /// Rows that were read from the log when it was opened.
    pub replayed_rows: u64,
    /// Rows that were left out then, because the damage that was skipped has their series' names.
    pub nameless_rows: u64,
    /// Whether it was not closed the last time.
    pub unclean_stop: bool,
    /// Sealed files.
    pub files: u64,
    /// Their bytes.
    pub file_bytes: u64,
    /// Times that rows were sealed.
    pub seals: u64,
    /// Times that this failed; it is tried again.
    pub failed_seals: u64,
}

/// What is counted while it happens.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    rows: AtomicU64,
    seals: AtomicU64,
    failed_seals: AtomicU64,
}

impl Counters {
    /// Counts rows of a batch.
    pub(crate) fn rows(&self, rows: usize) {
        // Relaxed: a count.
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// Counts an attempt to seal.
    pub(crate) fn seal(&self, well: bool) {
        let count = if well {
            &self.seals
        } else {
            &self.failed_seals
        };
        // Relaxed: a count.
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> SeriesStats {
        SeriesStats {
            // Relaxed: counts.
            rows: self.rows.load(Ordering::Relaxed),
            seals: self.seals.load(Ordering::Relaxed),
            failed_seals: self.failed_seals.load(Ordering::Relaxed),
            ..SeriesStats::default()
        }
    }
}
