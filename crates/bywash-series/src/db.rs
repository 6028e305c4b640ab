//! The database: the front of the engine.

use std::cell::RefCell;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bywash_mem::{Budget, Gate};
use object_store::ObjectStore;

use crate::catalog::{SIDE_BY_SIDE, SeriesHandle};
use crate::files::SealedFiles;
use crate::head::{Charge, Head, Series};
use crate::keeper::{Keeper, Room};
use crate::options::SeriesOptions;
use crate::replay::{Replayed, recover};
use crate::stats::{Counters, SeriesStats};
use crate::wal::{Disk, Files, Folder, Kind, Position, Wal, put_names, put_turn};
use crate::write_batch::WriteBatch;
use crate::{Ack, Point, Row, SeriesError};

/// The most rows of a frame of the log: some 100 KiB.
const ROWS_A_FRAME: usize = 4096;

/// A database of series. A cheap handle; clones are the same database.
#[derive(Debug, Clone)]
pub struct SeriesDb(pub(crate) Arc<Front>);

/// What goes with the last handle: the thread that keeps house, which itself holds what is shared.
#[derive(Debug)]
pub(crate) struct Front {
    shared: Arc<Shared>,
    keeper: Keeper,
}

impl Deref for Front {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

/// What all handles share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: SeriesOptions,
    pub(crate) head: Arc<Head>,
    pub(crate) wal: Option<Wal>,
    pub(crate) files: SealedFiles,
    pub(crate) gate: Gate,
    pub(crate) room: Room,
    pub(crate) counters: Counters,
    /// The log has no room until something is sealed.
    log_full: AtomicBool,
    /// Nothing is taken any more. Read inside a generation, set before that is closed.
    closed: AtomicBool,
    opened: Opened,
}

/// What was found at the start.
#[derive(Debug, Default)]
struct Opened {
    replayed_rows: u64,
    nameless_rows: u64,
    unclean: bool,
}

impl SeriesDb {
    /// Opens the database whose files lie in `store`, and whose log lies in the folder `wal_dir`, which is made if it is missing.
    ///
    /// # Errors
    /// [`SeriesError`], see its kinds.
    pub async fn open(
        store: Arc<dyn ObjectStore>,
        wal_dir: impl Into<PathBuf>,
        budget: Budget,
        options: SeriesOptions,
    ) -> Result<Self, SeriesError> {
        Self::open_on(Box::new(Files), store, wal_dir.into(), budget, options).await
    }

    /// As [`Self::open`], with a log whose files are made by `disk`.
    async fn open_on(
        disk: Box<dyn Disk>,
        store: Arc<dyn ObjectStore>,
        wal_dir: PathBuf,
        budget: Budget,
        options: SeriesOptions,
    ) -> Result<Self, SeriesError> {
        let span = options.check()?;
        let head_bytes = options.head_bytes.unwrap_or(budget.limit() / 4);
        let files = SealedFiles::open(store, budget.clone(), span, options.profile).await?;
        let version = files.version();
        let next_generation = version.next_generation();
        let mut head = Head::new(span, Charge::new(budget, head_bytes));
        let mut wal = None;
        let mut replayed = Replayed::default();
        if options.log {
            let salvage = options.salvage;
            let recovering = tokio::task::spawn_blocking(move || {
                let folder = Folder::open(wal_dir, disk)?;
                let (folder, replayed) = recover(folder, &head, &version, salvage)?;
                Ok((folder, replayed, head))
            });
            let recovered: Result<_, SeriesError> =
                recovering.await.expect("replay does not panic");
            let folder;
            (folder, replayed, head) = recovered?;
            let segments = std::mem::take(&mut replayed.segments);
            wal = Some(Wal::new(folder, options.segment_bytes, segments));
        }
        let shared = Arc::new(Shared {
            head: Arc::new(head),
            wal,
            files,
            gate: Gate::new(next_generation.max(replayed.newest + 1)),
            room: Room::default(),
            counters: Counters::default(),
            log_full: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            opened: Opened {
                replayed_rows: replayed.rows,
                nameless_rows: replayed.nameless,
                unclean: replayed.unclean,
            },
            options,
        });
        let keeper = Keeper::start(Arc::clone(&shared)).map_err(SeriesError::Thread)?;
        Ok(Self(Arc::new(Front { shared, keeper })))
    }

