//! The pool through its public interface.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

pub(crate) use futures::executor::block_on;

use crate::{BlockKey, BlockPool, Claim, FlightError, Load, OwnedPin, PoolConfig, Share};

mod aging;
mod buffer;
mod buffer_adversarial;
mod buffer_model;
mod exclusive;
mod flights;
mod frame_vec;
mod frames;
mod limit;
mod model;
mod options;
mod readahead;
mod sharded_pins;
mod shared_memory;
mod slow_eviction;

pub(crate) const KIB: usize = 1024;
pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn pool(limit: u64) -> Arc<BlockPool> {
    BlockPool::new(PoolConfig::new(limit)).unwrap()
}

pub(crate) fn key(object: u64) -> BlockKey {
    BlockKey {
        store: 0,
        object,
        block: 0,
    }
}

pub(crate) fn vacant(pool: &Arc<BlockPool>, key: BlockKey) -> Load {
    match pool.claim(key) {
        Claim::Vacant(load) => load,
        other => panic!("{key:?} should be vacant, is {other:?}"),
    }
}

/// A load with its frame.
pub(crate) fn begin(pool: &Arc<BlockPool>, key: BlockKey, len: usize) -> Load {
    let mut load = vacant(pool, key);
    let frame = pool
        .try_frames(Share::Download, len, 1, 1)
        .expect("room for one frame")
        .remove(0);
    load.attach(frame, len);
    load
}

pub(crate) fn load(pool: &Arc<BlockPool>, key: BlockKey, bytes: &[u8]) -> OwnedPin {
    let mut load = begin(pool, key, bytes.len());
    assert_eq!(load.write(bytes), bytes.len());
    load.publish().unwrap()
}

#[test]
fn published_block_is_found_with_exact_bytes() {
    let pool = pool(MIB);
    assert!(pool.get(key(1)).is_none());
    let bytes: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
    let published = load(&pool, key(1), &bytes);
    assert_eq!(&published[..], &bytes[..]);
    let found = pool.get(key(1)).unwrap();
    assert_eq!(&found[..], &bytes[..]);
    let owned = found.into_owned();
    drop(published);
    assert_eq!(&bytes::Bytes::from_owner(owned)[..], &bytes[..]);
    assert!(
        pool.get(BlockKey {
            store: 0,
            object: 1,
            block: 1
        })
        .is_none()
    );
    let stats = pool.stats();
    assert_eq!(
        (
            stats.resident_blocks,
            stats.resident_bytes,
            stats.flights,
            stats.loads
        ),
        (1, 8192, 0, 1)
    );
}

#[test]
fn hit_clones_no_arc() {
    let pool = pool(MIB);
    let handle = load(&pool, key(1), b"bytes").handle();
    let counts = || (Arc::strong_count(&pool), Arc::strong_count(&pool.cache));
    let before = counts();
    let pins = [pool.get(key(1)), pool.peek(key(1)), pool.try_pin(&handle)].map(Option::unwrap);
    assert_eq!(counts(), before);
    // The control: a pin without a lifetime keeps the cache alive by a clone.
    let owned = pins.map(crate::Pin::into_owned);
    assert_eq!(counts(), (before.0, before.1 + owned.len()));
}

#[test]
fn owned_pins_of_a_scope_share_one_reference_to_the_pool() {
    let pool = pool(MIB);
    for block in 0..16 {
        drop(load(&pool, key(block), b"bytes"));
    }
    let scope = pool.pin_scope();
    let references = Arc::strong_count(&pool.cache);
    let pins: Vec<_> = (0..16)
        .map(|block| scope.own(pool.get(key(block)).unwrap()))
        .collect();
    assert_eq!(Arc::strong_count(&pool.cache), references);
    let cache = Arc::downgrade(&pool.cache);
    drop((pool, scope));
    assert!(pins.iter().all(|pin| pin[..] == *b"bytes"));
    drop(pins);
    assert!(cache.upgrade().is_none(), "the last pin releases the pool");
}

#[test]
#[should_panic(expected = "a pin belongs to one pool")]
fn scope_refuses_a_pin_of_another_pool() {
    let (pool, other) = (pool(MIB), pool(MIB));
    drop(load(&other, key(1), b"bytes"));
    drop(pool.pin_scope().own(other.get(key(1)).unwrap()));
}

#[test]
fn empty_block_can_be_published() {
    let pool = pool(MIB);
    drop(load(&pool, key(1), b""));
    assert_eq!(pool.get(key(1)).unwrap().len(), 0);
}

#[test]
fn incomplete_block_is_never_published() {
    let pool = pool(MIB);
    let mut load = begin(&pool, key(1), 10);
    let waiter = load.flight().join();
    assert_eq!(load.write(b"123456"), 6);
    assert_eq!(load.publish().unwrap_err().missing, 4);
    assert!(matches!(
        block_on(waiter.wait()),
        Err(FlightError::Failed(_))
    ));
    assert!(pool.get(key(1)).is_none());
    assert!(
        vacant(&pool, key(1)).publish().is_err(),
        "no frame, no block"
    );
    assert_eq!(pool.budget().held(Share::Download), 0);
}

#[test]
fn filling_spare_memory_equals_writing() {
    let pool = pool(MIB);
    let mut load = begin(&pool, key(1), 6);
    assert_eq!(load.write(b"abc"), 3);
    load.spare().copy_from_slice(b"def");
    load.advance(3);
    assert_eq!((load.remaining(), load.write(b"too much")), (0, 0));
    assert_eq!(&load.publish().unwrap()[..], b"abcdef");
}

