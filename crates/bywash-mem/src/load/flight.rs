//! A flight: the shared state of one load, for its leader, waiters and readers.

use std::fmt;
use std::sync::Arc;

use super::flights::FlightTable;
use super::reader::BlockReader;
use crate::block::{BlockCache, BlockContents, BlockOptions, FrameRef, OwnedPin};
use crate::buffer::{BufferCore, WriteAtError};
use crate::error::{FlightError, LoadError};
use crate::frames::Frame;
use crate::key::BlockKey;
use crate::sync::{Counted, Event, EventListener, Mutex, Step, skipped};

/// One load in progress, or its result. Belongs to one attempt: a later load of the key is another flight.
pub struct Flight {
    table: Arc<FlightTable>,
    key: BlockKey,
    /// Locked briefly, and after the table's lock if both are held.
    state: Mutex<FlightState>,
    /// Notified for waiters and readers when the load ends, and when it gets its frame.
    changed: Event,
}

#[derive(Debug)]
struct FlightState {
    outcome: FlightOutcome,
    /// Number of waiters; each is handed a pin.
    waiters: u64,
    readers: u64,
    /// Set from attachment to the end. Kept after publication while readers remain that may not have fetched it yet.
    buffer: Option<Counted<BufferCore>>,
    /// The block was erased during the load: it is published for its waiters only.
    erased: bool,
}

impl FlightState {
    fn has_listeners(&self) -> bool {
        self.waiters > 0 || self.readers > 0
    }
}

#[derive(Debug, Clone)]
enum FlightOutcome {
    InProgress,
    Published(u32),
    Ended(FlightError),
}

impl Flight {
    pub(super) fn new(table: Arc<FlightTable>, key: BlockKey) -> Arc<Self> {
        let state = FlightState {
            outcome: FlightOutcome::InProgress,
            waiters: 0,
            readers: 0,
            buffer: None,
            erased: false,
        };
        Arc::new(Self {
            table,
            key,
            state: Mutex::new(state),
            changed: Event::new(),
        })
    }

    pub(super) fn cache(&self) -> &Arc<BlockCache> {
        self.table.cache()
    }

    /// Key of the block.
    #[must_use]
    pub fn key(&self) -> BlockKey {
        self.key
    }

    /// Registers a waiter for the whole block. A waiter that joins before publication is handed a pin, so the block cannot be evicted
    /// before the waiter wakes. Dropping the waiter does not affect the load.
    pub fn join(self: &Arc<Self>) -> Waiter {
        let mut state = self.state.lock();
        let counted = matches!(state.outcome, FlightOutcome::InProgress);
        state.waiters += u64::from(counted);
        drop(state);
        Waiter {
            flight: Arc::clone(self),
            counted,
        }
    }

    /// Returns a reader of the block from `offset` on, as it arrives. Slices that were read outlive a failure of the load.
    #[must_use]
    pub fn reader(self: &Arc<Self>, offset: usize) -> BlockReader {
        self.state.lock().readers += 1;
        BlockReader::new(Arc::clone(self), offset)
    }

    pub(super) fn remove_reader(&self) {
        let mut state = self.state.lock();
        state.readers -= 1;
        let last = state.readers == 0 && !matches!(state.outcome, FlightOutcome::InProgress);
        let buffer = if last { state.buffer.take() } else { None };
        drop(state);
        drop(buffer);
    }

    /// Whether there is a waiter or reader now.
    pub(super) fn has_listeners(&self) -> bool {
        self.state.lock().has_listeners()
    }

    pub(super) fn attach(&self, buffer: &Counted<BufferCore>) {
        let mut state = self.state.lock();
        state.buffer = Some(Counted::clone(buffer));
        let has_readers = state.readers > 0;
        drop(state);
        self.notify_if(has_readers);
    }

    /// Replaces the attached buffer, which has no written byte, by another one. Its readers look for a buffer again.
    pub(super) fn exchange(&self, buffer: &Counted<BufferCore>) {
        let attached = self.state.lock().buffer.replace(Counted::clone(buffer));
        if let Some(attached) = attached
            && !skipped(Step::Exchange)
        {
            attached.abort(WriteAtError::Cancelled);
        }
    }

    pub(super) fn erase(&self) {
        self.state.lock().erased = true;
    }

    pub(super) fn listen(&self) -> EventListener {
        self.changed.listen()
    }

    /// Returns the load's buffer for a reader; `None` before a frame is attached.
    pub(super) fn buffer(&self) -> Result<Option<Counted<BufferCore>>, FlightError> {
        let state = self.state.lock();
        match (&state.buffer, &state.outcome) {
            (_, FlightOutcome::Ended(error)) => Err(error.clone()),
            (None, FlightOutcome::Published(_)) => Err(FlightError::Abandoned),
            (buffer, _) => Ok(buffer.clone()),
        }
    }

