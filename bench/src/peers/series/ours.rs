//! The series engine, and rows for it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bywash_mem::{BlockPool, PoolConfig};
use bywash_series::{Ack, Row, SeriesDb, SeriesHandle, SeriesOptions};
use object_store::memory::InMemory;

use super::{Addressing, SCRIPT, SeriesWorkload, Time};
use crate::Failure;

/// Rows of a batch without a log.
const BATCH: usize = 1000;
/// Rows of a batch that is logged.
const LOGGED: usize = 100;
/// Rows of a large batch: 16 MiB of timestamps and values.
pub(super) const LARGE: usize = 1 << 20;
/// Consecutive rows of one series in runs.
pub(super) const RUN: usize = 100;

/// State of a cell between rounds.
#[derive(Debug)]
pub(super) struct Ours {
    db: SeriesDb,
    handles: Vec<SeriesHandle>,
    /// Rows that each thread has written.
    written: i64,
}

/// Rows of a batch.
pub(super) fn batch(how: Addressing, ack: Option<Ack>) -> usize {
    match (how, ack) {
        (Addressing::Batches, _) => LARGE,
        (_, Some(_)) => LOGGED,
        (_, None) => BATCH,
    }
}

fn options(ack: Option<Ack>) -> SeriesOptions {
    SeriesOptions {
        // Memory, names and log are measured, not flushes: no partition ends, and no memory limit is reached.
        partition_width: Duration::from_secs(1 << 30),
        log: ack.is_some(),
        ack: ack.unwrap_or_default(),
        memtable_bytes: Some(6 << 30),
        wal_bytes: 64 << 30,
        ..SeriesOptions::default()
    }
}

fn open(folder: &Path, ack: Option<Ack>, store: InMemory) -> Result<SeriesDb, Failure> {
    let pool = BlockPool::new(PoolConfig::new(12 << 30))?;
    let store = Arc::new(store);
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let opening = SeriesDb::open(store, folder, pool.budget().clone(), options(ack));
    Ok(runtime.block_on(opening)?)
}

impl Ours {
    pub(super) fn new(
        folder: &Path,
        ack: Option<Ack>,
        workload: &SeriesWorkload,
    ) -> Result<Self, Failure> {
        Self::over(folder, ack, workload, InMemory::new())
    }

    fn over(
        folder: &Path,
        ack: Option<Ack>,
        workload: &SeriesWorkload,
        store: InMemory,
    ) -> Result<Self, Failure> {
        let db = open(folder, ack, store)?;
        let handle = |(source, metric): &(String, String)| db.handle(source, metric);
        let handles = workload
            .names
            .iter()
            .map(handle)
            .collect::<Result<_, _>>()?;
        Ok(Self {
            db,
            handles,
            written: 0,
        })
    }

    /// Writes rows from several threads. Returns the nanoseconds per row.
    pub(super) fn turn(
        &mut self,
        workload: &SeriesWorkload,
        how: Addressing,
        batch: usize,
        (threads, rows): (usize, usize),
        time: Time,
    ) -> Result<f64, Failure> {
        let begun = time.now();
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..threads)
                .map(|thread| {
                    let from = thread * (SCRIPT / threads);
                    let this = &*self;
                    scope.spawn(move || this.write(workload, how, from, rows, batch))
                })
                .collect();
            writers.into_iter().try_for_each(|writer| {
                writer
                    .join()
                    .map_err(|_| Failure::from("a writer panicked"))?
            })
        })?;
        let taken = time.now() - begun;
        self.written += rows as i64;
        Ok(taken.as_nanos() as f64 / (rows * threads) as f64)
    }

    fn write(
        &self,
        workload: &SeriesWorkload,
        how: Addressing,
        from: usize,
        rows: usize,
        batch: usize,
    ) -> Result<(), Failure> {
        let by_name = matches!(how, Addressing::Names | Addressing::Batches);
        let mut named: Vec<Row<'_>> = Vec::with_capacity(batch);
        let mut handled: Vec<(SeriesHandle, i64, f64)> = Vec::with_capacity(batch);
        for first in (0..rows).step_by(batch) {
            named.clear();
            handled.clear();
            for n in first..(first + batch).min(rows) {
                let place = if how == Addressing::Runs { n / RUN } else { n };
                let series = workload.script[(from + place) % SCRIPT] as usize;
                let (timestamp, value) = (self.written + n as i64, n as f64);
                if by_name {
                    let (source, metric) = &workload.names[series];
                    named.push(Row {
                        source,
                        metric,
                        timestamp,
                        value,
                    });
                } else {
                    handled.push((self.handles[series], timestamp, value));
                }
            }
            if by_name {
                self.db.insert_rows(&named)?;
            } else {
                self.db.append_batch(&handled)?;
            }
        }
        Ok(())
    }
}

/// A log that a process left, and the store it belongs to.
#[derive(Debug)]
pub(super) struct LeftLog {
    folder: tempfile::TempDir,
    store: InMemory,
    rows: usize,
}

impl LeftLog {
    /// Writes `rows` rows to a log, and leaves it as a crash does.
    pub(super) fn new(
        workload: &SeriesWorkload,
        how: Addressing,
        rows: usize,
        time: Time,
    ) -> Result<Self, Failure> {
        let folder = tempfile::tempdir_in("target")?;
        let ack = Some(Ack::Written);
        let store = InMemory::new();
        // A clone is the same store.
        let mut ours = Ours::over(folder.path(), ack, workload, store.clone())?;
        ours.turn(workload, how, batch(how, ack), (2, rows / 2), time)?;
        drop(ours);
        Ok(Self {
            folder,
            store,
            rows,
        })
    }

    /// Opens copies of both, so that each round replays the same rows. Returns the nanoseconds per row.
    pub(super) fn replay(&self, time: Time) -> Result<f64, Failure> {
        let copy = tempfile::tempdir_in("target")?;
        for file in std::fs::read_dir(self.folder.path())? {
            let file = file?;
            std::fs::copy(file.path(), copy.path().join(file.file_name()))?;
        }
        let store = self.store.fork();
        let begun = time.now();
        let db = open(copy.path(), Some(Ack::Written), store)?;
        let taken = time.now() - begun;
        let (found, rows) = (db.stats().replayed_rows, self.rows);
        if found != rows as u64 {
            return Err(format!("{found} of {rows} rows were in the log").into());
        }
        Ok(taken.as_nanos() as f64 / rows as f64)
    }
}
