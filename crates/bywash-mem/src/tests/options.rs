//! Retention, tags, erasure of many blocks.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{MIB, begin, key, load, pool, vacant};
use crate::{
    BlockKey, BlockOptions, BlockPool, Keep, Load, OwnedPin, Share, Spill, Spilled, StoreStats,
    Tag, TagStats,
};

fn publish(pool: &Arc<BlockPool>, key: BlockKey, options: BlockOptions, len: usize) -> OwnedPin {
    let mut load = begin(pool, key, len);
    load.set_options(options);
    load.write(&vec![key.object as u8; len]);
    load.publish().unwrap()
}

fn keep(keep: Keep) -> BlockOptions {
    BlockOptions {
        keep,
        ..BlockOptions::default()
    }
}

#[test]
fn block_kept_while_pinned_is_evicted_at_its_last_unpin() {
    let pool = pool(MIB);
    let first = publish(&pool, key(1), keep(Keep::WhilePinned), 10);
    let second = pool.get(key(1)).expect("found while pinned");
    drop(first);
    assert_eq!(pool.get(key(1)).unwrap()[..], [1; 10]);
    drop(second);
    assert!(pool.get(key(1)).is_none());
    assert_eq!(
        (pool.stats().resident_blocks, pool.stats().evictions),
        (0, 1)
    );
}

#[test]
fn handle_does_not_find_an_erased_block_that_others_pin() {
    let pool = pool(MIB);
    for hot in [false, true] {
        let pin = load(&pool, key(1), b"old");
        let handle = pin.handle();
        if hot {
            (0..4).for_each(|_| {
                pool.cache
                    .sharded_pins()
                    .note_contention(pool.cache.slab(), handle.slot)
            });
        }
        // In steady use, so that the next pin could take the fast path.
        let pins: Vec<_> = (0..8).map(|_| pool.try_pin(&handle).unwrap()).collect();
        assert_eq!(pool.stats().sharded_blocks, u64::from(hot));
        assert!(pool.erase(key(1)));
        assert!(pool.try_pin(&handle).is_none(), "erased, though pinned");
        let new = load(&pool, key(1), b"new");
        assert!(pool.try_pin(&handle).is_none(), "another of the same key");
        assert_eq!((&pin[..], pool.stats().resident_blocks), (&b"old"[..], 2));
        drop((pins, pin));
        assert_eq!(&pool.try_pin(&new.handle()).unwrap()[..], b"new");
        assert!(pool.erase(key(1)));
        drop(new);
        assert_eq!(pool.stats().resident_blocks, 0, "its last pin was counted");
    }
}

#[test]
fn handle_finds_a_block_kept_while_pinned() {
    let pool = pool(MIB);
    let pin = publish(&pool, key(1), keep(Keep::WhilePinned), 10);
    let handle = pin.handle();
    assert_eq!(pool.try_pin(&handle).unwrap()[..], [1; 10]);
    drop(pin);
    assert!(pool.try_pin(&handle).is_none());
}

/// Accepts the blocks it is offered, or declines them.
#[derive(Debug, Default)]
struct Tier {
    kept: Mutex<Vec<Spilled>>,
    declines: bool,
    declined: Mutex<Vec<BlockKey>>,
}

impl Spill for Tier {
    fn spill(&self, block: Spilled) -> Result<(), Spilled> {
        assert!(block.bytes().iter().all(|b| *b == block.key().object as u8));
        if self.declines {
            self.declined.lock().push(block.key());
            return Err(block);
        }
        self.kept.lock().push(block);
        Ok(())
    }
}

#[test]
fn evicted_block_is_spilled_with_its_charge() {
    let pool = pool(MIB);
    let tier = Arc::new(Tier::default());
    assert!(pool.set_spill(Arc::clone(&tier) as Arc<dyn Spill>));
    assert!(!pool.set_spill(Arc::clone(&tier) as Arc<dyn Spill>), "once");
    drop(publish(&pool, key(1), keep(Keep::Spill), 5000));
    drop(publish(&pool, key(2), keep(Keep::UntilEvicted), 10));
    drop(publish(&pool, key(3), keep(Keep::Spill), 10));
    assert!(pool.erase(key(3)));
    pool.cache.evict(u64::MAX);
    assert!(pool.get(key(1)).is_none() && pool.get(key(2)).is_none());
    let keys: Vec<_> = tier.kept.lock().iter().map(Spilled::key).collect();
    assert_eq!(
        keys,
        [key(1)],
        "neither blocks without the option nor erased ones"
    );
    assert_eq!(pool.budget().held(Share::Download), 8192, "still charged");
    // The key can be loaded again while the old bytes are on their way to the tier.
    drop(load(&pool, key(1), b"new"));
    tier.kept.lock().clear();
    assert_eq!(pool.budget().held(Share::Download), 4096);
    assert_eq!((pool.stats().spilled, pool.stats().evictions), (1, 3));
}

#[test]
fn block_declined_by_the_spill_hook_is_dropped() {
    let pool = pool(MIB);
    let tier = Arc::new(Tier {
        declines: true,
        ..Tier::default()
    });
    assert!(pool.set_spill(Arc::clone(&tier) as Arc<dyn Spill>));
    drop(publish(&pool, key(1), keep(Keep::Spill), 10));
    assert!(pool.cache.evict(1));
    assert_eq!(tier.declined.lock()[..], [key(1)]);
    assert_eq!(
        (pool.budget().held(Share::Download), pool.stats().spilled),
        (0, 0)
    );
}

/// Stores blocks if there is room for them.
#[derive(Debug, Default)]
struct OnlyCopies {
    stored: Mutex<Vec<(BlockKey, Vec<u8>)>>,
    room: Mutex<usize>,
}

