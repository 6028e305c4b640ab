//! Range fetch: one ranged GET that fills neighbouring blocks.
//!
//! Only the fetch retries its bytes: it continues at the byte reached, and its deadline starts anew after progress.
//! Each block is published when its last byte has arrived. A failure fails the missing blocks for their current
//! waiters only; later readers load them again.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bywash_mem::Load;
use object_store::{Error, GetResult, Result};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::hedged_fetch::HedgedFetch;
use super::ranged;
use super::readahead::ReadaheadWindow;
use super::resolve::is_present;
use super::shared_error::load_error;
use crate::bucket::Shared;
use crate::error::EngineError;
use crate::retry::{Retries, is_transient, unavailable};
use crate::versions::Version;

/// Context for read-ahead: target, budget and cancellation token.
pub(super) struct ReadaheadContext<'a> {
    pub(super) bucket: &'a Arc<Shared>,
    pub(super) version: &'a Arc<Version>,
    pub(super) window: &'a ReadaheadWindow,
    pub(super) cancel: &'a CancellationToken,
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
        for loads in batches {
            for load in &loads {
                context.window.hold(load.key().block, load.flight().join());
                started(load.key().block);
            }
            let (bucket, version) = (Arc::clone(context.bucket), Arc::clone(context.version));
            tokio::spawn(RangeFetch::new(bucket, version, loads, context.cancel.clone()).run(None));
        }
    }
    at
}

/// One fetch: blocks to fill, in order, each with its frame attached.
pub(super) struct RangeFetch {
    bucket: Arc<Shared>,
    version: Arc<Version>,
    loads: VecDeque<Load>,
    /// Cancelled when the reader that needs these blocks is dropped.
    cancel: CancellationToken,
    unawaited: Option<Unawaited>,
}

/// State of a fetch without any waiter or follower, as far as was observed.
struct Unawaited {
    since: Instant,
    /// The block that was arriving when the first observation was made.
    block: u32,
    /// Number of such observations in a row.
    observations: u32,
}

/// Observations without a waiter, one after each piece, before a fetch is cancelled. A reader that moves from one
/// block to the next waits for neither for a moment.
const UNAWAITED_OBSERVATIONS: u32 = 5;
/// Time without a waiter after which a fetch is cancelled if no byte of its current block has arrived.
const UNAWAITED_PAUSE: Duration = Duration::from_millis(50);
/// Time that a partly received block may take to its end without a waiter. A reader that left took a part of it,
/// which the next reader would have to request again. Meanwhile the block occupies a frame and a request permit.
const UNAWAITED_BLOCK: Duration = Duration::from_secs(1);

/// Ways in which receiving a response ends without an error.
enum End {
    /// All blocks are published.
    Complete,
    /// No reader waits for the rest.
    Unwanted,
}

impl RangeFetch {
    pub(super) fn new(
        bucket: Arc<Shared>,
        version: Arc<Version>,
        loads: Vec<Load>,
        cancel: CancellationToken,
    ) -> Self {
        Self {
            bucket,
            version,
            loads: loads.into(),
            cancel,
            unawaited: None,
        }
    }

    /// Fills the blocks. `first`: a response that has begun and carries their bytes.
    pub(super) async fn run(mut self, first: Option<GetResult>) {
        match self.fill(first).await {
            Ok(End::Complete) => {}
            // Dropped loads count as abandoned: a waiter claims the block again.
            Ok(End::Unwanted) => {
                tracing::debug!(object = %self.version.meta.location, "load dropped: no reader waits for it")
            }
            Err(error) => self.fail(error),
        }
    }

    fn fail(&mut self, error: Error) {
        if matches!(
            EngineError::find(&error),
            Some(EngineError::VersionChanged { .. })
        ) {
            self.bucket.versions.forget(&self.version);
        }
        tracing::debug!(object = %self.version.meta.location, %error, "load failed");
        let error = load_error(Arc::new(error));
        for load in self.loads.drain(..) {
            load.fail(Arc::clone(&error));
        }
    }

