//! The policy's places: one a block under concurrent eviction, load and pin.

use std::sync::Arc;

use loom::thread;

use super::{KEY, begin, control, explore, key, load, pool};
use crate::sync::Step;

fn eviction_during_a_load() {
    let pool = pool(2);
    drop(load(&pool, KEY, b"x"));
    let mut loading = begin(&pool, key(2), 1);
    loading.write(b"x");
    let evicting = thread::spawn({
        let pool = Arc::clone(&pool);
        move || {
            pool.cache.evict(1);
        }
    });
    // In the slot of the evicted block, or another.
    drop(loading.publish().unwrap());
    drop(pool.get(KEY));
    pool.cache.evict(1);
    evicting.join().unwrap();
    let resident = pool.stats().resident_blocks;
    assert_eq!(pool.cache.evictor.len(), resident, "a place for each block");
    pool.cache.evict(u64::MAX);
    assert_eq!(
        (pool.cache.evictor.len(), pool.stats().resident_blocks),
        (0, 0)
    );
}

#[test]
fn blocks_are_in_the_policy_once() {
    explore(Some(3), eviction_during_a_load);
}

#[test]
fn control_slot_freed_before_the_policy_forgets_it_is_admitted_twice() {
    control(
        Step::Unlink,
        eviction_during_a_load,
        "last block was forgotten",
    );
}