    /// The series of these names, made if it is new. A known one is found without a lock.
    ///
    /// # Errors
    /// [`SeriesError::NameTooLong`]; [`SeriesError::TooManySeries`].
    pub fn handle(&self, source: &str, metric: &str) -> Result<SeriesHandle, SeriesError> {
        let head = &self.0.head;
        head.catalog.handle(source, metric, &head.charge)
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
        let shared = &*self.0;
        let position = shared.store(rows)?;
        shared.acknowledge(position)
    }

    /// Begins a batch, whose rows are acknowledged together: one log write and one sync, however many calls insert them.
    pub fn batch(&self) -> WriteBatch<'_> {
        WriteBatch::new(&self.0)
    }

    /// Writes rows with their names spelt out, as [`Self::append_batch`] does. The names of neighbours are looked up side by side.
    ///
    /// # Errors
    /// As [`Self::handle`] and [`Self::append_batch`].
    pub fn insert_rows(&self, rows: &[Row<'_>]) -> Result<(), SeriesError> {
        let mut batch = self.batch();
        batch.insert_rows(rows)?;
        batch.commit()
    }

    /// Seals all rows in memory to files. What was written before is in them afterwards, and its log is gone but for the file
    /// that is being written.
    ///
    /// # Errors
    /// [`SeriesError::Store`] and others of the files; nothing is lost, and it can be tried again. [`SeriesError::Closed`].
    pub async fn flush(&self) -> Result<(), SeriesError> {
        self.0.keeper.seal().await
    }

    /// Ends the database: nothing is taken any more, all that was is in the log, or sealed if there is none, and its thread has
    /// ended. Another call does nothing. Readers that are open go on.
    ///
    /// Dropping the last handle instead ends the thread as well, and is a crash to the rows: what was acknowledged is found.
    ///
    /// # Errors
    /// [`SeriesError::LogFailed`]; without a log, as [`Self::flush`], and then it is still open.
    pub async fn close(&self) -> Result<(), SeriesError> {
        if self.0.wal.is_none() && !self.0.is_closed() {
            self.flush().await?;
        }
        let front = Arc::clone(&self.0);
        let closing = tokio::task::spawn_blocking(move || {
            // SeqCst: before the gate's accesses, as `write` has it after them.
            if front.closed.swap(true, Ordering::SeqCst) {
                return Ok(());
            }
            let last = front.gate.close();
            front.keeper.stop();
            match &front.wal {
                Some(wal) => {
                    wal.append(Kind::Closed, last, &[])?;
                    wal.write_out(true)
                }
                None => Ok(()),
            }
        });
        closing.await.expect("closing does not panic")
    }

    /// What it did and holds.
    #[must_use]
    pub fn stats(&self) -> SeriesStats {
        let head = &self.0.head;
        let version = self.0.files.version();
        SeriesStats {
            files: version.files().len() as u64,
            file_bytes: version.bytes(),
            series: head.catalog.len() as u64,
            head_bytes: head.charge.used(),
            head_limit: head.charge.limit(),
            wal_bytes: self.0.wal.as_ref().map_or(0, Wal::bytes),
            replayed_rows: self.0.opened.replayed_rows,
            nameless_rows: self.0.opened.nameless_rows,
            unclean_stop: self.0.opened.unclean,
            ..self.0.counters.read()
        }
    }
}