impl Spill for OnlyCopies {
    fn spill(&self, block: Spilled) -> Result<(), Spilled> {
        panic!("{block:?} is an only copy");
    }

    fn store(&self, block: &Spilled) -> bool {
        let mut stored = self.stored.lock();
        let stores = stored.len() < *self.room.lock();
        if stores {
            stored.push((block.key(), block.bytes().to_vec()));
        }
        stores
    }
}

#[test]
fn only_copy_that_cannot_be_stored_stays_in_its_slot() {
    let pool = pool(MIB);
    let hook = Arc::new(OnlyCopies::default());
    pool.set_spill(Arc::clone(&hook) as Arc<dyn Spill>);
    let handles: Vec<_> = (1..=3)
        .map(|object| publish(&pool, key(object), keep(Keep::OnlyCopy), 5000).handle())
        .collect();
    drop(publish(&pool, key(4), keep(Keep::UntilEvicted), 10));
    assert!(pool.cache.evict(u64::MAX), "another block was evicted");
    assert!(!pool.cache.evict(u64::MAX));
    for (handle, object) in handles.iter().zip(1..) {
        assert_eq!(pool.try_pin(handle).unwrap()[..], [object; 5000]);
    }
    assert_eq!((pool.stats().spilled, pool.stats().evictions), (0, 1));
    assert!(pool.erase(key(3)), "an erased one is dropped");
    *hook.room.lock() = 1;
    assert!(pool.cache.evict(u64::MAX));
    let (stored, bytes) = hook.stored.lock()[0].clone();
    assert_eq!(bytes, vec![stored.object as u8; 5000]);
    assert!(pool.get(stored).is_none());
    assert_eq!(pool.budget().held(Share::Download), 8192);
    assert_eq!((pool.stats().spilled, pool.stats().evictions), (1, 3));
    assert_eq!(pool.stats().resident_blocks, 1);
}

#[test]
fn only_copy_stays_without_a_hook() {
    let pool = pool(MIB);
    drop(publish(&pool, key(1), keep(Keep::OnlyCopy), 10));
    assert!(!pool.cache.evict(1));
    assert_eq!(pool.get(key(1)).unwrap()[..], [1; 10]);
}

#[test]
fn tags_count_used_and_evicted_memory() {
    let pool = pool(MIB);
    let tagged = |number| BlockOptions {
        tag: Tag::new(number).unwrap(),
        ..BlockOptions::default()
    };
    assert!(Tag::new(16).is_none());
    for object in 0..4 {
        drop(publish(&pool, key(object), tagged(1), 5000));
    }
    drop(publish(&pool, key(9), tagged(15), 10));
    let stats = |number| pool.tag_stats(Tag::new(number).unwrap());
    assert_eq!((stats(1).used_blocks, stats(1).used_bytes), (4, 4 * 8192));
    pool.erase(key(0));
    assert_eq!((stats(1).evicted_blocks, stats(1).evicted_bytes), (1, 8192));
    let pin = pool.get(key(1)).unwrap().into_owned();
    let pin = pool.adopt(pin, key(100)).unwrap();
    assert_eq!(stats(1).evicted_blocks, 1, "a new key is no eviction");
    drop(pin);
    while pool.cache.evict(u64::MAX) {}
    assert_eq!(
        stats(1),
        TagStats {
            evicted_blocks: 4,
            evicted_bytes: 4 * 8192,
            ..TagStats::default()
        }
    );
    assert_eq!(stats(15).evicted_bytes, 4096);
    assert_eq!(stats(0), TagStats::default());
}

#[test]
fn resident_blocks_are_counted_by_store() {
    let pool = pool(MIB);
    let at = |store, object| BlockKey {
        store,
        object,
        block: 0,
    };
    let of = |blocks, bytes| StoreStats { blocks, bytes };
    for object in 0..3 {
        drop(load(&pool, at(1, object), b"x"));
    }
    let pin = load(&pool, at(2, 0), &[1; 5000]);
    let all = HashMap::from([(1, of(3, 3 * 4096)), (2, of(1, 8192))]);
    assert_eq!(pool.store_stats(), all);
    // A block that changes its key changes its store.
    let pin = pool.adopt(pin, at(1, 9)).unwrap();
    assert_eq!(
        pool.store_stats(),
        HashMap::from([(1, of(4, 3 * 4096 + 8192))])
    );
    let pin = pool.resize(pin, 10).unwrap();
    drop(pin);
    pool.erase(at(1, 0));
    assert_eq!(pool.store_stats()[&1].blocks, 3);
    while pool.cache.evict(u64::MAX) {}
    assert!(
        pool.store_stats().is_empty(),
        "nothing is left of any store"
    );
}

#[test]
fn erasing_an_object_or_store_erases_all_its_blocks() {
    let pool = pool(MIB);
    let at = |store, object, block| BlockKey {
        store,
        object,
        block,
    };
    for store in 1..=2 {
        for object in 1..=2 {
            for block in 0..3 {
                drop(load(&pool, at(store, object, block), b"x"));
            }
        }
    }
    let pin = pool.get(at(1, 1, 0)).unwrap();
    let loading: Load = vacant(&pool, at(1, 1, 3));
    assert_eq!(pool.erase_object(1, 1), 4, "three blocks and a load");
    assert_eq!(pool.erase_object(1, 1), 0);
    assert!(pool.get(at(1, 1, 0)).is_none());
    assert_eq!(&pin[..], b"x", "a pinned block stays");
    assert!(pool.get(at(1, 2, 0)).is_some() && pool.get(at(2, 1, 0)).is_some());
    drop(loading);
    assert_eq!(pool.erase_store(2), 6);
    drop(pin);
    assert_eq!(pool.stats().resident_blocks, 3);
}
