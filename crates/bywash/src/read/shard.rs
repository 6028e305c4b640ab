//! A shard: one ranged GET that fills neighbouring blocks.
//!
//! The shard is the one owner of retries for its bytes: it continues at the byte reached, and its
//! deadline starts anew after progress. Each block is published when its last byte is there; a
//! failure fails the blocks still missing, for those who wait now and for nobody later.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bywash_mem::Load;
use object_store::{Error, GetResult, Result};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ahead::Reader;
use super::answers::Answers;
use super::open::is_present;
use super::ranged;
use super::shared_error::load_error;
use crate::bucket::Shared;
use crate::error::EngineError;
use crate::retry::{Retries, is_transient, unavailable};
use crate::versions::Version;

/// Who loads ahead of need, of what, and what holds and ends these loads.
pub(super) struct AheadOf<'a> {
    pub(super) bucket: &'a Arc<Shared>,
    pub(super) version: &'a Arc<Version>,
    pub(super) reader: &'a Reader,
    pub(super) leaving: &'a CancellationToken,
}

/// Keeps shards of the blocks `next` on their way ahead of `base`, with memory that nobody waits for and no hotter block has;
/// at most `most` blocks, and those the reader may hold. Answers the first block not considered yet.
///
/// A shard begins only when there is room for all of it: many small requests would cost more than they hide.
pub(super) fn begin_ahead(
    of: &AheadOf<'_>,
    base: u32,
    next: Range<u32>,
    most: u32,
    mut begun: impl FnMut(u32),
) -> u32 {
    let (pool, size) = (&of.bucket.engine.pool, of.bucket.block_size);
    let Range { start: mut at, end } = next;
    while at < end {
        let room = of.reader.room(most);
        let shard = of.bucket.shard_blocks();
        let shard = shard.min(end - at).min(room.window);
        let horizon = base.saturating_add(room.window);
        if shard == 0 || room.free < shard || at.saturating_add(shard) > horizon {
            return at;
        }
        // Also what is on its way: a shard that began within it would be cut off where the next one begins.
        if is_present(pool, of.version, at) {
            at += 1;
            continue;
        }
        let blocks = (at..at + shard)
            .map(|block| (of.version.key(block), of.version.block_len(block, size)));
        let runs = pool.start_readahead(blocks, shard as usize);
        let Some(last) = runs.last().and_then(|run| run.last()) else {
            // All on its way, or no memory.
            return at;
        };
        at = last.key().block + 1;
        for loads in runs {
            for load in &loads {
                of.reader.hold(load.key().block, load.flight().join());
                begun(load.key().block);
            }
            let (bucket, version) = (Arc::clone(of.bucket), Arc::clone(of.version));
            tokio::spawn(Shard::new(bucket, version, loads, of.leaving.clone()).run(None));
        }
    }
    at
}

/// Blocks to fill, in order, each with its frame attached.
pub(super) struct Shard {
    bucket: Arc<Shared>,
    version: Arc<Version>,
    loads: VecDeque<Load>,
    /// Cancelled when the reader that wanted these blocks left.
    reader: CancellationToken,
    unwatched: Option<Unwatched>,
}

/// Nobody waits for a load or reads along, as far as was seen.
struct Unwatched {
    since: Instant,
    /// The block that was coming then.
    block: u32,
    /// How often it was seen in a row.
    looks: u32,
}

/// A reader that goes from one block to the next is for a moment seen at neither. So often must nobody be seen, after a piece
/// each, before a load is taken to be for nobody.
const UNWATCHED_LOOKS: u32 = 5;
/// The same where no byte of a block is here: how long a load must be unwatched.
const UNWATCHED_PAUSE: Duration = Duration::from_millis(50);
/// How long a block that has begun to come may take to its end. Who read a part of it has left with its bytes, and the next
/// reader would have to ask for them again; but meanwhile a frame and the turn of a request are kept from others.
const UNWATCHED_BLOCK: Duration = Duration::from_secs(1);

