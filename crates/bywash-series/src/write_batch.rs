//! Batches of rows with one acknowledgement.

use std::time::Duration;

use crate::backpressure::Waits;
use crate::catalog::SeriesHandle;
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
    waits: Waits,
}

impl<'a> WriteBatch<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Self {
        Self {
            shared,
            position: None,
            waits: Waits::default(),
        }
    }

    /// Waits for each new name that finds no memory at most this long, and not at all while flushes
    /// fail. For callers that keep other writers waiting during that.
    pub fn with_name_timeout(mut self, timeout: Duration) -> Self {
        self.waits.name_timeout = Some(timeout);
        self
    }

    /// Writes rows to memory, and to the log once many bytes are pending there. Blocks the thread up to
    /// [`crate::SeriesOptions::write_timeout`] while memory or log are full: that is the limit of all calls together, from the
    /// first wait on.
    ///
    /// # Errors
    /// As [`crate::SeriesDb::insert_rows`].
    pub fn insert_rows(&mut self, rows: &[Row<'_>]) -> Result<(), SeriesError> {
        let mut named = Vec::with_capacity(rows.len().min(ROWS_AT_ONCE));
        let mut stored = 0;
        while stored < rows.len() {
            let end = rows.len().min(stored + ROWS_AT_ONCE);
            let of_stored = |error: SeriesError| error.after_rows(stored);
            self.look_up(&rows[stored..end], &mut named)
                .map_err(of_stored)?;
            match self.shared.write_rows(&named, &mut self.waits) {
                // A series left between its lookup and its rows. Rows that are stored replace themselves.
                Err(SeriesError::Departed) => continue,
                written => self.position = written.map_err(of_stored)?.or(self.position),
            }
            stored += named.len();
            if let Some(wal) = &self.shared.wal {
                wal.write_if_at_limit()?;
            }
        }
        Ok(())
    }

    /// Replaces `named` by handles of the first rows: of those before a new name that does not fit in memory. Waits while this is
    /// the first one.
    fn look_up(
        &mut self,
        rows: &[Row<'_>],
        named: &mut Vec<(SeriesHandle, i64, f64)>,
    ) -> Result<(), SeriesError> {
        let shared = self.shared;
        loop {
            named.clear();
            let inside = shared.gate.enter();
            let found = inside.handles(rows, &shared.memtable, named);
            drop(inside);
            match found {
                Err(full @ SeriesError::TooManySeries { .. }) if named.is_empty() => {
                    shared.wait_for_names(&mut self.waits, &full)?;
                    continue;
                }
                // Written before the wait, they may be flushed and leave.
                Ok(()) | Err(SeriesError::TooManySeries { .. }) => self.waits.name_fits(),
                Err(failed) => return Err(failed),
            }
            return Ok(());
        }
    }

    /// Blocks until all rows are acknowledged as [`crate::SeriesOptions::ack`] requires.
    ///
    /// # Errors
    /// [`SeriesError::LogFailed`].
    pub fn commit(self) -> Result<(), SeriesError> {
        self.shared.acknowledge(self.position)
    }
}

impl Shared {
    /// Waits until names may have left, for a writer that found no memory for a new one.
    #[cold]
    fn wait_for_names(&self, waits: &mut Waits, full: &SeriesError) -> Result<(), SeriesError> {
        self.check_writable()?;
        let timeout = self.options.write_timeout;
        self.backpressure.wait_for_names(waits, timeout, full)
    }
}
