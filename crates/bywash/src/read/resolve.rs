//! Resolves the current version of an object: from memory, or from the origin by a single flight per path.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bywash_mem::{Frame, Share};
use bywash_store::{TagCount, is_out_of_range};
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore, Result};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::hedge::hedged;
use super::range_fetch::RangeFetch;
use super::resolution::{FlightResult, Resolution};
use super::shared_error::clone_error;
use super::single_flight::{FlightGuard, FlightOutcome};
use super::{plan, ranged};
use crate::cluster::{Cluster, CurrentVersion, ObjectVersion};
use crate::limits::MAX_ABANDONED_MEMORY_DIVISOR;
use crate::retry::{once, with_retries};
use crate::shared::BucketShared;
use crate::versions::{RequestStamp, Version};

/// Returns the current version of `path`: from memory if it was confirmed within the window, else from the origin.
///
/// A response is as old as its request. Responses to requests sent before `not_before` are not used, nor those to
/// requests older than the bucket's window when this read began.
///
/// If the read needs absent data, the request also begins to load it.
pub(super) async fn resolve(
    bucket: &Arc<BucketShared>,
    path: &Path,
    options: &GetOptions,
    not_before: Option<Instant>,
) -> Result<Resolution> {
    let began = Instant::now();
    let window = bucket.consistency.max_age();
    let known = bucket.known(path);
    let known = match known {
        Some((version, true)) => return Ok(Resolution::known(version)),
        // Every read of an uncacheable object requests it from the origin anyway.
        Some((version, false)) if !version.cacheable() && !options.head => {
            return Ok(Resolution::known(version));
        }
        Some((version, false)) => Some(version),
        None if bucket.is_absent(path) => {
            bucket.counters.absence();
            return Err(Error::NotFound {
                path: path.to_string(),
                source: "absent at the origin within the consistency window of the bucket".into(),
            });
        }
        None => None,
    };
    // Also `None` if that is before the clock's start.
    let mut oldest = window.and_then(|window| began.checked_sub(window));
    // In a cluster a flight sent before this read began may return a version that a write, acknowledged since at another node, has replaced.
    if bucket.cluster.is_some() && window.is_some() {
        oldest = Some(began);
    }
    oldest = oldest.max(not_before);
    loop {
        let query = match known.clone() {
            _ if options.head => OriginQuery::Head,
            // The authority states the version, and one node requests the bytes for all.
            _ if bucket.cluster.is_some() => OriginQuery::Head,
            // A stale version is mostly unchanged: if its data is here, a HEAD is enough.
            Some(version) if plan::is_first_present(bucket, &version, options.range.as_ref()) => {
                OriginQuery::Head
            }
            // After a restart: if the version is the one on the disk, a HEAD is enough.
            None if bucket.is_on_disk(path) => OriginQuery::Head,
            known => OriginQuery::Data(options.range.clone(), known),
        };
        let mut waiter = bucket.flights.join(path, oldest, |guard| {
            tokio::spawn(lead(Arc::clone(bucket), path.clone(), query, guard));
        });
        let result = match waiter.outcome().await {
            FlightOutcome::Resolved(result) => result,
            // The flight ended before this read joined it.
            FlightOutcome::Abandoned => continue,
            // Objects of this bucket never change, but an absent one may exist by now.
            FlightOutcome::Failed(error)
                if window.is_none()
                    && matches!(*error, Error::NotFound { .. })
                    && waiter.sent_before(began)
                    && oldest < Some(began) =>
            {
                oldest = Some(began);
                continue;
            }
            FlightOutcome::Failed(error) => return Err(clone_error(&error)),
        };
        return Ok(Resolution {
            version: Arc::clone(&result.version),
            flight: Some(result),
        });
    }
}

enum OriginQuery {
    Head,
    /// The requested range, and the version last known.
    Data(Option<GetRange>, Option<Arc<Version>>),
}

/// Responses up to this many bytes mostly arrive with their headers. They are stored before the readers are woken,
/// which then wake once.
const SHORT_RESPONSE_BYTES: u64 = 64 << 10;

