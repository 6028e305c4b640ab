//! Readahead.

use super::{MIB, load, pool, vacant};
use crate::{BlockKey, Load, LoadRun, Share};

const LEN: usize = 1 << 16;

fn at(object: u64, block: u32) -> BlockKey {
    BlockKey {
        store: 1,
        object,
        block,
    }
}

fn keys(runs: &[LoadRun]) -> Vec<Vec<BlockKey>> {
    let keys = |run: &LoadRun| run.iter().map(Load::key).collect();
    runs.iter().map(keys).collect()
}

#[test]
fn consecutive_blocks_become_one_run() {
    let pool = pool(16 * MIB);
    drop(load(&pool, at(1, 3), b"here"));
    let loading = vacant(&pool, at(1, 6));
    let wanted = [5, 0, 2, 1, 3, 4, 6, 7, 1].map(|block| (at(1, block), LEN));
    let runs = pool.start_readahead(wanted.into_iter().chain([(at(2, 8), LEN)]), 2);
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
        pool.start_readahead(wanted, 100).len() == 1,
        "only what was abandoned"
    );
}

#[test]
fn readahead_evicts_no_block_in_use() {
    let pool = pool(MIB);
    // Three quarters of the memory are for downloads: twelve blocks.
    for block in 0..12 {
        drop(load(&pool, at(1, block), &vec![1; LEN]));
        if block < 8 {
            drop(pool.get(at(1, block)));
        }
    }
    let runs = pool.start_readahead((0..12).map(|block| (at(2, block), LEN)), 100);
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
fn readahead_does_not_overtake_waiters() {
    let pool = pool(MIB);
    let held = pool.try_frames(Share::Download, LEN, 12, 12).unwrap();
    let mut waiting = Box::pin(pool.frames(Share::Download, LEN, 2, 2));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waiting.as_mut().poll(&mut cx).is_pending());
    drop(held.into_iter().next());
    assert!(pool.start_readahead([(at(1, 0), LEN)], 1).is_empty());
    assert_eq!(pool.stats().flights, 0, "no load is left in progress");
}

#[test]
fn contains_does_not_count_as_a_use() {
    let pool = pool(MIB);
    for block in 0..12 {
        assert!(!pool.contains(at(1, block)));
        drop(load(&pool, at(1, block), &vec![1; LEN]));
        for _ in 0..4 {
            assert!(pool.contains(at(1, block)));
        }
    }
    let runs = pool.start_readahead((0..12).map(|block| (at(2, block), LEN)), 100);
    assert_eq!(
        runs.iter().map(Vec::len).sum::<usize>(),
        12,
        "none of them is in use"
    );
    assert!((0..12).all(|block| !pool.contains(at(1, block))));
}
