//! Adversarial races for a pool with pins that take no lock: cases in which DuckDB's buffer manager had defects, or needs its
//! block mutex. Each is one race of a few threads on one block. On threads it is repeated; on shuttle each schedule is one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::{block_on, thread};
use crate::{
    BlockKey, BlockOptions, BlockPool, Claim, Keep, OwnedPin, Pin, PoolConfig, Refused,
    RefusedReason, Share, Spill, Spilled,
};

/// Repetitions on threads.
#[cfg(not(shuttle))]
const ROUNDS: usize = if cfg!(miri) { 2 } else { 2_000 };

/// Two do not fit a page, so a shorter block is in a smaller frame.
const LEN: usize = 3000;
const LONGER: usize = 5000;

const fn key(object: u64) -> BlockKey {
    BlockKey {
        store: 0,
        object,
        block: 0,
    }
}

#[cfg(not(shuttle))]
fn repeat(round: fn()) {
    for _ in 0..ROUNDS {
        round();
    }
}

#[cfg(shuttle)]
use super::schedules::on_all as repeat;

fn pool(pages: u64) -> Arc<BlockPool> {
    let limit = pages * crate::MIN_FRAME as u64;
    let config = PoolConfig {
        download_guarantee: 0,
        upload_guarantee: 0,
        ..PoolConfig::new(limit)
    };
    BlockPool::new(config).unwrap()
}

fn load(pool: &Arc<BlockPool>, key: BlockKey, mark: u8, keep: Keep) -> Option<OwnedPin> {
    let Claim::Vacant(mut load) = pool.claim(key) else {
        return None;
    };
    let frame = pool.try_frames(Share::Download, LEN, 1, 1)?.remove(0);
    load.attach(frame, LEN);
    load.set_options(BlockOptions {
        keep,
        ..BlockOptions::default()
    });
    load.write(&[mark; LEN]);
    Some(load.publish().unwrap())
}

#[track_caller]
fn check(bytes: &[u8], mark: u8) {
    let whole = bytes.iter().all(|&byte| byte == mark);
    assert!(whole, "not all {mark}: from {:x?}", &bytes[..8]);
}

/// Reads twice: a thread that took the pinned memory overwrites it in between.
fn read(pin: &[u8], mark: u8) {
    check(pin, mark);
    thread::yield_now();
    check(pin, mark);
}

/// Allocates a frame, by eviction if necessary, and overwrites it.
fn evict(pool: &BlockPool) {
    if let Some(mut frames) = pool.try_frames(Share::Download, LEN, 1, 1) {
        frames[0].as_mut_slice().fill(0xEE);
        thread::yield_now();
        check(frames[0].as_slice(), 0xEE);
    }
}

/// Checks that nothing is left of any block.
fn check_empty(pool: &BlockPool, keys: &[BlockKey]) {
    for key in keys {
        pool.erase(*key);
        assert!(pool.get(*key).is_none());
    }
    let stats = pool.stats();
    assert_eq!((stats.resident_blocks, stats.resident_bytes), (0, 0));
    assert_eq!((stats.flights, pool.cache.registered_keys()), (0, 0));
    assert_eq!(pool.budget().held(Share::Download), 0);
}

/// Checks the blocks it is offered, and declines them.
#[derive(Debug)]
struct CheckAndDecline;

impl Spill for CheckAndDecline {
    fn spill(&self, block: Spilled) -> Result<(), Spilled> {
        read(block.bytes(), 7);
        Err(block)
    }

    fn store(&self, block: &Spilled) -> bool {
        read(block.bytes(), 7);
        true
    }
}

/// Checks the blocks it is to store, and stores every other one.
#[derive(Debug, Default)]
struct StoreEverySecond(Mutex<u32>);

impl Spill for StoreEverySecond {
    fn spill(&self, block: Spilled) -> Result<(), Spilled> {
        panic!("{block:?} is an only copy");
    }

    fn store(&self, block: &Spilled) -> bool {
        read(block.bytes(), 7);
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *calls += 1;
        calls.is_multiple_of(2)
    }
}

fn pin_last_unpin_and_evictor(keep: Keep) {
    let pool = pool(1);
    pool.set_spill(Arc::new(CheckAndDecline));
    let pin = load(&pool, key(1), 7, keep).unwrap();
    thread::scope(|scope| {
        let pool = &pool;
        scope.spawn(move || read(&pin, 7));
        scope.spawn(move || {
            for _ in 0..2 {
                if let Some(pin) = pool.get(key(1)) {
                    read(&pin, 7);
                }
            }
        });
        scope.spawn(move || {
            for _ in 0..3 {
                evict(pool);
            }
        });
    });
    check_empty(&pool, &[key(1)]);
    let tag = pool.tag_stats(crate::Tag::default());
    assert_eq!(
        (pool.stats().evictions, tag.evicted_blocks),
        (1, 1),
        "it was evicted once"
    );
}

