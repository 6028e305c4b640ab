//! Blocks of other nodes' stripes in this node's memory: at most an eighth of it, so that the memories of a cluster add up.
//!
//! Such a block is *cold* at first: it is evicted before all own blocks, and leaves when those after it fill the eighth. One that is
//! read again while it is here, or that its owner is asked for often, is *hot*: it is evicted like an own one. A hot block that
//! becomes the oldest of the eighth is cold again, and leaves unless it is read before the others have passed. So a scan passes
//! through, and a block that all read is in the memory of each node.
//!
//! The owner of a stripe changes with the members; [`super::ownership`] decides about blocks that are in memory then.

mod queue;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bywash_mem::{BlockKey, BlockOptions, BlockPool, Claim, Keep, OwnedPin, Priority};

use crate::block_kind::BlockKind;
use queue::ForeignQueue;

/// Part of the memory limit that blocks of other nodes' stripes may take. Blocks that readers hold do not leave, and count.
const MEMORY_DIVISOR: u64 = 8;
/// Requests of other nodes for a block in a second, at its owner, from which on it is hot at once. A node with full memory evicts cold
/// blocks within milliseconds, too soon to see that it reads one again.
const HOT_RATE: u32 = 100;
/// Blocks looked at when one is added. Each makes room, was evicted before, or is hot and looked at a second time a round later.
const LOOKS: usize = 16;

/// The blocks of other nodes' stripes.
#[derive(Debug, Default)]
pub(crate) struct ForeignBlocks {
    queue: ForeignQueue,
    heated: AtomicU64,
}

impl ForeignBlocks {
    /// Returns the options of a new block, which its owner was asked for `rate` times in the last second.
    pub(super) fn options(&self, rate: u32) -> BlockOptions {
        let hot = rate >= HOT_RATE;
        if hot {
            self.heated.fetch_add(1, Relaxed);
        }
        options(hot)
    }

    /// The number of blocks that became hot since the start.
    pub(crate) fn heated(&self) -> u64 {
        self.heated.load(Relaxed)
    }

    /// Returns whether there is room for a block of `length` bytes without another one leaving.
    pub(super) fn has_room(&self, pool: &BlockPool, length: usize) -> bool {
        let held = pool.tag_stats(BlockKind::Foreign.tag()).used_bytes;
        held + length as u64 <= pool.budget().limit() / MEMORY_DIVISOR
    }

    /// Adds a block that was published, as the newest one, and makes room for it.
    pub(super) fn add(&self, pool: &BlockPool, key: BlockKey) {
        self.queue.push(pool, key);
        self.queue.forget_others(pool);
        let max = pool.budget().limit() / MEMORY_DIVISOR;
        for _ in 0..LOOKS {
            if pool.tag_stats(BlockKind::Foreign.tag()).used_bytes <= max {
                return;
            }
            let Some(key) = self.queue.pop() else {
                return;
            };
            // It was evicted, or loaded again when its stripe had become this node's.
            let Some(pin) = pool
                .peek(key)
                .filter(|pin| BlockKind::Foreign.is_of(pin.options()))
            else {
                continue;
            };
            let stays = if is_cold(pin.options()) {
                // Refused while a reader holds it.
                pool.take(pin.into_owned()).is_err()
            } else {
                // A load that has begun since adds it again.
                !matches!(
                    publish_again(pool, pin.into_owned(), key, options(false)),
                    Ok(None)
                )
            };
            if stays {
                self.queue.push_if_absent(pool, key);
            }
        }
    }

    /// A read has found a cold block that it did not load: it becomes hot. Returns the pin, `None` if the block is to be looked up
    /// again.
    pub(super) fn heat(&self, pool: &BlockPool, pin: OwnedPin) -> Option<OwnedPin> {
        let key = pin.key();
        match publish_again(pool, pin, key, options(true)) {
            Ok(pin) => {
                self.heated.fetch_add(1, Relaxed);
                if let Some(pin) = &pin {
                    // Its key was forgotten if the queue was looked at while the block was out of the pool.
                    self.queue.push_if_absent(pool, pin.key());
                }
                pin
            }
            // Other readers hold it. A later read finds it alone.
            Err(pin) => Some(pin),
        }
    }

    /// A block that was this node's own, or has another key, becomes a cold one with the key `key`. Returns the pin, `None` if the
    /// block is to be looked up again.
    pub(super) fn cool(&self, pool: &BlockPool, pin: OwnedPin, key: BlockKey) -> Option<OwnedPin> {
        match publish_again(pool, pin, key, options(false)) {
            Ok(pin) => {
                if pin.is_some() {
                    self.add(pool, key);
                }
                pin
            }
            Err(pin) => Some(pin),
        }
    }
}

