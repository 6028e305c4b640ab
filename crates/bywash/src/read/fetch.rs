//! Fetch: the ranged GETs that bring one range of a version.
//!
//! Only a fetch retries its bytes: it continues at the byte reached, and its deadline starts again after progress. Blocks,
//! parts of a download and single pieces are fetched by it; they differ in their [`Sink`].

use std::future::{Future, pending};
use std::ops::Range;
use std::sync::Arc;

use object_store::{GetResult, Result};

use super::hedged_fetch::HedgedFetch;
use super::peer_fetch::{NotedRate, Places};
use super::ranged::{self, is_version_change};
use crate::retry::{Retries, is_transient, unavailable};
use crate::shared::BucketShared;
use crate::versions::Version;

/// Destination of a fetch. It receives the bytes of its range in order.
pub(super) trait Sink: Send {
    /// Whether a response that continues after the range is an error.
    const ENDS_RESPONSE: bool = false;

    /// Returns where its bytes may come from.
    fn places(&self) -> Places {
        Places::All(NotedRate::default())
    }

    /// The first byte not received yet and the end of the range.
    fn missing(&self) -> Range<u64>;

    /// Receives the next bytes; returns whether the range is complete. A response may be longer than the range.
    fn write(&mut self, bytes: &[u8]) -> Result<bool>;

    /// Completes when no reader waits for the rest. Checks at once, so polling it after each piece makes one check per
    /// piece.
    fn until_unwanted(&mut self) -> impl Future<Output = ()> + Send {
        pending()
    }
}

/// Ways in which a fetch ends without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// All bytes were received.
    Complete,
    /// No reader waits for the rest.
    Unwanted,
}

/// Fetches the missing bytes of `sink`. `first`: a response that has begun and carries them. `operation` names the
/// read in errors. If the version has changed, it is forgotten.
pub(super) async fn fetch(
    bucket: &Arc<BucketShared>,
    version: &Arc<Version>,
    operation: &'static str,
    sink: &mut impl Sink,
    first: Option<GetResult>,
) -> Result<End> {
    let ended = with_retries(bucket, version, operation, sink, first).await;
    if ended.as_ref().is_err_and(is_version_change) {
        bucket.versions.forget(version);
    }
    ended
}

async fn with_retries(
    bucket: &Arc<BucketShared>,
    version: &Arc<Version>,
    operation: &'static str,
    sink: &mut impl Sink,
    mut first: Option<GetResult>,
) -> Result<End> {
    let object = &version.meta.location;
    let mut retries = Retries::new(bucket.retry());
    loop {
        let (missing, places) = (sink.missing(), sink.places());
        let fetch = match first.take() {
            Some(result) => HedgedFetch::from_response(bucket, version, result, missing.end),
            None => tokio::select! {
                biased;
                () = sink.until_unwanted() => return Ok(End::Unwanted),
                fetch = HedgedFetch::start(bucket, version, missing, places) => fetch,
            },
        };
        let error = match receive(version, fetch, sink, &mut retries).await {
            Ok(end) => return Ok(end),
            Err(error) => ranged::classify(version, error),
        };
        // Without a validator, further bytes may be of another version.
        let retriable = version.cacheable() && !sink.missing().is_empty();
        if !retriable || !is_transient(&error) {
            return Err(error);
        }
        tracing::debug!(operation, %object, %error, "fetch failed, continuing at the byte reached");
        let retry = tokio::select! {
            biased;
            () = sink.until_unwanted() => return Ok(End::Unwanted),
            retry = retries.back_off() => retry,
        };
        if !retry {
            return Err(unavailable(operation, object, error));
        }
    }
}

/// Passes the pieces of one fetch to `sink`, except bytes that it has already.
async fn receive<S: Sink>(
    version: &Version,
    mut fetch: HedgedFetch<'_>,
    sink: &mut S,
    retries: &mut Retries,
) -> Result<End> {
    loop {
        let reached = sink.missing().start;
        let (offset, piece) = tokio::select! {
            // Biased, so that a seeded simulation repeats.
            biased;
            () = sink.until_unwanted() => return Ok(End::Unwanted),
            next = fetch.next(reached) => next?,
        };
        let known = reached.saturating_sub(offset).min(piece.len() as u64);
        if known < piece.len() as u64 {
            retries.progress();
        }
        if sink.write(&piece[known as usize..])? {
            break;
        }
    }
    // All bytes are here: how the response ends no longer matters, unless it continues.
    if S::ENDS_RESPONSE && !planted!("engine-longer-body-accepted") && fetch.goes_on().await {
        return Err(ranged::too_long(version));
    }
    fetch.complete();
    Ok(End::Complete)
}
