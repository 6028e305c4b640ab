//! Copies, which read and write at the same time, next to each other and to a reader. The code of copies is the engine's; this
//! models its waits for memory, and the memory held during each.

use std::sync::Arc;

use loom::thread;

use super::{DOWN, MANY, PAGE, UP, block_on, check_empty, control, explore, frame, pool};
use crate::sync::{Step, skipped};
use crate::{BlockPool, PoolConfig};

/// A copy that needs a page for its reads, and one for its writes.
fn copy(pool: &BlockPool) {
    if skipped(Step::OneReservation) {
        let read = block_on(pool.frames(DOWN, 1, 1, 1)).unwrap();
        let sent = block_on(pool.frames(UP, 1, 1, 1)).unwrap();
        drop((read, sent));
        return;
    }
    let both = block_on(pool.frames(UP, 1, 2, 2)).unwrap();
    assert_eq!(both.len(), 2);
    drop(both);
}

fn two_copies() {
    let pool = pool(2);
    let other = thread::spawn({
        let pool = Arc::clone(&pool);
        move || copy(&pool)
    });
    copy(&pool);
    other.join().unwrap();
    check_empty(&pool);
}

#[test]
fn copies_that_reserve_all_at_once_never_wait_for_each_other() {
    explore(MANY, two_copies);
}

#[test]
fn control_copies_that_reserve_twice_wait_for_each_other() {
    control(Step::OneReservation, two_copies, "deadlock");
}

fn reader_beside_copies() {
    let pool = BlockPool::new(PoolConfig {
        download_guarantee: PAGE,
        upload_guarantee: 0,
        ..PoolConfig::new(3 * PAGE)
    })
    .unwrap();
    let copies: Vec<_> = (0..2)
        .map(|_| {
            let pool = Arc::clone(&pool);
            thread::spawn(move || copy(&pool))
        })
        .collect();
    assert!(frame(&pool).is_some(), "a reader waits for copies");
    for copy in copies {
        copy.join().unwrap();
    }
    check_empty(&pool);
}

#[test]
fn reader_has_its_guarantee_beside_copies() {
    explore(MANY, reader_beside_copies);
}

#[test]
fn control_copies_that_read_as_readers_take_their_guarantee() {
    control(
        Step::OneReservation,
        reader_beside_copies,
        "a reader waits for copies",
    );
}
