//! The body of one answer: the blocks of a range, one after the other.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use bywash_mem::{Claim, FlightError, Followed, Follower, Load, Share};
use object_store::Result;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::open::Opened;
use super::shard::Shard;
use super::shared_error::{from_load_error, load_error, retell};
use crate::bucket::Shared;
use crate::error::EngineError;
use crate::versions::Version;

/// The most blocks looked at to find the first one that is absent.
pub(super) const PROBE_LIMIT_BLOCKS: u32 = 4096;
/// How often one block is looked up again after whoever loaded it gave up. Each round someone
/// else must have abandoned it, so only a storm of leaving readers comes near.
const ABANDONED_LIMIT: u32 = 100;

/// Reads a range block by block. Dropping it stops the loads only it wanted.
pub(super) struct Body {
    bucket: Arc<Shared>,
    version: Arc<Version>,
    /// The next byte to hand out, and the end of the range.
    at: u64,
    end: u64,
    /// A load in progress that holds the byte at `at`.
    following: Option<Follower>,
    /// Blocks this body had loaded, counted as misses then, in order.
    launched: VecDeque<u32>,
    /// The block counted last, so that one looked up again is counted once.
    counted: Option<u32>,
    /// The first block not yet considered for reading ahead.
    ahead: u32,
    leaving: CancellationToken,
    _leave_on_drop: DropGuard,
    /// Says to the load that came with the version that we are here.
    opened: Arc<Opened>,
}

impl Body {
    pub(super) fn new(bucket: Arc<Shared>, opened: Arc<Opened>, range: Range<u64>) -> Self {
        let version = Arc::clone(&opened.version);
        let leaving = CancellationToken::new();
        let ahead = (range.start / bucket.engine.block_size) as u32;
        Self {
            bucket,
            version,
            at: range.start,
            end: range.end,
            following: None,
            launched: VecDeque::new(),
            counted: None,
            ahead,
            leaving: leaving.clone(),
            _leave_on_drop: leaving.drop_guard(),
            opened,
        }
    }

