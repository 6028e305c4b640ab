//! Body of one GET: the blocks of a range, one after the other.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use bywash_mem::{BlockReader, BlockSlice, FlightError, Load, OwnedPin, PinScope, Share};
use bywash_store::OriginError;
use futures::FutureExt;
use object_store::Result;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::ownership;
use super::plan::{self, Found, ReadaheadContext, start_readahead};
use super::range_fetch::RangeFetch;
use super::readahead::ReadaheadWindow;
use super::resolution::Resolution;
use super::sequential::Stream;
use super::shared_error::from_load_error;
use crate::block_kind::BlockKind;
use crate::limits::MAX_PROBED_BLOCKS;
use crate::outcome::CacheOutcome;
use crate::shared::BucketShared;
use crate::versions::{SharedFile, Version};

/// Attempts at one block after abandoned loads. In each attempt another reader abandoned the load, so only a
/// storm of cancelled readers gets near it.
const ABANDONED_LIMIT: u32 = 100;
/// Blocks that a body's window grows by with each block it reads.
const RAMP: u32 = 2;
/// Blocks of bytes that a body counts by itself before it adds them to the bucket's counters, which all bodies write.
const COUNTED_BLOCKS: u64 = 16;

/// Reads a range block by block. Dropping it cancels the loads that only this body needs.
pub(super) struct Body {
    bucket: Arc<BucketShared>,
    /// Holds the version's open file, unless all blocks were resident when the read began and no load was needed since.
    file: Option<Arc<SharedFile>>,
    pins: PinScope,
    /// The first block of the range.
    from: u32,
    /// The next byte to return, and the end of the range.
    at: u64,
    end: u64,
    /// Pin of the first block, if it was resident when the read began.
    first: Option<OwnedPin>,
    /// A load in progress that contains the byte `at`.
    following: Option<BlockReader>,
    /// Blocks that this body started to load and counted as misses, in order.
    launched: VecDeque<u32>,
    /// The block counted last, so that a block looked up again is counted once.
    counted: Option<u32>,
    /// Resident blocks found and bytes returned, not yet added to the bucket's counters.
    hits: u64,
    bytes: u64,
    /// The blocks before this one were resident when they were looked up.
    probed: u32,
    /// The first block found absent; then no more blocks are looked up.
    absent: Option<u32>,
    /// The first block not considered for read-ahead yet.
    next_ahead: u32,
    /// Holds the blocks read ahead. Declared before the guards, so that the loads have no waiter when those cancel
    /// them.
    window: Option<ReadaheadWindow>,
    /// The sequential stream that this read continues.
    stream: Option<Stream>,
    /// In a cluster: this read begins where another one ended.
    continues: bool,
    /// Created with the first load of this body's own.
    cancel: Option<(CancellationToken, DropGuard)>,
    /// The version, and the load that came with it, which this keeps from being cancelled.
    resolved: Resolution,
}

impl Body {
    pub(super) fn new(bucket: Arc<BucketShared>, resolved: Resolution, range: Range<u64>) -> Self {
        let first = (range.start / bucket.block_size) as u32;
        Self {
            pins: bucket.engine.pool.pin_scope(),
            file: None,
            bucket,
            from: first,
            at: range.start,
            end: range.end,
            first: None,
            following: None,
            launched: VecDeque::new(),
            counted: None,
            hits: 0,
            bytes: 0,
            probed: first,
            absent: None,
            next_ahead: first,
            window: resolved.take_window(),
            stream: None,
            continues: false,
            cancel: None,
            resolved,
        }
    }

