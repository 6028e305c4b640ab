//! Loom models: the real code, every interleaving of a few threads (to a bound of preemptions), and for each protocol a
//! negative control: with one step weakened, loom must find fault.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p bywash-mem --release --lib --target-dir target/loom`
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Instant;

use loom::thread;

use crate::budget::Memory;
use crate::slab::{Body, Contents, Slab};
use crate::sync::{Step, weaken};
use crate::{BlockKey, BlockPool, Claim, FlightError, Frame, Load, OwnedPin, PoolConfig, Share};

const PAGE: u64 = 4096;
const DOWN: Share = Share::Download;
const UP: Share = Share::Upload;
const KEY: BlockKey = BlockKey {
    object: 1,
    block: 0,
};

/// Steps of one execution; the whole pool in a model takes some hundreds.
const BRANCHES: usize = 20_000;
/// Preemptions explored of the models whose every interleaving would take hours.
const MANY: Option<usize> = Some(4);
/// No bound: every interleaving.
const ALL: Option<usize> = None;

fn explore(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = BRANCHES;
    builder.check(model);
}

/// Runs a model with one step weakened, in a process of its own since loom's panics may abort, and checks that loom gave this
/// reason to fail it.
fn control(step: Step, model: fn(), reason: &str) {
    const CHILD: &str = "BYWASH_WEAKENED";
    if std::env::var_os(CHILD).is_some() {
        weaken(step);
        return explore(MANY, model);
    }
    let this = std::thread::current();
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([this.name().unwrap(), "--exact", "--nocapture"])
        .envs([(CHILD, "1"), ("RUST_BACKTRACE", "0")])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success(),
        "loom found no fault without {step:?}"
    );
    assert!(
        said.contains(reason),
        "without {step:?} the model failed, but not by {reason:?}: {said}"
    );
}

/// A pool of so many pages, without guarantees.
fn pool(pages: u64) -> Arc<BlockPool> {
    let limit = pages * PAGE;
    BlockPool::new(PoolConfig {
        limit,
        download_guarantee: 0,
        upload_guarantee: 0,
    })
    .unwrap()
}

fn frame(pool: &BlockPool) -> Option<Frame> {
    pool.try_frames(DOWN, 1, 1, 1)?.pop()
}

fn begin(pool: &Arc<BlockPool>, key: BlockKey, len: usize) -> Load {
    let Claim::Vacant(mut load) = pool.claim(key) else {
        panic!("nobody else loads it")
    };
    load.attach(frame(pool).expect("room"), len);
    load
}

fn load(pool: &Arc<BlockPool>, key: BlockKey, bytes: &[u8]) -> OwnedPin {
    let mut load = begin(pool, key, bytes.len());
    load.write(bytes);
    load.publish().unwrap()
}

/// Nothing is left of a block but its idle frame.
fn gone(pool: &BlockPool) {
    pool.erase(KEY);
    let stats = pool.stats();
    assert_eq!(
        (stats.resident_blocks, stats.resident_bytes, stats.flights),
        (0, 0, 0)
    );
    assert_eq!((pool.budget().held(DOWN), pool.budget().waiting()), (0, 0));
}

// --- (a) the word: readers against the clock

fn readers_against_evictor() {
    let memory = Memory::new(PoolConfig::new(16 * PAGE)).unwrap();
    let slab = Arc::new(Slab::new());
    let fill = |object: u64| {
        let crate::budget::Supply::Frames(mut frames) =
            memory.take(DOWN, crate::arena::Class::of(1).unwrap(), (1, 1), 0)
        else {
            panic!("room")
        };
        let mut frame = frames.pop().unwrap();
        frame.as_mut_slice()[0] = object as u8;
        let key = BlockKey { object, block: 0 };
        let contents = Contents {
            start: frame.start(),
            len: 1,
            key,
            body: Body::Own(frame),
        };
        let slot = slab.take();
        let header = slab.header(slot);
        // SAFETY: the slot was just taken.
        unsafe { header.fill(contents) };
        header.word.publish(0, false);
        assert_eq!(slot, 0);
    };
    fill(1);
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let slab = Arc::clone(&slab);
            thread::spawn(move || {
                let header = slab.header(0);
                if header.word.try_pin() {
                    // SAFETY: pinned.
                    let key = unsafe { header.key() };
                    // SAFETY: pinned.
                    let bytes = unsafe { header.bytes() };
                    // SAFETY: pinned.
                    assert_eq!(unsafe { &*bytes }[0], key.object as u8);
                    header.word.unpin();
                }
            })
        })
        .collect();
    let header = slab.header(0);
    for _ in 0..2 {
        let seen = header.word.look();
        if header.word.try_evict(seen) {
            // SAFETY: the eviction was won.
            drop(unsafe { header.take() });
            header.word.vacate();
            slab.put_back(0);
            fill(2);
            break;
        }
        header.word.age(seen);
    }
    for reader in readers {
        reader.join().unwrap();
    }
    assert_eq!(
        header.word.look().pins(),
        0,
        "failed pins left with the owner"
    );
}

