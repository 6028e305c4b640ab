//! Third-party caches: the cost of a hit by key, with our hasher. Each returns an owner that keeps the value alive: a clone of
//! an `Arc`, or foyer's entry.

use std::hint::black_box;
use std::sync::Arc;

use bywash_mem::BlockKey;
use foldhash::fast::RandomState;
use foyer::S3FifoConfig;
use quick_cache::UnitWeighter;
use quick_cache::sync::DefaultLifecycle;

use super::designs::Design;
use crate::peers::pool::key;

/// Cached value of a block.
type Value = Arc<[u8]>;

fn entries(blocks: u32) -> impl Iterator<Item = (BlockKey, Value)> {
    (0..blocks).map(|block| (key(0, block), Value::from(block.to_le_bytes())))
}

/// Capacity of twice the blocks, so that none is evicted.
fn room(blocks: u32) -> usize {
    2 * blocks as usize
}

/// Implements [`Design`] for a cache: a pin is the result of `get`. A macro, because the caches have no common trait.
macro_rules! pinned_by_get {
    ($cache:ty) => {
        impl Design for $cache {
            #[inline(always)]
            fn pair(&self, at: u32, _: u32) {
                if let Some(value) = self.0.get(&key(0, at)) {
                    black_box::<&[u8]>(&value);
                }
            }

            fn keep(&self, at: u32) {
                std::mem::forget(self.0.get(&key(0, at)));
            }
        }
    };
}

/// moka's synchronous cache.
#[derive(Debug)]
pub(super) struct Moka(moka::sync::Cache<BlockKey, Value, RandomState>);

impl Moka {
    pub(super) fn new(blocks: u32) -> Self {
        let cache = moka::sync::Cache::builder()
            .max_capacity(room(blocks) as u64)
            .build_with_hasher(RandomState::default());
        entries(blocks).for_each(|(key, value)| cache.insert(key, value));
        cache.run_pending_tasks();
        Self(cache)
    }
}

pinned_by_get!(Moka);

/// quick_cache's synchronous cache.
#[derive(Debug)]
pub(super) struct Quick(
    quick_cache::sync::Cache<
        BlockKey,
        Value,
        UnitWeighter,
        RandomState,
        DefaultLifecycle<BlockKey, Value>,
    >,
);

impl Quick {
    pub(super) fn new(blocks: u32) -> Self {
        let cache = quick_cache::sync::Cache::with(
            room(blocks),
            room(blocks) as u64,
            UnitWeighter,
            RandomState::default(),
            DefaultLifecycle::default(),
        );
        entries(blocks).for_each(|(key, value)| cache.insert(key, value));
        Self(cache)
    }
}

pinned_by_get!(Quick);

/// foyer's memory cache with S3-FIFO, whose hits change least.
pub(super) struct Foyer(foyer::Cache<BlockKey, Value, RandomState>);

impl Foyer {
    pub(super) fn new(blocks: u32) -> Self {
        let cache = foyer::CacheBuilder::new(room(blocks))
            .with_eviction_config(S3FifoConfig::default())
            .with_hash_builder(RandomState::default())
            .build();
        entries(blocks).for_each(|(key, value)| drop(cache.insert(key, value)));
        Self(cache)
    }
}

pinned_by_get!(Foyer);
