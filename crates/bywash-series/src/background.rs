//! The background worker: flushes expired or oversized partitions, and writes the log for `Ack::Memory`.
//!
//! It is a thread with its own runtime: appends block threads, so a database must not depend on the runtime of its
//! writers.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

use crate::db::Shared;
use crate::departures::Sweeper;
use crate::memtable::PartitionKey;
use crate::{Point, SeriesError};

/// Interval of checks for due flushes. Also how long rows under `Ack::Memory` may stay out of the log.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// Min time between a failed flush and the next attempt.
const RETRY: Duration = Duration::from_secs(1);
/// Bytes that a flush holds for each series besides its rows: columns, and entries of the file's index and dictionaries.
const FLUSH_SERIES_BYTES: u64 = 384;
/// Flushes of less than this part of the memory are at least [`TICK`] apart.
const WORTHWHILE_PART: u64 = 64;

type Reply = oneshot::Sender<Result<(), SeriesError>>;

/// Handle of the background thread.
#[derive(Debug)]
pub(crate) struct BackgroundWorker {
    requests: mpsc::Sender<Reply>,
    /// Dropped to stop the thread at its next await.
    running: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

/// Which partitions to flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FlushScope {
    /// All partitions in memory.
    All,
    /// Partitions past their out-of-order window.
    Closed,
}

impl BackgroundWorker {
    pub(crate) fn start(shared: Arc<Shared>) -> std::io::Result<Self> {
        let (requests, inbox) = mpsc::channel(1);
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = std::thread::Builder::new()
            .name("bywash-series".into())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        _ = stopped => {}
                        () = flush_loop(&shared, inbox) => {}
                        () = write_behind(&shared) => {}
                        () = crate::schedule::maintenance_loop(&shared) => {}
                    }
                });
            })?;
        Ok(Self {
            requests,
            running: Mutex::new(Some((stop, thread))),
        })
    }

    /// Flushes all rows now in memory.
    pub(crate) async fn flush(&self) -> Result<(), SeriesError> {
        let (reply, outcome) = oneshot::channel();
        let sent = self.requests.send(reply).await;
        sent.map_err(|_| SeriesError::Closed)?;
        outcome.await.map_err(|_| SeriesError::Closed)?
    }

    /// Stops the thread and waits for it to finish its current step. Blocks.
    pub(crate) fn stop(&self) {
        let running = self.running.lock().take();
        if let Some((stop, thread)) = running {
            drop(stop);
            // An error means that the thread panicked, which was reported: the database is as after a crash.
            let _ = thread.join();
        }
    }
}