#[test]
fn pin_last_unpin_and_evictor_race_on_a_block_kept_until_evicted() {
    repeat(|| pin_last_unpin_and_evictor(Keep::UntilEvicted));
}

#[test]
fn pin_last_unpin_and_evictor_race_on_a_spilled_block() {
    repeat(|| pin_last_unpin_and_evictor(Keep::Spill));
}

#[test]
fn pin_last_unpin_and_evictor_race_on_an_only_copy() {
    repeat(|| pin_last_unpin_and_evictor(Keep::OnlyCopy));
}

/// A block is put back in its slot while other threads try to pin it: they find it whole, or not at all.
#[test]
fn pins_and_evictors_race_on_an_only_copy_that_is_put_back() {
    repeat(|| {
        let pool = pool(1);
        let hook = Arc::new(StoreEverySecond::default());
        pool.set_spill(Arc::clone(&hook) as _);
        let handle = load(&pool, key(1), 7, Keep::OnlyCopy).unwrap().handle();
        thread::scope(|scope| {
            let pool = &pool;
            scope.spawn(move || {
                for _ in 0..2 {
                    if let Some(pin) = pool.try_pin(&handle) {
                        read(&pin, 7);
                    }
                }
            });
            scope.spawn(move || {
                if let Some(pin) = pool.get(key(1)) {
                    read(&pin, 7);
                }
            });
            scope.spawn(move || evict(pool));
        });
        let stored = *hook.0.lock().unwrap_or_else(PoisonError::into_inner) / 2;
        assert_eq!(pool.stats().spilled, u64::from(stored));
        assert_eq!(pool.stats().resident_blocks, u64::from(1 - stored));
        if let Some(pin) = pool.get(key(1)) {
            read(&pin, 7);
        }
        check_empty(&pool, &[key(1)]);
    });
}

#[test]
fn pin_last_unpin_and_evictor_race_on_a_block_kept_while_pinned() {
    repeat(|| pin_last_unpin_and_evictor(Keep::WhilePinned));
}

fn adopt(pool: &Arc<BlockPool>, pin: OwnedPin) -> Result<OwnedPin, Refused> {
    pool.adopt(pin, key(2))
}

fn lengthen(pool: &Arc<BlockPool>, pin: OwnedPin) -> Result<OwnedPin, Refused> {
    pool.resize(pin, LONGER)
}

/// The block as `change` leaves it.
fn check_changed(pin: &OwnedPin, to: (BlockKey, usize)) {
    assert_eq!((pin.key(), pin.len()), to);
    check(&pin[..LEN], 7);
    check(&pin[LEN..], 0);
}

/// DuckDB's destructive convert, and its resize, rely on the block mutex to keep pins out between the look at the readers and
/// the change.
fn change_against_fast_pins(
    change: fn(&Arc<BlockPool>, OwnedPin) -> Result<OwnedPin, Refused>,
    to: (BlockKey, usize),
) {
    let pool = pool(4);
    let pin = load(&pool, key(1), 7, Keep::UntilEvicted).unwrap();
    let handle = pin.handle();
    let left = thread::scope(|scope| {
        let pool = &pool;
        // Of one length or the other, never in between.
        let see = move |pin: Pin<'_>| {
            assert_eq!(pin.key(), key(1));
            assert!(pin.len() == LEN || pin.len() == to.1);
            read(&pin[..LEN], 7);
            check(&pin[LEN..], 0);
        };
        scope.spawn(move || pool.get(key(1)).map(see));
        scope.spawn(move || pool.try_pin(&handle).map(see));
        match change(pool, pin) {
            Ok(pin) => {
                check_changed(&pin, to);
                None
            }
            Err(refused) => {
                assert_eq!(refused.reason, RefusedReason::Held);
                read(&refused.pin, 7);
                Some(refused.pin)
            }
        }
    });
    if let Some(pin) = left {
        let pin = change(&pool, pin).expect("there is no other holder now");
        check_changed(&pin, to);
    }
    assert_eq!(pool.stats().resident_blocks, 1, "one block, one key");
    let found = [key(1), key(2)].map(|key| pool.get(key).is_some());
    assert_eq!(found, [to.0 == key(1), to.0 == key(2)]);
    assert_eq!(pool.try_pin(&handle).is_some(), to.0 == key(1));
    check_empty(&pool, &[key(1), key(2)]);
}

#[test]
fn adoption_races_with_fast_pins() {
    repeat(|| change_against_fast_pins(adopt, (key(2), LEN)));
}