#[test]
fn a_pinned_block_stays() {
    explore(ALL, readers_against_evictor);
}

#[test]
fn without_the_evictors_acquire_a_reader_is_overrun() {
    control(Step::Evict, readers_against_evictor, "Causality violation");
}

#[test]
fn without_the_unpins_release_a_reader_is_overrun() {
    control(Step::Unpin, readers_against_evictor, "Causality violation");
}

#[test]
fn without_the_publishers_release_a_reader_is_early() {
    control(
        Step::Publish,
        readers_against_evictor,
        "Causality violation",
    );
}

fn get_against_reuse() {
    let pool = pool(1);
    let other = BlockKey {
        object: 2,
        block: 0,
    };
    drop(load(&pool, KEY, b"1"));
    let getting = thread::spawn({
        let pool = Arc::clone(&pool);
        move || {
            if let Some(pin) = pool.get(KEY) {
                assert_eq!(&pin[..], b"1");
            }
        }
    });
    // Room for the other block only where the first was, unless that is pinned.
    if let Some(frame) = frame(&pool) {
        let Claim::Vacant(mut load) = pool.claim(other) else {
            panic!("nobody else loads it")
        };
        load.attach(frame, 1);
        load.write(b"2");
        drop(load.publish().unwrap());
    }
    getting.join().unwrap();
    pool.erase(other);
    gone(&pool);
}

#[test]
fn a_stale_slot_number_finds_no_other_block() {
    explore(ALL, get_against_reuse);
}

#[test]
fn without_the_look_at_the_key_it_does() {
    control(Step::Key, get_against_reuse, "left == right");
}

#[test]
fn an_erased_block_leaves_with_its_last_pin() {
    explore(MANY, || {
        let pool = pool(1);
        let pin = load(&pool, KEY, b"x");
        let reading = thread::spawn(move || assert_eq!(&pin[..], b"x"));
        let getting = thread::spawn({
            let pool = Arc::clone(&pool);
            move || drop(pool.get(KEY))
        });
        assert!(pool.erase(KEY));
        assert!(pool.get(KEY).is_none());
        reading.join().unwrap();
        getting.join().unwrap();
        assert_eq!(
            (pool.stats().resident_blocks, pool.budget().held(DOWN)),
            (0, 0)
        );
    });
}

// --- (b) the flight: hand-off, cancellation, abandonment

fn hand_off_against_eviction() {
    let pool = pool(1);
    let mut load = begin(&pool, KEY, 1);
    let waiter = load.flight().join();
    let cancelled = load.flight().join();
    let waiting = thread::spawn(move || {
        let pin = waiter.wait_blocking().unwrap();
        assert_eq!(&pin[..], b"x");
    });
    let cancelling = thread::spawn(move || drop(cancelled));
    load.write(b"x");
    drop(load.publish().unwrap());
    // The only page of the pool: whoever gets it evicted the block, which the waiter's pin must not allow too early.
    drop(frame(&pool));
    waiting.join().unwrap();
    cancelling.join().unwrap();
    gone(&pool);
}

#[test]
fn a_waiter_gets_its_pin_whoever_cancels() {
    explore(ALL, hand_off_against_eviction);
}

#[test]
fn without_hand_off_a_waiter_finds_the_block_evicted() {
    control(
        Step::HandOff,
        hand_off_against_eviction,
        "Causality violation",
    );
}

fn get_or_load(pool: &Arc<BlockPool>, leader_gives_up: bool) {
    loop {
        let pin = match pool.claim(KEY) {
            Claim::Resident(pin) => pin.into_owned(Arc::clone(pool)),
            Claim::Loading(flight) => match flight.join().wait_blocking() {
                Ok(pin) => pin,
                Err(FlightError::Abandoned) => continue,
                Err(FlightError::Failed(error)) => panic!("{error}"),
            },
            Claim::Vacant(load) if leader_gives_up => {
                drop(load);
                return;
            }
            Claim::Vacant(mut load) => {
                load.attach(frame(pool).unwrap(), 1);
                load.write(b"x");
                load.publish().unwrap()
            }
        };
        assert_eq!(&pin[..], b"x");
        return;
    }
}

#[test]
fn one_load_however_many_claim() {
    explore(ALL, || {
        let pool = pool(1);
        let other = thread::spawn({
            let pool = Arc::clone(&pool);
            move || get_or_load(&pool, false)
        });
        get_or_load(&pool, false);
        other.join().unwrap();
        assert_eq!(pool.stats().loads, 1);
        gone(&pool);
    });
}

#[test]
fn an_abandoned_load_is_taken_over() {
    explore(ALL, || {
        let pool = pool(1);
        let quitter = thread::spawn({
            let pool = Arc::clone(&pool);
            move || get_or_load(&pool, true)
        });
        get_or_load(&pool, false);
        quitter.join().unwrap();
        gone(&pool);
    });
}