    /// Looks up the first blocks, and pins the very first if it is resident.
    pub(super) fn probe(&mut self) -> CacheOutcome {
        let pool = &self.bucket.engine.pool;
        let first = self.from;
        let end = self.probe_end();
        let (mut resident, mut absent) = (0, None);
        for block in first..end {
            let key = self.resolved.version.key(block);
            let here = if block == first {
                let pin = if self.resolved.loaded(block) {
                    pool.peek(key)
                } else {
                    pool.get(key)
                };
                self.first = pin.map(|pin| self.pins.own(pin));
                self.first.is_some()
            } else {
                // Its use counts when it is read.
                pool.contains(key)
            };
            if here && !self.resolved.loaded(block) {
                resident += 1;
            } else {
                absent.get_or_insert(block);
            }
        }
        self.probed = absent.unwrap_or(end);
        self.absent = absent;
        let outcome = match resident {
            0 if first < end => CacheOutcome::Miss,
            n if n == end - first => CacheOutcome::Hit,
            _ => CacheOutcome::Partial,
        };
        let warm = outcome == CacheOutcome::Hit;
        if !warm {
            self.hold_file();
        }
        self.join_stream(warm);
        outcome
    }

    /// Looks up further blocks before the body reaches the end of the last lookup, while all are resident.
    fn probe_ahead(&mut self, block: u32) {
        if self.absent.is_some() || block + MAX_PROBED_BLOCKS / 2 < self.probed {
            return;
        }
        let pool = &self.bucket.engine.pool;
        let resident = |block: &u32| pool.contains(self.resolved.version.key(*block));
        let end = self.probe_end();
        let absent = (self.probed..end).find(|block| !resident(block));
        self.probed = absent.unwrap_or(end);
        self.absent = absent;
    }

    fn probe_end(&self) -> u32 {
        self.probed
            .saturating_add(MAX_PROBED_BLOCKS)
            .min(self.end_block())
    }

    /// Continues the stream of reads that ended where this one begins, and takes over the blocks loaded for it.
    fn join_stream(&mut self, warm: bool) {
        let (bucket, version) = (&self.bucket, &self.resolved.version);
        let range = self.at..self.end;
        self.continues =
            bucket.cluster.is_some() && bucket.sequential.continues(version, range.start);
        let stream = bucket.sequential.record(version, &range, warm, || {
            bucket.engine.readahead.window(bucket.block_size)
        });
        if let Some(stream) = &stream {
            let end = self.end_block();
            self.window().adopt(&stream.readahead.window, end);
        }
        self.stream = stream;
    }

    /// Whether all of the range was returned.
    pub(super) fn is_done(&self) -> bool {
        self.at >= self.end
    }

