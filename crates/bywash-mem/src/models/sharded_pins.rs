//! Sharded pins: pins in shards against probes, and the next block of the counters.

use std::sync::Arc;

use loom::thread;

use super::{KEY, MANY, check_empty, control, explore, frame, key, load, pool};
use crate::block::EvictOutcome;
use crate::sync::{Step, set_thread_number};
use crate::{BlockPool, Claim};

/// Attaches counters to a resident block.
fn shard_pins(pool: &Arc<BlockPool>, object: u64) {
    let pin = pool.get(key(object)).unwrap();
    // A note is lost if a late reader's ineffective pin is between.
    while pool.cache.sharded_pins().in_use() == 0 {
        pool.cache
            .sharded_pins()
            .note_contention(pool.cache.slab(), pin.handle().slot);
    }
}

/// Clears the use count, as the policy does.
fn cold(pool: &BlockPool) {
    for _ in 0..3 {
        pool.cache
            .slab()
            .header(0)
            .word
            .age(pool.cache.load_unprobed(0));
    }
}

fn sharded_readers_against_evictor() {
    let pool = pool(1);
    drop(load(&pool, KEY, b"1"));
    shard_pins(&pool, 1);
    cold(&pool);
    let reading = thread::spawn({
        let pool = Arc::clone(&pool);
        move || {
            set_thread_number(1);
            if let Some(pin) = pool.get(KEY) {
                assert_eq!(&pin[..], b"1");
            }
        }
    });
    // The only page: allocating it means that the block was evicted.
    let mut got = None;
    if matches!(pool.cache.try_evict_unused(0), EvictOutcome::Evicted(_)) {
        got = frame(&pool);
        if let Some(frame) = &mut got {
            frame.as_mut_slice()[0] = b'!';
        }
    }
    reading.join().unwrap();
    drop(got);
    check_empty(&pool);
}

#[test]
fn block_pinned_in_a_shard_is_not_evicted() {
    explore(MANY, sharded_readers_against_evictor);
}

#[test]
fn control_shard_pin_without_order_is_overlooked() {
    control(
        Step::ShardPin,
        sharded_readers_against_evictor,
        "Causality violation",
    );
}

#[test]
fn control_probe_without_order_overlooks_a_shard() {
    control(
        Step::Probe,
        sharded_readers_against_evictor,
        "Causality violation",
    );
}

#[test]
fn control_shard_unpin_without_release_races_with_an_evictor() {
    control(
        Step::ShardUnpin,
        sharded_readers_against_evictor,
        "Causality violation",
    );
}

#[test]
fn late_reader_does_not_affect_the_next_block_of_its_counters() {
    explore(Some(2), || {
        let pool = pool(1);
        drop(load(&pool, KEY, b"1"));
        shard_pins(&pool, 1);
        cold(&pool);
        let late = thread::spawn({
            let pool = Arc::clone(&pool);
            move || {
                set_thread_number(1);
                if let Some(pin) = pool.get(KEY) {
                    assert_eq!(&pin[..], b"1");
                }
            }
        });
        if matches!(pool.cache.try_evict_unused(0), EvictOutcome::Evicted(_))
            && let Some(frame) = frame(&pool)
        {
            let Claim::Vacant(mut load) = pool.claim(key(2)) else {
                panic!("no other thread loads it")
            };
            load.attach(frame, 1);
            load.write(b"2");
            drop(load.publish().unwrap());
            shard_pins(&pool, 2);
            // Erased: evicted at the last unpin, although a late reader of the other block changes the shards.
            assert!(pool.erase(key(2)));
        }
        late.join().unwrap();
        check_empty(&pool);
        assert_eq!(pool.cache.sharded_pins().in_use(), 0);
    });
}

#[test]
fn erased_sharded_block_is_evicted_with_its_last_pin() {
    explore(Some(3), || {
        let pool = pool(1);
        drop(load(&pool, KEY, b"1"));
        shard_pins(&pool, 1);
        let pin = pool.get(KEY).unwrap().into_owned();
        let reading = thread::spawn({
            let pool = Arc::clone(&pool);
            move || {
                set_thread_number(1);
                drop(pool.get(KEY));
            }
        });
        assert!(pool.erase(KEY));
        drop(pin);
        reading.join().unwrap();
        let stats = pool.stats();
        assert_eq!((stats.resident_blocks, stats.sharded_blocks), (0, 0));
    });
}

#[test]
fn collapsing_counters_loses_no_reader() {
    explore(Some(3), || {
        let pool = pool(1);
        drop(load(&pool, KEY, b"1"));
        shard_pins(&pool, 1);
        let reading = thread::spawn({
            let pool = Arc::clone(&pool);
            move || {
                set_thread_number(1);
                let pin = pool.get(KEY).unwrap();
                assert_eq!(&pin[..], b"1");
            }
        });
        let seen = pool.cache.load_unprobed(0);
        pool.cache
            .sharded_pins()
            .collapse(&pool.cache.slab().header(0).word, seen.counters());
        assert!(pool.get(KEY).is_some(), "a resident block is never missed");
        reading.join().unwrap();
        check_empty(&pool);
        assert_eq!(pool.cache.sharded_pins().in_use(), 0);
    });
}
