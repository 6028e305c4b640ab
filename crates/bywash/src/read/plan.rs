//! Plan: which blocks a read finds, waits for or loads, and in which requests.
//!
//! All blocks are claimed here, and all loads get their frames here. The requests themselves are range fetches.

use std::ops::Range;
use std::sync::Arc;

use bywash_mem::{BlockPool, BlockReader, Claim, Frame, Load, OwnedPin, PinScope, Share};
use object_store::{GetRange, Result};
use tokio_util::sync::CancellationToken;

use super::range_fetch::RangeFetch;
use super::readahead::ReadaheadWindow;
use super::sequential::StreamReadahead;
use super::shared_error::{clone_error, load_error};
use crate::block_kind::BlockKind;
use crate::disk::DiskVersion;
use crate::shared::BucketShared;
use crate::versions::Version;

/// A block as a read finds it.
pub(super) enum Found {
    Resident(OwnedPin),
    /// In progress: a reader of it.
    Loading(BlockReader),
    /// The right to load it, and a reader of that load.
    Absent(Load, BlockReader),
}

/// Pins a block, or follows its load from `offset` on, or claims it. `own`: the load was this read's, so a resident
/// block does not count as used.
pub(super) fn find(
    bucket: &BucketShared,
    version: &Version,
    pins: &PinScope,
    block: u32,
    offset: usize,
    own: bool,
) -> Found {
    let (pool, key) = (&bucket.engine.pool, version.key(block));
    let loaded = own.then(|| pool.peek(key)).flatten();
    match loaded.map_or_else(|| pool.claim(key), Claim::Resident) {
        Claim::Resident(pin) => Found::Resident(pins.own(pin)),
        Claim::Loading(flight) => Found::Loading(flight.reader(offset)),
        Claim::Vacant(load) => {
            let reader = load.flight().reader(offset);
            Found::Absent(load, reader)
        }
    }
}

/// Returns whether a block is resident or being loaded. Does not count as a use.
pub(super) fn is_present(pool: &BlockPool, version: &Version, block: u32) -> bool {
    let key = version.key(block);
    // A load that ends between the first two calls has published the block by the third.
    pool.contains(key) || pool.is_loading(key) || pool.contains(key)
}

/// Returns whether the first block of the range is resident or loading.
pub(super) fn is_first_present(
    bucket: &BucketShared,
    version: &Version,
    range: Option<&GetRange>,
) -> bool {
    let size = version.meta.size;
    let range = range.map_or(Some(0..size), |range| range.as_range(size).ok());
    match range {
        Some(range) if range.start < range.end => {
            let block = (range.start / bucket.block_size) as u32;
            is_present(&bucket.engine.pool, version, block)
                || bucket
                    .disk_version(version)
                    .is_some_and(|(disk, stored)| disk.offers(&stored, version.key(block)))
        }
        // An empty range needs metadata only.
        _ => true,
    }
}

/// Returns the range of the first GET: whole blocks around the range wanted, at most one fetch, and none of the
/// blocks that are present if the object is unchanged.
pub(super) fn first_range(
    bucket: &BucketShared,
    wanted: Option<GetRange>,
    known: Option<&Version>,
) -> GetRange {
    let block = bucket.block_size;
    let max = bucket.max_fetch_blocks();
    let max = u64::from(bucket.engine.readahead.quota(block, max - 1).free + 1) * block;
    let from = |start: u64, end: u64| {
        let first = start / block;
        let last = end.div_ceil(block).min(first.saturating_add(max / block));
        let present = |at: &u64| {
            known.is_some_and(|known| is_present(&bucket.engine.pool, known, *at as u32))
        };
        let last = (first.saturating_add(1)..last)
            .find(present)
            .unwrap_or(last);
        GetRange::Bounded(first.saturating_mul(block)..last.saturating_mul(block))
    };
    match wanted {
        None => from(0, max),
        Some(GetRange::Bounded(range)) => {
            from(range.start, range.end.max(range.start.saturating_add(1)))
        }
        Some(GetRange::Offset(start)) => from(start, start.saturating_add(max)),
        // Longer by almost a block, so that each block is whole wherever the object ends.
        Some(GetRange::Suffix(length)) => {
            GetRange::Suffix(length.min(max).saturating_add(block - 1))
        }
    }
}

/// Gives a load its frame, after waiting for the memory. Without memory the load fails.
pub(super) async fn attach(
    bucket: &BucketShared,
    version: &Version,
    mut load: Load,
) -> Result<Load> {
    let length = version.block_len(load.key().block, bucket.block_size);
    let frame = bucket.engine.frame(length, "read", &version.meta.location);
    match frame.await {
        Ok(frame) => {
            load.attach(frame, length);
            Ok(load)
        }
        Err(error) => {
            let error = Arc::new(error);
            load.fail(load_error(Arc::clone(&error)));
            Err(clone_error(&error))
        }
    }
}

