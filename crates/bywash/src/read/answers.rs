//! The bytes of one shard on their way: from one ranged GET, or from two when the first is slow.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{GetResult, Result};
use tokio::sync::SemaphorePermit;
use tokio::time::Instant;

use super::hedge::{self, Kind, Patience};
use super::ranged::{self, Body};
use crate::bucket::Shared;
use crate::retry::stalled;
use crate::versions::Version;

/// Answers that bring the same bytes. What the slower one brings twice is left out.
pub(super) struct Answers<'a> {
    bucket: &'a Arc<Shared>,
    version: &'a Arc<Version>,
    end: u64,
    sources: Vec<Source>,
    began: Instant,
    /// `None` for an answer of which we did not see the beginning.
    kind: Option<Kind>,
    patience: Patience,
    /// Turns taken for requests, given back with the answers.
    _turn: Option<SemaphorePermit<'a>>,
    second_turn: Option<SemaphorePermit<'a>>,
}

struct Source {
    /// Where its next piece lies.
    at: u64,
    body: Body,
    hedge: bool,
}

impl<'a> Answers<'a> {
    /// Goes on with an answer that has begun; it took no turn, for its request is in flight.
    pub(super) fn begun(
        bucket: &'a Arc<Shared>,
        version: &'a Arc<Version>,
        result: GetResult,
        end: u64,
    ) -> Self {
        let source = Source {
            at: result.range.start,
            body: result.into_stream(),
            hedge: false,
        };
        Self::new(bucket, version, source, end, None)
    }

    /// Waits for its turn; asks once it is polled for a piece.
    pub(super) async fn ask(
        bucket: &'a Arc<Shared>,
        version: &'a Arc<Version>,
        range: Range<u64>,
    ) -> Self {
        let turn = bucket.shard_turns.acquire().await.ok();
        let source = Source {
            at: range.start,
            body: asked(bucket, version, range.clone()),
            hedge: false,
        };
        let blocks = (range.end - range.start).div_ceil(bucket.block_size);
        let mut answers = Self::new(bucket, version, source, range.end, turn);
        let kind = Kind::shard(blocks as usize);
        answers.kind = Some(kind);
        answers.patience = Patience::new(bucket, kind, answers.began);
        answers
    }

    fn new(
        bucket: &'a Arc<Shared>,
        version: &'a Arc<Version>,
        source: Source,
        end: u64,
        turn: Option<SemaphorePermit<'a>>,
    ) -> Self {
        let began = Instant::now();
        let blocks = end.saturating_sub(source.at).div_ceil(bucket.block_size);
        Self {
            bucket,
            version,
            end,
            sources: vec![source],
            began,
            kind: None,
            patience: Patience::new(bucket, Kind::shard(blocks as usize), began),
            _turn: turn,
            second_turn: None,
        }
    }

    /// The next piece, and where it lies: at `reached`, the first byte not here yet, or before. Dropping the future loses
    /// nothing.
    ///
    /// # Errors
    /// Why the last answer left failed; also that it shows no sign of life.
    pub(super) async fn next(&mut self, reached: u64) -> Result<(u64, Bytes)> {
        let policy = self.bucket.engine.retry;
        loop {
            let event = tokio::select! {
                // In this order, so that a seeded run repeats.
                biased;
                event = tokio::time::timeout(policy.stall, any(&mut self.sources)) => event,
                () = self.patience.ends() => {
                    self.hedge(reached);
                    continue;
                }
            };
            let (which, piece) = event.map_err(|_| stalled(policy))?;
            let source = &mut self.sources[which];
            let error = match piece {
                Some(Ok(piece)) => {
                    let at = source.at;
                    source.at += piece.len() as u64;
                    self.bucket.counters.origin_bytes(piece.len() as u64);
                    self.version.cost.bytes(piece.len() as u64);
                    if source.hedge && source.at >= self.end {
                        self.bucket.counters.hedge_won();
                    }
                    return Ok((at, piece));
                }
                Some(Err(error)) => error,
                None => ranged::bad_answer(self.version, "the body ended early".to_owned()),
            };
            // The other one may still bring it.
            self.sources.remove(which);
            if self.sources.is_empty() {
                return Err(error);
            }
        }
    }

    /// Asks for what is missing a second time, if that is worth its cost and there is a turn to be had.
    fn hedge(&mut self, reached: u64) {
        let turn = self.bucket.shard_turns.try_acquire();
        let (Ok(turn), true, true) = (turn, hedge::allowed(self.bucket), reached < self.end) else {
            return;
        };
        tracing::debug!(object = %self.version.meta.location, reached, "slower than its peers, asked again");
        self.bucket.counters.hedge();
        self.second_turn = Some(turn);
        self.sources.push(Source {
            at: reached,
            body: asked(self.bucket, self.version, reached..self.end),
            hedge: true,
        });
    }

    /// All bytes came: so long such an answer takes.
    pub(super) fn complete(self) {
        if let Some(kind) = self.kind.filter(|_| self.bucket.engine.hedge) {
            self.bucket.pace.note(kind, self.began.elapsed());
        }
    }
}

impl Drop for Answers<'_> {
    fn drop(&mut self) {
        self.version.cost.time(self.began.elapsed());
    }
}

/// The body of a ranged GET that is sent when it is first polled.
fn asked(bucket: &Arc<Shared>, version: &Arc<Version>, range: Range<u64>) -> Body {
    let (bucket, version) = (Arc::clone(bucket), Arc::clone(version));
    let answer = async move { ranged::ask(&bucket, &version, range).await };
    stream::once(answer).try_flatten().boxed()
}

/// The next item of any source, the first of them first.
async fn any(sources: &mut [Source]) -> (usize, Option<Result<Bytes>>) {
    poll_fn(|cx| {
        for (which, source) in sources.iter_mut().enumerate() {
            if let Poll::Ready(item) = source.body.poll_next_unpin(cx) {
                return Poll::Ready((which, item));
            }
        }
        Poll::Pending
    })
    .await
}
