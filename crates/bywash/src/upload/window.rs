//! Chunks on their way side by side, for stores that take them so. Each is kept here until all before it are acknowledged too,
//! so what a writer holds never has a gap.

use std::collections::VecDeque;

use object_store::{Error, Result};
use tokio::task::JoinSet;

use super::Chunk;
use super::buffer::Buffer;
use super::driver::Driver;
use super::filling::Filling;
use super::link::Tally;

/// The chunks between what is acknowledged and the one that is being filled.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// In order, without a gap.
    flights: VecDeque<Flight>,
    /// Go on while nobody waits; stopped when this is dropped.
    tasks: JoinSet<Landed>,
    /// Buffers of chunks that are acknowledged.
    spare: Vec<Buffer>,
}

#[derive(Debug)]
struct Flight {
    filling: Filling,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Sending,
    Failed,
    /// With its CRC32C.
    Kept(u32),
}

/// What became of a chunk.
#[derive(Debug)]
struct Landed {
    index: u64,
    crc32c: u32,
    tally: Tally,
    result: Result<()>,
}

impl Window {
    /// Chunks in it.
    pub(super) fn len(&self) -> usize {
        self.flights.len()
    }

    /// A buffer that has served before.
    pub(super) fn spare(&mut self) -> Option<Buffer> {
        self.spare.pop()
    }

    /// The offset of the first byte here, if there is one.
    pub(super) fn offset(&self) -> Option<u64> {
        self.flights.front().map(|flight| flight.filling.offset)
    }

    /// All bytes here, in order.
    pub(super) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.flights
            .iter()
            .flat_map(|flight| flight.filling.slices())
    }

    /// Sends a full chunk, unless the store vouched for it.
    pub(super) fn send(&mut self, filling: Filling, driver: &mut Driver) {
        let chunk = filling.chunk(filling.offset, Vec::new());
        let state = if driver.has(&chunk) {
            State::Kept(chunk.crc32c)
        } else {
            self.start(chunk, driver, false);
            State::Sending
        };
        self.flights.push_back(Flight { filling, state });
        self.fold(driver);
    }

    fn start(&mut self, chunk: Chunk, driver: &Driver, again: bool) {
        let link = driver.link.clone();
        self.tasks.spawn(async move {
            let mut tally = Tally {
                reached: if again { chunk.range().end } else { 0 },
                ..Tally::default()
            };
            let result = link.deliver_whole(&chunk, &mut tally).await;
            Landed {
                index: chunk.index,
                crc32c: chunk.crc32c,
                tally,
                result,
            }
        });
    }

    /// Waits until one more chunk is kept; sends those that failed before again. Cancel by dropping: nothing is lost.
    ///
    /// # Errors
    /// Those of the chunk. It stays here, and is sent again when this is called again.
    pub(super) async fn land(&mut self, driver: &mut Driver) -> Result<()> {
        let failed = |flight: &&mut Flight| flight.state == State::Failed;
        let mut flights = std::mem::take(&mut self.flights);
        for flight in flights.iter_mut().filter(failed) {
            let filling = &flight.filling;
            self.start(filling.chunk(filling.offset, Vec::new()), driver, true);
            flight.state = State::Sending;
        }
        self.flights = flights;
        let landed = match self.tasks.join_next().await {
            None => return Ok(()),
            Some(Ok(landed)) => landed,
            Some(Err(source)) => {
                // Which one it was is not known: sending a part twice does no harm.
                self.flights.iter_mut().for_each(|flight| {
                    if flight.state == State::Sending {
                        flight.state = State::Failed;
                    }
                });
                return Err(Error::JoinError { source });
            }
        };
        driver.tally.add(&landed.tally);
        let mut flights = self.flights.iter_mut();
        if let Some(flight) = flights.find(|flight| flight.filling.index == landed.index) {
            flight.state = match landed.result {
                Ok(()) => State::Kept(landed.crc32c),
                Err(_) => State::Failed,
            };
        }
        self.fold(driver);
        landed.result
    }

    /// Waits until all are kept.
    pub(super) async fn drain(&mut self, driver: &mut Driver) -> Result<()> {
        while !self.flights.is_empty() {
            self.land(driver).await?;
        }
        Ok(())
    }

    /// Lets go of those at the front that are kept.
    fn fold(&mut self, driver: &mut Driver) {
        while let Some(Flight {
            state: State::Kept(crc32c),
            ..
        }) = self.flights.front()
        {
            driver.fold(*crc32c, self.flights[0].filling.end);
            let done = self.flights.pop_front();
            let buffer = done.and_then(|flight| flight.filling.buffer);
            if let Some(mut buffer) = buffer
                && buffer.reclaim()
            {
                self.spare.push(buffer);
            }
        }
    }

    /// Stops all, and gives up what is held.
    pub(super) async fn clear(&mut self) {
        self.tasks.shutdown().await;
        self.flights.clear();
        self.spare.clear();
    }
}
