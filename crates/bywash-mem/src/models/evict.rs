//! The policy's places: one a block, whoever evicts, loads and pins at once.

use std::sync::Arc;

use loom::thread;

use super::{KEY, begin, control, explore, key, load, pool};
use crate::sync::Step;

fn an_eviction_against_a_load() {
    let pool = pool(2);
    drop(load(&pool, KEY, b"x"));
    let mut loading = begin(&pool, key(2), 1);
    loading.write(b"x");
    let evicting = thread::spawn({
        let pool = Arc::clone(&pool);
        move || {
            pool.evict(1);
        }
    });
    // In the slot of the evicted block, or another.
    drop(loading.publish().unwrap());
    drop(pool.get(KEY));
    pool.evict(1);
    evicting.join().unwrap();
    let resident = pool.stats().resident_blocks;
    assert_eq!(pool.evictor.len(), resident, "a place for each block");
    pool.evict(u64::MAX);
    assert_eq!((pool.evictor.len(), pool.stats().resident_blocks), (0, 0));
}

#[test]
fn each_block_has_one_place() {
    explore(Some(3), an_eviction_against_a_load);
}

#[test]
fn without_its_place_gone_first_a_slot_is_entered_twice() {
    control(
        Step::Unlink,
        an_eviction_against_a_load,
        "its last block was forgotten",
    );
}
