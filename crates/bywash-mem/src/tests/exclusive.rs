//! Adopting and resizing, with and without other readers.

use super::{KIB, MIB, begin, block_on, key, load, pool};
use crate::{Claim, MAX_FRAME, RefusedReason, Share};

#[test]
fn adopted_block_keeps_its_memory() {
    let pool = pool(MIB);
    let pin = load(&pool, key(1), b"bytes");
    let (address, handle) = (pin.as_ptr(), pin.handle());
    let pin = pool.adopt(pin, key(2)).unwrap();
    assert_eq!((pin.as_ptr(), pin.key()), (address, key(2)), "not copied");
    assert_eq!(&pool.get(key(2)).unwrap()[..], b"bytes");
    assert!(pool.get(key(1)).is_none() && pool.try_pin(&handle).is_none());
    drop(pin);
    assert_eq!(pool.budget().held(Share::Download), 4096);
    assert_eq!(
        (pool.stats().resident_blocks, pool.stats().evictions),
        (1, 0)
    );
}

#[test]
fn adoption_is_refused_while_others_hold_the_block() {
    let pool = pool(MIB);
    let pin = load(&pool, key(1), b"bytes");
    let other = pool.get(key(1)).unwrap();
    let refused = pool.adopt(pin, key(2)).unwrap_err();
    assert_eq!(refused.reason, RefusedReason::Held);
    assert_eq!(&refused.pin[..], b"bytes");
    assert!(pool.get(key(2)).is_none());
    drop(other);
    let pin = pool.adopt(refused.pin, key(2)).unwrap();
    drop(load(&pool, key(3), b"x"));
    let refused = pool.adopt(pin, key(3)).unwrap_err();
    assert_eq!(refused.reason, RefusedReason::KeyTaken);
    assert!(refused.to_string().contains("erase that block first"));
    let loading = begin(&pool, key(4), 1);
    let refused = pool.adopt(refused.pin, key(4)).unwrap_err();
    assert_eq!(refused.reason, RefusedReason::KeyTaken);
    drop(loading);
    assert_eq!(pool.adopt(refused.pin, key(4)).unwrap().key(), key(4));
}

#[test]
fn adoption_is_refused_while_readers_hold_the_frame() {
    let pool = pool(MIB);
    let mut loading = begin(&pool, key(1), 3);
    let mut reader = loading.flight().reader(0);
    loading.write(b"abc");
    let slice = block_on(reader.next(3)).unwrap().unwrap();
    let pin = loading.publish().unwrap();
    let refused = pool.adopt(pin, key(2)).unwrap_err();
    assert_eq!(refused.reason, RefusedReason::Held);
    drop((slice, reader));
    assert_eq!(&pool.adopt(refused.pin, key(2)).unwrap()[..], b"abc");
}

#[test]
fn adoption_accepts_a_sole_pin_in_a_shard() {
    let pool = pool(MIB);
    let pin = load(&pool, key(1), b"hot");
    for _ in 0..4 {
        pool.cache
            .sharded_pins()
            .note_contention(pool.cache.slab(), pin.handle().slot);
    }
    let in_shard = pool.get(key(1)).unwrap().into_owned();
    let refused = pool.adopt(in_shard, key(2)).unwrap_err();
    assert_eq!(refused.reason, RefusedReason::Held);
    drop(pin);
    let pin = pool.adopt(refused.pin, key(2)).unwrap();
    assert_eq!((&pin[..], pool.stats().sharded_blocks), (&b"hot"[..], 0));
    drop(pin);
    // Its shard is zero again: the next block of the counters can be evicted.
    let pin = pool.get(key(2)).unwrap();
    for _ in 0..4 {
        pool.cache
            .sharded_pins()
            .note_contention(pool.cache.slab(), pin.handle().slot);
    }
    drop(pin);
    assert!(pool.erase(key(2)));
    assert_eq!(pool.stats().resident_blocks, 0);
}

