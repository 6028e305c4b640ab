//! Which node owns a block, and the state of blocks in memory when that has changed.
//!
//! Blocks are not looked at when members come or go, for there are many. A block is when it is found:
//! - One that was another node's and is this node's by now becomes an own one when it is read for the first time since it was loaded or
//!   became cold, or when another node asks for it. Until then it is evicted before own ones, and costs the origin a request at most.
//! - One that was this node's and is another node's by now becomes a cold one when that node has copied it, by a peek. Until then it is
//!   the only copy in the cluster.

use bywash_mem::{BlockOptions, Keep, OwnedPin};

use super::foreign::{self, publish_again};
use crate::block_kind::BlockKind;
use crate::shared::BucketShared;
use crate::versions::Version;

/// Returns whether another node of the cluster owns a block. Here it is one of the [`super::foreign`], and does not go to the disk
/// tier: the nodes' memories and disks together hold it more than once.
pub(super) fn is_foreign(bucket: &BucketShared, version: &Version, block: u32) -> bool {
    bucket.cluster.as_ref().is_some_and(|cluster| {
        let at = u64::from(block) * bucket.block_size;
        let path = &version.meta.location;
        version.strong_etag().is_some() && !cluster.peers.is_own(&bucket.name, path, at)
    })
}

/// A read has found a block that it did not load: a cold one becomes hot, or an own one. Returns the pin, `None` if the block is to be
/// looked up again.
pub(super) fn read_again(
    bucket: &BucketShared,
    version: &Version,
    pin: OwnedPin,
) -> Option<OwnedPin> {
    if !foreign::is_cold(pin.options()) {
        return Some(pin);
    }
    if is_foreign(bucket, version, pin.key().block) {
        return bucket.engine.foreign.heat(&bucket.engine.pool, pin);
    }
    make_own(bucket, version, pin)
}

/// Another node asks for a block that was found in memory. `peek`: as its owner. Returns as [`read_again`] does.
pub(super) fn asked_for(
    bucket: &BucketShared,
    version: &Version,
    pin: OwnedPin,
    peek: bool,
) -> Option<OwnedPin> {
    let (key, was_foreign) = (pin.key(), BlockKind::Foreign.is_of(pin.options()));
    if was_foreign && !is_foreign(bucket, version, key.block) {
        return make_own(bucket, version, pin);
    }
    if !was_foreign && peek && is_foreign(bucket, version, key.block) {
        let engine = &bucket.engine;
        return engine.foreign.cool(&engine.pool, pin, key);
    }
    Some(pin)
}

/// The disk tier keeps it from now on, too.
fn make_own(bucket: &BucketShared, version: &Version, pin: OwnedPin) -> Option<OwnedPin> {
    let (key, size) = (pin.key(), bucket.block_size);
    let stored = bucket.disk_version(version);
    let kind = BlockKind::of_read(version, size, &(key.block..key.block + 1), false);
    let options = BlockOptions {
        keep: stored.as_ref().map_or(Keep::default(), |_| Keep::Spill),
        ..kind.options()
    };
    match publish_again(&bucket.engine.pool, pin, key, options) {
        Ok(pin) => {
            if let (Some(_), Some((disk, stored))) = (&pin, &stored) {
                disk.keep(stored, key, version.block_len(key.block, size));
            }
            pin
        }
        // Other readers hold it.
        Err(pin) => Some(pin),
    }
}