#[test]
fn resize_races_with_fast_pins() {
    repeat(|| change_against_fast_pins(lengthen, (key(1), LONGER)));
}

/// One key is loaded, evicted and erased at once. Loads are numbered by their mark; a thread that found one and then
/// an older one found two live blocks of a key, or one that was evicted.
fn expire_register_and_unregister() {
    let pool = pool(2);
    let marks = std::sync::atomic::AtomicU8::new(0);
    let next = || 1 + marks.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    thread::scope(|scope| {
        let (pool, next) = (&pool, &next);
        for _ in 0..2 {
            scope.spawn(move || {
                let mut newest = 0;
                for _ in 0..3 {
                    match pool.claim(key(1)) {
                        Claim::Resident(pin) => {
                            let mark = pin[0];
                            read(&pin, mark);
                            assert!(mark >= newest, "load {mark} was found after load {newest}");
                            newest = mark;
                        }
                        // An erased load serves its waiters and is not findable.
                        Claim::Loading(flight) => {
                            drop(flight.join());
                            if let Ok(pin) = block_on(flight.join().wait()) {
                                read(&pin, pin[0]);
                            }
                        }
                        Claim::Vacant(load) => {
                            let Some(mut frames) = pool.try_frames(Share::Download, LEN, 1, 1)
                            else {
                                continue;
                            };
                            let (mut load, mark) = (load, next());
                            load.attach(frames.remove(0), LEN);
                            load.write(&[mark; LEN]);
                            read(&load.publish().unwrap(), mark);
                        }
                    }
                }
            });
        }
        scope.spawn(move || {
            for _ in 0..2 {
                evict(pool);
            }
        });
        for _ in 0..2 {
            pool.erase(key(1));
            thread::yield_now();
        }
    });
    check_empty(&pool, &[key(1)]);
}

#[test]
fn load_eviction_and_erasure_race_on_one_key() {
    repeat(expire_register_and_unregister);
}

/// A slower tier: it copies spilled blocks, and returns each once.
#[derive(Debug, Default)]
struct Disk {
    blocks: Mutex<HashMap<BlockKey, Vec<u8>>>,
}

impl Disk {
    fn with<R>(&self, f: impl FnOnce(&mut HashMap<BlockKey, Vec<u8>>) -> R) -> R {
        f(&mut self.blocks.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Spill for Disk {
    fn spill(&self, block: Spilled) -> Result<(), Spilled> {
        let copy = block.bytes().to_vec();
        self.with(|blocks| blocks.insert(block.key(), copy));
        drop(block);
        Ok(())
    }
}

/// More threads than frames: each load evicts and spills another block, finds no memory, or reads back a spilled block.
fn spill_and_load_again_at_the_limit() {
    const KEYS: u64 = 3;
    let pool = pool(2);
    let disk = Arc::new(Disk::default());
    pool.set_spill(Arc::clone(&disk) as _);
    thread::scope(|scope| {
        for number in 0..3 {
            let (pool, disk) = (&pool, &disk);
            scope.spawn(move || {
                for step in 0..4 {
                    let object = (number + step) % KEYS;
                    let mark = 1 + object as u8;
                    if let Some(pin) = pool.get(key(object)) {
                        read(&pin, mark);
                    } else if let Claim::Vacant(mut load) = pool.claim(key(object)) {
                        // Out of memory: the load is abandoned and leaves nothing.
                        let frames = pool.try_frames(Share::Download, LEN, 1, 1);
                        if let Some(mut frames) = frames {
                            load.attach(frames.remove(0), LEN);
                            load.set_options(BlockOptions {
                                keep: Keep::Spill,
                                ..BlockOptions::default()
                            });
                            let spilled = disk.with(|blocks| blocks.remove(&key(object)));
                            load.write(&spilled.unwrap_or_else(|| vec![mark; LEN]));
                            read(&load.publish().unwrap(), mark);
                        }
                    }
                    let budget = pool.budget();
                    assert!(budget.used() <= budget.limit());
                }
            });
        }
    });
    let spilled = disk.with(std::mem::take);
    for (key, bytes) in spilled {
        check(&bytes, 1 + key.object as u8);
    }
    // An erased block is not spilled.
    check_empty(&pool, &[key(0), key(1), key(2)]);
    assert!(disk.with(|blocks| blocks.is_empty()));
    let (stats, tag) = (pool.stats(), pool.tag_stats(crate::Tag::default()));
    assert!(stats.spilled <= stats.evictions);
    assert_eq!(stats.evictions, tag.evicted_blocks);
    assert_eq!(tag.used_bytes, 0);
    assert_eq!(pool.budget().used(), pool.budget().idle());
}

#[test]
fn threads_at_the_limit_spill_and_reload_exact_bytes() {
    repeat(spill_and_load_again_at_the_limit);
}
