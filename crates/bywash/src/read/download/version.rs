//! The version of a download: from memory, or from the response to its first GET.

use std::ops::Range;
use std::sync::Arc;

use bywash_store::is_out_of_range;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, GetResult, ObjectStore, Result};

use crate::read::ranged::{self, checked_range};
use crate::read::{plan, resolve};
use crate::retry::with_retries;
use crate::shared::BucketShared;
use crate::versions::Version;

/// Returns the current version if its bytes equal the bytes of `version`, which another caller found. Its date and headers may be others.
pub(super) async fn current_of(
    bucket: &Arc<BucketShared>,
    version: &Version,
) -> Result<Option<Arc<Version>>> {
    let path = &version.meta.location;
    let now = match bucket.known(path) {
        Some((now, true)) => now,
        _ => head(bucket, path).await?,
    };
    Ok(now.matches(&version.meta).then_some(now))
}

/// Returns the known version if it is fresh and all of its blocks in the range are in memory or on the disk tier.
pub(super) fn cached(
    bucket: &BucketShared,
    path: &Path,
    range: Option<&GetRange>,
) -> Option<Arc<Version>> {
    let (version, is_fresh) = bucket.known(path)?;
    let range = checked_range(&version, range).ok()?;
    let (size, pool) = (bucket.block_size, &bucket.engine.pool);
    let mut blocks = (range.start / size) as u32..range.end.div_ceil(size) as u32;
    let usable = is_fresh && version.cacheable() && !blocks.is_empty();
    let disk = bucket.disk_version(&version);
    let has = |key| {
        disk.as_ref()
            .is_some_and(|(disk, stored)| disk.contains(stored, key))
    };
    let all =
        usable && blocks.all(|block| pool.contains(version.key(block)) || has(version.key(block)));
    all.then_some(version)
}

/// Returns the current version, and the response if it carries the first part, of at most `part_size` bytes.
pub(super) async fn first_response(
    bucket: &Arc<BucketShared>,
    path: &Path,
    range: Option<&GetRange>,
    part_size: u64,
) -> Result<(Arc<Version>, Option<GetResult>)> {
    let known = bucket.known(path);
    // In a cluster, one node requests the first bytes for all.
    if bucket.cluster.is_some() {
        return match known {
            Some((version, true)) => Ok((version, None)),
            _ => Ok((head(bucket, path).await?, None)),
        };
    }
    // As for a read: if the first bytes are likely there, a HEAD is enough.
    let is_here = match &known {
        Some((version, _)) => plan::is_first_present(bucket, version, range),
        None => bucket.is_on_disk(path),
    };
    if is_here {
        return Ok((head(bucket, path).await?, None));
    }
    let start = match range {
        None => 0,
        Some(GetRange::Bounded(range)) => range.start,
        Some(GetRange::Offset(start)) => *start,
        // Its start depends on the length.
        Some(GetRange::Suffix(_)) => return Ok((head(bucket, path).await?, None)),
    };
    let end = start.saturating_add(part_size);
    let end = match range {
        Some(GetRange::Bounded(range)) => end.min(range.end),
        _ => end,
    };
    let stamp = bucket.versions.stamp(path);
    let result = get(bucket, path, start..end).await;
    match result {
        Ok(result) => {
            let meta = resolve::at(path, result.meta.clone());
            let version = bucket.versions.record(stamp, meta, &result);
            version.learn_digest(&result);
            Ok((version, Some(result)))
        }
        // An empty object, or a range beyond the end: only a HEAD returns the length.
        Err(error) if is_out_of_range(&error) => Ok((head(bucket, path).await?, None)),
        Err(error) => {
            if matches!(error, Error::NotFound { .. }) {
                bucket.versions.record_absent(stamp, path);
            }
            Err(error)
        }
    }
}

async fn head(bucket: &Arc<BucketShared>, path: &Path) -> Result<Arc<Version>> {
    let opened = resolve::head(bucket, path).await?;
    Ok(Arc::clone(&opened.version))
}

/// Sends an unconditional ranged GET.
async fn get(bucket: &Arc<BucketShared>, path: &Path, range: Range<u64>) -> Result<GetResult> {
    let options = GetOptions {
        range: Some(GetRange::Bounded(range)),
        ..GetOptions::default()
    };
    with_retries(bucket.retry(), "download", path, || {
        bucket.counters.origin_data_request();
        bucket.origin.get_opts(path, options.clone())
    })
    .await
}

/// Sends one more GET for an object without a validator; checks its length only.
pub(super) async fn get_unconditional(
    bucket: &Arc<BucketShared>,
    version: &Version,
    part: Range<u64>,
) -> Result<GetResult> {
    let path = &version.meta.location;
    let result = match get(bucket, path, part.clone()).await {
        // Shorter by now than when its length was stated.
        Err(error) if is_out_of_range(&error) => return Err(ranged::changed(version)),
        result => result?,
    };
    if result.meta.size != version.meta.size {
        return Err(ranged::changed(version));
    }
    if result.range != part {
        let detail = format!("requested {part:?}, received {:?}", result.range);
        return Err(ranged::bad_response(version, detail));
    }
    Ok(result)
}