    /// Returns the next bytes, at most to the end of one block; `None` after the range's end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>> {
        let bytes = self.advance().await?;
        self.count_bytes(bytes.as_ref().map_or(0, Bytes::len));
        Ok(bytes)
    }

    /// Counts bytes returned to the reader.
    pub(super) fn count_bytes(&mut self, length: usize) {
        self.bytes += length as u64;
        if self.is_done() || self.bytes >= COUNTED_BLOCKS * self.bucket.block_size {
            self.flush_counts();
        }
    }

    fn flush_counts(&mut self) {
        let (hits, bytes) = (
            std::mem::take(&mut self.hits),
            std::mem::take(&mut self.bytes),
        );
        self.bucket.counters.body(hits, bytes);
    }

    /// As [`Self::next`], without counting the bytes: the caller does.
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
                let last = offset + wanted == self.resolved.version.block_len(block, size);
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
                let Some(pin) = self.read_again(block, pin) else {
                    continue;
                };
                return Ok(Some(self.resident(block, pin, offset..offset + wanted)));
            }
            // Read ahead for this reader: reaching it is no further use. Held until it is followed if it is still
            // loading.
            let held = self.window.as_ref().and_then(|window| window.take(block));
            let mut held = held.map(|waiter| Box::pin(waiter.wait()));
            if let Some(Ok(pin)) = held.as_mut().and_then(FutureExt::now_or_never) {
                return Ok(Some(self.resident(block, pin, offset..offset + wanted)));
            }
            match self.find(block, offset) {
                Found::Resident(pin) => {
                    let Some(pin) = self.read_again(block, pin) else {
                        continue;
                    };
                    return Ok(Some(self.resident(block, pin, offset..offset + wanted)));
                }
                Found::Loading(follower) => {
                    self.absent.get_or_insert(block);
                    self.count(block, false);
                    self.following = Some(follower);
                }
                Found::Absent(load, follower) => {
                    self.absent.get_or_insert(block);
                    self.count(block, false);
                    self.load(block, load).await?;
                    self.following = Some(follower);
                }
            }
            self.read_ahead(block);
        }
        let object = self.resolved.version.meta.location.to_string();
        Err(OriginError::bad_response(
            object,
            "every load of a block was abandoned, over and over",
        ))
    }

    /// A block of another node that is here from an earlier read is kept longer. `None`: it is to be looked up again.
    fn read_again(&self, block: u32, pin: OwnedPin) -> Option<OwnedPin> {
        // A read that continues another may be the first of its part of the block.
        if self.bucket.cluster.is_none() || self.continues || self.is_own_load(block) {
            return Some(pin);
        }
        ownership::read_again(&self.bucket, &self.resolved.version, pin)
    }

    fn is_own_load(&self, block: u32) -> bool {
        self.resolved.loaded(block) || self.launched.contains(&block)
    }

    fn find(&self, block: u32, offset: usize) -> Found {
        // A load that was faster than its reader does not make the block more used.
        let own = self.is_own_load(block);
        let version = &self.resolved.version;
        plan::find(&self.bucket, version, &self.pins, block, offset, own)
    }

    fn resident(&mut self, block: u32, pin: OwnedPin, range: Range<usize>) -> Bytes {
        self.count(block, true);
        self.read_ahead(block);
        let mut bytes = Bytes::from_owner(pin);
        bytes.truncate(range.end);
        bytes.advance(range.start);
        self.hand_out(bytes)
    }

    /// Waits for the first bytes of the range that were absent when the read began.
    ///
    /// Resident bytes could be returned at once. But if the object has changed, the missing ones can no longer be
    /// had. The read can start over only before the response begins.
    pub(super) async fn await_first_absent(&mut self) -> Result<()> {
        // The caller waits for the body's first block anyway.
        let Some(block) = self.absent.filter(|block| *block != self.from) else {
            return Ok(());
        };
        // A body that may wait for memory holds none.
        self.first = None;
        let mut follower = match self.find(block, 0) {
            Found::Resident(_) => return Ok(()),
            Found::Loading(follower) => follower,
            Found::Absent(load, follower) => {
                self.bucket.counters.miss();
                self.launched.push_back(block);
                self.load(block, load).await?;
                follower
            }
        };
        match follower.next(1).await {
            Err(FlightError::Failed(error)) => Err(from_load_error(&error)),
            // An abandoned load is started again when the body reaches the block.
            Ok(_) | Err(FlightError::Abandoned) => Ok(()),
        }
    }

    fn hand_out(&mut self, bytes: Bytes) -> Bytes {
        self.at += bytes.len() as u64;
        bytes
    }

    /// Counts a block once: as a miss if this body had it loaded, else as it was found.
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
            self.hits += 1;
        } else {
            self.bucket.counters.miss();
        }
    }

    pub(super) fn bucket(&self) -> &Arc<BucketShared> {
        &self.bucket
    }

    pub(super) fn version(&self) -> &Arc<Version> {
        &self.resolved.version
    }

    /// Returns the length of a block of this version, in bytes.
    pub(super) fn block_len(&self, block: u32) -> usize {
        self.resolved
            .version
            .block_len(block, self.bucket.block_size)
    }

    /// The offset of the next byte to read.
    pub(super) fn position(&self) -> u64 {
        self.at
    }

    /// The end of the range.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Continues at offset `at`; holds no block until then.
    pub(super) fn seek(&mut self, at: u64) {
        self.first = None;
        self.following = None;
        self.at = at;
    }

    /// Returns the reader of a load in progress, for the caller to take. It is put back before the body reads on.
    pub(super) fn following(&mut self) -> &mut Option<BlockReader> {
        &mut self.following
    }

    /// The kind of the blocks that this body loads.
    fn kind(&self) -> BlockKind {
        let version = &self.resolved.version;
        // A read that continues others is part of a scan.
        let to_end = self.end == version.meta.size && self.stream.is_none();
        let blocks = self.from..self.end_block();
        BlockKind::of_read(version, self.bucket.block_size, &blocks, to_end)
    }

    /// The first block past the range.
    fn end_block(&self) -> u32 {
        self.end.div_ceil(self.bucket.block_size) as u32
    }

    /// Loads `block`, waiting for its memory, and as many absent neighbours as there is memory for.
    async fn load(&mut self, block: u32, load: Load) -> Result<()> {
        let mut load = plan::attach(&self.bucket, &self.resolved.version, load).await?;
        load.set_options(self.bucket.block_options(self.kind()));
        let mut loads = vec![load];
        let (next, end) = (block + 1, self.end_block());
        if next < end {
            let max = self.bucket.max_fetch_blocks() - 1;
            let max = self.window().quota(max).free;
            loads.extend(self.claim_ahead(next..next.saturating_add(max).min(end)));
        }
        self.next_ahead = self.next_ahead.max(block + loads.len() as u32);
        let (bucket, version) = (&self.bucket, &self.resolved.version);
        let (bucket, version) = (Arc::clone(bucket), Arc::clone(version));
        RangeFetch::new(bucket, version, loads, self.cancel()).spawn();
        Ok(())
    }

    /// Claims the absent `blocks` up to the first present one, as far as memory suffices.
    fn claim_ahead(&mut self, blocks: Range<u32>) -> Vec<Load> {
        let pool = &self.bucket.engine.pool;
        let frame = |length| pool.try_frames(Share::Download, length, 1, 1)?.pop();
        let mut loads = plan::claim_run(&self.bucket, &self.resolved.version, blocks, frame);
        let options = self.bucket.block_options(self.kind());
        for load in &mut loads {
            load.set_options(options);
            let block = load.key().block;
            self.window().hold(block, load.flight().join());
            self.bucket.counters.miss();
            self.launched.push_back(block);
        }
        loads
    }

    fn window(&mut self) -> &ReadaheadWindow {
        let bucket = &self.bucket;
        self.window
            .get_or_insert_with(|| bucket.engine.readahead.window(bucket.block_size))
    }

    fn hold_file(&mut self) {
        let version = &self.resolved.version;
        self.file.get_or_insert_with(|| version.file());
    }

    fn cancel(&mut self) -> CancellationToken {
        self.hold_file();
        let (cancel, _) = self.cancel.get_or_insert_with(|| {
            let cancel = CancellationToken::new();
            (cancel.clone(), cancel.drop_guard())
        });
        cancel.clone()
    }

    /// Starts fetches ahead of `block`, the one being read: in this range, and beyond it if the read continues a
    /// sequential stream.
    fn read_ahead(&mut self, block: u32) {
        let end = self.end_block();
        self.probe_ahead(block);
        self.next_ahead = self.next_ahead.max(block + 1).max(self.probed);
        if self.next_ahead < end && self.absent.is_some() {
            self.window();
            self.cancel();
        }
        if let (Some(window), Some((cancel, _)), Some(_)) =
            (&self.window, &self.cancel, self.absent)
        {
            // Grows as the body reads: many bodies that begin together must not use up the limit before they count
            // each other.
            let ramp = (block - self.from).saturating_mul(RAMP);
            let ramp = ramp.saturating_add(self.bucket.max_fetch_blocks());
            let context = ReadaheadContext {
                bucket: &self.bucket,
                version: &self.resolved.version,
                window,
                cancel,
                kind: self.kind(),
            };
            let next = self.next_ahead..end;
            let launched = &mut self.launched;
            self.next_ahead =
                start_readahead(&context, block.saturating_add(1), next, ramp, |block| {
                    self.bucket.counters.miss();
                    launched.push_back(block);
                });
        }
        if let Some(stream) = self.stream.as_ref().filter(|_| self.next_ahead >= end) {
            let lookahead = stream.lookahead_bytes.div_ceil(self.bucket.block_size);
            let lookahead = u32::try_from(lookahead).unwrap_or(u32::MAX);
            let version = &self.resolved.version;
            plan::extend_stream(&self.bucket, version, &stream.readahead, end, lookahead);
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.flush_counts();
    }
}

/// Returns the next bytes of a load in progress, at most `wanted`. `to_end`: `wanted` reaches the block's end. Then
/// waits until the load has completed, so that a block that was read whole is resident.
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