#[test]
fn erased_block_is_evicted_at_its_last_unpin() {
    let pool = pool(MIB);
    let pin = load(&pool, key(1), b"old");
    let second = pool.get(key(1)).unwrap();
    assert!(pool.erase(key(1)));
    assert!(!pool.erase(key(1)));
    assert!(pool.get(key(1)).is_none());
    assert_eq!(&pin[..], b"old", "readers keep what they hold");
    let new = load(&pool, key(1), b"new");
    assert_eq!(&second[..], b"old");
    drop(second);
    assert_eq!(pool.stats().evictions, 0);
    drop(pin);
    assert_eq!(pool.stats().evictions, 1);
    assert_eq!(&pool.get(key(1)).unwrap()[..], b"new");
    drop(new);
    assert!(pool.erase(key(1)));
    assert_eq!(
        (
            pool.stats().evictions,
            pool.stats().resident_blocks,
            pool.budget().held(Share::Download)
        ),
        (2, 0, 0)
    );
}

#[test]
fn erased_load_serves_its_waiters_and_keeps_no_block() {
    let pool = pool(MIB);
    let mut first = begin(&pool, key(1), 1);
    let waiter = first.flight().join();
    assert!(pool.erase(key(1)));
    let second = load(&pool, key(1), b"2");
    first.write(b"1");
    drop(first.publish().unwrap());
    assert_eq!(pool.stats().resident_blocks, 2, "the waiter's pin keeps it");
    assert_eq!(&block_on(waiter.wait()).unwrap()[..], b"1");
    assert_eq!(pool.stats().resident_blocks, 1);
    assert_eq!(&pool.get(key(1)).unwrap()[..], b"2");
    drop(second);
}

#[test]
fn evicts_unused_blocks_before_used_ones_and_no_pinned_ones() {
    let pool = pool(16 * 4096);
    // Three quarters of the limit are for blocks: twelve.
    for object in 0..12 {
        drop(load(&pool, key(object), &[object as u8; 4096]));
    }
    drop(pool.get(key(3)).unwrap());
    let pinned = pool.get(key(5)).unwrap();
    for object in 12..22 {
        drop(load(&pool, key(object), &[object as u8; 4096]));
    }
    assert_eq!(pool.stats().evictions, 10);
    assert!(
        pool.get(key(3)).is_some(),
        "used since the policy last looked"
    );
    assert_eq!(pinned[0], 5);
    assert_eq!(
        (0..12)
            .filter(|&object| pool.get(key(object)).is_some())
            .count(),
        11,
        "blocks read once displace only blocks read once"
    );
}

#[test]
fn small_blocks_use_small_frames() {
    let pool = pool(64 * MIB);
    let blocks = if cfg!(miri) { 100 } else { 10_000 };
    for object in 0..blocks {
        drop(load(&pool, key(object), &[object as u8; 3 * KIB]));
    }
    assert_eq!(pool.stats().resident_blocks, blocks);
    assert!(pool.budget().used() <= blocks * 4096);
    assert!((0..blocks).all(|object| {
        pool.get(key(object))
            .is_some_and(|pin| pin[..] == [object as u8; 3 * KIB])
    }));
}

#[test]
fn dropped_pool_releases_all_memory() {
    let pool = pool(MIB);
    let pin = load(&pool, key(1), b"kept");
    let other = load(&pool, key(2), b"also");
    let budget = pool.budget().clone();
    drop(pool);
    assert_eq!(&pin[..], b"kept", "a pin keeps the pool");
    drop((pin, other));
    assert_eq!((budget.used(), budget.idle()), (2 * 4096, 2 * 4096));
}

#[test]
fn state_word_transitions() {
    use crate::block::{FastPinError, MAX_FREQ, PinOutcome, StateWord};
    let word = StateWord::new();
    let try_pin = |word: &StateWord| word.try_pin(FastPinError::NotTried(word.load()));
    assert_eq!(
        (try_pin(&word), try_pin(&word)),
        (PinOutcome::NotResident, PinOutcome::NotResident)
    );
    assert_eq!(word.load().pins(), 2, "ineffective pins stay");
    word.publish(1, false);
    assert_eq!(
        (word.load().pins(), word.load().generation()),
        (1, 1),
        "until the owner leaves"
    );
    assert!(!word.try_own(word.load(), 0), "pinned, though never used");
    for _ in 0..10 {
        assert_eq!(try_pin(&word), PinOutcome::Pinned);
        word.unpin();
    }
    assert_eq!(word.load().freq(), MAX_FREQ);
    assert_eq!(word.unpin().pins(), 1);
    word.age(word.load());
    assert_eq!(word.load().freq(), 0);
    let probed = word.try_probe(word.load()).unwrap();
    assert_eq!(
        (word.try_probe(word.load()).is_none(), try_pin(&word)),
        (true, PinOutcome::Pinned),
        "one probe at a time, and pins count meanwhile"
    );
    assert!(!word.own_probed(probed), "it was pinned meanwhile");
    word.end_probe();
    assert!(!word.try_own(word.load(), 0), "pinned");
    word.unpin();
    assert!(word.try_own(word.load(), 0));
    assert_eq!(try_pin(&word), PinOutcome::NotResident);
    word.vacate();
    assert_eq!((word.load().pins(), word.load().generation()), (0, 1));
    // Ineffective pins never reach the next field.
    for _ in 0..if cfg!(miri) { 100 } else { 5 << 22 } {
        assert_eq!(try_pin(&word), PinOutcome::NotResident);
    }
    assert!(word.load().pins() <= 1 << 22);
    assert_eq!(
        (
            word.load().freq(),
            word.load().generation(),
            word.load().is_resident()
        ),
        (0, 1, false)
    );
}
