//! The state word: readers against an evictor.

use std::sync::Arc;

use loom::thread;

use super::{ALL, DOWN, KEY, MANY, PAGE, check_empty, control, explore, frame, key, load, pool};
use crate::block::{BlockContents, FrameRef, Slab};
use crate::block::{FastPinError, PinOutcome};
use crate::frames::FrameAllocator;
use crate::sync::Step;
use crate::{BlockOptions, Claim, PoolConfig};

fn readers_against_evictor() {
    let memory = FrameAllocator::new(PoolConfig::new(16 * PAGE)).unwrap();
    let slab = Arc::new(Slab::new(1).unwrap());
    let fill = |object: u64| {
        let crate::frames::AllocOutcome::Allocated(mut frames) =
            memory.allocate(DOWN, crate::frames::SizeClass::of(1).unwrap(), (1, 1), 0)
        else {
            panic!("room")
        };
        let mut frame = frames.pop().unwrap();
        frame.as_mut_slice()[0] = object as u8;
        let contents = BlockContents {
            start: frame.start(),
            len: 1,
            key: key(object),
            options: BlockOptions::default(),
            frame: FrameRef::Owned(frame),
        };
        let slot = slab.allocate();
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
                if header
                    .word
                    .try_pin(FastPinError::NotTried(header.word.load()))
                    != PinOutcome::NotResident
                {
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
        let seen = header.word.load();
        if seen.freq() == 0 && header.word.try_own(seen, 0) {
            // SAFETY: the eviction was won.
            drop(unsafe { header.take() });
            header.word.vacate();
            slab.release(0);
            fill(2);
            break;
        }
        header.word.age(seen);
    }
    for reader in readers {
        reader.join().unwrap();
    }
    assert_eq!(
        header.word.load().pins(),
        0,
        "ineffective pins are discarded by the owner"
    );
}

#[test]
fn pinned_block_is_not_evicted() {
    explore(MANY, readers_against_evictor);
}

#[test]
fn control_evict_without_acquire_races_with_a_reader() {
    control(Step::Evict, readers_against_evictor, "Causality violation");
}

#[test]
fn control_unpin_without_release_races_with_an_evictor() {
    control(Step::Unpin, readers_against_evictor, "Causality violation");
}

#[test]
fn control_publish_without_release_races_with_a_reader() {
    control(
        Step::Publish,
        readers_against_evictor,
        "Causality violation",
    );
}

fn get_against_reuse() {
    let pool = pool(1);
    let other = key(2);
    drop(load(&pool, KEY, b"1"));
    let getting = thread::spawn({
        let pool = Arc::clone(&pool);
        move || {
            if let Some(pin) = pool.get(KEY) {
                assert_eq!(&pin[..], b"1");
            }
        }
    });
    // There is one frame, so the other block needs the first one's, unless that is pinned.
    if let Some(frame) = frame(&pool) {
        let Claim::Vacant(mut load) = pool.claim(other) else {
            panic!("no other thread loads it")
        };
        load.attach(frame, 1);
        load.write(b"2");
        drop(load.publish().unwrap());
    }
    getting.join().unwrap();
    pool.erase(other);
    check_empty(&pool);
}

#[test]
fn stale_slot_number_finds_no_other_block() {
    explore(ALL, get_against_reuse);
}

#[test]
fn control_pin_without_key_check_finds_another_block() {
    control(Step::Key, get_against_reuse, "left == right");
}

#[test]
fn erased_block_is_evicted_with_its_last_pin() {
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
