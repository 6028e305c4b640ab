//! One GET: resolves the version, checks preconditions and range, and begins the body.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use bywash_store::{OriginError, TagCount, is_out_of_range};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta, ObjectStore, Result,
};
use tokio::time::Instant;

use super::body::Body;
use super::body_check::{BodyCheck, Pieced, compare_copied, compare_first};
use super::copied::CopiedBody;
use super::digest_check::{compared, is_digest_mismatch, response_digest, stated_digest};
use super::pieces::{Admission, PieceByPiece, Pieces};
use super::ranged::{checked_range, encoding_of_range, is_version_change, range_error};
use super::{resolve, stale};
use crate::copy_memory::CopyReads;
use crate::error::EngineError;
use crate::outcome::{CacheOutcome, ReadInfo};
use crate::retry::{stalled, with_retries};
use crate::shared::BucketShared;
use crate::verify::Verify;
use crate::versions::Version;

/// Extension of [`GetOptions`] for a caller that needs the [`Version`] that a cached body is read from, as an extension of the result.
#[derive(Debug, Clone, Copy)]
pub(super) struct WantsVersion;

/// Reads an object or its metadata through the cache.
pub(crate) fn get(
    bucket: &Arc<BucketShared>,
    path: &Path,
    options: GetOptions,
) -> impl Future<Output = Result<GetResult>> {
    bucket.counters.request();
    get_uncounted(bucket, path, options)
}

/// As [`get`], of a request that was counted before.
pub(super) async fn get_uncounted(
    bucket: &Arc<BucketShared>,
    path: &Path,
    options: GetOptions,
) -> Result<GetResult> {
    if options.version.is_some() {
        return get_uncached(bucket, path, options).await;
    }
    let first = Box::pin(try_get(bucket, path, &options, None)).await;
    match first {
        Err(error) => {
            let now = second_start(bucket, path, error).await?;
            Box::pin(try_get(bucket, path, &options, Some(now))).await
        }
        read => read,
    }
}

/// Returns the moment from which on a second read asks for the version: a request sent before the change could return the same version
/// again.
///
/// # Errors
/// The error of the first read, unless the object changed, or had other bytes than its digest says.
pub(super) async fn second_start(
    bucket: &Arc<BucketShared>,
    path: &Path,
    error: Error,
) -> Result<Instant> {
    if is_version_change(&error) {
        bucket.share_change(path).await;
    } else if !is_digest_mismatch(&error) {
        return Err(error);
    }
    Ok(Instant::now())
}

/// Requests the metadata of the current version from the origin, in a cluster from the authority, although a version may be known.
pub(crate) async fn head_now(bucket: &Arc<BucketShared>, path: &Path) -> Result<ObjectMeta> {
    bucket.counters.request();
    let found = resolve::head(bucket, path).await?;
    Ok(found.version.meta.clone())
}

/// Reads an object for a copy, into the memory of the copy: waits for no other memory. The version that `options` demands is read
/// as it is known, if it is.
pub(crate) async fn get_for_copy(
    bucket: &Arc<BucketShared>,
    path: &Path,
    options: GetOptions,
    memory: &CopyReads,
) -> Result<GetResult> {
    bucket.counters.request();
    let demanded = options.if_match.as_deref();
    let known = bucket.known(path).map(|(version, _)| version);
    // Each request for its bytes is bound to it.
    let known = known.filter(|known| demanded.is_some() && known.strong_etag() == demanded);
    let version = match known {
        Some(known) => known,
        None => {
            let head = GetOptions {
                head: true,
                ..options.clone()
            };
            let resolved = resolve::resolve(bucket, path, &head, None).await?;
            Arc::clone(&resolved.version)
        }
    };
    if !version.cacheable() {
        return get_uncached(bucket, path, options).await;
    }
    options.check_preconditions(&version.meta)?;
    let range = checked_range(&version, options.range.as_ref())?;
    let body = |range| CopiedBody::new(bucket, Arc::clone(&version), range, memory.buffers());
    let whole = 0..version.meta.size;
    if bucket.engine.verify == Verify::Always && range != whole && !range.is_empty() {
        compare_copied(bucket, &version, body(whole)).await?;
    }
    let miss = CacheOutcome::Miss;
    let mut result = get_result(&version, range.clone(), miss);
    let check = BodyCheck::new(bucket, &version, &range, miss, None);
    let payload = begun(body(range), check).await?;
    result.payload = GetResultPayload::Stream(payload);
    Ok(result)
}

