//! Stripes: pins in lanes against who probes, and the array's next block.

use std::sync::Arc;

use loom::thread;

use super::{KEY, MANY, control, explore, frame, gone, key, load, pool};
use crate::pool::Eviction;
use crate::sync::{Step, set_lane};
use crate::{BlockPool, Claim};

/// Opens stripes for a resident block.
fn stripe(pool: &Arc<BlockPool>, object: u64) {
    let pin = pool.get(key(object)).unwrap();
    // A note is lost now and then to a late reader's failed pin.
    while pool.stripes().in_use() == 0 {
        pool.stripes().heat(pool.slab(), pin.handle().slot);
    }
}

/// Has the policy's hand forget the uses so far.
fn cold(pool: &BlockPool) {
    for _ in 0..3 {
        pool.slab().header(0).word.age(pool.settled(0));
    }
}

fn striped_readers_against_evictor() {
    let pool = pool(1);
    drop(load(&pool, KEY, b"1"));
    stripe(&pool, 1);
    cold(&pool);
    let reading = thread::spawn({
        let pool = Arc::clone(&pool);
        move || {
            set_lane(1);
            if let Some(pin) = pool.get(KEY) {
                assert_eq!(&pin[..], b"1");
            }
        }
    });
    // The only page: whoever gets it evicted the block.
    let mut got = None;
    if matches!(pool.evict_cold_slot(0), Eviction::Done(_)) {
        got = frame(&pool);
        if let Some(frame) = &mut got {
            frame.as_mut_slice()[0] = b'!';
        }
    }
    reading.join().unwrap();
    drop(got);
    gone(&pool);
}

#[test]
fn a_block_pinned_in_a_lane_stays() {
    explore(MANY, striped_readers_against_evictor);
}

#[test]
fn without_the_pinners_order_a_lane_is_overlooked() {
    control(
        Step::Stripe,
        striped_readers_against_evictor,
        "Causality violation",
    );
}

#[test]
fn without_the_probers_order_a_lane_is_overlooked() {
    control(
        Step::Probe,
        striped_readers_against_evictor,
        "Causality violation",
    );
}

#[test]
fn without_the_lanes_release_a_reader_is_overrun() {
    control(
        Step::StripeUnpin,
        striped_readers_against_evictor,
        "Causality violation",
    );
}

#[test]
fn a_late_reader_does_no_harm_to_the_arrays_next_block() {
    explore(Some(2), || {
        let pool = pool(1);
        drop(load(&pool, KEY, b"1"));
        stripe(&pool, 1);
        cold(&pool);
        let late = thread::spawn({
            let pool = Arc::clone(&pool);
            move || {
                set_lane(1);
                if let Some(pin) = pool.get(KEY) {
                    assert_eq!(&pin[..], b"1");
                }
            }
        });
        if matches!(pool.evict_cold_slot(0), Eviction::Done(_))
            && let Some(frame) = frame(&pool)
        {
            let Claim::Vacant(mut load) = pool.claim(key(2)) else {
                panic!("nobody else loads it")
            };
            load.attach(frame, 1);
            load.write(b"2");
            drop(load.publish().unwrap());
            stripe(&pool, 2);
            // Erased: gone at the last unpin, whatever a late reader of the other block does to the lanes.
            assert!(pool.erase(key(2)));
        }
        late.join().unwrap();
        gone(&pool);
        assert_eq!(pool.stripes().in_use(), 0);
    });
}

#[test]
fn an_erased_striped_block_leaves_with_its_last_pin() {
    explore(Some(3), || {
        let pool = pool(1);
        drop(load(&pool, KEY, b"1"));
        stripe(&pool, 1);
        let pin = pool.get(KEY).unwrap().into_owned(Arc::clone(&pool));
        let reading = thread::spawn({
            let pool = Arc::clone(&pool);
            move || {
                set_lane(1);
                drop(pool.get(KEY));
            }
        });
        assert!(pool.erase(KEY));
        drop(pin);
        reading.join().unwrap();
        let stats = pool.stats();
        assert_eq!((stats.resident_blocks, stats.striped_blocks), (0, 0));
    });
}

#[test]
fn a_cooling_block_keeps_its_readers() {
    explore(Some(3), || {
        let pool = pool(1);
        drop(load(&pool, KEY, b"1"));
        stripe(&pool, 1);
        let reading = thread::spawn({
            let pool = Arc::clone(&pool);
            move || {
                set_lane(1);
                let pin = pool.get(KEY).unwrap();
                assert_eq!(&pin[..], b"1");
            }
        });
        let seen = pool.settled(0);
        pool.stripes()
            .cool(&pool.slab().header(0).word, seen.stripes());
        assert!(pool.get(KEY).is_some(), "a resident block is never missed");
        reading.join().unwrap();
        gone(&pool);
        assert_eq!(pool.stripes().in_use(), 0);
    });
}
