//! Loading ahead.

use super::{MIB, load, pool, vacant};
use crate::{BlockKey, Load, PrefetchRun, Share};

const LEN: usize = 1 << 16;

fn at(object: u64, block: u32) -> BlockKey {
    BlockKey {
        store: 1,
        object,
        block,
    }
}

fn keys(runs: &[PrefetchRun]) -> Vec<Vec<BlockKey>> {
    let keys = |run: &PrefetchRun| run.iter().map(Load::key).collect();
    runs.iter().map(keys).collect()
}

#[test]
fn neighbours_become_one_load() {
    let pool = pool(16 * MIB);
    drop(load(&pool, at(1, 3), b"here"));
    let loading = vacant(&pool, at(1, 6));
    let wanted = [5, 0, 2, 1, 3, 4, 6, 7, 1].map(|block| (at(1, block), LEN));
    let runs = pool.prefetch(wanted.into_iter().chain([(at(2, 8), LEN)]), 2);
    let expected = [
        vec![at(1, 0), at(1, 1)],
        vec![at(1, 2)],
        vec![at(1, 4), at(1, 5)],
        vec![at(1, 7)],
        vec![at(2, 8)],
    ];
    assert_eq!(keys(&runs), expected);
    for mut load in runs.into_iter().flatten() {
        assert_eq!(load.remaining(), LEN, "its frame is attached");
        load.advance(LEN);
        drop(load.publish().unwrap());
    }
    drop(loading);
    assert_eq!(pool.stats().resident_blocks, 8);
    assert!(
        pool.prefetch(wanted, 100).len() == 1,
        "only what was abandoned"
    );
}

#[test]
fn it_takes_no_memory_from_blocks_in_use() {
    let pool = pool(MIB);
    // Three quarters of the memory are for downloads: twelve blocks.
    for block in 0..12 {
        drop(load(&pool, at(1, block), &vec![1; LEN]));
        if block < 8 {
            drop(pool.get(at(1, block)));
        }
    }
    let runs = pool.prefetch((0..12).map(|block| (at(2, block), LEN)), 100);
    assert_eq!(
        keys(&runs),
        [(0..4).map(|block| at(2, block)).collect::<Vec<_>>()]
    );
    for block in 0..8 {
        assert!(pool.get(at(1, block)).is_some(), "block {block} was used");
    }
    drop(runs);
    assert_eq!(pool.stats().flights, 0);
}

#[test]
fn it_does_not_pass_those_who_wait() {
    let pool = pool(MIB);
    let held = pool.try_frames(Share::Download, LEN, 12, 12).unwrap();
    let mut waiting = Box::pin(pool.frames(Share::Download, LEN, 2, 2));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waiting.as_mut().poll(&mut cx).is_pending());
    drop(held.into_iter().next());
    assert!(pool.prefetch([(at(1, 0), LEN)], 1).is_empty());
    assert_eq!(pool.stats().flights, 0, "and nothing is left begun");
}

#[test]
fn to_look_for_a_block_is_not_to_use_it() {
    let pool = pool(MIB);
    for block in 0..12 {
        assert!(!pool.contains(at(1, block)));
        drop(load(&pool, at(1, block), &vec![1; LEN]));
        for _ in 0..4 {
            assert!(pool.contains(at(1, block)));
        }
    }
    let runs = pool.prefetch((0..12).map(|block| (at(2, block), LEN)), 100);
    assert_eq!(
        runs.iter().map(Vec::len).sum::<usize>(),
        12,
        "none of them is in use"
    );
    assert!((0..12).all(|block| !pool.contains(at(1, block))));
}
