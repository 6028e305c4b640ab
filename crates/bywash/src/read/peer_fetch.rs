//! Bytes of one version in a cluster: stripe by stripe from the node that owns it, or else from the origin.
//!
//! The response looks like the response of one ranged GET, so retries, hedging and the blocks above it are the same. A stripe that another
//! node does not return, or not to its end, is continued at the origin from the byte reached. Only the requests to the origin
//! hold a permit for ranged GETs: a load that waits for another node keeps none from a load that this node serves.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::Result;
use tokio::sync::OwnedSemaphorePermit;

use super::ranged::{self, RangeBody};
use crate::cluster::{Cluster, PeerRead, PeerWait};
use crate::shared::BucketShared;
use crate::versions::Version;

/// Time after which a request for a stripe that this node owns counts as a wait for another node. Before, it only asks the former
/// owner for its blocks in memory, which waits for no load. It is longer only if the owner has changed since.
const PEEK: Duration = Duration::from_millis(50);

/// Where a fetch may get its bytes.
#[derive(Debug, Clone)]
pub(super) enum Places {
    /// From other nodes of the cluster, if there are any, or the origin. Notes how often their owner is asked for them.
    All(NotedRate),
    /// From the origin: for another node, whose request is never passed on, and for hedged requests.
    Origin,
}

/// Requests a second for the bytes that arrive, at their owner; 0 for bytes of the origin, and by default.
#[derive(Debug, Clone, Default)]
pub(super) struct NotedRate(Option<Arc<AtomicU32>>);

impl NotedRate {
    /// Notes the rate of one fetch, in a cluster.
    pub(super) fn of_fetch(bucket: &BucketShared) -> Self {
        Self(bucket.cluster.is_some().then(Arc::default))
    }

    pub(super) fn get(&self) -> u32 {
        // Relaxed: the task that reads the bytes has noted it.
        self.0.as_ref().map_or(0, |rate| rate.load(Relaxed))
    }

    fn note(&self, value: u32) {
        if let Some(rate) = &self.0 {
            // Relaxed as above.
            rate.store(value, Relaxed);
        }
    }
}

/// Returns the bytes of `range` by requests that are sent when the body is polled. `None` if only the origin has them.
pub(super) fn stripes(
    bucket: &Arc<BucketShared>,
    version: &Arc<Version>,
    range: Range<u64>,
    rate: NotedRate,
) -> Option<RangeBody> {
    let cluster = bucket.cluster.clone()?;
    let stripes = Stripes {
        e_tag: version.strong_etag()?.to_owned(),
        bucket: Arc::clone(bucket),
        version: Arc::clone(version),
        cluster,
        rate,
        at: range.start,
        end: range.end,
    };
    let body = stream::try_unfold((stripes, None), |(mut stripes, source)| async move {
        let next = stripes.next(source).await?;
        Ok(next.map(|(bytes, source)| (bytes, (stripes, source))))
    });
    Some(body.boxed())
}

/// A range, and the byte reached.
struct Stripes {
    bucket: Arc<BucketShared>,
    version: Arc<Version>,
    cluster: Cluster,
    e_tag: String,
    rate: NotedRate,
    at: u64,
    end: u64,
}

/// The response that brings the bytes of one stripe.
enum Source {
    Peer {
        body: BoxStream<'static, Result<Bytes>>,
        until: u64,
        _wait: PeerWait,
    },
    /// A request to the origin that waits for its permit.
    Queued {
        permit: BoxFuture<'static, Option<OwnedSemaphorePermit>>,
        until: u64,
    },
    Origin {
        body: RangeBody,
        until: u64,
        _permit: Option<OwnedSemaphorePermit>,
    },
}

