//! A flight: one load of one block, for however many wait for it or read along.

use std::sync::Arc;

use crate::error::{FlightError, LoadError};
use crate::follow::Follower;
use crate::options::BlockOptions;
use crate::pin::OwnedPin;
use crate::pool::{BlockKey, BlockPool};
use crate::slab::{Body, Contents};
use crate::sync::{Counted, Event, EventListener, Listener, Mutex, Step, skipped};
use crate::write_at::{Core, WriteAtError};

/// One load in progress, or its outcome. Belongs to one attempt: a later load of the key is another flight.
pub struct Flight {
    pool: Arc<BlockPool>,
    key: BlockKey,
    /// Locked for moments only, after the pool's table if both.
    state: Mutex<State>,
    /// Rings for waiters and followers: at the end, and when the load gets its frame.
    changed: Event,
}

#[derive(Debug)]
struct State {
    outcome: Outcome,
    /// Waiters that will each be handed a pin.
    waiters: u64,
    followers: u64,
    /// Set from attachment to the end; kept past publication while followers remain that may not have taken it yet.
    buffer: Option<Counted<Core>>,
    /// The block was erased while it was loading: it is published for its waiters alone.
    erased: bool,
}

impl State {
    fn has_audience(&self) -> bool {
        self.waiters > 0 || self.followers > 0
    }
}

#[derive(Debug, Clone)]
enum Outcome {
    Open,
    Published(u32),
    Ended(FlightError),
}

impl Flight {
    pub(crate) fn new(pool: Arc<BlockPool>, key: BlockKey) -> Arc<Self> {
        let state = State {
            outcome: Outcome::Open,
            waiters: 0,
            followers: 0,
            buffer: None,
            erased: false,
        };
        Arc::new(Self {
            pool,
            key,
            state: Mutex::new(state),
            changed: Event::new(),
        })
    }

    pub(crate) fn pool(&self) -> &Arc<BlockPool> {
        &self.pool
    }

    /// The block it loads.
    #[must_use]
    pub fn key(&self) -> BlockKey {
        self.key
    }

    /// Waits for the whole block. A waiter that joins before publication is handed a pin, so the block cannot be evicted before
    /// the waiter wakes. Dropping the waiter drops only that.
    pub fn join(self: &Arc<Self>) -> Waiter {
        let mut state = self.state.lock();
        let counted = matches!(state.outcome, Outcome::Open);
        state.waiters += u64::from(counted);
        drop(state);
        Waiter {
            flight: Arc::clone(self),
            counted,
        }
    }

    /// Reads the block from `offset` on as it arrives. Memory so read outlives a failure of the load.
    #[must_use]
    pub fn follow(self: &Arc<Self>, offset: usize) -> Follower {
        self.state.lock().followers += 1;
        Follower::new(Arc::clone(self), offset)
    }

    pub(crate) fn unfollow(&self) {
        let mut state = self.state.lock();
        state.followers -= 1;
        let last = state.followers == 0 && !matches!(state.outcome, Outcome::Open);
        let buffer = if last { state.buffer.take() } else { None };
        drop(state);
        drop(buffer);
    }

    /// Whether anyone waits for the block or reads along now.
    pub(crate) fn has_audience(&self) -> bool {
        self.state.lock().has_audience()
    }

    pub(crate) fn attach(&self, buffer: &Counted<Core>) {
        let mut state = self.state.lock();
        state.buffer = Some(Counted::clone(buffer));
        let heard = state.followers > 0;
        drop(state);
        self.ring(heard);
    }

    pub(crate) fn erase(&self) {
        self.state.lock().erased = true;
    }

    pub(crate) fn listen(&self) -> EventListener {
        self.changed.listen()
    }

    /// A follower's hold of the load's frame; nothing before there is one.
    pub(crate) fn attached(&self) -> Result<Option<Counted<Core>>, FlightError> {
        let state = self.state.lock();
        match (&state.buffer, &state.outcome) {
            (_, Outcome::Ended(error)) => Err(error.clone()),
            (None, Outcome::Published(_)) => Err(FlightError::Abandoned),
            (buffer, _) => Ok(buffer.clone()),
        }
    }