/// How reading one answer ended.
enum End {
    /// All blocks are published.
    Complete,
    /// Nobody waits for the rest.
    Unwanted,
}

impl Shard {
    pub(super) fn new(
        bucket: Arc<Shared>,
        version: Arc<Version>,
        loads: Vec<Load>,
        reader: CancellationToken,
    ) -> Self {
        Self {
            bucket,
            version,
            loads: loads.into(),
            reader,
            unwatched: None,
        }
    }

    /// Fills the blocks. `first`: an answer already begun, which has their bytes.
    pub(super) async fn run(mut self, first: Option<GetResult>) {
        match self.fill(first).await {
            Ok(End::Complete) => {}
            // Dropped loads are abandoned: whoever comes in between looks again.
            Ok(End::Unwanted) => {
                tracing::debug!(object = %self.version.meta.location, "nobody waits, load dropped")
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
            let answers = match first.take() {
                Some(result) => Answers::begun(&bucket, &version, result, end),
                None => tokio::select! {
                    biased;
                    () = self.unwanted_from_now_on() => return Ok(End::Unwanted),
                    answers = Answers::ask(&bucket, &version, start..end) => answers,
                },
            };
            let error = match self.receive(answers, &mut retries).await {
                Ok(end) => return Ok(end),
                Err(error) => ranged::classify(&version, error),
            };
            if !is_transient(&error) {
                return Err(error);
            }
            tracing::debug!(object = %version.meta.location, %error, "read failed, continuing at the byte reached");
            let again = tokio::select! {
                biased;
                () = self.unwanted_from_now_on() => return Ok(End::Unwanted),
                again = retries.again() => again,
            };
            if !again {
                return Err(unavailable("read", &version.meta.location, error));
            }
        }
    }

    /// Ends when the load is unwanted. Looks at once, so that asked again after each piece it looks once a piece.
    async fn unwanted_from_now_on(&mut self) {
        self.reader.clone().cancelled_owned().await;
        while !self.unwanted() {
            tokio::time::sleep(UNWATCHED_PAUSE).await;
        }
    }

    /// The first byte not here yet, and the end of the last block.
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

    async fn receive(&mut self, mut answers: Answers<'_>, retries: &mut Retries) -> Result<End> {
        loop {
            let (reached, _) = self.missing();
            let (at, piece) = tokio::select! {
                // In this order, so that a seeded run repeats.
                biased;
                () = self.unwanted_from_now_on() => return Ok(End::Unwanted),
                next = answers.next(reached) => next?,
            };
            retries.progress();
            let known = reached.saturating_sub(at).min(piece.len() as u64);
            if self.take(&piece[known as usize..])? {
                answers.complete();
                return Ok(End::Complete);
            }
        }
    }

    /// Stores bytes in order and publishes each block they complete; `true` when all are.
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
                // The shard's own pin is not needed: those who wait got theirs.
                drop(
                    load.publish()
                        .map_err(|error| ranged::bad_answer(&self.version, error.to_string()))?,
                );
            }
        }
        Ok(true)
    }

    /// Whether the reader left, nobody else has been seen for a while, and the block that was coming then is here or takes too
    /// long.
    fn unwanted(&mut self) -> bool {
        let Some(load) = self.loads.front() else {
            return false;
        };
        if !self.reader.is_cancelled() || self.loads.iter().any(Load::has_listeners) {
            self.unwatched = None;
            return false;
        }
        let block = load.key().block;
        let begun = load.remaining() < self.version.block_len(block, self.bucket.block_size);
        let limit = if begun {
            UNWATCHED_BLOCK
        } else {
            UNWATCHED_PAUSE
        };
        let unwatched = self.unwatched.get_or_insert_with(|| Unwatched {
            since: Instant::now(),
            block,
            looks: 0,
        });
        unwatched.looks += 1;
        let ended = unwatched.block < block && unwatched.looks >= UNWATCHED_LOOKS;
        ended || unwatched.since.elapsed() >= limit
    }
}
