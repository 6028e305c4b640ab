//! Blocks of an object that was just written.

use std::sync::Arc;
use std::time::Duration;

use bywash_mem::{BlockOptions, Claim, Keep, Load, Share};
use object_store::PutPayload;
use object_store::path::Path;

use super::resolve::head;
use crate::shared::BucketShared;

/// Max time of the HEAD after a write. The store has confirmed the write, so its client waits no longer for the cache.
const HEAD_TIME: Duration = Duration::from_secs(1);

/// Returns the version that a write made, by a HEAD, because the response to a write has no date. `None` if another write came
/// between, or if it cannot be cached.
async fn written_version(
    bucket: &Arc<BucketShared>,
    path: &Path,
    payload: &PutPayload,
    e_tag: Option<&str>,
) {
    let version = match head(bucket, path).await {
        Ok(found) => Arc::clone(&found.version),
        Err(error) => {
            tracing::debug!(object = %path, %error, "written bytes are not kept");
            return;
        }
    };
    let same = e_tag.is_some() && version.strong_etag() == e_tag;
    if !same || version.meta.size != payload.content_length() as u64 || !version.cacheable() {
        return;
    }
    let disk = bucket.disk_version(&version);
    let pool = &bucket.engine.pool;
    for block in 0..version.blocks(bucket.block_size) {
        let key = version.key(block);
        let Claim::Vacant(mut load) = pool.claim(key) else {
            continue;
        };
        let length = version.block_len(block, bucket.block_size);
        let frames = pool.try_frames(Share::Download, length, 1, 1);
        let Some(frame) = frames.and_then(|mut frames| frames.pop()) else {
            return;
        };
        load.attach(frame, length);
        write_from(&mut load, payload, u64::from(block) * bucket.block_size);
        if disk.is_some() {
            load.set_options(BlockOptions {
                keep: Keep::Spill,
                ..load.options()
            });
        }
        if load.publish().is_ok()
            && let Some((disk, stored)) = &disk
        {
            disk.keep(stored, key, length);
        }
    }
}

/// Fills a load with the bytes of a payload from `offset` on.
fn write_from(load: &mut Load, payload: &PutPayload, offset: u64) {
    let mut skipped = offset as usize;
    for piece in payload.as_ref() {
        let start = skipped.min(piece.len());
        skipped -= start;
        load.write(&piece[start..]);
        if load.remaining() == 0 {
            return;
        }
    }
}