thread_local! {
    /// Room for the frame that this thread makes, kept from batch to batch: at most some 128 KiB.
    static BODY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Shared {
    fn is_closed(&self) -> bool {
        // SeqCst: with `SeriesDb::close`, around the gate: who does not see it is waited for there.
        self.closed.load(Ordering::SeqCst)
    }

    /// Partitions below this one are over, late rows included.
    pub(crate) fn partitions_over(&self) -> i64 {
        let lateness = i64::try_from(self.options.lateness.as_nanos()).unwrap_or(i64::MAX);
        self.head
            .span
            .partition(self.options.clock.now().saturating_sub(lateness))
    }

    /// Says whether the log is full, by what it has and may have.
    pub(crate) fn note_log(&self, bytes: u64) {
        let full = bytes >= self.options.wal_bytes;
        // Relaxed: see `append_batch`.
        if full != self.log_full.load(Ordering::Relaxed) {
            self.log_full.store(full, Ordering::Relaxed);
        }
    }

    /// Whether all rows are of series there are.
    fn check(&self, rows: &[(SeriesHandle, i64, f64)]) -> Result<(), SeriesError> {
        let highest = rows.iter().map(|(handle, ..)| handle.0).max();
        match highest {
            Some(highest) if highest as usize >= self.head.catalog.len() => {
                Err(SeriesError::UnknownHandle(highest))
            }
            _ => Ok(()),
        }
    }

    /// Writes rows to memory and to the pending frames of the log, and returns their end in the log.
    pub(crate) fn store(
        &self,
        rows: &[(SeriesHandle, i64, f64)],
    ) -> Result<Option<Position>, SeriesError> {
        self.check(rows)?;
        let began = Instant::now();
        let mut stored = 0;
        let mut position = None;
        while stored < rows.len() {
            let end = (stored + ROWS_A_FRAME).min(rows.len());
            // Relaxed: a writer that misses it writes one batch more.
            let full = self.log_full.load(Ordering::Relaxed);
            let (count, at) = if full {
                (0, None)
            } else {
                self.write(&rows[stored..end])?
            };
            if count == 0 {
                self.room.wait(stored, began, self.options.patience)?;
            }
            stored += count;
            position = at.or(position);
        }
        Ok(position)
    }

    /// Writes the first of these rows, as many as there is memory for; answers how many, and where the log has them.
    fn write(
        &self,
        rows: &[(SeriesHandle, i64, f64)],
    ) -> Result<(usize, Option<Position>), SeriesError> {
        let inside = self.gate.enter();
        if self.is_closed() {
            return Err(SeriesError::Closed);
        }
        BODY.with_borrow_mut(|body| {
            body.clear();
            let stored = self.write_turns(rows, inside.generation(), body)?;
            self.counters.rows(stored);
            let position = match &self.wal {
                Some(wal) if stored > 0 => {
                    let (position, bytes) = wal.append(Kind::Rows, inside.generation(), body)?;
                    self.note_log(bytes);
                    Some(position)
                }
                _ => None,
            };
            Ok((stored, position))
        })
    }

    /// Memory before the log: which of two writers comes first to a series is decided there, and noted for the log.
    fn write_turns(
        &self,
        rows: &[(SeriesHandle, i64, f64)],
        generation: u64,
        body: &mut Vec<u8>,
    ) -> Result<usize, SeriesError> {
        let Head {
            span,
            catalog,
            charge,
        } = &*self.head;
        let mut stored = 0;
        let mut near = 0;
        let mut last = 0;
        for run in rows.chunk_by(|a, b| a.0 == b.0) {
            if stored >= near && run.len() < rows.len() {
                near = (stored + SIDE_BY_SIDE).min(rows.len());
                catalog.come(rows[stored..near].iter().map(|row| row.0));
            }
            let handle = run[0].0;
            let series = catalog.series(handle).expect("checked before");
            let points = run
                .iter()
                .map(|&(_, timestamp, value)| Point { timestamp, value });
            let mut turn = series.turn(generation);
            let number = turn.number();
            if number == 0
                && let Some(wal) = &self.wal
            {
                // Under the series' lock: the name is before all its rows, whichever writer's frame comes first.
                self.log_name(wal, generation, series)?;
            }
            let written = turn.write(*span, charge, points);
            if written > 0 && self.wal.is_some() {
                turn.count();
                drop(turn);
                put_turn((handle, number), &run[..written], &mut last, body);
            }
            stored += written;
            if written < run.len() {
                break;
            }
        }
        Ok(stored)
    }

    #[cold]
    fn log_name(&self, wal: &Wal, generation: u64, series: &Series) -> Result<(), SeriesError> {
        let (source, metric) = self.head.catalog.names(series);
        let mut body = Vec::with_capacity(source.len() + metric.len() + 16);
        put_names(series.handle, (source, metric), &mut body);
        wal.append(Kind::Names, generation, &body).map(drop)
    }

    /// Returns when the log is as far as was asked for.
    pub(crate) fn acknowledge(&self, position: Option<Position>) -> Result<(), SeriesError> {
        let (Some(wal), Some(position)) = (&self.wal, position) else {
            return Ok(());
        };
        match self.options.ack {
            Ack::Memory => wal.relieve(),
            Ack::Written => wal.commit(position, false),
            Ack::Synced => wal.commit(position, true),
        }
    }
}

#[cfg(test)]
mod tests;
