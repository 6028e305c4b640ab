//! Blocks of an object that was just written.

use std::sync::Arc;
use std::time::Duration;

use bywash_mem::{Load, Share};
use object_store::PutPayload;
use object_store::path::Path;

use super::ownership::is_foreign;
use super::plan;
use super::range_fetch::publish;
use super::resolve::head_once;
use crate::block_kind::BlockKind;
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

/// Gives the blocks of an upload of `length` bytes to the version that it made: in a cluster as far as other nodes own them as cold
/// ones.
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
    let engine = &bucket.engine;
    // A reader may be loading a block already. Then it is not given the key.
    blocks.become_blocks_of(&version, |pin, key| {
        if is_foreign(bucket, &version, key.block) {
            drop(engine.foreign.cool(&engine.pool, pin, key));
        } else if engine.pool.adopt(pin, key).is_ok()
            && let Some((disk, stored)) = &disk
        {
            disk.keep(stored, key, version.block_len(key.block, bucket.block_size));
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
    let stored = bucket.disk_version(&version).map(|(_, stored)| stored);
    let pool = &bucket.engine.pool;
    let blocks = version.blocks(bucket.block_size);
    let kind = BlockKind::of_read(&version, bucket.block_size, &(0..blocks), true);
    for block in 0..blocks {
        let frame = |length| pool.try_frames(Share::Download, length, 1, 1)?.pop();
        let Some(mut load) = plan::claim_block(bucket, &version, block, frame) else {
            continue;
        };
        load.set_options(bucket.block_options(kind));
        write_from(&mut load, payload, u64::from(block) * bucket.block_size);
        if let Err(error) = publish(bucket, &version, load, stored.as_ref(), 0) {
            tracing::debug!(object = %path, %error, "a written block is not kept");
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
