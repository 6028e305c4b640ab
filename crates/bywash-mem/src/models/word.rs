//! The word: readers against the clock.

use std::sync::Arc;

use loom::thread;

use super::{ALL, DOWN, KEY, MANY, PAGE, control, explore, frame, gone, key, load, pool};
use crate::budget::Memory;
use crate::slab::{Body, Contents, Slab};
use crate::sync::Step;
use crate::word::{Pinned, Tried};
use crate::{BlockOptions, Claim, PoolConfig};

fn readers_against_evictor() {
    let memory = Memory::new(PoolConfig::new(16 * PAGE)).unwrap();
    let slab = Arc::new(Slab::new(1).unwrap());
    let fill = |object: u64| {
        let crate::budget::Supply::Taken(mut frames) =
            memory.take(DOWN, crate::arena::Class::of(1).unwrap(), (1, 1), 0)
        else {
            panic!("room")
        };
        let mut frame = frames.pop().unwrap();
        frame.as_mut_slice()[0] = object as u8;
        let contents = Contents {
            start: frame.start(),
            len: 1,
            key: key(object),
            options: BlockOptions::default(),
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
                if header.word.try_pin(Tried::Not(header.word.look())) != Pinned::No {
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
        if seen.freq() == 0 && header.word.try_own(seen, 0) {
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
    explore(MANY, readers_against_evictor);
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