    async fn fill(&mut self, mut first: Option<GetResult>) -> Result<End> {
        let (bucket, version) = (Arc::clone(&self.bucket), Arc::clone(&self.version));
        let mut retries = Retries::new(bucket.engine.retry);
        loop {
            let (start, end) = self.missing();
            let fetch = match first.take() {
                Some(result) => HedgedFetch::from_response(&bucket, &version, result, end),
                None => tokio::select! {
                    biased;
                    () = self.until_unwanted() => return Ok(End::Unwanted),
                    fetch = HedgedFetch::start(&bucket, &version, start..end) => fetch,
                },
            };
            let error = match self.receive(fetch, &mut retries).await {
                Ok(end) => return Ok(end),
                Err(error) => ranged::classify(&version, error),
            };
            if !is_transient(&error) {
                return Err(error);
            }
            tracing::debug!(object = %version.meta.location, %error, "read failed, continuing at the byte reached");
            let retry = tokio::select! {
                biased;
                () = self.until_unwanted() => return Ok(End::Unwanted),
                retry = retries.back_off() => retry,
            };
            if !retry {
                return Err(unavailable("read", &version.meta.location, error));
            }
        }
    }

    /// Completes when the fetch is unwanted. Checks at once, so polling it after each piece makes one check per
    /// piece.
    async fn until_unwanted(&mut self) {
        self.cancel.clone().cancelled_owned().await;
        while !self.unwanted() {
            tokio::time::sleep(UNAWAITED_PAUSE).await;
        }
    }

    /// Returns the first byte not received yet and the end of the last block.
    fn missing(&self) -> (u64, u64) {
        let size = self.bucket.block_size;
        let block = |load: &Load| load.key().block;
        let start = self.loads.front().map_or(0, |load| {
            let length = self.version.block_len(block(load), size);
            u64::from(block(load)) * size + (length - load.remaining()) as u64
        });
        let end = self.loads.back().map_or(0, |load| {
            u64::from(block(load)) * size + self.version.block_len(block(load), size) as u64
        });
        (start, end)
    }

    async fn receive(&mut self, mut fetch: HedgedFetch<'_>, retries: &mut Retries) -> Result<End> {
        loop {
            let (reached, _) = self.missing();
            let (at, piece) = tokio::select! {
                // Biased, so that a seeded simulation repeats.
                biased;
                () = self.until_unwanted() => return Ok(End::Unwanted),
                next = fetch.next(reached) => next?,
            };
            retries.progress();
            let known = reached.saturating_sub(at).min(piece.len() as u64);
            if self.take(&piece[known as usize..])? {
                fetch.complete();
                return Ok(End::Complete);
            }
        }
    }

    /// Writes bytes in order and publishes each completed block; returns whether all are complete.
    fn take(&mut self, mut bytes: &[u8]) -> Result<bool> {
        while let Some(load) = self.loads.front_mut() {
            if !bytes.is_empty() {
                let written = load.write(bytes);
                bytes = &bytes[written..];
            }
            if load.remaining() > 0 {
                return Ok(false);
            }
            if let Some(load) = self.loads.pop_front() {
                self.version.cost.block();
                // The waiters have their own pins.
                drop(
                    load.publish()
                        .map_err(|error| ranged::bad_response(&self.version, error.to_string()))?,
                );
            }
        }
        Ok(true)
    }

    /// Returns whether the reader is gone, no waiter has been seen for a while, and the block then arriving is
    /// complete or takes too long.
    fn unwanted(&mut self) -> bool {
        let Some(load) = self.loads.front() else {
            return false;
        };
        if !self.cancel.is_cancelled() || self.loads.iter().any(Load::has_listeners) {
            self.unawaited = None;
            return false;
        }
        let block = load.key().block;
        let begun = load.remaining() < self.version.block_len(block, self.bucket.block_size);
        let limit = if begun {
            UNAWAITED_BLOCK
        } else {
            UNAWAITED_PAUSE
        };
        let unawaited = self.unawaited.get_or_insert_with(|| Unawaited {
            since: Instant::now(),
            block,
            observations: 0,
        });
        unawaited.observations += 1;
        let ended = unawaited.block < block && unawaited.observations >= UNAWAITED_OBSERVATIONS;
        ended || unawaited.since.elapsed() >= limit
    }
}
