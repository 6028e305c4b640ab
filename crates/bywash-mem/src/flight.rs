//! A flight: one load of one block, for however many wait for it or read along.

use std::sync::Arc;

use crate::error::{FlightError, LoadError};
use crate::follow::{Buffer, Follower};
use crate::options::BlockOptions;
use crate::pin::OwnedPin;
use crate::pool::{BlockKey, BlockPool};
use crate::slab::{Body, Contents};
use crate::sync::{Counted, Event, EventListener, Listener, Mutex, Step, skipped};

/// One load in progress, or its outcome. Belongs to one attempt: a later load of the key is another flight.
pub struct Flight {
    pool: Arc<BlockPool>,
    key: BlockKey,
    /// Locked for moments only, after the pool's table if both.
    state: Mutex<State>,
    /// Rings once, at the end.
    done: Event,
    /// Rings at every advance, and at the end.
    moved: Event,
}

#[derive(Debug)]
struct State {
    outcome: Outcome,
    /// Waiters that will each be handed a pin.
    waiters: u64,
    followers: u64,
    /// Set from attachment to the end; kept past publication while followers remain that may not have taken it yet.
    buffer: Option<Counted<Buffer>>,
    /// The block was erased while it was loading: it is published for its waiters alone.
    erased: bool,
}

#[derive(Debug, Clone)]
enum Outcome {
    Open,
    Published(u32),
    Ended(FlightError),
}

/// A flight's state as a follower sees it.
pub(crate) enum Progress {
    Open,
    Published,
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
            done: Event::new(),
            moved: Event::new(),
        })
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
        let state = self.state.lock();
        state.waiters > 0 || state.followers > 0
    }

    pub(crate) fn attach(&self, buffer: &Counted<Buffer>) {
        self.state.lock().buffer = Some(Counted::clone(buffer));
    }

    pub(crate) fn erase(&self) {
        self.state.lock().erased = true;
    }

    /// The leader wrote more: followers look again.
    pub(crate) fn ring(&self) {
        self.moved.notify(usize::MAX);
    }

    pub(crate) fn listen_progress(&self) -> EventListener {
        self.moved.listen()
    }

    /// The state for a follower, which takes its hold of the buffer here.
    pub(crate) fn progress(&self, buffer: &mut Option<Counted<Buffer>>) -> Progress {
        let state = self.state.lock();
        if buffer.is_none() {
            buffer.clone_from(&state.buffer);
        }
        match &state.outcome {
            Outcome::Open => Progress::Open,
            Outcome::Published(_) => Progress::Published,
            Outcome::Ended(error) => Progress::Ended(error.clone()),
        }
    }

    /// Makes the complete block resident and hands each waiter its pin.
    pub(crate) fn publish(
        self: &Arc<Self>,
        buffer: Counted<Buffer>,
        options: BlockOptions,
    ) -> OwnedPin {
        let slot = self.pool.end_flight(self, || {
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
            let (start, len) = (buffer.start(), buffer.len() as u32);
            let body = match Counted::try_unwrap(buffer) {
                Ok(buffer) => Body::Own(buffer.into_frame()),
                Err(buffer) => Body::Shared(buffer),
            };
            let slot = self.pool.admit(
                Contents {
                    start,
                    len,
                    key: self.key,
                    options,
                    body,
                },
                1 + handed,
                state.erased,
            );
            state.outcome = Outcome::Published(slot);
            slot
        });
        self.ring_out();
        OwnedPin::adopt(Arc::clone(&self.pool), slot)
    }

    /// Ends the flight without a block.
    pub(crate) fn end(self: &Arc<Self>, error: FlightError) {
        let buffer = self.pool.end_flight(self, || {
            let mut state = self.state.lock();
            state.outcome = Outcome::Ended(error);
            state.buffer.take()
        });
        drop(buffer);
        self.ring_out();
    }

    fn ring_out(&self) {
        self.done.notify(usize::MAX);
        self.moved.notify(usize::MAX);
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
            let listener = self.flight.done.listen();
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
            let listener = self.flight.done.listen();
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
