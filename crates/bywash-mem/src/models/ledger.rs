//! The ledger: never above the limit, every charge released once.

use std::sync::Arc;

use loom::thread;

use super::{DOWN, KEY, MANY, PAGE, UP, check_empty, control, explore, frame, load, pool};
use crate::BlockPool;
use crate::sync::Step;

fn allocations_against_the_limit() {
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
    let mut reserved = pool.try_reserve(DOWN, PAGE);
    check(&pool);
    if let Some(charge) = &mut reserved {
        charge.shrink_to(PAGE / 2);
    }
    let taken = frame(&pool);
    check(&pool);
    drop((reserved, taken));
    uploads.join().unwrap();
    assert_eq!(pool.budget().held(UP), 0);
    check_empty(&pool);
    assert_eq!(pool.budget().used(), pool.budget().idle());
}

#[test]
fn used_never_exceeds_the_limit() {
    explore(MANY, allocations_against_the_limit);
}

#[test]
fn control_separate_locks_for_check_and_charge_exceed_the_limit() {
    control(
        Step::Charge,
        allocations_against_the_limit,
        "within the limit",
    );
}