/// Sends the request, in a task of its own that survives readers that leave. The same task then stores the bytes of
/// the response.
async fn lead(
    bucket: Arc<BucketShared>,
    path: Path,
    query: OriginQuery,
    guard: FlightGuard<Arc<FlightResult>>,
) {
    let bytes = match query {
        OriginQuery::Head => 0,
        OriginQuery::Data(..) => bucket.block_size,
    };
    let stamp = || {
        let stamp = bucket.versions.stamp(&path);
        guard.sent(stamp.at);
        stamp
    };
    let request = async {
        match query {
            OriginQuery::Head => head_sent(&bucket, &path, stamp)
                .await
                .map(Started::without_data),
            OriginQuery::Data(range, known) => {
                let range = plan::first_range(&bucket, range, known.as_deref());
                first_get(&bucket, &path, range, stamp).await
            }
        }
    };
    let permit = || {
        let engine = &bucket.engine;
        let max = engine.pool.budget().limit() / MAX_ABANDONED_MEMORY_DIVISOR;
        let flight = bucket.flights.abandoned.try_acquire().ok()?;
        Some((flight, engine.abandoned.try_add(bytes, max)?))
    };
    let started = match guard.unless_abandoned(request, permit).await {
        None => return guard.finish(FlightOutcome::Abandoned),
        Some(Err(error)) => return guard.finish(FlightOutcome::Failed(Arc::new(error))),
        Some(Ok(started)) => started,
    };
    let outcome = FlightOutcome::Resolved(started.result);
    let Some(fetch) = started.fetch else {
        return guard.finish(outcome);
    };
    guard.close();
    let mut fetch = pin!(fetch.run());
    let stored = started.short && futures::poll!(&mut fetch).is_ready();
    guard.finish(outcome);
    if !stored {
        // Yields, so that the reader need not wait on this worker until the first pieces are stored.
        tokio::task::yield_now().await;
        fetch.await;
    }
}

/// Result of a request, and its bytes to be stored.
struct Started {
    result: Arc<FlightResult>,
    fetch: Option<RangeFetch>,
    /// Whether the response is short, see [`SHORT_RESPONSE_BYTES`].
    short: bool,
}

impl Started {
    fn without_data(result: Arc<FlightResult>) -> Self {
        Self {
            result,
            fetch: None,
            short: false,
        }
    }
}

/// Requests the metadata only.
pub(super) async fn head(bucket: &Arc<BucketShared>, path: &Path) -> Result<Arc<FlightResult>> {
    head_sent(bucket, path, || bucket.versions.stamp(path)).await
}