    /// Makes the complete block resident and hands each waiter its pin.
    pub(crate) fn publish(
        self: &Arc<Self>,
        buffer: Counted<Core>,
        len: usize,
        options: BlockOptions,
    ) -> OwnedPin {
        let (slot, followed, heard) = self.pool.end_flight(self, || {
            let mut state = self.state.lock();
            // One pin each: no waiter finds the block evicted before it wakes.
            let handed = if skipped(Step::HandOff) {
                0
            } else {
                state.waiters
            };
            if state.followers == 0 {
                // Not the last hold, `buffer` being another; so nothing is given back under the lock.
                state.buffer = None;
            }
            let frame = buffer.frame();
            let start = frame.start();
            // Followers that still hold the buffer hold the frame by it; those that are done may hold slices of it.
            let followed = Counted::try_unwrap(buffer).err();
            let body = match Counted::try_unwrap(frame) {
                Ok(frame) => Body::Own(frame),
                Err(frame) => Body::Shared(frame),
            };
            let slot = self.pool.admit(
                Contents {
                    start,
                    len: len as u32,
                    key: self.key,
                    options,
                    body,
                },
                1 + handed,
                state.erased,
            );
            state.outcome = Outcome::Published(slot);
            (slot, followed, state.has_audience())
        });
        // The end is told only now that it is true.
        if let Some(buffer) = followed {
            buffer.publish();
        }
        self.ring(heard);
        OwnedPin::adopt(Arc::clone(&self.pool), slot)
    }

    /// Ends the flight without a block.
    pub(crate) fn end(self: &Arc<Self>, error: FlightError) {
        let told = match &error {
            FlightError::Failed(error) => WriteAtError::Failed(Arc::clone(error)),
            FlightError::Abandoned => WriteAtError::Cancelled,
        };
        let (buffer, heard) = self.pool.end_flight(self, || {
            let mut state = self.state.lock();
            state.outcome = Outcome::Ended(error);
            (state.buffer.take(), state.has_audience())
        });
        if let Some(buffer) = buffer {
            buffer.end(told);
        }
        self.ring(heard);
    }

    /// Who was counted before the change may be asleep; who comes later sees it.
    fn ring(&self, heard: bool) {
        if heard {
            self.changed.notify(usize::MAX);
        }
    }
}

impl std::fmt::Debug for Flight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flight")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// Someone waiting for a whole block: see [`Flight::join`].
#[must_use = "dropping it stops waiting"]
pub struct Waiter {
    flight: Arc<Flight>,
    /// Whether the flight still owes a pin: counted while open, and not yet taken.
    counted: bool,
}

impl Waiter {
    /// The block, pinned, when it is published. Cancelling gives the place up.
    ///
    /// # Errors
    /// As the load ended; [`FlightError::Abandoned`] also if this waiter joined after publication and the block is gone.
    pub async fn wait(mut self) -> Result<OwnedPin, FlightError> {
        loop {
            if let Some(answer) = self.poll() {
                return answer;
            }
            let listener = self.flight.listen();
            if let Some(answer) = self.poll() {
                return answer;
            }
            listener.await;
        }
    }

    /// [`Self::wait`], blocking the thread.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn wait_blocking(mut self) -> Result<OwnedPin, FlightError> {
        loop {
            if let Some(answer) = self.poll() {
                return answer;
            }
            let listener = self.flight.listen();
            if let Some(answer) = self.poll() {
                return answer;
            }
            listener.wait();
        }
    }

    fn poll(&mut self) -> Option<Result<OwnedPin, FlightError>> {
        let outcome = self.flight.state.lock().outcome.clone();
        let slot = match outcome {
            Outcome::Open => return None,
            Outcome::Ended(error) => return Some(Err(error)),
            Outcome::Published(slot) => slot,
        };
        let pool = &self.flight.pool;
        if std::mem::take(&mut self.counted) {
            return Some(Ok(OwnedPin::adopt(Arc::clone(pool), slot)));
        }
        Some(
            pool.pin_owned(slot, self.flight.key)
                .ok_or(FlightError::Abandoned),
        )
    }
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiter")
            .field("key", &self.flight.key)
            .finish_non_exhaustive()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if !self.counted {
            return;
        }
        let mut state = self.flight.state.lock();
        let handed = match state.outcome {
            Outcome::Open => {
                state.waiters -= 1;
                None
            }
            Outcome::Published(slot) => Some(slot),
            Outcome::Ended(_) => None,
        };
        drop(state);
        // The pin that was handed over and not taken.
        drop(handed.map(|slot| OwnedPin::adopt(Arc::clone(&self.flight.pool), slot)));
    }
}

impl From<LoadError> for FlightError {
    fn from(error: LoadError) -> Self {
        Self::Failed(error)
    }
}
