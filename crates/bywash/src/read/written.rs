//! Blocks of an object that was just written.

use std::sync::Arc;
use std::time::Duration;

use bywash_mem::{BlockOptions, Claim, Keep, Load, Share};
use object_store::PutPayload;
use object_store::path::Path;

use super::resolve::head_once;
use crate::shared::BucketShared;
use crate::versions::Version;
use crate::written_blocks::WrittenBlocks;

/// Max time of the HEAD after a write. The store has confirmed the write, so its client waits no longer for the cache.
const HEAD_TIME: Duration = Duration::from_secs(1);

/// Returns the version that a write made, by a HEAD, because the response to a write has no date. `None` if another write came
/// between, or if it cannot be cached.
async fn written_version(
    bucket: &Arc<BucketShared>,
    path: &Path,
    length: u64,
    e_tag: Option<&str>,
) -> Option<Arc<Version>> {
    let version = match head_once(bucket, path, HEAD_TIME).await {
        Ok(found) => Arc::clone(&found.version),
        Err(error) => {
            tracing::debug!(object = %path, %error, "written bytes are not kept");
            return None;
        }
    };
    let same = e_tag.is_some() && version.strong_etag() == e_tag;
    (same && version.meta.size == length && version.cacheable()).then_some(version)
}

/// Makes the blocks of an upload of `length` bytes those of the version that it made.
pub(crate) async fn keep_upload(
    bucket: &Arc<BucketShared>,
    path: &Path,
    blocks: WrittenBlocks,
    length: u64,
    e_tag: Option<&str>,
) {
    let Some(version) = written_version(bucket, path, length, e_tag).await else {
        return;
    };
    let disk = bucket.disk_version(&version);
    blocks.become_blocks_of(&version, |key, length| {
        if let Some((disk, stored)) = &disk {
            disk.keep(stored, key, length);
        }
    });
}

/// Puts the bytes of a write into memory, as blocks of the version that it made.
///
/// Blocks are left out for which no memory is free: a write does not wait for memory that only a read would need.
pub(crate) async fn keep_written(
    bucket: &Arc<BucketShared>,
    path: &Path,
    payload: &PutPayload,
    e_tag: Option<&str>,
) {
    let length = payload.content_length() as u64;
    let Some(version) = written_version(bucket, path, length, e_tag).await else {
        return;
    };
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