/// Loads a block from the disk tier, which knows its version as `stored`, if it is there and memory is free: for callers that hold
/// memory and so wait for none.
pub(super) async fn load_from_disk(
    bucket: &BucketShared,
    version: &Version,
    stored: Option<&Arc<DiskVersion>>,
    block: u32,
) -> Option<OwnedPin> {
    let (disk, stored) = bucket.engine.disk.as_ref().zip(stored)?;
    let (pool, key) = (&bucket.engine.pool, version.key(block));
    if !disk.contains(stored, key) {
        return None;
    }
    let Claim::Vacant(mut load) = pool.claim(key) else {
        return None;
    };
    let length = version.block_len(block, bucket.block_size);
    let frame = pool.try_frames(Share::Download, length, 1, 1)?.pop()?;
    load.attach(frame, length);
    let load = disk.read(stored, load).await;
    // A block that the disk has not returned in time is abandoned, and requested.
    (load.remaining() == 0).then(|| load.publish().ok())?
}

/// Claims a block, with the frame that `frame` returns for its length. Returns `None` if it is resident or loading, or
/// there is no frame.
pub(super) fn claim_block(
    bucket: &BucketShared,
    version: &Version,
    block: u32,
    frame: impl FnOnce(usize) -> Option<Frame>,
) -> Option<Load> {
    let Claim::Vacant(mut load) = bucket.engine.pool.claim(version.key(block)) else {
        return None;
    };
    let length = version.block_len(block, bucket.block_size);
    load.attach(frame(length)?, length);
    Some(load)
}

/// Claims consecutive blocks for one request, with the frames that `frame` returns for their lengths. Ends before a
/// block that is resident or loading, and where there is no frame.
pub(super) fn claim_run(
    bucket: &BucketShared,
    version: &Version,
    blocks: Range<u32>,
    mut frame: impl FnMut(usize) -> Option<Frame>,
) -> Vec<Load> {
    // As far as a first response tells. A body knows its range, and sets its own kind.
    let to_end = blocks.end == version.blocks(bucket.block_size);
    let kind = BlockKind::of_read(version, bucket.block_size, &blocks, to_end);
    blocks
        .map_while(|block| {
            let mut load = claim_block(bucket, version, block, &mut frame)?;
            load.set_options(bucket.block_options(kind));
            Some(load)
        })
        .collect()
}

/// Context for read-ahead: target, budget and cancellation token.
pub(super) struct ReadaheadContext<'a> {
    pub(super) bucket: &'a Arc<BucketShared>,
    pub(super) version: &'a Arc<Version>,
    pub(super) window: &'a ReadaheadWindow,
    pub(super) cancel: &'a CancellationToken,
    /// Kind of the blocks to load.
    pub(super) kind: BlockKind,
}

/// Starts fetches of the blocks `next`, within the reader's window after `base` and at most `max` blocks ahead. Uses
/// only memory that no request waits for and no hotter block occupies. Returns the first block not considered yet.
///
/// A fetch starts only when there is memory for all of it: many small requests would cost more than they hide.
pub(super) fn start_readahead(
    context: &ReadaheadContext<'_>,
    base: u32,
    next: Range<u32>,
    max: u32,
    mut started: impl FnMut(u32),
) -> u32 {
    let (pool, size) = (&context.bucket.engine.pool, context.bucket.block_size);
    let Range { start: mut at, end } = next;
    while at < end {
        let quota = context.window.quota(max);
        let blocks_per_fetch = context.bucket.max_fetch_blocks();
        let blocks_per_fetch = blocks_per_fetch.min(end - at).min(quota.window);
        let horizon = base.saturating_add(quota.window);
        if blocks_per_fetch == 0
            || quota.free < blocks_per_fetch
            || at.saturating_add(blocks_per_fetch) > horizon
        {
            return at;
        }
        // Skips loading blocks too: a fetch that starts among them would end where the next one starts.
        if is_present(pool, context.version, at) {
            at += 1;
            continue;
        }
        let blocks = (at..at + blocks_per_fetch).map(|block| {
            (
                context.version.key(block),
                context.version.block_len(block, size),
            )
        });
        let batches = pool.start_readahead(blocks, blocks_per_fetch as usize);
        let Some(last) = batches.last().and_then(|batch| batch.last()) else {
            // All blocks are loading, or there is no memory.
            return at;
        };
        at = last.key().block + 1;
        for mut loads in batches {
            for load in &mut loads {
                load.set_options(context.bucket.block_options(context.kind));
                context.window.hold(load.key().block, load.flight().join());
                started(load.key().block);
            }
            let (bucket, version) = (Arc::clone(context.bucket), Arc::clone(context.version));
            RangeFetch::new(bucket, version, loads, context.cancel.clone()).spawn();
        }
    }
    at
}

/// Starts loading at most `max` absent blocks from `end` on, where a read of the stream ends, as far as the quota
/// allows.
pub(super) fn extend_stream(
    bucket: &Arc<BucketShared>,
    version: &Arc<Version>,
    stream: &StreamReadahead,
    end: u32,
    max: u32,
) {
    // Another read of the stream is doing it.
    let Some(mut next) = stream.next.try_lock() else {
        return;
    };
    let context = ReadaheadContext {
        bucket,
        version,
        window: &stream.window,
        cancel: &stream.cancel,
        kind: BlockKind::Readahead,
    };
    let blocks = version.blocks(bucket.block_size);
    *next = start_readahead(&context, end, (*next).max(end)..blocks, max, |_| {});
}
