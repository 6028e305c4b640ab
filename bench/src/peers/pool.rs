//! Pools with blocks in them.

use std::sync::Arc;

use bywash_mem::{BlockKey, BlockPool, Claim, MIN_FRAME, PoolConfig, Share};

use crate::Failure;

/// Returns the key of block `block` of a store, whose blocks are all of one object.
pub(super) fn key(store: u32, block: u32) -> BlockKey {
    BlockKey {
        store,
        object: 0,
        block,
    }
}

/// Returns a pool with these blocks, each of `len` bytes, and capacity for as many again. `fill` gets the index of each key, and
/// its bytes as the previous owner of the frame left them.
pub(super) fn filled(
    keys: impl ExactSizeIterator<Item = BlockKey>,
    len: usize,
    mut fill: impl FnMut(u32, &mut [u8]),
) -> Result<Arc<BlockPool>, Failure> {
    let frame = len.next_power_of_two().max(MIN_FRAME) as u64;
    let mut config = PoolConfig::new((2 * keys.len() as u64 * frame).max(64 << 20));
    config.upload_guarantee = 0;
    let pool = BlockPool::new(config)?;
    for (at, key) in (0..).zip(keys) {
        let Claim::Vacant(mut load) = pool.claim(key) else {
            return Err(format!("{key:?} is in the new pool twice").into());
        };
        let frame = pool
            .try_frames(Share::Download, len, 1, 1)
            .and_then(|mut frames| frames.pop())
            .ok_or("a pool with room for twice the blocks has no frame left")?;
        load.attach(frame, len);
        fill(at, load.spare());
        load.advance(len);
        drop(load.publish()?);
    }
    Ok(pool)
}