/// Requests the current version from the origin, for the authority of a cluster. Records nothing.
pub(crate) async fn request_version(
    bucket: &Arc<BucketShared>,
    path: &Path,
) -> Result<CurrentVersion> {
    let attempt = || send_head(bucket, path);
    match with_retries(bucket.retry(), "head", path, attempt).await {
        Ok(response) => Ok(Some(Arc::new(ObjectVersion {
            meta: at(path, response.meta.clone()),
            tag_count: TagCount::of(&response).0,
            digest: response.extensions.get().copied(),
            attributes: response.attributes,
        }))),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Asks the authority of the cluster for the current version, and records its answer.
async fn ask_authority(
    bucket: &Arc<BucketShared>,
    cluster: &Cluster,
    path: &Path,
    stamp: RequestStamp,
) -> Result<Arc<FlightResult>> {
    let answer = cluster.versions.read(&bucket.name, path).await;
    let version = bucket.record_answer(stamp, path, answer)?;
    Ok(FlightResult::known(version))
}

/// As [`head`]; calls `stamp` when the request is sent.
async fn head_sent(
    bucket: &Arc<BucketShared>,
    path: &Path,
    stamp: impl FnOnce() -> RequestStamp,
) -> Result<Arc<FlightResult>> {
    let stamp = stamp();
    if let Some(cluster) = &bucket.cluster {
        return ask_authority(bucket, cluster, path, stamp).await;
    }
    let attempt = || send_head(bucket, path);
    let result = with_retries(bucket.retry(), "head", path, attempt).await;
    record_head(bucket, path, stamp, result)
}

/// As [`head`], by one request that takes at most `limit`.
pub(super) async fn head_once(
    bucket: &Arc<BucketShared>,
    path: &Path,
    limit: Duration,
) -> Result<Arc<FlightResult>> {
    let stamp = bucket.versions.stamp(path);
    if let Some(cluster) = &bucket.cluster {
        let asked = ask_authority(bucket, cluster, path, stamp);
        return once(limit, "head", path, asked).await;
    }
    let result = once(limit, "head", path, send_head(bucket, path)).await;
    record_head(bucket, path, stamp, result)
}

async fn send_head(bucket: &BucketShared, path: &Path) -> Result<GetResult> {
    bucket.counters.origin_request();
    let options = GetOptions {
        head: true,
        ..GetOptions::default()
    };
    bucket.origin.get_opts(path, options).await
}

/// Records the version in the response to a HEAD, or the absence of the object.
fn record_head(
    bucket: &BucketShared,
    path: &Path,
    stamp: RequestStamp,
    result: Result<GetResult>,
) -> Result<Arc<FlightResult>> {
    match result {
        Ok(response) => {
            let meta = at(path, response.meta.clone());
            let result = FlightResult::known(bucket.versions.record(stamp, meta, &response));
            result.version.learn_digest(&response);
            result.file.keep_from(&response);
            Ok(result)
        }
        Err(error) => {
            if matches!(error, Error::NotFound { .. }) {
                bucket.versions.record_absent(stamp, path);
            }
            Err(error)
        }
    }
}

/// Replaces the location in `meta` by `path`: the origin may spell it differently (a prefix, an encoding).
pub(super) fn at(path: &Path, mut meta: ObjectMeta) -> ObjectMeta {
    meta.location = path.clone();
    meta
}

/// Resolves the version by the first ranged GET, and prepares a fetch that stores its body. Calls `stamp` when the
/// request is sent.
async fn first_get(
    bucket: &Arc<BucketShared>,
    path: &Path,
    range: GetRange,
    stamp: impl FnOnce() -> RequestStamp,
) -> Result<Started> {
    let engine = &bucket.engine;
    // The minimum, before any request: one block. More is only tried for once the object's length is known.
    let frame = engine
        .frame(bucket.block_size as usize, "read", path)
        .await?;
    let stamp = stamp();
    let options = GetOptions {
        range: Some(range),
        ..GetOptions::default()
    };
    let began = Instant::now();
    let result = with_retries(bucket.retry(), "read", path, || {
        hedged(bucket, || {
            bucket.counters.origin_data_request();
            bucket.origin.get_opts(path, options.clone())
        })
    })
    .await;
    match result {
        Ok(result) => {
            let named = ranged::encoding_of_range(&result);
            confirm_encoding(bucket, path, named).await?;
            let meta = at(path, result.meta.clone());
            let version = bucket.versions.record(stamp, meta, &result);
            version.learn_digest(&result);
            version.cost.request();
            version.cost.time(began.elapsed());
            if !version.cacheable() {
                return Ok(Started::without_data(FlightResult::with_body(
                    version,
                    Some(result),
                )));
            }
            Ok(store(bucket, version, frame, result))
        }
        // An empty object, or a range beyond the end: only a HEAD returns the length.
        Err(error) if is_out_of_range(&error) => {
            drop(frame);
            head(bucket, path).await.map(Started::without_data)
        }
        Err(error) => {
            if matches!(error, Error::NotFound { .. }) {
                bucket.versions.record_absent(stamp, path);
            }
            Err(error)
        }
    }
}

/// Checks by a HEAD request that the whole object has the Content-Encoding `named` in the response to a range.
///
/// # Errors
/// [`OriginError::BadResponse`] if it does not.
pub(super) async fn confirm_encoding(
    bucket: &Arc<BucketShared>,
    path: &Path,
    named: Option<String>,
) -> Result<()> {
    if named.is_none() {
        return Ok(());
    }
    let opened = head(bucket, path).await?;
    if named.as_deref() == ranged::encoding(&opened.version.attributes) {
        return Ok(());
    }
    Err(ranged::bad_response(
        &opened.version,
        ranged::other_encoding(named.as_deref()),
    ))
}

/// Prepares storing the body of the first response in the blocks it covers whole, as far as the read-ahead quota
/// allows.
fn store(
    bucket: &Arc<BucketShared>,
    version: Arc<Version>,
    frame: Frame,
    response: GetResult,
) -> Started {
    let size = bucket.block_size;
    let range = response.range.clone();
    let first = range.start.div_ceil(size) as u32;
    // The last block ends with the object.
    let end = if range.end >= version.meta.size {
        version.blocks(size)
    } else {
        (range.end / size) as u32
    };
    let window =
        (end > first.saturating_add(1)).then(|| bucket.engine.readahead.window(bucket.block_size));
    let room = window
        .as_ref()
        .map_or(0, |window| window.quota(bucket.max_fetch_blocks()).free);
    let mut spare = Some(frame);
    // Another reader may be loading this version already: the fetch ends there.
    let blocks = first..end.min(first.saturating_add(1).saturating_add(room));
    let frame = |length| fitting_frame(bucket, &mut spare, length);
    let loads = plan::claim_run(bucket, &version, blocks, frame);
    drop(spare);
    if let Some(window) = &window {
        for load in loads.iter().skip(1) {
            window.hold(load.key().block, load.flight().join());
        }
    }
    let cancel = CancellationToken::new();
    let file = version.file();
    file.keep_from(&response);
    let result = Arc::new(FlightResult {
        file,
        version: Arc::clone(&version),
        body: Mutex::new(None),
        loading: first..first + loads.len() as u32,
        window: Mutex::new(window),
        _cancel_on_drop: Some(cancel.clone().drop_guard()),
    });
    let fetch = (!loads.is_empty()).then(|| {
        RangeFetch::new(Arc::clone(bucket), version, loads, cancel).with_response(response)
    });
    Started {
        result,
        fetch,
        short: range.end - range.start <= SHORT_RESPONSE_BYTES,
    }
}

/// Returns a frame for `length` bytes: of the smallest size class if there is memory, else `spare`.
fn fitting_frame(bucket: &BucketShared, spare: &mut Option<Frame>, length: usize) -> Option<Frame> {
    let in_hand = spare.as_ref().map_or(0, Frame::capacity);
    if in_hand >= length && length > in_hand / 2 {
        return spare.take();
    }
    let small = bucket.engine.pool.try_frames(Share::Download, length, 1, 1);
    small
        .and_then(|mut frames| frames.pop())
        .or_else(|| spare.take())
}