#[test]
fn resized_block_keeps_the_bytes_that_fit() {
    let pool = pool(MIB);
    let bytes: Vec<u8> = (0..5000u32).map(|i| i as u8 | 1).collect();
    let pin = load(&pool, key(1), &bytes);
    let address = pin.as_ptr();
    let pin = pool.resize(pin, 6000).unwrap();
    assert_eq!(pin.as_ptr(), address, "in place, in the same class");
    assert_eq!((&pin[..5000], &pin[5000..]), (&bytes[..], &[0; 1000][..]));
    let pin = pool.resize(pin, 20 * KIB).unwrap();
    assert_eq!(&pin[..5000], &bytes[..]);
    assert!(pin[5000..].iter().all(|byte| *byte == 0));
    assert_eq!(pool.budget().held(Share::Download), 32 << 10);
    let pin = pool.resize(pin, 10).unwrap();
    assert_eq!(pool.budget().held(Share::Download), 4096);
    assert_eq!(&pool.get(key(1)).unwrap()[..], &bytes[..10]);
    let refused = pool.resize(pin, MAX_FRAME + 1).unwrap_err();
    assert_eq!(refused.reason, RefusedReason::TooLarge);
    let refused = pool.resize(refused.pin, MIB as usize).unwrap_err();
    assert_eq!(refused.reason, RefusedReason::Memory);
    assert!(pool.erase(key(1)));
    let refused = pool.resize(refused.pin, 11).unwrap_err();
    assert_eq!(refused.reason, RefusedReason::Erased);
    assert_eq!(&refused.pin[..], &bytes[..10]);
    drop(refused);
    assert_eq!(pool.budget().held(Share::Download), 0);
}

#[test]
fn handle_finds_its_block_after_resize() {
    let pool = pool(MIB);
    let pin = load(&pool, key(1), b"bytes");
    let before = pin.handle();
    let pin = pool.resize(pin, 3).unwrap();
    assert_eq!(pin.handle(), before, "it returned to its slot");
    assert_eq!(&pool.try_pin(&before).unwrap()[..], b"byt");
    // Another frame, the same slot.
    let pin = pool.resize(pin, 5000).unwrap();
    assert_eq!(pool.try_pin(&before).unwrap().len(), 5000);
    // A block that changed its key is not found by its old handle.
    drop(pool.adopt(pin, key(2)).unwrap());
    assert!(pool.try_pin(&before).is_none());
}

#[test]
fn claim_during_resize_gets_the_resized_block() {
    let pool = pool(MIB);
    drop(load(&pool, key(1), b"a"));
    let resizes = if cfg!(miri) { 20 } else { 2000 };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for len in 1..=resizes {
                loop {
                    let pin = pool.get(key(1)).expect("it is never evicted");
                    let pin = pin.into_owned();
                    if pool.resize(pin, len).is_ok() {
                        break;
                    }
                }
            }
        });
        let mut last = 0;
        while last < resizes {
            let pin = match pool.claim(key(1)) {
                Claim::Resident(pin) => pin.into_owned(),
                Claim::Loading(flight) => match block_on(flight.join().wait()) {
                    Ok(pin) => pin,
                    Err(_) => continue,
                },
                Claim::Vacant(_) => panic!("there is always one"),
            };
            assert!(pin.len() >= last, "lengths only grow");
            assert_eq!(pin[0], b'a');
            last = pin.len();
        }
    });
    assert_eq!(pool.stats().loads, 1, "and it was loaded once");
}

#[test]
fn taken_frame_has_the_bytes_and_can_be_published_again() {
    let pool = pool(MIB);
    let pin = load(&pool, key(1), b"bytes");
    let other = pool.get(key(1)).unwrap();
    let refused = pool.take(pin).unwrap_err();
    assert_eq!(refused.reason, RefusedReason::Held);
    drop(other);
    let address = refused.pin.as_ptr();
    let mut frame = pool.take(refused.pin).unwrap();
    assert!(pool.get(key(1)).is_none());
    assert_eq!(
        (frame.as_slice().as_ptr(), pool.stats().resident_blocks),
        (address, 0)
    );
    assert_eq!(&frame.as_slice()[..5], b"bytes");
    frame.as_mut_slice()[..5].copy_from_slice(b"other");
    let mut loading = super::vacant(&pool, key(1));
    loading.attach(frame, 5);
    loading.advance(5);
    let pin = loading.publish().unwrap();
    assert_eq!((&pin[..], pin.as_ptr()), (&b"other"[..], address));
    drop(pin);
    assert_eq!(pool.budget().held(Share::Download), 4096);
}
