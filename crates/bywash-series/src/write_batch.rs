//! Batches of rows that are acknowledged together.

use crate::db::Shared;
use crate::wal::Position;
use crate::{Row, SeriesError};

/// Rows whose names are looked up before they are written, so that a batch needs little memory.
const ROWS_AT_ONCE: usize = 1024;

/// Rows of several calls that are acknowledged together. Not atomic: a reader sees rows before the commit, and rows of a batch that
/// is dropped may be stored.
#[must_use = "rows are acknowledged by commit"]
#[derive(Debug)]
pub struct WriteBatch<'a> {
    shared: &'a Shared,
    /// End in the log of the last row inserted.
    position: Option<Position>,
}

impl<'a> WriteBatch<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Self {
        Self {
            shared,
            position: None,
        }
    }

    /// Writes rows to memory, and to the log once much is pending there. Blocks the thread up to [`SeriesOptions::patience`] while
    /// memory or log are full.
    ///
    /// # Errors
    /// As [`SeriesDb::handle`] and [`SeriesDb::append_batch`].
    pub fn insert_rows(&mut self, rows: &[Row<'_>]) -> Result<(), SeriesError> {
        let head = &self.shared.head;
        let mut named = Vec::with_capacity(rows.len().min(ROWS_AT_ONCE));
        for rows in rows.chunks(ROWS_AT_ONCE) {
            named.clear();
            head.catalog.handles(rows, &head.charge, &mut named)?;
            self.position = self.shared.store(&named)?.or(self.position);
            if let Some(wal) = &self.shared.wal {
                wal.write_if_large()?;
            }
        }
        Ok(())
    }

    /// Returns when all rows are acknowledged, as [`SeriesOptions::ack`] says.
    ///
    /// # Errors
    /// [`SeriesError::LogFailed`].
    pub fn commit(self) -> Result<(), SeriesError> {
        self.shared.acknowledge(self.position)
    }
}
