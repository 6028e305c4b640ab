//! One attempt of a fetch: one ranged GET, and a second, hedged one when the first is slow.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{GetResult, Result};
use tokio::sync::SemaphorePermit;
use tokio::time::Instant;

use super::hedge::{self, HedgeTimer};
use super::latencies::RequestClass;
use super::peer_fetch::{self, Places};
use super::ranged::{self, RangeBody};
use crate::retry::stalled;
use crate::shared::BucketShared;
use crate::versions::Version;

/// Responses that carry the same bytes. Bytes that the slower one repeats are skipped.
pub(super) struct HedgedFetch<'a> {
    bucket: &'a Arc<BucketShared>,
    version: &'a Arc<Version>,
    end: u64,
    sources: Vec<Source>,
    began: Instant,
    /// Class for latency statistics; `None` if the start of the request was not measured.
    class: Option<RequestClass>,
    hedge_timer: HedgeTimer,
    /// Request permits, released with the fetch.
    _permit: Option<SemaphorePermit<'a>>,
    hedge_permit: Option<SemaphorePermit<'a>>,
}

struct Source {
    /// Offset of its next piece.
    at: u64,
    body: RangeBody,
    hedge: bool,
    /// Its bytes are counted where they arrive: some may be another node's.
    is_counted: bool,
}

impl<'a> HedgedFetch<'a> {
    /// Continues a response that has begun; takes no permit, for its request is in flight already.
    pub(super) fn from_response(
        bucket: &'a Arc<BucketShared>,
        version: &'a Arc<Version>,
        result: GetResult,
        end: u64,
    ) -> Self {
        let source = Source {
            at: result.range.start,
            body: result.into_stream(),
            hedge: false,
            is_counted: false,
        };
        Self::new(bucket, version, source, end, None)
    }

    /// Waits for a request permit. The request is sent when the first piece is polled for. In a cluster, the requests to the
    /// origin wait for permits themselves.
    pub(super) async fn start(
        bucket: &'a Arc<BucketShared>,
        version: &'a Arc<Version>,
        range: Range<u64>,
        places: Places,
    ) -> Self {
        let stripes = match places {
            Places::All(rate) => peer_fetch::stripes(bucket, version, range.clone(), rate),
            Places::Origin => None,
        };
        let permit = match stripes {
            None => bucket.fetch_permits.acquire().await.ok(),
            Some(_) => None,
        };
        let source = Source {
            at: range.start,
            is_counted: stripes.is_some(),
            body: stripes.unwrap_or_else(|| lazy_get(bucket, version, range.clone())),
            hedge: false,
        };
        let blocks = (range.end - range.start).div_ceil(bucket.block_size);
        let mut fetch = Self::new(bucket, version, source, range.end, permit);
        let class = RequestClass::fetch(blocks as usize);
        fetch.class = Some(class);
        fetch.hedge_timer = HedgeTimer::new(bucket, class, fetch.began);
        fetch
    }

    fn new(
        bucket: &'a Arc<BucketShared>,
        version: &'a Arc<Version>,
        source: Source,
        end: u64,
        permit: Option<SemaphorePermit<'a>>,
    ) -> Self {
        let began = Instant::now();
        let blocks = end.saturating_sub(source.at).div_ceil(bucket.block_size);
        Self {
            bucket,
            version,
            end,
            sources: vec![source],
            began,
            class: None,
            hedge_timer: HedgeTimer::new(bucket, RequestClass::fetch(blocks as usize), began),
            _permit: permit,
            hedge_permit: None,
        }
    }

    /// Returns the next piece and its offset, which is `reached` (the first byte not received yet) or less.
    /// Cancel-safe.
    ///
    /// # Errors
    /// The error of the last response still open, or a stall of all responses.
    pub(super) async fn next(&mut self, reached: u64) -> Result<(u64, Bytes)> {
        let policy = self.bucket.engine.retry;
        loop {
            let event = tokio::select! {
                // Biased, so that a seeded simulation repeats.
                biased;
                event = tokio::time::timeout(policy.stall, next_of_any(&mut self.sources)) => event,
                () = self.hedge_timer.fired() => {
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
                    if !source.is_counted {
                        self.bucket.counters.origin_bytes(piece.len() as u64);
                        self.version.cost.bytes(piece.len() as u64);
                    }
                    if source.hedge && source.at >= self.end {
                        self.bucket.counters.hedge_won();
                    }
                    return Ok((at, piece));
                }
                Some(Err(error)) => error,
                None => ranged::bad_response(self.version, "the body ended early".to_owned()),
            };
            // Another response may still bring these bytes.
            self.sources.remove(which);
            if self.sources.is_empty() {
                return Err(error);
            }
        }
    }

    /// Returns whether the response that reached the end of the range has more bytes. Waits for them, or for its end.
    pub(super) async fn goes_on(&mut self) -> bool {
        let end = self.end;
        let reached = self.sources.iter_mut().find(|source| source.at >= end);
        let Some(source) = reached else {
            return false;
        };
        let next = tokio::time::timeout(self.bucket.engine.retry.stall, source.body.next()).await;
        matches!(next, Ok(Some(Ok(piece))) if !piece.is_empty())
    }

    /// Sends a second request for the missing bytes, if the hedging budget allows it and a permit is free.
    fn hedge(&mut self, reached: u64) {
        let permit = self.bucket.fetch_permits.try_acquire();
        // Without a validator, a second response may be of another version.
        let needed = reached < self.end && self.version.cacheable();
        let (Ok(permit), true) = (permit, needed && hedge::allowed(self.bucket)) else {
            return;
        };
        tracing::debug!(object = %self.version.meta.location, reached, "ranged GET slower than its peers: sending a second one");
        self.bucket.counters.hedge();
        self.hedge_permit = Some(permit);
        self.sources.push(Source {
            at: reached,
            body: lazy_get(self.bucket, self.version, reached..self.end),
            hedge: true,
            is_counted: false,
        });
    }

    /// Records the latency of a fetch that received all its bytes.
    pub(super) fn complete(self) {
        if let Some(class) = self.class.filter(|_| self.bucket.engine.hedge) {
            self.bucket.latencies.record(class, self.began.elapsed());
        }
    }
}

impl Drop for HedgedFetch<'_> {
    fn drop(&mut self) {
        self.version.cost.time(self.began.elapsed());
    }
}

/// Body of a ranged GET that is sent when it is first polled.
fn lazy_get(bucket: &Arc<BucketShared>, version: &Arc<Version>, range: Range<u64>) -> RangeBody {
    let (bucket, version) = (Arc::clone(bucket), Arc::clone(version));
    let response = async move { ranged::get(&bucket, &version, range).await };
    stream::once(response).try_flatten().boxed()
}

/// Returns the next item of any source, earlier sources first.
async fn next_of_any(sources: &mut [Source]) -> (usize, Option<Result<Bytes>>) {
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
