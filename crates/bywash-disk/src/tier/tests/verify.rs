//! Passes over all blocks.

use super::*;
use crate::memory_storage::{Fault, Operation};
use rustix::io::Errno;

/// Writes `blocks` blocks of one object, each in a batch of its own.
fn filled(storage: &Arc<MemoryStorage>, blocks: u32) -> Tier {
    let tier = open(storage, 8);
    for number in 0..blocks {
        write(&tier, &[(1, number)]).unwrap();
    }
    tier
}

fn bytes_of(blocks: u32) -> u64 {
    (0..blocks).map(|number| u64::from(length(1, number))).sum()
}

#[test]
fn each_block_is_read_and_damaged_ones_are_dropped() {
    let storage = Arc::default();
    let tier = filled(&storage, 40);
    let good = Verification {
        good_blocks: 40,
        good_bytes: bytes_of(40),
        complete: true,
        ..Verification::default()
    };
    assert_eq!(tier.verify(|_| true), good);
    // One bit of the last block.
    let last = tier.index.find(0, 39, |place| place).unwrap();
    storage.change(last.segment, |bytes| {
        bytes[last.page as usize * PAGE] ^= 8;
    });
    let found = tier.verify(|_| true);
    assert_eq!((found.good_blocks, found.damaged_blocks), (39, 1));
    assert!(found.complete);
    assert!(!check(&tier, 1, 39) && check(&tier, 1, 38));
    let again = tier.verify(|_| true);
    assert_eq!((again.good_blocks, again.damaged_blocks), (39, 0));
    // Only the read above is a hit.
    assert_eq!((tier.stats().hits, tier.stats().mismatches), (1, 1));
}

#[test]
fn pass_stops_at_the_wish_of_its_caller_and_when_the_tier_is_off() {
    let storage = Arc::default();
    let tier = filled(&storage, 40);
    let mut left = 10;
    let stopped = tier.verify(|_| {
        left -= 1;
        left >= 0
    });
    assert_eq!((stopped.good_blocks, stopped.complete), (10, false));
    storage.fail(Fault::all(Operation::Read, Errno::IO));
    let failed = tier.verify(|_| true);
    assert!(
        failed.unreadable_blocks > 0 && !failed.complete,
        "{failed:?}"
    );
    assert_eq!(tier.state().state, crate::TierState::Off);
}

#[test]
fn erased_blocks_are_left_out() {
    let storage = Arc::default();
    let tier = filled(&storage, 10);
    write(&tier, &[(2, 0)]).unwrap();
    tier.erase(VersionKey::of(&record(1)));
    assert_eq!(tier.verify(|_| true).good_blocks, 1);
}

#[test]
fn pass_beside_writers_finds_no_damage() {
    let storage = Arc::default();
    let tier = filled(&storage, 40);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0..2000 {
                let _ = write(&tier, &[(number % 7, number)]);
                if number % 50 == 0 {
                    tier.erase(VersionKey::of(&record(number % 7)));
                }
            }
        });
        while !writer.is_finished() {
            let found = tier.verify(|_| true);
            assert_eq!((found.damaged_blocks, found.unreadable_blocks), (0, 0));
        }
    });
}
