//! The thread that keeps house: it seals what is over or too much, and writes the log behind those who need not wait for it.
//!
//! A thread of its own with a runtime of its own: appends block threads, and a database must not depend on the runtime of
//! those it makes wait.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::MissedTickBehavior;

use crate::db::Shared;
use crate::head::Place;
use crate::{Point, SeriesError};

/// How often there is a look at what is due, and how long a row that nobody waits for stays out of the log.
const TICK: Duration = Duration::from_millis(100);
/// The least time between two attempts to seal what a failed one left.
const RETRY: Duration = Duration::from_secs(1);

type Reply = oneshot::Sender<Result<(), SeriesError>>;

/// The thread, and how to ask it to seal.
#[derive(Debug)]
pub(crate) struct Keeper {
    requests: mpsc::Sender<Reply>,
    /// Dropped to end the thread, at its next await.
    running: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

/// Where writers wait until something was sealed.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Wakes the keeper.
    wanted: Notify,
    state: Mutex<RoomState>,
    /// Sealing has ended, well or not.
    change: Condvar,
}

#[derive(Debug, Default)]
struct RoomState {
    /// Attempts to seal.
    rounds: u64,
    /// Why the last one failed.
    cause: Option<String>,
}

/// What to seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// All that is in memory.
    All,
    /// Partitions that are over.
    Over,
}

impl Keeper {
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
                        () = keep(&shared, inbox) => {}
                        () = write_behind(&shared) => {}
                        () = crate::tidy::keep_tidy(&shared) => {}
                    }
                });
            })?;
        Ok(Self {
            requests,
            running: Mutex::new(Some((stop, thread))),
        })
    }

    /// Seals all that is in memory now.
    pub(crate) async fn seal(&self) -> Result<(), SeriesError> {
        let (reply, outcome) = oneshot::channel();
        let sent = self.requests.send(reply).await;
        sent.map_err(|_| SeriesError::Closed)?;
        outcome.await.map_err(|_| SeriesError::Closed)?
    }

    /// Ends the thread and waits for it: for the piece of work it is at. Blocks.
    pub(crate) fn stop(&self) {
        let running = self.running.lock().take();
        if let Some((stop, thread)) = running {
            drop(stop);
            // It panicked, then: the database is as after a crash, and the panic was reported.
            let _ = thread.join();
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Room {
    /// Waits until something was sealed, or an attempt failed; asks for one.
    pub(crate) fn wait(
        &self,
        stored: usize,
        since: Instant,
        patience: Duration,
    ) -> Result<(), SeriesError> {
        let mut state = self.state.lock();
        let before = state.rounds;
        self.wanted.notify_one();
        while state.rounds == before {
            let timed_out = self
                .change
                .wait_until(&mut state, since + patience)
                .timed_out();
            if timed_out && state.rounds == before || since.elapsed() >= patience {
                return Err(SeriesError::NoRoom {
                    stored,
                    waited: since.elapsed(),
                    cause: state.cause.clone(),
                });
            }
        }
        Ok(())
    }

    fn sealed(&self, outcome: &Result<(), SeriesError>) {
        let mut state = self.state.lock();
        state.rounds += 1;
        state.cause = outcome.as_ref().err().map(ToString::to_string);
        self.change.notify_all();
    }
}

async fn keep(shared: &Arc<Shared>, mut requests: mpsc::Receiver<Reply>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut over = None;
    let mut not_before = Instant::now();
    loop {
        let (extent, reply) = tokio::select! {
            request = requests.recv() => match request {
                Some(reply) => (Extent::All, Some(reply)),
                None => return,
            },
            () = wanted(shared, not_before) => (Extent::All, None),
            _ = ticks.tick() => {
                let now = shared.partitions_over();
                let Some(extent) = due(shared, over != Some(now)) else { continue };
                if Instant::now() < not_before {
                    continue;
                }
                (extent, None)
            }
        };
        let now = shared.partitions_over();
        let outcome = seal(shared, extent).await;
        shared.room.sealed(&outcome);
        shared.counters.seal(outcome.is_ok());
        match &outcome {
            Ok(()) => over = Some(now),
            Err(failed) => {
                tracing::warn!(%failed, "rows stay in memory and log until they can be sealed");
                not_before = Instant::now() + RETRY;
            }
        }
        if let Some(reply) = reply {
            // Whoever asked may be gone.
            let _ = reply.send(outcome);
        }
    }
}

/// Waits until writers have no room; and, after a failure, until it may be tried again.
async fn wanted(shared: &Shared, not_before: Instant) {
    // First, so that nobody's wish is forgotten if another branch comes before.
    tokio::time::sleep_until(not_before.into()).await;
    shared.room.wanted.notified().await;
}

/// What should be sealed without being asked for.
fn due(shared: &Shared, partition_ended: bool) -> Option<Extent> {
    let head = &shared.head;
    // Names stay: of what they leave, rows may take half.
    let room = head.charge.limit().saturating_sub(head.catalog.bytes());
    let log = shared.wal.as_ref().map_or(0, |wal| wal.bytes());
    if head.rows_bytes() > room / 2 || log > shared.options.wal_bytes / 2 {
        return Some(Extent::All);
    }
    partition_ended.then_some(Extent::Over)
}

/// Closes the generation, and makes what is in memory of it durable in files: partition after partition, so that memory is freed
/// as it goes. Then the log is needed no more, as far as nothing is left of its generations.
async fn seal(shared: &Arc<Shared>, extent: Extent) -> Result<(), SeriesError> {
    let closed = shared.gate.close();
    let mut places = {
        let shared = Arc::clone(shared);
        blocking(move || shared.head.places(closed)).await
    };
    let over = shared.partitions_over();
    let chosen: Vec<Place> = places
        .keys()
        .filter(|place| extent == Extent::All || place.partition < over)
        .copied()
        .collect();
    for place in chosen {
        let series = places.remove(&place).expect("it was among them");
        let sealed_below = lowest(places.keys()).unwrap_or(closed + 1);
        let (frozen, series) = {
            let shared = Arc::clone(shared);
            blocking(move || (shared.head.frozen(place, &series), series)).await
        };
        let rows: usize = frozen.series.iter().map(|of| of.timestamps.len()).sum();
        // A copy, until it is sealed. Without room for it in the budget it is made all the same: it is what makes room.
        let _copy = shared
            .head
            .charge
            .reserve_copy((rows * size_of::<Point>()) as u64);
        shared
            .files
            .seal(vec![Arc::new(frozen)], sealed_below)
            .await?;
        shared.head.forget(place, &series);
    }
    let Some(wal) = &shared.wal else {
        return Ok(());
    };
    // A failed log is told to those who write.
    if wal.failure().is_none() {
        wal.write_out(false)?;
    }
    wal.drop_below(lowest(places.keys()).unwrap_or(closed + 1))?;
    shared.note_log(wal.bytes());
    Ok(())
}

fn lowest<'a>(places: impl Iterator<Item = &'a Place>) -> Option<u64> {
    places.map(|place| place.generation).min()
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(failed) => std::panic::resume_unwind(failed.into_panic()),
    }
}

/// Writes what nobody waits for.
async fn write_behind(shared: &Shared) {
    let Some(wal) = &shared.wal else {
        return std::future::pending().await;
    };
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // A failure is the log's, and told to the next writer.
        let _ = wal.write_out(false);
    }
}
