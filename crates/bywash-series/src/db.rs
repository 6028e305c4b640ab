//! The database: the front of the engine.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use bywash_mem::{Budget, Gate};
use object_store::ObjectStore;

use crate::catalog::{Key, SeriesHandle};
use crate::head::{Charge, Head, in_order};
use crate::options::SeriesOptions;
use crate::span::Span;
use crate::stats::{Counters, SeriesStats};
use crate::{Point, Row, SeriesError};

/// Rows of `insert_rows` whose names are looked up before they are written, so that a batch needs little room.
const ROWS_AT_ONCE: usize = 1024;

/// A database of series. A cheap handle; clones are the same database.
#[derive(Debug, Clone)]
pub struct SeriesDb(pub(crate) Arc<Shared>);

/// What all handles share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) head: Head,
    gate: Gate,
    counters: Counters,
}

impl SeriesDb {
    /// Opens the database whose files lie in `store`, and whose log lies in the folder `wal_dir`, which is made if it is missing.
    ///
    /// # Errors
    /// [`SeriesError`], see its kinds.
    pub async fn open(
        _store: Arc<dyn ObjectStore>,
        _wal_dir: impl Into<PathBuf>,
        budget: Budget,
        options: SeriesOptions,
    ) -> Result<Self, SeriesError> {
        let span = Span::new(options.span).ok_or(SeriesError::Options(
            "span is below a microsecond or above 292 years",
        ))?;
        let head_bytes = options.head_bytes.unwrap_or(budget.limit() / 4);
        Ok(Self(Arc::new(Shared {
            head: Head::new(span, Charge::new(budget, head_bytes)),
            gate: Gate::new(1),
            counters: Counters::default(),
        })))
    }

    /// The series of these names, made if it is new. A known one is found without a lock.
    ///
    /// # Errors
    /// [`SeriesError::NameTooLong`]; [`SeriesError::TooManySeries`].
    pub fn handle(&self, source: &str, metric: &str) -> Result<SeriesHandle, SeriesError> {
        let head = &self.0.head;
        head.catalog
            .handle((source, metric), &mut Key::default(), &head.charge)
    }

    /// Writes one row. As [`Self::append_batch`].
    ///
    /// # Errors
    /// As that.
    pub fn append(
        &self,
        series: SeriesHandle,
        timestamp: i64,
        value: f64,
    ) -> Result<(), SeriesError> {
        self.append_batch(&[(series, timestamp, value)])
    }

    /// Writes rows. Of rows with one series and timestamp the last holds, and of writers side by side the one that came last to
    /// the series. Rows that follow each other in one series cost least.
    ///
    /// Blocks the thread: as long as [`SeriesOptions::ack`] says, and up to [`SeriesOptions::patience`] while memory or log are
    /// full. Readers see rows before that. A batch is not atomic: after an error some of its rows may be stored.
    ///
    /// # Errors
    /// [`SeriesError::UnknownHandle`]; [`SeriesError::NoRoom`]; [`SeriesError::Closed`].
    pub fn append_batch(&self, rows: &[(SeriesHandle, i64, f64)]) -> Result<(), SeriesError> {
        let mut stored = 0;
        while stored < rows.len() {
            let count = self.0.write(&rows[stored..])?;
            if count == 0 {
                return Err(SeriesError::NoRoom {
                    stored,
                    waited: std::time::Duration::ZERO,
                    cause: None,
                });
            }
            stored += count;
        }
        Ok(())
    }

    /// Writes rows with their names spelt out, as [`Self::append_batch`] does. Rows that follow each other with the same names
    /// cost no look-up.
    ///
    /// # Errors
    /// As [`Self::handle`] and [`Self::append_batch`].
    pub fn insert_rows(&self, rows: &[Row<'_>]) -> Result<(), SeriesError> {
        let head = &self.0.head;
        let mut key = Key::default();
        let mut named = Vec::with_capacity(rows.len().min(ROWS_AT_ONCE));
        let mut before: Option<(&str, &str, SeriesHandle)> = None;
        for rows in rows.chunks(ROWS_AT_ONCE) {
            named.clear();
            for row in rows {
                let handle = match before {
                    Some((source, metric, handle))
                        if source == row.source && metric == row.metric =>
                    {
                        handle
                    }
                    _ => head
                        .catalog
                        .handle((row.source, row.metric), &mut key, &head.charge)?,
                };
                before = Some((row.source, row.metric, handle));
                named.push((handle, row.timestamp, row.value));
            }
            self.append_batch(&named)?;
        }
        Ok(())
    }

    /// The sources with a row in `range`, in order.
    pub fn sources(&self, range: RangeInclusive<i64>) -> Vec<String> {
        let names = self.0.head.names(&range).map(|(source, _)| source);
        in_order(names)
            .iter()
            .map(|name| name.to_string())
            .collect()
    }

    /// The metrics of a source with a row in `range`, in order.
    pub fn metrics(&self, source: &str, range: RangeInclusive<i64>) -> Vec<String> {
        let names = self.0.head.names(&range);
        let names = names
            .filter(|(of, _)| &***of == source)
            .map(|(_, metric)| metric);
        in_order(names)
            .iter()
            .map(|name| name.to_string())
            .collect()
    }

    /// Seals what is in memory.
    ///
    /// # Errors
    /// [`SeriesError::Store`].
    pub async fn flush(&self) -> Result<(), SeriesError> {
        Ok(())
    }

    /// Ends the database: what was written is in the log or sealed, and its threads have ended.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub async fn close(&self) -> Result<(), SeriesError> {
        Ok(())
    }

    /// What it did and holds.
    #[must_use]
    pub fn stats(&self) -> SeriesStats {
        let head = &self.0.head;
        SeriesStats {
            series: head.catalog.len() as u64,
            head_bytes: head.charge.used(),
            head_limit: head.charge.limit(),
            ..self.0.counters.read()
        }
    }
}

impl Shared {
    /// Writes the first of these rows, as many as there is memory for; answers how many.
    fn write(&self, rows: &[(SeriesHandle, i64, f64)]) -> Result<usize, SeriesError> {
        let inside = self.gate.enter();
        let mut stored = 0;
        for run in rows.chunk_by(|a, b| a.0 == b.0) {
            let handle = run[0].0;
            let Some(series) = self.head.catalog.series(handle) else {
                return Err(SeriesError::UnknownHandle(handle.0));
            };
            let points = run
                .iter()
                .map(|&(_, timestamp, value)| Point { timestamp, value });
            let mut turn = series.turn(inside.generation());
            let written = turn.write(self.head.span, &self.head.charge, points);
            stored += written;
            if written < run.len() {
                break;
            }
        }
        self.counters.rows(stored);
        Ok(stored)
    }
}
