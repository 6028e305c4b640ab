//! Opening a database, and closing it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bywash_mem::{Budget, Gated};
use object_store::ObjectStore;

use super::{Inner, RecoveryStats, SeriesDb, Shared};
use crate::SeriesError;
use crate::background::BackgroundWorker;
use crate::backpressure::Backpressure;
use crate::flush::blocking;
use crate::manifest::{DataFiles, Opening, new_writer};
use crate::memtable::{MemoryReservation, Memtable};
use crate::options::SeriesOptions;
use crate::replay::{ReplayResult, recover};
use crate::stats::Counters;
use crate::wal::{FileSystemStorage, Kind, LogFolder, LogStorage, Wal};

/// A database about to be opened: its log is replayed, and its store is unchanged. Dropping it unlocks the log.
#[derive(Debug)]
#[must_use = "the database opens once it takes the store over"]
pub struct PreparedDb {
    options: SeriesOptions,
    opening: Opening,
    pub(super) memtable: Arc<Memtable>,
    wal: Option<Wal>,
    replayed: ReplayResult,
}

impl SeriesDb {
    /// Opens the database with files in `store` and its log in the folder `wal_dir`, which is created if missing: prepares it
    /// ([`Self::prepare`]) and takes the store over.
    ///
    /// # Errors
    /// [`SeriesError`], see its variants.
    pub async fn open(
        store: Arc<dyn ObjectStore>,
        wal_dir: impl Into<PathBuf>,
        budget: Budget,
        options: SeriesOptions,
    ) -> Result<Self, SeriesError> {
        let prepared = Self::prepare(store, wal_dir, budget, options).await?;
        prepared.take_over().await
    }

    /// Locks and replays the log, and reads the manifest. The store stays with its writer until
    /// [`PreparedDb::take_over`]: a process with several databases prepares all databases before it
    /// takes over the first.
    ///
    /// # Errors
    /// [`SeriesError`], see its variants.
    pub async fn prepare(
        store: Arc<dyn ObjectStore>,
        wal_dir: impl Into<PathBuf>,
        budget: Budget,
        options: SeriesOptions,
    ) -> Result<PreparedDb, SeriesError> {
        let disk = Box::new(FileSystemStorage);
        PreparedDb::new(disk, store, wal_dir.into(), budget, options).await
    }

    /// As [`Self::open`], with log files created by `disk`.
    #[cfg(test)]
    pub(super) async fn open_on(
        disk: Box<dyn LogStorage>,
        store: Arc<dyn ObjectStore>,
        wal_dir: PathBuf,
        budget: Budget,
        options: SeriesOptions,
    ) -> Result<Self, SeriesError> {
        let prepared = PreparedDb::new(disk, store, wal_dir, budget, options).await?;
        prepared.take_over().await
    }

    /// Opens the files in `store` to read them, while a process may write them. Rows that are not
    /// flushed yet are not seen, nor are later files. Writes fail with [`SeriesError::Closed`].
    ///
    /// The writer may delete a file that was compacted or has expired; reads of it then fail with
    /// [`SeriesError::Store`], and a database opened again has its rows.
    ///
    /// # Errors
    /// [`SeriesError::NoDatabase`], and others, see [`SeriesError`].
    pub async fn open_to_read(
        store: Arc<dyn ObjectStore>,
        budget: Budget,
    ) -> Result<Self, SeriesError> {
        let files = DataFiles::open_to_read(store, budget.clone()).await?;
        let memtable = Memtable::new(files.0.width, MemoryReservation::new(budget, 0));
        let options = SeriesOptions {
            log: false,
            ..SeriesOptions::default()
        };
        let replayed = ReplayResult::default();
        let shared = Shared::new(options, Arc::new(memtable), (None, files), &replayed);
        // SeqCst: as in `close`.
        shared.closed.store(true, Ordering::SeqCst);
        let (shared, worker) = (Arc::new(shared), None);
        Ok(Self(Arc::new(Inner { shared, worker })))
    }

