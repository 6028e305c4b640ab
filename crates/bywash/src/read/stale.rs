//! Reads of a version that may be stale, while the origin fails: for buckets and callers that allow them.

use std::sync::Arc;
use std::time::Duration;

use bywash_store::OriginError;
use object_store::path::Path;
use object_store::{Error, GetOptions, Result};

use super::resolution::Resolution;
use super::resolve;
use crate::retry::is_transient;
use crate::shared::BucketShared;
use crate::verify::Verify;
use crate::versions::Version;

/// Time for which a read waits for an origin before it is served as stale. If the origin failed last, it is not waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Extension of [`object_store::GetOptions`] for a caller that tells its own reader of [`crate::ReadInfo::stale`]: such a read may be
/// served as stale if the bucket allows it ([`crate::BucketOptions::stale_if_error`]). Others, such as copies, never are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MayBeStale;

/// As [`resolve::resolve`]. Returns the version last known, and true, if the origin fails or does not respond in time, and the version
/// may be used.
pub(super) async fn resolve_or_stale(
    bucket: &Arc<BucketShared>,
    path: &Path,
    options: &GetOptions,
) -> Result<(Resolution, bool)> {
    if usable(bucket, path, options).is_none() {
        let resolved = resolve::resolve(bucket, path, options, None).await?;
        return Ok((resolved, false));
    }
    let patience = if bucket.health.is_failing() {
        Duration::ZERO
    } else {
        PATIENCE
    };
    // The request continues without this read, so the next read learns that the origin is back.
    let resolving = resolve::resolve(bucket, path, options, None);
    match tokio::time::timeout(patience, resolving).await {
        Ok(Ok(resolved)) => return Ok((resolved, false)),
        Ok(Err(error)) if !is_down(&error) => return Err(error),
        Ok(Err(_)) | Err(_) => {}
    }
    // A write may have ended since, and blocks may have been evicted.
    if let Some(version) = usable(bucket, path, options) {
        bucket.counters.stale_read();
        return Ok((Resolution::known(version), true));
    }
    let resolved = resolve::resolve(bucket, path, options, None).await?;
    Ok((resolved, false))
}

/// Returns whether an error is the origin's failure, not its response about the object.
fn is_down(error: &Error) -> bool {
    is_transient(error) || OriginError::is_unavailable(error)
}

/// Returns the version last known, if a read may use it as stale: all blocks that it needs are in memory or on the disk.
fn usable(bucket: &Arc<BucketShared>, path: &Path, options: &GetOptions) -> Option<Arc<Version>> {
    let max = bucket.stale_if_error?;
    options.extensions.get::<MayBeStale>()?;
    // Immutable versions are never stale; nodes of a cluster return nothing older than an acknowledged write.
    let window = bucket.consistency.max_age()?;
    if bucket.cluster.is_some() {
        return None;
    }
    let known = bucket.versions.known_object(path)?;
    let age = known.validated.elapsed();
    let version = known.version;
    if age <= window || age > window.saturating_add(max) || !version.cacheable() {
        return None;
    }
    if options.head {
        return Some(version);
    }
    let whole = 0..version.meta.size;
    let range = match &options.range {
        // The whole object is compared with its digest first.
        Some(range) if bucket.engine.verify != Verify::Always => {
            range.as_range(version.meta.size).ok()?
        }
        _ => whole,
    };
    let size = bucket.block_size;
    let disk = bucket.disk_version(&version);
    let is_present = |block| {
        let key = version.key(block);
        let offers = || {
            disk.as_ref()
                .is_some_and(|(disk, stored)| disk.offers(stored, key))
        };
        bucket.engine.pool.contains(key) || offers()
    };
    let mut blocks = (range.start / size) as u32..range.end.div_ceil(size) as u32;
    blocks.all(is_present).then_some(version)
}