/// Reads once. With `not_before`, a version that was resolved earlier is requested again.
pub(super) async fn try_get(
    bucket: &Arc<BucketShared>,
    path: &Path,
    options: &GetOptions,
    not_before: Option<Instant>,
) -> Result<GetResult> {
    let by_piece = options.extensions.get::<PieceByPiece>().is_some() && !options.head;
    let admission = if by_piece {
        Some(Admission::wait(bucket, path).await?)
    } else {
        None
    };
    let (resolved, stale) = match not_before {
        None => stale::resolve_or_stale(bucket, path, options).await?,
        Some(_) => (
            resolve::resolve(bucket, path, options, not_before).await?,
            false,
        ),
    };
    let version = &resolved.version;
    if !version.cacheable() && !options.head {
        return match resolved.take_body() {
            Some(result) => first_uncached(bucket, path, result, options).await,
            None => get_uncached(bucket, path, options.clone()).await,
        };
    }
    options.check_preconditions(&version.meta)?;
    if options.head {
        let mut result = get_result(version, 0..version.meta.size, CacheOutcome::Hit);
        note_stale(&mut result, stale);
        return Ok(result);
    }
    let range = checked_range(version, options.range.as_ref())?;
    let whole = range == (0..version.meta.size);
    if bucket.engine.verify == Verify::Always && !whole && !range.is_empty() {
        Box::pin(compare_first(bucket, version)).await?;
    }
    let mut body = Body::new(Arc::clone(bucket), resolved, range.clone());
    let outcome = body.probe();
    if outcome == CacheOutcome::Partial {
        body.await_first_absent().await?;
    }
    let asked = options.extensions.get().copied();
    let known = body.version();
    // Its origin could not state the digest now.
    let is_checked = !stale || stated_digest(bucket, known).is_some();
    let check = BodyCheck::new(bucket, known, &range, outcome, asked);
    let check = async move { if is_checked { check.await } else { None } };
    let mut result = get_result(body.version(), range, outcome);
    note_stale(&mut result, stale);
    if options.extensions.get::<WantsVersion>().is_some() {
        result.extensions.insert(Arc::clone(body.version()));
    }
    let payload = match admission {
        Some(admission) => begun(Pieces::new(body, admission), check).await?,
        None => begun(body, check).await?,
    };
    result.payload = GetResultPayload::Stream(payload);
    Ok(result)
}

/// Starts a body; returns once its first bytes are there.
async fn begun(
    mut body: impl Pieced,
    check: impl Future<Output = Option<BodyCheck>>,
) -> Result<stream::BoxStream<'static, Result<Bytes>>> {
    // Concurrently: the digest may take a request of its own.
    let (first, mut check) = tokio::join!(body.next(), check);
    let first = first?;
    BodyCheck::add(&mut check, &mut body, first.as_ref()).await?;
    let first = stream::iter(first.map(Ok));
    if body.is_done() {
        return Ok(first.boxed());
    }
    let rest = stream::try_unfold((body, check), |(mut body, mut check)| async move {
        let bytes = body.next().await?;
        BodyCheck::add(&mut check, &mut body, bytes.as_ref()).await?;
        Ok(bytes.map(|bytes| (bytes, (body, check))))
    });
    Ok(first.chain(rest).boxed())
}

/// Returns the head of a response, without its body.
pub(super) fn get_result(version: &Version, range: Range<u64>, outcome: CacheOutcome) -> GetResult {
    let mut extensions = object_store::Extensions::new();
    extensions.insert(ReadInfo {
        outcome,
        version: version.display(),
        tags: version.tags.0,
        stale: false,
    });
    if let Some(digest) = version.digest() {
        extensions.insert(digest);
    }
    GetResult {
        payload: GetResultPayload::Stream(stream::empty().boxed()),
        meta: version.meta.clone(),
        range,
        attributes: version.attributes.clone(),
        extensions,
    }
}

fn note_stale(result: &mut GetResult, stale: bool) {
    if let Some(info) = result.extensions.get_mut::<ReadInfo>() {
        info.stale = stale;
    }
}