impl Drop for BackgroundWorker {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn flush_loop(shared: &Arc<Shared>, mut requests: mpsc::Receiver<Reply>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut flushed_until = None;
    let mut retry_at = Instant::now();
    let mut sweeper = Sweeper::new();
    loop {
        let (scope, reply) = tokio::select! {
            request = requests.recv() => match request {
                Some(reply) => (FlushScope::All, Some(reply)),
                None => return,
            },
            () = flush_needed(shared, retry_at) => (FlushScope::All, None),
            _ = ticks.tick() => {
                let now = shared.first_open_partition();
                let Some(scope) = due(shared, &sweeper, flushed_until != Some(now)) else {
                    sweeper.sweep_if_due(shared).await;
                    continue;
                };
                if Instant::now() < retry_at {
                    continue;
                }
                (scope, None)
            }
        };
        let now = shared.first_open_partition();
        shared.backpressure.flush_began();
        let flushed = flush(shared, scope).await;
        if reply.is_none()
            && flushed
                .as_ref()
                .is_ok_and(|rows| freed_little(shared, *rows))
        {
            retry_at = Instant::now() + TICK;
        }
        let outcome = flushed.map(drop);
        shared.check_superseded(&outcome);
        if outcome.is_ok() {
            sweeper.sweep_if_due(shared).await;
        }
        shared.backpressure.flush_finished(&outcome);
        shared.counters.flush(outcome.is_ok());
        match &outcome {
            Ok(()) => flushed_until = Some(now),
            Err(failed) => {
                tracing::warn!(%failed, "flush failed; rows stay in memory and log until they are flushed");
                retry_at = Instant::now() + RETRY;
            }
        }
        if let Some(reply) = reply {
            // The requester may have been dropped.
            let _ = reply.send(outcome);
        }
    }
}

/// Waits for writers under backpressure, and after a failure until the next attempt is allowed.
async fn flush_needed(shared: &Shared, retry_at: Instant) {
    // Sleep first: a notification must not be consumed if another branch wins.
    tokio::time::sleep_until(retry_at.into()).await;
    shared.backpressure.flush_needed.notified().await;
}

/// Returns the flush that is due by age or size.
fn due(shared: &Shared, sweeper: &Sweeper, partition_ended: bool) -> Option<FlushScope> {
    let memtable = &shared.memtable;
    // Rows may use half of what names leave.
    let available = memtable
        .memory
        .limit()
        .saturating_sub(memtable.directory.bytes());
    // Names leave once their rows have.
    if sweeper.is_crowded(shared) && memtable.row_bytes() > 0 {
        return Some(FlushScope::All);
    }
    let log = shared.wal.as_ref().map_or(0, |wal| wal.bytes());
    if memtable.row_bytes() > available / 2 || log > shared.options.wal_bytes / 2 {
        return Some(FlushScope::All);
    }
    partition_ended.then_some(FlushScope::Closed)
}

/// Whether a flush of so many rows freed little of memory and log. Names then take the memory, and flushes do not help the waiting
/// writers: each would request the next one at once.
fn freed_little(shared: &Shared, rows: usize) -> bool {
    let log = shared.wal.as_ref().map_or(0, |wal| wal.bytes());
    let bytes = (rows * size_of::<Point>()) as u64;
    bytes < shared.memtable.memory.limit() / WORTHWHILE_PART && log <= shared.options.wal_bytes / 2
}

/// Closes the generation and flushes its partitions one after the other, so that memory is freed early. Then deletes
/// the log segments that are no longer needed. Returns the number of rows.
async fn flush(shared: &Arc<Shared>, scope: FlushScope) -> Result<usize, SeriesError> {
    let closed = shared.gate.close();
    let mut partitions = {
        let shared = Arc::clone(shared);
        blocking(move || shared.memtable.partitions(closed)).await
    };
    let flushed_until = shared.first_open_partition();
    let selected: Vec<PartitionKey> = partitions
        .keys()
        .filter(|key| scope == FlushScope::All || key.partition < flushed_until)
        .copied()
        .collect();
    let mut flushed = 0;
    for key in selected {
        let series = partitions.remove(&key).expect("it was among them");
        let flushed_below = lowest(partitions.keys()).unwrap_or(closed + 1);
        let (immutable, series) = {
            let shared = Arc::clone(shared);
            blocking(move || (shared.memtable.freeze(key, &series), series)).await
        };
        let rows: usize = immutable.series.iter().map(|of| of.timestamps.len()).sum();
        // Charge the copy and what the file is built of. If the budget is exhausted, flush anyway: flushing is what frees memory.
        let copied = (rows * size_of::<Point>()) as u64;
        let built = series.len() as u64 * FLUSH_SERIES_BYTES;
        let _copy = shared.memtable.memory.reserve_copy(copied + built);
        shared
            .files
            .flush(vec![Arc::new(immutable)], flushed_below)
            .await?;
        shared.memtable.drop_partition(key, &series);
        flushed += rows;
    }
    let Some(wal) = &shared.wal else {
        return Ok(flushed);
    };
    // A failed log is reported to writers.
    if wal.failure().is_none() {
        wal.write_all(false)?;
    }
    wal.delete_below(lowest(partitions.keys()).unwrap_or(closed + 1))?;
    shared.update_log_full(wal.bytes());
    Ok(flushed)
}

fn lowest<'a>(partitions: impl Iterator<Item = &'a PartitionKey>) -> Option<u64> {
    partitions.map(|key| key.generation).min()
}

pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(failed) => std::panic::resume_unwind(failed.into_panic()),
    }
}

/// Writes pending log frames periodically, for rows acknowledged from memory.
async fn write_behind(shared: &Shared) {
    let Some(wal) = &shared.wal else {
        return std::future::pending().await;
    };
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // The log keeps the error and reports it to the next writer.
        let _ = wal.write_all(false);
    }
}
