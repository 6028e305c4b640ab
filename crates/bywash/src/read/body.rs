//! The body of one answer: the blocks of a range, one after the other.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use bywash_mem::{BlockReader, BlockSlice, Claim, FlightError, Load, OwnedPin, Share};
use futures::FutureExt;
use object_store::Result;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::ahead::Reader;
use super::open::Resolved;
use super::runs::Joined;
use super::shard::{AheadOf, Shard, begin_ahead};
use super::shared_error::{from_load_error, load_error, retell};
use crate::bucket::{CacheOutcome, Shared};
use crate::error::EngineError;
use crate::limits::MAX_PROBED_BLOCKS;
use crate::versions::{SharedFile, Version};

/// How often one block is looked up again after whoever loaded it gave up. Each round someone
/// else must have abandoned it, so only a storm of leaving readers comes near.
const ABANDONED_LIMIT: u32 = 100;
/// Blocks that a body's window grows by with each block it reads.
const RAMP: u32 = 2;

/// Reads a range block by block. Dropping it stops the loads only it wanted.
pub(super) struct Body {
    bucket: Arc<Shared>,
    version: Arc<Version>,
    /// Keeps the version's open file.
    _file: Arc<SharedFile>,
    /// The first block of the range.
    from: u32,
    /// The next byte to hand out, and the end of the range.
    at: u64,
    end: u64,
    /// The first block of the range, found in memory when the read began.
    first: Option<OwnedPin>,
    /// A load in progress that holds the byte at `at`.
    following: Option<BlockReader>,
    /// Blocks this body had loaded, counted as misses then, in order.
    launched: VecDeque<u32>,
    /// The block counted last, so that one looked up again is counted once.
    counted: Option<u32>,
    /// The first block that was not in memory when the read began.
    absent: u32,
    /// The first block not yet considered for reading ahead.
    ahead: u32,
    /// Holds what was read ahead. Before the guards, so that nothing has an audience when they tell that we left.
    reader: Option<Reader>,
    /// The run of reads that this one goes on with.
    run: Option<Joined>,
    /// Set with the first load of this body's own.
    leaving: Option<(CancellationToken, DropGuard)>,
    /// Says to the load that came with the version that we are here.
    resolved: Resolved,
}

impl Body {
    pub(super) fn new(bucket: Arc<Shared>, resolved: Resolved, range: Range<u64>) -> Self {
        let first = (range.start / bucket.block_size) as u32;
        Self {
            bucket,
            version: Arc::clone(&resolved.version),
            _file: resolved.version.file(),
            from: first,
            at: range.start,
            end: range.end,
            first: None,
            following: None,
            launched: VecDeque::new(),
            counted: None,
            absent: first,
            ahead: first,
            reader: resolved.take_ahead(),
            run: None,
            leaving: None,
            resolved,
        }
    }

    /// Whether the range is in memory, as far as a bounded look tells. Keeps the first block if it is.
    pub(super) fn look(&mut self) -> CacheOutcome {
        let pool = &self.bucket.engine.pool;
        let first = self.from;
        let end = self
            .end_block()
            .min(first.saturating_add(MAX_PROBED_BLOCKS));
        let (mut resident, mut absent) = (0, None);
        for block in first..end {
            let key = self.version.key(block);
            let here = if block == first {
                let pin = match self.resolved.loaded(block) {
                    true => pool.peek(key),
                    false => pool.get(key),
                };
                self.first = pin.map(|pin| pin.into_owned());
                self.first.is_some()
            } else {
                // It is used when its turn comes.
                pool.contains(key)
            };
            if here && !self.resolved.loaded(block) {
                resident += 1;
            } else {
                absent.get_or_insert(block);
            }
        }
        self.absent = absent.unwrap_or(end);
        self.ahead = self.absent;
        let outcome = match resident {
            0 if first < end => CacheOutcome::Miss,
            n if n == end - first => CacheOutcome::Hit,
            _ => CacheOutcome::Partial,
        };
        self.join_run(outcome == CacheOutcome::Hit);
        outcome
    }

    /// Goes on with the run of reads that ended where this one begins, and takes over what was loaded for it.
    fn join_run(&mut self, warm: bool) {
        let bucket = Arc::clone(&self.bucket);
        let range = self.at..self.end;
        let run = bucket.runs.join(&bucket, &self.version, &range, warm);
        if let Some(run) = &run {
            let end = self.end_block();
            self.reader().adopt(&run.ahead.reader, end);
        }
        self.run = run;
    }

