//! The background worker: flushes expired or oversized partitions, and writes the log for `Ack::Memory`.
//!
//! It is a thread with its own runtime: appends block threads, so a database must not depend on the runtime of its
//! writers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

use crate::db::Shared;
use crate::departures::Sweeper;
use crate::flush_plan::{FlushPlan, MANY_PARTITIONS, PlannedMemtable};
use crate::memtable::{PartitionKey, PartitionRows};
use crate::{Point, SeriesError};

/// Interval of checks for due flushes. Also how long rows under `Ack::Memory` may stay out of the log.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// Min time between a failed flush and the next attempt.
const RETRY: Duration = Duration::from_secs(1);
/// Bytes that a flush holds for each series in addition to its rows: columns, and entries of the
/// file's index and dictionaries.
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

/// Flush that is due by age or size.
fn due(shared: &Shared, sweeper: &Sweeper, partition_ended: bool) -> Option<FlushScope> {
    let memtable = &shared.memtable;
    // Rows may use half of the memory that names leave.
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

/// Whether a flush of `rows` rows freed little of memory and log. Names then take the memory, and
/// flushes do not help the waiting writers: each would request the next one at once.
fn freed_little(shared: &Shared, rows: usize) -> bool {
    let log = shared.wal.as_ref().map_or(0, |wal| wal.bytes());
    let bytes = (rows * size_of::<Point>()) as u64;
    bytes < shared.memtable.memory.limit() / WORTHWHILE_PART && log <= shared.options.wal_bytes / 2
}

/// Closes the generation and flushes its partitions, some at a time, so that memory is freed early. Then deletes
/// the log segments that are no longer needed. Returns the number of rows.
async fn flush(shared: &Arc<Shared>, scope: FlushScope) -> Result<usize, SeriesError> {
    let closed = shared.gate.close();
    let mut unflushed = {
        let shared = Arc::clone(shared);
        blocking(move || shared.memtable.partitions(closed)).await
    };
    let open_from = shared.first_open_partition();
    let version = shared.files.version();
    // Rows that a flush has named before it failed.
    let known = |key: &PartitionKey| version.is_flushed(key.partition, key.generation);
    let named: Vec<PartitionKey> = unflushed.keys().copied().filter(known).collect();
    for key in named {
        let rows = unflushed.remove(&key).expect("it was among them");
        let partition = [key.partition];
        shared
            .memtable
            .drop_partitions(key.generation, &partition, &rows.series);
    }
    let mut selected: Vec<PartitionKey> = unflushed
        .keys()
        .filter(|key| scope == FlushScope::All || key.partition < open_from)
        .copied()
        .collect();
    if selected.len() > MANY_PARTITIONS {
        // None stays that would keep all others in the manifest's list of flushed partitions.
        selected = unflushed.keys().copied().collect();
    }
    let plan = FlushPlan::new(&version, shared.memtable.width, open_from);
    drop(version);
    let mut flushed = 0;
    for memtables in plan.rounds(selected, &unflushed) {
        flushed += flush_round(shared, memtables, &mut unflushed, closed).await?;
    }
    let Some(wal) = &shared.wal else {
        return Ok(flushed);
    };
    // A failed log is reported to writers.
    if wal.failure().is_none() {
        wal.write_all(false)?;
    }
    wal.delete_below(lowest(unflushed.keys()).unwrap_or(closed + 1))?;
    shared.update_log_full(wal.bytes());
    Ok(flushed)
}

/// Flushes some memtables, names their files, and frees their rows. Returns the number of rows.
async fn flush_round(
    shared: &Arc<Shared>,
    memtables: Vec<PlannedMemtable>,
    unflushed: &mut BTreeMap<PartitionKey, PartitionRows>,
    closed: u64,
) -> Result<usize, SeriesError> {
    let mut taken = Vec::new();
    for memtable in memtables {
        let keys = memtable.keys();
        let rows: Vec<_> = keys
            .filter_map(|key| Some((key, unflushed.remove(&key)?)))
            .collect();
        let mut series: Vec<_> = rows
            .iter()
            .flat_map(|(_, rows)| rows.series.clone())
            .collect();
        series.sort_unstable();
        series.dedup();
        taken.push((memtable, series, rows));
    }
    let frozen = {
        let shared = Arc::clone(shared);
        let planned: Vec<_> = taken
            .iter()
            .map(|(memtable, series, _)| (memtable.clone(), series.clone()))
            .collect();
        blocking(move || {
            let freeze = |(planned, series): (PlannedMemtable, Vec<_>)| {
                let PlannedMemtable {
                    generation,
                    partitions,
                } = planned;
                Arc::new(shared.memtable.freeze(generation, partitions, &series))
            };
            planned.into_iter().map(freeze).collect::<Vec<_>>()
        })
        .await
    };
    let columns = || frozen.iter().flat_map(|memtable| &memtable.series);
    let rows: usize = columns().map(|of| of.timestamps.len()).sum();
    // Charge the copy and the buffers that the files are built of. If the budget is exhausted,
    // flush anyway: flushing frees memory.
    let copied = (rows * size_of::<Point>()) as u64;
    let built = columns().count() as u64 * FLUSH_SERIES_BYTES;
    let _copy = shared.memtable.memory.reserve_copy(copied + built);
    let flushed_below = lowest(unflushed.keys()).unwrap_or(closed + 1);
    shared.files.flush(frozen, flushed_below).await?;
    let version = shared.files.version();
    for (memtable, series, rows) in taken {
        let generation = memtable.generation;
        let (named, others): (Vec<_>, Vec<_>) = rows
            .into_iter()
            .partition(|(key, _)| version.is_flushed(key.partition, generation));
        let partitions: Vec<i64> = named.iter().map(|(key, _)| key.partition).collect();
        shared
            .memtable
            .drop_partitions(generation, &partitions, &series);
        // The next flush takes them, without those named before.
        unflushed.extend(others);
    }
    Ok(rows)
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
