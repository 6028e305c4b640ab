//! Cached reads: from a request to a body made of pinned blocks.
//!
//! 1. *Resolve* which version is current: known and fresh, or asked of the origin. The question
//!    is one flight a path; where data will be needed anyway it is the first ranged GET itself
//!    ([`open`]), so a cold read costs no extra round trip.
//! 2. *Check* preconditions and the range against that version.
//! 3. *Stream* the blocks of the range ([`body`]): a resident block is pinned, a block on its way
//!    is followed, an absent one is loaded by a shard ([`shard`]) together with its absent
//!    neighbours.
//!
//! The first bytes are awaited before the answer begins. So a version that vanished is noticed
//! while the read can still start over, which it does once.

mod body;
mod open;
mod shard;
mod shared_error;

use std::ops::Range;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, GetResult, GetResultPayload, ObjectStore, Result,
};

use crate::bucket::{CacheOutcome, ReadInfo, Shared};
use crate::error::EngineError;
use crate::versions::Version;
use body::Body;

pub(crate) use open::Opens;

/// The most blocks looked at to tell hit from partial; beyond it the answer is an extrapolation
/// that only a header shows.
const OUTCOME_PROBE_LIMIT_BLOCKS: u32 = 4096;

/// Reads an object, or its metadata, through the cache.
pub(crate) async fn get(bucket: &Arc<Shared>, path: &Path, options: GetOptions) -> Result<GetResult> {
    bucket.counters.request();
    if options.version.is_some() {
        return get_uncached(bucket, path, options).await;
    }
    let first = Box::pin(try_get(bucket, path, &options)).await;
    match first {
        Err(error) if is_version_change(&error) => Box::pin(try_get(bucket, path, &options)).await,
        other => other,
    }
}

/// Whether a read failed because its version is no longer the current one.
fn is_version_change(error: &Error) -> bool {
    matches!(EngineError::find(error), Some(EngineError::VersionChanged { .. }))
}

async fn try_get(bucket: &Arc<Shared>, path: &Path, options: &GetOptions) -> Result<GetResult> {
    let version = open::resolve(bucket, path, options).await?;
    options.check_preconditions(&version.meta)?;
    if options.head {
        let whole = 0..version.meta.size;
        return Ok(answer(&version, whole, CacheOutcome::Hit, stream::empty().boxed()));
    }
    if !version.cacheable() {
        return get_uncached(bucket, path, options.clone()).await;
    }
    let range = checked_range(&version, options.range.as_ref())?;
    let outcome = outcome(bucket, &version, &range);
    let mut body = Body::new(Arc::clone(bucket), Arc::clone(&version), range.clone());
    let first = body.next().await?;
    let rest = stream::try_unfold(body, |mut body| async move {
        Ok(body.next().await?.map(|bytes| (bytes, body)))
    });
    let payload = stream::iter(first.map(Ok)).chain(rest);
    Ok(answer(&version, range, outcome, payload.boxed()))
}

fn answer(
    version: &Version,
    range: Range<u64>,
    outcome: CacheOutcome,
    payload: stream::BoxStream<'static, Result<bytes::Bytes>>,
) -> GetResult {
    let mut extensions = object_store::Extensions::new();
    extensions.insert(ReadInfo { outcome, version: version.label() });
    GetResult {
        payload: GetResultPayload::Stream(payload),
        meta: version.meta.clone(),
        range,
        attributes: version.attributes.clone(),
        extensions,
    }
}

fn checked_range(version: &Version, range: Option<&GetRange>) -> Result<Range<u64>> {
    let length = version.meta.size;
    let Some(range) = range else {
        return Ok(0..length);
    };
    range.as_range(length).map_err(|_| {
        EngineError::RangeNotSatisfiable { object: version.meta.location.to_string(), length }.into()
    })
}

fn outcome(bucket: &Shared, version: &Version, range: &Range<u64>) -> CacheOutcome {
    let size = bucket.engine.block_size;
    let first = (range.start / size) as u32;
    let last = range.end.div_ceil(size) as u32;
    let last = last.min(first.saturating_add(OUTCOME_PROBE_LIMIT_BLOCKS));
    let resident = (first..last).filter(|block| bucket.engine.pool.get(version.key(*block)).is_some()).count();
    match resident {
        0 if first < last => CacheOutcome::Miss,
        n if n as u32 == last - first => CacheOutcome::Hit,
        _ => CacheOutcome::Partial,
    }
}

/// Hands a read to the origin as it is: for old versions, and objects without any validator.
async fn get_uncached(bucket: &Arc<Shared>, path: &Path, options: GetOptions) -> Result<GetResult> {
    if options.head {
        bucket.counters.origin_request();
    } else {
        bucket.counters.origin_data_request();
        bucket.counters.miss();
    }
    let mut result = bucket.origin.get_opts(path, options).await?;
    let version = result.meta.e_tag.clone().unwrap_or_else(|| "unknown".to_owned());
    result.extensions.insert(ReadInfo { outcome: CacheOutcome::Miss, version });
    let counted = Arc::clone(bucket);
    let GetResult { payload, meta, range, attributes, extensions } = result;
    let whole = GetResult { payload, meta: meta.clone(), range: range.clone(), ..empty_result(&meta) };
    let payload = whole.into_stream().inspect_ok(move |bytes| {
        counted.counters.origin_bytes(bytes.len() as u64);
        counted.counters.bytes(bytes.len() as u64);
    });
    Ok(GetResult { payload: GetResultPayload::Stream(payload.boxed()), meta, range, attributes, extensions })
}

fn empty_result(meta: &object_store::ObjectMeta) -> GetResult {
    GetResult {
        payload: GetResultPayload::Stream(stream::empty().boxed()),
        meta: meta.clone(),
        range: 0..0,
        attributes: object_store::Attributes::new(),
        extensions: object_store::Extensions::new(),
    }
}
