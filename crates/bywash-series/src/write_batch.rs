//! Batches of rows with one acknowledgement.

use std::time::Instant;

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
}

/// Wait of one call for the names of new series to fit in memory, with the flushes and sweeps that had ended when the last
/// attempt began.
type NamesWait = Option<(Instant, u64)>;

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
    /// As [`crate::SeriesDb::insert_rows`].
    pub fn insert_rows(&mut self, rows: &[Row<'_>]) -> Result<(), SeriesError> {
        let mut named = Vec::with_capacity(rows.len().min(ROWS_AT_ONCE));
        let mut wait = None;
        let mut stored = 0;
        while stored < rows.len() {
            let end = rows.len().min(stored + ROWS_AT_ONCE);
            let of_stored = |error: SeriesError| error.after_rows(stored);
            self.look_up(&rows[stored..end], &mut named, &mut wait)
                .map_err(of_stored)?;
            match self.shared.write_rows(&named) {
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
        &self,
        rows: &[Row<'_>],
        named: &mut Vec<(SeriesHandle, i64, f64)>,
        wait: &mut NamesWait,
    ) -> Result<(), SeriesError> {
        let shared = self.shared;
        loop {
            named.clear();
            let inside = shared.gate.enter();
            let found = inside.handles(rows, &shared.memtable, named);
            drop(inside);
            match found {
                // Written before the wait, they may be flushed and leave.
                Err(SeriesError::TooManySeries { .. }) if !named.is_empty() => return Ok(()),
                Err(full @ SeriesError::TooManySeries { .. }) => {
                    shared.wait_for_names(wait, &full)?;
                }
                found => return found,
            }
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
    /// Waits until names may have left, for a writer that found no memory for a new one. The first call does not wait: the writer
    /// has not seen yet which sweep ended last.
    #[cold]
    fn wait_for_names(&self, wait: &mut NamesWait, full: &SeriesError) -> Result<(), SeriesError> {
        self.check_writable()?;
        let timeout = self.options.write_timeout;
        *wait = Some(match *wait {
            None => (Instant::now(), self.backpressure.ended()),
            Some((since, seen)) => {
                let ended = self
                    .backpressure
                    .wait_for_names(seen, (since, timeout), full)?;
                (since, ended)
            }
        });
        Ok(())
    }
}
