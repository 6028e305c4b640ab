//! What is hardest in a pool whose pins take no lock: the cases in which DuckDB's buffer manager was found wanting, or needs its
//! block mutex. Each is one meeting of a few threads on one block; on threads it is repeated, on shuttle each schedule is one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::{block_on, thread};
use crate::{
    BlockKey, BlockOptions, BlockPool, Claim, Keep, OwnedPin, Pin, PoolConfig, Refused,
    RefusedReason, Share, Spill, Spilled,
};

/// Meetings on threads.
#[cfg(not(shuttle))]
const MEETINGS: usize = if cfg!(miri) { 2 } else { 2_000 };

/// Two of them fit no page, so a shorter block is in a smaller frame.
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
fn meet(meeting: fn()) {
    for _ in 0..MEETINGS {
        meeting();
    }
}

#[cfg(shuttle)]
use super::schedules::on_all as meet;

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

/// A reader looks twice: whoever took the bytes from under its pin overwrote them meanwhile.
fn read(pin: &[u8], mark: u8) {
    check(pin, mark);
    thread::yield_now();
    check(pin, mark);
}

/// Takes the memory that is there, by eviction if need be, and writes all over it.
fn evict(pool: &BlockPool) {
    if let Some(mut frames) = pool.try_frames(Share::Download, LEN, 1, 1) {
        frames[0].as_mut_slice().fill(0xEE);
        thread::yield_now();
        check(frames[0].as_slice(), 0xEE);
    }
}

/// Nothing is left of any block.
fn gone(pool: &BlockPool, keys: &[BlockKey]) {
    for key in keys {
        pool.erase(*key);
        assert!(pool.get(*key).is_none());
    }
    let stats = pool.stats();
    assert_eq!((stats.resident_blocks, stats.resident_bytes), (0, 0));
    assert_eq!((stats.flights, pool.names()), (0, 0));
    assert_eq!(pool.budget().held(Share::Download), 0);
}

/// Looks at what it is offered, and declines it.
#[derive(Debug)]
struct Look;

impl Spill for Look {
    fn spill(&self, block: Spilled) -> Result<(), Spilled> {
        read(block.bytes(), 7);
        Err(block)
    }
}

fn pin_last_unpin_and_evictor(keep: Keep) {
    let pool = pool(1);
    pool.set_spill(Arc::new(Look));
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
    gone(&pool, &[key(1)]);
    let tag = pool.tag_stats(crate::Tag::default());
    assert_eq!(
        (pool.stats().evictions, tag.evicted_blocks),
        (1, 1),
        "it went once"
    );
}

#[test]
fn a_pin_the_last_unpin_and_the_evictor_meet_on_a_block_kept_until_evicted() {
    meet(|| pin_last_unpin_and_evictor(Keep::UntilEvicted));
}

#[test]
fn a_pin_the_last_unpin_and_the_evictor_meet_on_a_block_to_be_spilled() {
    meet(|| pin_last_unpin_and_evictor(Keep::Spill));
}

#[test]
fn a_pin_the_last_unpin_and_the_evictor_meet_on_a_block_kept_while_pinned() {
    meet(|| pin_last_unpin_and_evictor(Keep::WhilePinned));
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
        // Of one length or the other, never of something in between.
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
        let pin = change(&pool, pin).expect("nobody else holds it now");
        check_changed(&pin, to);
    }
    assert_eq!(pool.stats().resident_blocks, 1, "one block, one key");
    let found = [key(1), key(2)].map(|key| pool.get(key).is_some());
    assert_eq!(found, [to.0 == key(1), to.0 == key(2)]);
    assert_eq!(pool.try_pin(&handle).is_some(), to.0 == key(1));
    gone(&pool, &[key(1), key(2)]);
}

#[test]
fn a_block_changes_its_key_against_fast_pins() {
    meet(|| change_against_fast_pins(adopt, (key(2), LEN)));
}

#[test]
fn a_block_changes_its_length_against_fast_pins() {
    meet(|| change_against_fast_pins(lengthen, (key(1), LONGER)));
}

/// One key is registered, expires and is unregistered at once. Loads are numbered by their mark; a thread that saw one and then
/// an older one saw two live blocks of a key, or one that came back.
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
                        // An erased load serves its waiters, and nobody finds it.
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
    gone(&pool, &[key(1)]);
}

#[test]
fn a_key_is_registered_expires_and_is_unregistered_at_once() {
    meet(expire_register_and_unregister);
}

/// A slower tier: it copies what is spilled, and gives it out once.
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

/// More threads than frames: each load evicts and spills another's block, finds no memory, or reads back what was spilled.
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
                        // Out of memory: what was begun is given up, and nothing of it stays.
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
    gone(&pool, &[key(0), key(1), key(2)]);
    assert!(disk.with(|blocks| blocks.is_empty()));
    let (stats, tag) = (pool.stats(), pool.tag_stats(crate::Tag::default()));
    assert!(stats.spilled <= stats.evictions);
    assert_eq!(stats.evictions, tag.evicted_blocks);
    assert_eq!(tag.used_bytes, 0);
    assert_eq!(pool.budget().used(), pool.budget().idle());
}

#[test]
fn threads_at_the_limit_spill_and_load_again_byte_for_byte() {
    meet(spill_and_load_again_at_the_limit);
}