/// Passes a read to the origin unchanged: for old versions, and for objects without any validator.
async fn get_uncached(
    bucket: &Arc<BucketShared>,
    path: &Path,
    options: GetOptions,
) -> Result<GetResult> {
    let stamp = bucket.versions.stamp(path);
    let fetched = with_retries(bucket.retry(), "read", path, async || {
        if options.head {
            bucket.counters.origin_request()
        } else {
            bucket.counters.origin_data_request()
        }
        let result = bucket.origin.get_opts(path, options.clone()).await?;
        let range = checked_response(path, &result, options.range.as_ref())?;
        Ok((result, range))
    })
    .await;
    let (result, range) = match fetched {
        Err(error) if is_out_of_range(&error) => {
            let version = Arc::clone(&resolve::head(bucket, path).await?.version);
            let range = checked_range(&version, options.range.as_ref())?;
            if range.is_empty() {
                return Ok(get_result(&version, range, CacheOutcome::Miss));
            }
            // The object was too short when it was read and is longer now.
            return Err(EngineError::VersionChanged {
                object: path.to_string(),
            }
            .into());
        }
        fetched => fetched?,
    };
    if options.version.is_none() {
        let named = encoding_of_range(&result);
        resolve::confirm_encoding(bucket, path, named).await?;
        // The object may have a validator by now.
        bucket.versions.record(stamp, result.meta.clone(), &result);
    }
    Ok(uncached(bucket, result, range, &options))
}

/// Uses the response that showed the object to be uncacheable, if it covers the range wanted; else sends a new
/// request.
async fn first_uncached(
    bucket: &Arc<BucketShared>,
    path: &Path,
    result: GetResult,
    options: &GetOptions,
) -> Result<GetResult> {
    options.check_preconditions(&result.meta)?;
    match checked_response(path, &result, options.range.as_ref()) {
        Ok(range) => Ok(uncached(bucket, result, range, options)),
        Err(_) => get_uncached(bucket, path, options.clone()).await,
    }
}

/// Returns the requested range if the response covers it. The response is longer if the origin ignored the range.
fn checked_response(
    path: &Path,
    result: &GetResult,
    requested: Option<&GetRange>,
) -> Result<Range<u64>> {
    let length = result.meta.size;
    let range = match requested {
        Some(requested) => requested
            .as_range(length)
            .map_err(|_| range_error(path, length))?,
        None => 0..length,
    };
    if result.range.start <= range.start && range.end <= result.range.end {
        return Ok(range);
    }
    let detail = format!("requested {range:?}, received {:?}", result.range);
    Err(OriginError::bad_response(path, detail))
}

/// Streams one response of the origin, counted and cut to `range`; fails when it stalls.
fn uncached(
    bucket: &Arc<BucketShared>,
    result: GetResult,
    range: Range<u64>,
    options: &GetOptions,
) -> GetResult {
    bucket.counters.miss();
    let skip = range.start - result.range.start;
    let state = (
        Arc::clone(bucket),
        result.meta.location.clone(),
        skip,
        range.end - range.start,
    );
    let digest = response_digest(bucket, &result, options);
    let digest = digest.filter(|_| range == (0..result.meta.size));
    let GetResult {
        payload,
        meta,
        range: sent,
        attributes,
        mut extensions,
    } = result;
    let tags = extensions.get::<TagCount>().map_or(0, |tags| tags.0);
    let version = meta.e_tag.clone().unwrap_or_else(|| "unknown".to_owned());
    extensions.insert(ReadInfo {
        outcome: CacheOutcome::Miss,
        version,
        tags,
        stale: false,
    });
    let body = GetResult {
        payload,
        meta: meta.clone(),
        range: sent,
        attributes: object_store::Attributes::new(),
        extensions: object_store::Extensions::new(),
    }
    .into_stream();
    let payload = stream::try_unfold((body, state), |(mut body, state)| async move {
        let (bucket, object, mut skip, mut left) = state;
        let stall = bucket.engine.retry.stall;
        while left > 0 {
            let next = tokio::time::timeout(stall, body.try_next()).await;
            let Some(mut piece) = next.map_err(|_| stalled(bucket.engine.retry))?? else {
                let detail = format!("the body ended {left} bytes early");
                return Err(OriginError::bad_response(object, detail));
            };
            bucket.counters.origin_bytes(piece.len() as u64);
            let passed = skip.min(piece.len() as u64);
            skip -= passed;
            piece.advance(passed as usize);
            piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            if !piece.is_empty() {
                left -= piece.len() as u64;
                bucket.counters.bytes(piece.len() as u64);
                return Ok(Some((piece, (body, (bucket, object, skip, left)))));
            }
        }
        Ok(None)
    });
    let payload = match digest {
        Some(digest) => compared(bucket, &meta, digest, payload.boxed()),
        None => payload.boxed(),
    };
    GetResult {
        payload: GetResultPayload::Stream(payload),
        meta,
        range,
        attributes,
        extensions,
    }
}
