//! Batches of rows with one acknowledgement.

use crate::db::Shared;
use crate::wal::Position;
use crate::{Row, SeriesError};

/// Rows whose names are looked up before they are written, to bound the memory of a batch.
const ROWS_AT_ONCE: usize = 1024;

/// Rows of several calls with one acknowledgement. Not atomic: readers see rows before the commit, and rows of a
/// dropped batch may be stored.
#[must_use = "rows are acknowledged by commit"]
#[derive(Debug)]
pub struct WriteBatch<'a> {
    shared: &'a Shared,
    /// End position in the log of the last row inserted.
    position: Option<Position>,
}

impl<'a> WriteBatch<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Self {
        Self {
            shared,
            position: None,
        }
    }

    /// Writes rows to memory, and to the log once many bytes are pending there. Blocks the thread up to
    /// [`crate::SeriesOptions::write_timeout`] while memory or log are full.
    ///
    /// # Errors
    /// As [`crate::SeriesDb::handle`] and [`crate::SeriesDb::append_batch`].
    pub fn insert_rows(&mut self, rows: &[Row<'_>]) -> Result<(), SeriesError> {
        let memtable = &self.shared.memtable;
        let mut named = Vec::with_capacity(rows.len().min(ROWS_AT_ONCE));
        for (rows, at) in rows.chunks(ROWS_AT_ONCE).zip((0..).step_by(ROWS_AT_ONCE)) {
            let written = loop {
                named.clear();
                let inside = self.shared.gate.enter();
                inside.handles(rows, memtable, &mut named)?;
                drop(inside);
                match self.shared.write_rows(&named) {
                    // A series left between its lookup and its rows. Rows that are stored replace themselves.
                    Err(SeriesError::Departed) => {}
                    written => break written.map_err(|error| error.after_rows(at))?,
                }
            };
            self.position = written.or(self.position);
            if let Some(wal) = &self.shared.wal {
                wal.write_if_at_limit()?;
            }
        }
        Ok(())
    }

    /// Blocks until all rows are acknowledged as [`crate::SeriesOptions::ack`] requires.
    ///
    /// # Errors
    /// [`SeriesError::LogFailed`].
    pub fn commit(self) -> Result<(), SeriesError> {
        self.shared.acknowledge(self.position)
    }
}