#[test]
fn an_erasure_during_a_load_leaves_nothing() {
    explore(ALL, || {
        let pool = pool(1);
        let mut load = begin(&pool, KEY, 1);
        let waiter = load.flight().join();
        let eraser = thread::spawn({
            let pool = Arc::clone(&pool);
            move || assert!(pool.erase(KEY))
        });
        load.write(b"x");
        drop(load.publish().unwrap());
        assert_eq!(&waiter.wait_blocking().unwrap()[..], b"x");
        eraser.join().unwrap();
        assert!(pool.get(KEY).is_none());
        assert_eq!(
            (pool.stats().resident_blocks, pool.budget().held(DOWN)),
            (0, 0)
        );
    });
}

// --- (c) followers against a failed load

fn follower_against_failure() {
    let pool = pool(1);
    let mut load = begin(&pool, KEY, 3);
    let mut follower = load.flight().follow(0);
    let reading = thread::spawn(move || {
        let mut kept = Vec::new();
        let end = loop {
            match follower.next_blocking(1) {
                Ok(bytes) => {
                    let bytes = bytes.expect("it never ends well");
                    assert_eq!(bytes[..], [b"ab"[kept.len()]]);
                    kept.push(bytes);
                }
                Err(error) => break error,
            }
        };
        assert!(matches!(end, FlightError::Failed(_)));
        drop(follower);
        for (followed, written) in kept.iter().zip(b"ab") {
            assert_eq!(followed[..], [*written]);
        }
    });
    load.write(b"a");
    load.write(b"b");
    load.fail(Arc::new(std::fmt::Error));
    // The only page of the pool: it comes back with the last slice, and is written by its next owner.
    if let Some(mut frame) = frame(&pool) {
        frame.as_mut_slice()[0] = b'!';
    }
    reading.join().unwrap();
    gone(&pool);
}

#[test]
fn the_frame_returns_after_the_last_slice() {
    explore(MANY, follower_against_failure);
}

#[test]
fn without_the_marks_release_a_follower_is_early() {
    control(
        Step::Progress,
        follower_against_failure,
        "Causality violation",
    );
}

#[test]
fn without_its_hold_a_follower_reads_what_is_written() {
    control(Step::Hold, follower_against_failure, "Causality violation");
}

#[test]
fn a_followed_block_outlives_its_followers() {
    explore(ALL, || {
        let pool = pool(1);
        let mut load = begin(&pool, KEY, 1);
        let mut follower = load.flight().follow(0);
        let reading = thread::spawn(move || {
            assert_eq!(&follower.next_blocking(1).unwrap().unwrap()[..], b"x");
            assert!(follower.next_blocking(1).unwrap().is_none());
        });
        load.write(b"x");
        assert_eq!(&load.publish().unwrap()[..], b"x");
        drop(frame(&pool));
        reading.join().unwrap();
        gone(&pool);
    });
}

// --- (d) the ledger: never above the limit, every charge returned once

fn takers_against_the_limit() {
    let pool = pool(2);
    let check = |pool: &BlockPool| {
        assert!(
            pool.budget().used() <= pool.budget().limit(),
            "used is within the limit"
        );
    };
    drop(load(&pool, KEY, b"x"));
    let uploads = thread::spawn({
        let pool = Arc::clone(&pool);
        move || {
            let frames = pool.try_frames(UP, 1, 1, 2);
            check(&pool);
            drop(frames);
        }
    });
    let reserved = pool.budget().try_reserve(DOWN, PAGE);
    check(&pool);
    let taken = frame(&pool);
    check(&pool);
    drop((reserved, taken));
    uploads.join().unwrap();
    assert_eq!(pool.budget().held(UP), 0);
    gone(&pool);
    assert_eq!(pool.budget().used(), pool.budget().idle());
}

#[test]
fn used_never_exceeds_the_limit() {
    explore(MANY, takers_against_the_limit);
}

#[test]
fn without_one_lock_for_check_and_charge_the_limit_breaks() {
    control(Step::Charge, takers_against_the_limit, "within the limit");
}

// --- (e) the last unpin wakes whoever waits for memory

fn unpin_against_waiting_taker() {
    let pool = pool(1);
    let pin = load(&pool, KEY, b"x");
    let unpinning = thread::spawn(move || drop(pin));
    let frames = pool.frames_blocking(DOWN, 1, 1, 1, Instant::now()).unwrap();
    assert_eq!(frames.len(), 1);
    unpinning.join().unwrap();
    drop(frames);
    gone(&pool);
}

#[test]
fn the_last_unpin_wakes_the_taker() {
    explore(ALL, unpin_against_waiting_taker);
}

#[test]
fn without_the_store_load_order_the_taker_sleeps_on() {
    control(Step::Wake, unpin_against_waiting_taker, "deadlock");
}

#[test]
fn a_leaving_taker_passes_the_turn_on() {
    explore(MANY, || {
        let pool = pool(1);
        let held = frame(&pool).unwrap();
        let takers: Vec<_> = (0..2)
            .map(|_| {
                let pool = Arc::clone(&pool);
                thread::spawn(move || drop(pool.frames_blocking(DOWN, 1, 1, 1, Instant::now())))
            })
            .collect();
        drop(held);
        for taker in takers {
            taker.join().unwrap();
        }
        gone(&pool);
    });
}