    /// Whether all of the range was handed out.
    pub(super) fn is_done(&self) -> bool {
        self.at >= self.end
    }

    /// The next bytes, at most to the end of one block; `None` after the range's end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>> {
        let bytes = self.advance().await?;
        let length = bytes.as_ref().map_or(0, Bytes::len);
        self.bucket.counters.bytes(length as u64);
        Ok(bytes)
    }

    /// As [`Self::next`]; the caller counts the bytes it hands out.
    pub(super) async fn advance(&mut self) -> Result<Option<Bytes>> {
        let size = self.bucket.block_size;
        for _ in 0..ABANDONED_LIMIT {
            if self.is_done() {
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
            if let Some(pin) = self.first.take() {
                return Ok(Some(self.resident(block, pin, offset..offset + wanted)));
            }
            // Read ahead for this reader: its turn is no further use. Held until it is followed, if it is still on its way.
            let held = self.reader.as_ref().and_then(|reader| reader.take(block));
            let mut held = held.map(|waiter| Box::pin(waiter.wait()));
            if let Some(Ok(pin)) = held.as_mut().and_then(FutureExt::now_or_never) {
                return Ok(Some(self.resident(block, pin, offset..offset + wanted)));
            }
            let pool = Arc::clone(&self.bucket.engine.pool);
            let key = self.version.key(block);
            // A block is not used more because its load was faster than its reader.
            let own = self.resolved.loaded(block) || self.launched.contains(&block);
            let own = own.then(|| pool.peek(key)).flatten();
            match own.map_or_else(|| pool.claim(key), Claim::Resident) {
                Claim::Resident(pin) => {
                    let pin = pin.into_owned();
                    return Ok(Some(self.resident(block, pin, offset..offset + wanted)));
                }
                Claim::Loading(flight) => {
                    self.count(block, false);
                    self.following = Some(flight.reader(offset));
                    self.read_ahead(block);
                }
                Claim::Vacant(load) => {
                    let follower = load.flight().reader(offset);
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

    fn resident(&mut self, block: u32, pin: OwnedPin, range: Range<usize>) -> Bytes {
        self.count(block, true);
        self.read_ahead(block);
        self.hand_out(Bytes::from_owner(pin).slice(range))
    }

    /// Waits for the first bytes of the range that were not here when the read began.
    ///
    /// Bytes in memory could be handed out at once, but if the object has changed since, what is
    /// missing can no longer be had; before the answer begins, the read can still start over.
    pub(super) async fn await_first_absent(&mut self) -> Result<()> {
        let block = self.absent;
        let size = self.bucket.block_size;
        if u64::from(block) == self.at / size || block >= self.end_block() {
            // The caller awaits it anyway, or everything looked at was here.
            return Ok(());
        }
        // Who may have to wait for memory holds none.
        self.first = None;
        let pool = Arc::clone(&self.bucket.engine.pool);
        let mut follower = match pool.claim(self.version.key(block)) {
            Claim::Resident(_) => return Ok(()),
            Claim::Loading(flight) => flight.reader(0),
            Claim::Vacant(load) => {
                let follower = load.flight().reader(0);
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
        } else if resident && !self.resolved.loaded(block) {
            self.bucket.counters.hit();
        } else {
            self.bucket.counters.miss();
        }
    }

    pub(super) fn bucket(&self) -> &Arc<Shared> {
        &self.bucket
    }

    pub(super) fn version(&self) -> &Arc<Version> {
        &self.version
    }

    /// Bytes of a block of its version.
    pub(super) fn block_len(&self, block: u32) -> usize {
        self.version.block_len(block, self.bucket.block_size)
    }

    /// The next byte to read.
    pub(super) fn position(&self) -> u64 {
        self.at
    }

    /// The end of the range.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Reads on from `at`; holds no block until then.
    pub(super) fn seek(&mut self, at: u64) {
        self.first = None;
        self.following = None;
        self.at = at;
    }

    /// Moves the hold on a load in progress out of the body. It is put back before the body reads on.
    pub(super) fn following(&mut self) -> &mut Option<BlockReader> {
        &mut self.following
    }

    /// The first block past the range.
    fn end_block(&self) -> u32 {
        self.end.div_ceil(self.bucket.block_size) as u32
    }

    /// Loads `block`, waiting for its memory, and such absent neighbours as there is memory for.
    async fn load(&mut self, block: u32, mut load: Load) -> Result<()> {
        let engine = Arc::clone(&self.bucket.engine);
        let length = self.version.block_len(block, self.bucket.block_size);
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
        let next = block + 1;
        if next < self.end_block() {
            let most = self.bucket.shard_blocks() - 1;
            let most = self.reader().room(most).free;
            self.extend(&mut loads, next, most);
        }
        self.ahead = self.ahead.max(block + loads.len() as u32);
        self.launch(loads);
        Ok(())
    }

    fn reader(&mut self) -> &Reader {
        let bucket = &self.bucket;
        self.reader
            .get_or_insert_with(|| bucket.engine.ahead.reader(bucket.block_size))
    }

    /// Adds at most `most` absent neighbours from `next` on to a shard, as far as the range and memory go.
    fn extend(&mut self, loads: &mut Vec<Load>, next: u32, most: u32) {
        let engine = Arc::clone(&self.bucket.engine);
        let end = next.saturating_add(most).min(self.end_block());
        for block in next..end {
            let length = self.version.block_len(block, self.bucket.block_size);
            let Claim::Vacant(mut load) = engine.pool.claim(self.version.key(block)) else {
                return;
            };
            let frames = engine.pool.try_frames(Share::Download, length, 1, 1);
            let Some(frame) = frames.and_then(|mut frames| frames.pop()) else {
                return;
            };
            load.attach(frame, length);
            self.hold(&load);
            loads.push(load);
        }
    }

    /// Notes a load of a block whose turn will come.
    fn hold(&mut self, load: &Load) {
        let block = load.key().block;
        self.reader().hold(block, load.flight().join());
        self.bucket.counters.miss();
        self.launched.push_back(block);
    }

    fn leaving(&mut self) -> CancellationToken {
        let (leaving, _) = self.leaving.get_or_insert_with(|| {
            let leaving = CancellationToken::new();
            (leaving.clone(), leaving.drop_guard())
        });
        leaving.clone()
    }

    fn launch(&mut self, loads: Vec<Load>) {
        let leaving = self.leaving();
        let shard = Shard::new(
            Arc::clone(&self.bucket),
            Arc::clone(&self.version),
            loads,
            leaving,
        );
        tokio::spawn(shard.run(None));
    }

    /// Keeps shards on their way ahead of `block`, which is in hand: of this range, and beyond it if the reads of a client go
    /// forward one after the other.
    fn read_ahead(&mut self, block: u32) {
        let end = self.end_block();
        self.ahead = self.ahead.max(block + 1);
        if self.ahead < end {
            self.reader();
            self.leaving();
        }
        if let (Some(reader), Some((leaving, _))) = (&self.reader, &self.leaving) {
            // Grows as it reads: many that begin together must not take all room before they know of each other.
            let ramp = (block - self.from).saturating_mul(RAMP);
            let ramp = ramp.saturating_add(self.bucket.shard_blocks());
            let ahead = AheadOf {
                bucket: &self.bucket,
                version: &self.version,
                reader,
                leaving,
            };
            let next = self.ahead..end;
            let launched = &mut self.launched;
            self.ahead = begin_ahead(&ahead, block.saturating_add(1), next, ramp, |block| {
                self.bucket.counters.miss();
                launched.push_back(block);
            });
        }
        if let Some(run) = self.run.as_ref().filter(|_| self.ahead >= end) {
            let beyond = run.beyond.div_ceil(self.bucket.block_size);
            let beyond = u32::try_from(beyond).unwrap_or(u32::MAX);
            run.ahead.extend(&self.bucket, &self.version, end, beyond);
        }
    }
}

/// The next bytes of a load in progress, at most `wanted`. `to_end`: `wanted` reaches the block's end; then its last
/// bytes are held until the load has ended well, so that who has read a block whole finds it in memory.
async fn follow(
    follower: &mut BlockReader,
    wanted: usize,
    to_end: bool,
) -> Result<Option<BlockSlice>, FlightError> {
    let bytes = follower.next(wanted).await?;
    match bytes {
        Some(bytes) if to_end && bytes.as_ref().len() == wanted => match follower.next(1).await {
            Err(FlightError::Failed(error)) => Err(FlightError::Failed(error)),
            _ => Ok(Some(bytes)),
        },
        bytes => Ok(bytes),
    }
}
