//! The ledger: never above the limit, every charge returned once.

use std::sync::Arc;

use loom::thread;

use super::{DOWN, KEY, MANY, PAGE, UP, control, explore, frame, gone, load, pool};
use crate::BlockPool;
use crate::sync::Step;

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