    /// The next bytes, at most to the end of one block; `None` after the range's end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>> {
        let size = self.bucket.engine.block_size;
        for _ in 0..ABANDONED_LIMIT {
            if self.at >= self.end {
                return Ok(None);
            }
            let block = (self.at / size) as u32;
            let offset = (self.at % size) as usize;
            let wanted = (self.end - self.at).min(size - offset as u64) as usize;
            if let Some(follower) = &mut self.following {
                let last = offset + wanted == self.version.block_len(block, size);
                match follow(follower, wanted, last).await {
                    Ok(Some(bytes)) => return Ok(Some(self.hand_out(Bytes::from_owner(bytes)))),
                    Ok(None) | Err(FlightError::Abandoned) => self.following = None,
                    Err(FlightError::Failed(error)) => {
                        self.following = None;
                        return Err(from_load_error(&error));
                    }
                }
                continue;
            }
            let pool = Arc::clone(&self.bucket.engine.pool);
            match pool.claim(self.version.key(block)) {
                Claim::Resident(pin) => {
                    let pin = pin.into_owned(Arc::clone(&pool));
                    self.count(block, true);
                    self.read_ahead(block);
                    let bytes = Bytes::from_owner(pin).slice(offset..offset + wanted);
                    return Ok(Some(self.hand_out(bytes)));
                }
                Claim::Loading(flight) => {
                    self.count(block, false);
                    self.following = Some(flight.follow(offset));
                    self.read_ahead(block);
                }
                Claim::Vacant(load) => {
                    let follower = load.flight().follow(offset);
                    self.count(block, false);
                    self.load(block, load).await?;
                    self.following = Some(follower);
                    self.read_ahead(block);
                }
            }
        }
        let object = self.version.meta.location.to_string();
        Err(EngineError::BadAnswer {
            object,
            detail: "its load was given up over and over".to_owned(),
        }
        .into())
    }

    /// Waits for the first bytes of the range that are not here yet.
    ///
    /// Bytes in memory could be handed out at once, but if the object has changed since, what is
    /// missing can no longer be had; before the answer begins, the read can still start over.
    pub(super) async fn await_first_absent(&mut self) -> Result<()> {
        let first = (self.at / self.bucket.engine.block_size) as u32;
        let end = self
            .end_block()
            .min(first.saturating_add(PROBE_LIMIT_BLOCKS));
        let pool = Arc::clone(&self.bucket.engine.pool);
        let Some(block) = (first..end).find(|block| pool.get(self.version.key(*block)).is_none())
        else {
            return Ok(());
        };
        if block == first {
            // The caller awaits it anyway.
            return Ok(());
        }
        let mut follower = match pool.claim(self.version.key(block)) {
            Claim::Resident(_) => return Ok(()),
            Claim::Loading(flight) => flight.follow(0),
            Claim::Vacant(load) => {
                let follower = load.flight().follow(0);
                self.bucket.counters.miss();
                self.launched.push_back(block);
                self.load(block, load).await?;
                follower
            }
        };
        match follower.next(1).await {
            Err(FlightError::Failed(error)) => Err(from_load_error(&error)),
            // An abandoned load is begun again when its turn comes.
            Ok(_) | Err(FlightError::Abandoned) => Ok(()),
        }
    }

    fn hand_out(&mut self, bytes: Bytes) -> Bytes {
        self.at += bytes.len() as u64;
        self.bucket.counters.bytes(bytes.len() as u64);
        bytes
    }

    /// Counts a block once: as a miss when this body had it loaded, else as it was found.
    fn count(&mut self, block: u32, resident: bool) {
        while self
            .launched
            .front()
            .is_some_and(|launched| *launched < block)
        {
            self.launched.pop_front();
        }
        if self.counted.replace(block) == Some(block) {
            return;
        }
        if self.launched.front() == Some(&block) {
            self.launched.pop_front();
        } else if resident && !self.opened.loading.contains(&block) {
            self.bucket.counters.hit();
        } else {
            self.bucket.counters.miss();
        }
    }

    /// The first block past the range.
    fn end_block(&self) -> u32 {
        self.end.div_ceil(self.bucket.engine.block_size) as u32
    }

    /// Loads `block`, waiting for its memory, and such absent neighbours as there is memory for.
    async fn load(&mut self, block: u32, mut load: Load) -> Result<()> {
        let engine = Arc::clone(&self.bucket.engine);
        let length = self.version.block_len(block, engine.block_size);
        let frame = match engine
            .frame(length, "read", &self.version.meta.location)
            .await
        {
            Ok(frame) => frame,
            Err(error) => {
                let error = Arc::new(error);
                load.fail(load_error(Arc::clone(&error)));
                return Err(retell(&error));
            }
        };
        load.attach(frame, length);
        let mut loads = vec![load];
        self.extend(&mut loads, block + 1);
        self.ahead = self.ahead.max(block + loads.len() as u32);
        self.launch(loads);
        Ok(())
    }

    /// Adds absent blocks from `next` on to a shard, as far as memory is free and the range goes.
    fn extend(&mut self, loads: &mut Vec<Load>, next: u32) {
        let engine = &self.bucket.engine;
        let most = (engine.shard_size / engine.block_size) as usize;
        for block in next..self.end_block() {
            if loads.len() >= most {
                break;
            }
            let length = self.version.block_len(block, engine.block_size);
            let Claim::Vacant(mut load) = engine.pool.claim(self.version.key(block)) else {
                break;
            };
            let frames = engine.pool.try_frames(Share::Download, length, 1, 1);
            let Some(frame) = frames.and_then(|mut frames| frames.pop()) else {
                break;
            };
            load.attach(frame, length);
            self.bucket.counters.miss();
            self.launched.push_back(block);
            loads.push(load);
        }
    }

    fn launch(&self, loads: Vec<Load>) {
        let shard = Shard::new(
            Arc::clone(&self.bucket),
            Arc::clone(&self.version),
            loads,
            self.leaving.clone(),
        );
        tokio::spawn(shard.run(None));
    }

    /// Keeps shards of this range on their way ahead of `block`, with memory nobody waits for.
    fn read_ahead(&mut self, block: u32) {
        let engine = Arc::clone(&self.bucket.engine);
        let horizon = block
            .saturating_add(engine.ahead_blocks)
            .min(self.end_block());
        self.ahead = self.ahead.max(block + 1);
        while self.ahead < horizon {
            let mut loads = Vec::new();
            let from = self.ahead;
            self.extend(&mut loads, from);
            if loads.is_empty() {
                // Resident, on its way, or no memory: step over it.
                self.ahead += 1;
                continue;
            }
            self.ahead = from + loads.len() as u32;
            self.launch(loads);
        }
    }
}

/// The next bytes of a load in progress, at most `wanted`. `to_end`: `wanted` reaches the block's end; then its last
/// bytes are held until the load has ended well, so that who has read a block whole finds it in memory.
async fn follow(
    follower: &mut Follower,
    wanted: usize,
    to_end: bool,
) -> Result<Option<Followed>, FlightError> {
    let bytes = follower.next(wanted).await?;
    match bytes {
        Some(bytes) if to_end && bytes.as_ref().len() == wanted => match follower.next(1).await {
            Err(FlightError::Failed(error)) => Err(FlightError::Failed(error)),
            _ => Ok(Some(bytes)),
        },
        bytes => Ok(bytes),
    }
}