impl Stripes {
    /// Returns the next bytes, and the response that brings those after them.
    async fn next(&mut self, source: Option<Source>) -> Result<Option<(Bytes, Option<Source>)>> {
        let mut source = source;
        loop {
            match source.take() {
                None if self.at >= self.end => return Ok(None),
                None => source = Some(self.open().await),
                Some(Source::Peer { body, until, _wait }) => {
                    let (bytes, body) = self.take_from_peer(body, until).await;
                    let next = match body {
                        _ if self.at >= until => None,
                        Some(body) => Some(Source::Peer { body, until, _wait }),
                        None => Some(self.queued(until)),
                    };
                    match bytes {
                        Some(bytes) => return Ok(Some((bytes, next))),
                        None => source = next,
                    }
                }
                Some(Source::Queued { mut permit, until }) => {
                    let pause = self.bucket.engine.retry.stall / 4;
                    let Ok(_permit) = tokio::time::timeout(pause, &mut permit).await else {
                        // No bytes, but no stall either: other requests come first.
                        let queued = Source::Queued { permit, until };
                        return Ok(Some((Bytes::new(), Some(queued))));
                    };
                    let body = ranged::get(&self.bucket, &self.version, self.at..until).await?;
                    source = Some(Source::Origin {
                        body,
                        until,
                        _permit,
                    });
                }
                Some(Source::Origin {
                    mut body,
                    until,
                    _permit,
                }) => match body.try_next().await? {
                    Some(bytes) => {
                        self.take_origin_bytes(&bytes, until)?;
                        let source = Source::Origin {
                            body,
                            until,
                            _permit,
                        };
                        return Ok(Some((bytes, Some(source))));
                    }
                    None if self.at < until => {
                        let detail = "the body ended early".to_owned();
                        return Err(ranged::bad_response(&self.version, detail));
                    }
                    None => {}
                },
            }
        }
    }

    fn queued(&self, until: u64) -> Source {
        self.rate.note(0);
        let permits = Arc::clone(&self.bucket.fetch_permits);
        Source::Queued {
            permit: async move { permits.acquire_owned().await.ok() }.boxed(),
            until,
        }
    }

    /// Counts bytes of the origin. Those after the end of the whole range are passed on: the fetch judges them.
    fn take_origin_bytes(&mut self, bytes: &Bytes, until: u64) -> Result<()> {
        self.at += bytes.len() as u64;
        self.bucket.counters.origin_bytes(bytes.len() as u64);
        self.version.cost.bytes(bytes.len() as u64);
        if self.at > until && until < self.end {
            Err(ranged::too_long(&self.version))
        } else {
            Ok(())
        }
    }

    /// Asks for the stripe of the byte reached.
    async fn open(&self) -> Source {
        let peers = &self.cluster.peers;
        let until = peers.stripe_end(self.at).max(self.at + 1).min(self.end);
        let (bucket, path) = (&self.bucket, &self.version.meta.location);
        let read = peers.read(PeerRead {
            bucket: bucket.name.clone(),
            path: path.clone(),
            e_tag: self.e_tag.clone(),
            size: self.version.meta.size,
            range: self.at..until,
            age: bucket.age_of(&self.version),
        });
        let mut read = std::pin::pin!(read);
        let begin = || {
            bucket
                .peer_waits
                .begin(self.version.id(), self.at..self.end)
        };
        let (found, wait) = if peers.is_own(&bucket.name, path, self.at) {
            match tokio::time::timeout(PEEK, &mut read).await {
                Ok(found) => (found, begin()),
                Err(_) => {
                    let wait = begin();
                    (self.within_half_stall(read).await, wait)
                }
            }
        } else {
            let wait = begin();
            (self.within_half_stall(read).await, wait)
        };
        match found {
            Some(body) => {
                bucket.counters.peer_hit();
                self.rate.note(body.rate);
                Source::Peer {
                    body: body.bytes,
                    until,
                    _wait: wait,
                }
            }
            None => self.queued(until),
        }
    }

    /// The other nodes have limits of their own. This one keeps the read from failing by a stall if they do not hold.
    async fn within_half_stall<T>(&self, work: impl Future<Output = Option<T>>) -> Option<T> {
        let limit = self.bucket.engine.retry.stall / 2;
        tokio::time::timeout(limit, work).await.ok().flatten()
    }

    /// Returns the next bytes of a stripe, if there are any, and the rest of the response unless it has failed.
    async fn take_from_peer(
        &mut self,
        mut body: BoxStream<'static, Result<Bytes>>,
        until: u64,
    ) -> (Option<Bytes>, Option<BoxStream<'static, Result<Bytes>>>) {
        let counters = &self.bucket.counters;
        match self.within_half_stall(body.next()).await {
            Some(Ok(mut bytes)) => {
                bytes.truncate(usize::try_from(until - self.at).unwrap_or(usize::MAX));
                counters.peer_bytes(bytes.len() as u64);
                self.at += bytes.len() as u64;
                (Some(bytes).filter(|bytes| !bytes.is_empty()), Some(body))
            }
            failed => {
                let object = &self.version.meta.location;
                let error = failed.and_then(Result::err);
                tracing::debug!(%object, at = self.at, ?error, "another node's response ended early, continuing at the origin");
                counters.peer_fallback();
                (None, None)
            }
        }
    }
}