    /// Closes the database. Later writes fail, all accepted rows are in the log (in files if there is no log), and
    /// the background worker has ended. Closing twice is allowed. Open readers stay valid.
    ///
    /// Dropping the last handle without closing also ends the worker. The next open then recovers as after a crash
    /// and finds all acknowledged rows.
    ///
    /// # Errors
    /// [`SeriesError::LogFailed`]; without a log the errors of [`Self::flush`], after which the database is still
    /// open.
    pub async fn close(&self) -> Result<(), SeriesError> {
        if self.0.wal.is_none() && !self.0.is_closed() {
            self.flush().await?;
        }
        let inner = Arc::clone(&self.0);
        let closing = tokio::task::spawn_blocking(move || {
            // SeqCst: before the gate's accesses; `try_write` loads it after entering the gate.
            if inner.closed.swap(true, Ordering::SeqCst) {
                return Ok(());
            }
            let last = inner.gate.close();
            inner.backpressure.close();
            if let Some(worker) = &inner.worker {
                worker.stop();
            }
            match &inner.wal {
                Some(wal) => {
                    wal.append(Kind::Closed, last, &[])?;
                    wal.write_all(true)
                }
                None => Ok(()),
            }
        });
        closing.await.expect("closing does not panic")
    }
}

impl PreparedDb {
    /// As [`SeriesDb::prepare`], with log files created by `disk`.
    async fn new(
        disk: Box<dyn LogStorage>,
        store: Arc<dyn ObjectStore>,
        wal_dir: PathBuf,
        budget: Budget,
        options: SeriesOptions,
    ) -> Result<Self, SeriesError> {
        let width = options.validate()?;
        let memtable_bytes = options.memtable_bytes.unwrap_or(budget.limit() / 4);
        // The lock of the log is taken first: a process that does not get it must not take the
        // store from the one that has it.
        let mut folder = None;
        if options.log {
            let mut opened = blocking(move || LogFolder::open(wal_dir, disk)).await?;
            opened.shared_store = options.shared_store;
            folder = Some(Arc::new(opened));
        }
        let format = (width, options.profile);
        let opening = Opening::begin(store, budget.clone(), format, new_writer(), folder.clone());
        let opening = opening.await?;
        let memtable = Memtable::new(width, MemoryReservation::new(budget, memtable_bytes));
        let memtable = Arc::new(memtable);
        let mut wal = None;
        let mut replayed = ReplayResult::default();
        if let Some(folder) = folder {
            let recovering = (
                Arc::clone(&folder),
                Arc::clone(&memtable),
                opening.version(),
            );
            let salvage = options.salvage;
            replayed = blocking(move || {
                let (folder, memtable, version) = recovering;
                recover(&folder, &memtable, &version, salvage)
            })
            .await?;
            let segments = std::mem::take(&mut replayed.segments);
            wal = Some(Wal::new(folder, options.segment_bytes, segments));
        }
        Ok(Self {
            options,
            opening,
            memtable,
            wal,
            replayed,
        })
    }

    /// Takes the store over from its writer, which fails at its next change, and starts the database.
    ///
    /// # Errors
    /// [`SeriesError::AnotherWriter`] if another process opened the store with this log's rows
    /// since the preparation; [`SeriesError::NoConditionalPut`]; [`SeriesError::Store`].
    pub async fn take_over(self) -> Result<SeriesDb, SeriesError> {
        let files = self.opening.take_over().await?;
        let shared = Shared::new(
            self.options,
            self.memtable,
            (self.wal, files),
            &self.replayed,
        );
        let shared = Arc::new(shared);
        let worker = BackgroundWorker::start(Arc::clone(&shared)).map_err(SeriesError::Thread)?;
        let worker = Some(worker);
        Ok(SeriesDb(Arc::new(Inner { shared, worker })))
    }
}

impl Shared {
    /// Fails if no flush makes space for writers any more.
    pub(crate) fn check_writable(&self) -> Result<(), SeriesError> {
        // Relaxed: as in `check_superseded`.
        if self.superseded.load(Ordering::Relaxed) {
            return Err(SeriesError::AnotherWriter);
        }
        if self.is_closed() {
            return Err(SeriesError::Closed);
        }
        Ok(())
    }

    fn new(
        options: SeriesOptions,
        memtable: Arc<Memtable>,
        (wal, files): (Option<Wal>, DataFiles),
        replayed: &ReplayResult,
    ) -> Self {
        let next_generation = files.version().next_generation();
        let generation = next_generation.max(replayed.newest + 1);
        Self {
            gate: Gated::new(generation, memtable.directory.current()),
            opened: Instant::now(),
            memtable,
            wal,
            files,
            backpressure: Backpressure::default(),
            counters: Counters::default(),
            blocked: AtomicBool::new(false),
            superseded: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            recovery: RecoveryStats {
                replayed_rows: replayed.rows,
                unnamed_rows: replayed.unnamed_rows,
                unclean: replayed.unclean,
            },
            options,
        }
    }
}