fn options(hot: bool) -> BlockOptions {
    BlockOptions {
        keep: Keep::UntilEvicted,
        priority: if hot { Priority::Normal } else { Priority::Low },
        tag: BlockKind::Foreign.tag(),
    }
}

/// Returns whether a block is a cold one of another node's stripe.
pub(super) fn is_cold(options: BlockOptions) -> bool {
    BlockKind::Foreign.is_of(options) && options.priority == Priority::Low
}

/// Gives a block other options or another key, in the frame where it is. Returns its pin, `None` if a load of that key has begun
/// since.
///
/// # Errors
/// The pin, if other readers hold the block.
pub(super) fn publish_again(
    pool: &BlockPool,
    pin: OwnedPin,
    key: BlockKey,
    options: BlockOptions,
) -> Result<Option<OwnedPin>, OwnedPin> {
    let length = pin.len();
    let frame = pool.take(pin).map_err(|refused| refused.pin)?;
    let Claim::Vacant(mut load) = pool.claim(key) else {
        return Ok(None);
    };
    load.set_options(options);
    load.attach(frame, length);
    load.advance(length);
    Ok(load.publish().ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::sync::Arc;

    use bywash_mem::{PoolConfig, Share};

    use super::*;

    const BLOCK: usize = 16 << 10;
    /// Blocks that fit the memory, and of other nodes' stripes.
    const ALL: u32 = 128;
    const MAX: u32 = ALL / 8;

    fn pool() -> Arc<BlockPool> {
        BlockPool::new(PoolConfig::new(u64::from(ALL) * BLOCK as u64)).unwrap()
    }

    fn key(block: u32) -> BlockKey {
        BlockKey {
            store: 0,
            object: 1,
            block,
        }
    }

    fn load(pool: &BlockPool, block: u32, options: BlockOptions) {
        let Claim::Vacant(mut load) = pool.claim(key(block)) else {
            panic!("it is there");
        };
        let frame = pool.try_frames(Share::Download, BLOCK, 1, 1).unwrap().pop();
        load.attach(frame.unwrap(), BLOCK);
        load.set_options(options);
        load.write(&vec![block as u8; BLOCK]);
        drop(load.publish().unwrap());
    }

    fn add(foreign: &ForeignBlocks, pool: &BlockPool, block: u32, rate: u32) {
        load(pool, block, foreign.options(rate));
        foreign.add(pool, key(block));
    }

    fn read_again(foreign: &ForeignBlocks, pool: &BlockPool, block: u32) {
        let pin = pool.get(key(block)).unwrap().into_owned();
        let pin = if is_cold(pin.options()) {
            foreign.heat(pool, pin).unwrap()
        } else {
            pin
        };
        assert_eq!(pin[..], vec![block as u8; BLOCK]);
    }

    fn resident(pool: &BlockPool, blocks: std::ops::Range<u32>) -> usize {
        blocks.filter(|block| pool.contains(key(*block))).count()
    }

    #[test]
    fn cold_blocks_pass_through_an_eighth_of_the_memory() {
        let (pool, foreign) = (pool(), ForeignBlocks::default());
        let own = 0..ALL / 2;
        for block in own.clone() {
            load(&pool, block, BlockOptions::default());
        }
        for block in 1000..2000 {
            add(&foreign, &pool, block, HOT_RATE - 1);
            let held = pool.tag_stats(BlockKind::Foreign.tag()).used_blocks;
            assert!(held <= u64::from(MAX), "{held} blocks");
        }
        assert_eq!(resident(&pool, own), (ALL / 2) as usize);
        assert_eq!(
            resident(&pool, 2000 - MAX..2000),
            MAX as usize,
            "the newest"
        );
        assert_eq!(foreign.heated(), 0);
    }

    #[test]
    fn block_that_is_read_again_outlives_cold_and_own_ones() {
        for rate in [0, HOT_RATE] {
            let (pool, foreign) = (pool(), ForeignBlocks::default());
            add(&foreign, &pool, 7, rate);
            if rate == 0 {
                read_again(&foreign, &pool, 7);
            }
            assert_eq!(foreign.heated(), 1);
            // More own blocks than the memory has, once each.
            for block in 1000..1000 + ALL {
                load(&pool, block, BlockOptions::default());
                drop(pool.get(key(7)).expect("it is used"));
            }
            // And cold ones, while it is read.
            for block in 5000..5000 + 4 * MAX {
                add(&foreign, &pool, block, 0);
                read_again(&foreign, &pool, 7);
            }
            assert!(pool.contains(key(7)));
        }
    }

    #[test]
    fn hot_block_that_is_read_no_more_leaves_for_newer_ones() {
        let (pool, foreign) = (pool(), ForeignBlocks::default());
        for block in 0..MAX {
            add(&foreign, &pool, block, 0);
            read_again(&foreign, &pool, block);
        }
        for block in 1000..1000 + 4 * MAX {
            add(&foreign, &pool, block, 0);
        }
        assert_eq!(resident(&pool, 0..MAX), 0);
        let held = pool.tag_stats(BlockKind::Foreign.tag()).used_blocks;
        assert_eq!(held, u64::from(MAX));
    }

    #[test]
    fn block_that_a_reader_holds_stays_as_it_is() {
        let (pool, foreign) = (pool(), ForeignBlocks::default());
        add(&foreign, &pool, 7, 0);
        let held = pool.get(key(7)).unwrap();
        read_again(&foreign, &pool, 7);
        assert_eq!(foreign.heated(), 0);
        for block in 1000..1000 + 4 * MAX {
            add(&foreign, &pool, block, 0);
        }
        assert!(pool.contains(key(7)));
        drop(held);
        read_again(&foreign, &pool, 7);
        assert_eq!(foreign.heated(), 1);
    }

    #[test]
    fn block_that_was_evicted_and_loaded_again_is_the_newest() {
        let (pool, foreign) = (pool(), ForeignBlocks::default());
        add(&foreign, &pool, 7, 0);
        pool.erase(key(7));
        for block in 1000..1000 + MAX - 1 {
            add(&foreign, &pool, block, 0);
        }
        add(&foreign, &pool, 7, 0);
        for newer in 1..MAX {
            add(&foreign, &pool, 2000 + newer, 0);
            let left = (MAX - 1 - newer) as usize;
            assert_eq!(resident(&pool, 1000..1000 + MAX), left, "the oldest leave");
            assert!(pool.contains(key(7)), "{newer}");
        }
        add(&foreign, &pool, 3000, 0);
        assert!(!pool.contains(key(7)), "now it was the oldest");
    }

    #[test]
    fn keys_of_evicted_blocks_do_not_pile_up() {
        let (pool, foreign) = (pool(), ForeignBlocks::default());
        for _ in 0..10_000 {
            add(&foreign, &pool, 7, 0);
            pool.erase(key(7));
        }
        assert_eq!(foreign.queue.keys(), [key(7)], "each key once");
        // Keys that stay keep their order while others are forgotten.
        let kept: Vec<_> = (0..5).map(key).collect();
        for block in 0..5 {
            add(&foreign, &pool, block, HOT_RATE);
        }
        for block in 1000..3000 {
            add(&foreign, &pool, block, 0);
            pool.erase(key(block));
        }
        let keys = foreign.queue.keys();
        assert!(keys.len() <= 100, "{} keys", keys.len());
        assert_eq!(keys[..5], kept);
    }

    #[test]
    fn block_that_becomes_hot_is_in_the_queue_even_if_its_key_was_forgotten() {
        let (pool, foreign) = (pool(), ForeignBlocks::default());
        add(&foreign, &pool, 7, 0);
        assert_eq!(foreign.queue.pop(), Some(key(7)));
        read_again(&foreign, &pool, 7);
        assert_eq!(foreign.queue.keys(), [key(7)]);
    }

    /// Its key is still in the queue when the stripe has become this node's and the block is loaded as an own one.
    #[test]
    fn own_block_is_not_taken_for_the_evicted_one_before_it() {
        let (pool, foreign) = (pool(), ForeignBlocks::default());
        add(&foreign, &pool, 7, 0);
        pool.erase(key(7));
        load(&pool, 7, BlockOptions::default());
        for block in 1000..1000 + 4 * MAX {
            add(&foreign, &pool, block, 0);
        }
        let options = pool.peek(key(7)).map(|pin| pin.options());
        assert_eq!(options, Some(BlockOptions::default()));
        assert!(!foreign.queue.keys().contains(&key(7)));
    }

    #[test]
    fn own_block_that_becomes_cold_counts_among_the_others_and_leaves_before_own_ones() {
        let (pool, foreign) = (pool(), ForeignBlocks::default());
        for block in 0..2 * MAX {
            load(&pool, block, BlockOptions::default());
        }
        for block in 0..2 * MAX {
            let pin = pool.peek(key(block)).unwrap().into_owned();
            let pin = foreign.cool(&pool, pin, key(block)).unwrap();
            assert_eq!(pin[..], vec![block as u8; BLOCK]);
        }
        let held = pool.tag_stats(BlockKind::Foreign.tag()).used_blocks;
        assert!(held <= u64::from(MAX) + 1, "{held} blocks");
        add(&foreign, &pool, 5000, 0);
        assert_eq!(resident(&pool, 0..2 * MAX), (MAX - 1) as usize);
        assert_eq!(pool.tag_stats(BlockKind::Data.tag()).used_blocks, 0);
    }
}