    /// Publishes the complete block and hands each waiter its pin.
    pub(super) fn publish(
        self: &Arc<Self>,
        buffer: Counted<BufferCore>,
        len: usize,
        options: BlockOptions,
    ) -> OwnedPin {
        let (slot, read_on, has_listeners) = self.table.end_flight(self, || {
            let mut state = self.state.lock();
            if state.readers == 0 {
                // Not the last reference, because `buffer` is another; so nothing is released under the lock.
                state.buffer = None;
            }
            let frame = buffer.frame();
            let start = frame.start();
            // Readers that still hold the buffer hold the frame through it. Readers that are done may hold slices of the frame.
            let read_on = Counted::try_unwrap(buffer).err();
            let frame = match Counted::try_unwrap(frame) {
                Ok(frame) => FrameRef::Owned(frame),
                Err(frame) => FrameRef::Shared(frame),
            };
            let contents = BlockContents {
                start,
                len: len as u32,
                key: self.key,
                options,
                frame,
            };
            let slot = self.enter(&mut state, contents);
            (slot, read_on, state.has_listeners())
        });
        // Readers see the end only after the block is published.
        if let Some(buffer) = read_on {
            buffer.close_complete();
        }
        self.notify_if(has_listeners);
        self.table.pins().adopt(slot)
    }

    /// Publishes a block in a frame that others read, of a flight without a buffer, and hands each waiter its pin.
    pub(super) fn publish_frame(
        self: &Arc<Self>,
        frame: Counted<Frame>,
        len: usize,
        options: BlockOptions,
    ) -> OwnedPin {
        let contents = BlockContents {
            start: frame.start(),
            len: len as u32,
            key: self.key,
            options,
            frame: FrameRef::Shared(frame),
        };
        let (slot, has_listeners) = self.table.end_flight(self, || {
            let mut state = self.state.lock();
            let slot = self.enter(&mut state, contents);
            (slot, state.has_listeners())
        });
        self.notify_if(has_listeners);
        self.table.pins().adopt(slot)
    }

    /// Makes the block resident, with a pin for the caller and one a waiter: none finds it evicted before it wakes.
    fn enter(&self, state: &mut FlightState, contents: BlockContents) -> u32 {
        let handed_off = if skipped(Step::HandOff) {
            0
        } else {
            state.waiters
        };
        let slot = self.cache().publish(contents, 1 + handed_off, state.erased);
        state.outcome = FlightOutcome::Published(slot);
        slot
    }

    /// Ends the flight without a block.
    pub(super) fn end(self: &Arc<Self>, error: FlightError) {
        let buffer_error = match &error {
            FlightError::Failed(error) => WriteAtError::Failed(Arc::clone(error)),
            FlightError::Abandoned => WriteAtError::Cancelled,
        };
        let (buffer, has_listeners) = self.table.end_flight(self, || {
            let mut state = self.state.lock();
            state.outcome = FlightOutcome::Ended(error);
            (state.buffer.take(), state.has_listeners())
        });
        if let Some(buffer) = buffer {
            buffer.abort(buffer_error);
        }
        self.notify_if(has_listeners);
    }

    /// Wakes listeners that were counted before the change. Later ones see the change.
    fn notify_if(&self, has_listeners: bool) {
        if has_listeners {
            self.changed.notify(usize::MAX);
        }
    }
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flight")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// A waiter for a whole block: see [`Flight::join`].
#[must_use = "dropping it stops waiting"]
pub struct Waiter {
    flight: Arc<Flight>,
    /// Whether the flight owes a pin: counted while in progress, and not yet taken.
    counted: bool,
}

impl Waiter {
    /// Waits until the block is published, and returns its pin. Dropping the future gives the pin up.
    ///
    /// # Errors
    /// The load's error; [`FlightError::Abandoned`] also if this waiter joined after publication and the block is evicted.
    pub async fn wait(mut self) -> Result<OwnedPin, FlightError> {
        loop {
            if let Some(result) = self.try_take() {
                return result;
            }
            let listener = self.flight.listen();
            if let Some(result) = self.try_take() {
                return result;
            }
            listener.await;
        }
    }

    fn try_take(&mut self) -> Option<Result<OwnedPin, FlightError>> {
        let outcome = self.flight.state.lock().outcome.clone();
        let slot = match outcome {
            FlightOutcome::InProgress => return None,
            FlightOutcome::Ended(error) => return Some(Err(error)),
            FlightOutcome::Published(slot) => slot,
        };
        let pins = self.flight.table.pins();
        if std::mem::take(&mut self.counted) {
            return Some(Ok(pins.adopt(slot)));
        }
        let pin = pins.cache().pin(slot, self.flight.key);
        Some(pin.map(|pin| pins.own(pin)).ok_or(FlightError::Abandoned))
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
        let handed_off = match state.outcome {
            FlightOutcome::InProgress => {
                state.waiters -= 1;
                None
            }
            FlightOutcome::Published(slot) => Some(slot),
            FlightOutcome::Ended(_) => None,
        };
        drop(state);
        // The pin that was handed off and not taken.
        drop(handed_off.map(|slot| self.flight.table.pins().adopt(slot)));
    }
}

impl From<LoadError> for FlightError {
    fn from(error: LoadError) -> Self {
        Self::Failed(error)
    }
}
