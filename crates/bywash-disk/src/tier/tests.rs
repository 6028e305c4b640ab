#![allow(clippy::unwrap_used, reason = "tests")]

mod admission;
mod contents;
mod crashes;
mod damage;
mod failing;
mod folder;
mod races;
mod resize;
mod verify;

use crate::memory_storage::MemoryStorage;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::segments::size_of;
use super::*;
use crate::Block;
use crate::format::pages_of;
use crate::limits::MAX_TEXT_BYTES;
use crate::storage::Pages;

const SEGMENT: u32 = 64 * PAGE as u32;
const FOLDER: [u8; 16] = [3; 16];

fn options(segments: u32) -> TierOptions {
    TierOptions {
        path: PathBuf::from("test"),
        size: size_of(segments as usize, u64::from(SEGMENT)),
        segment_size: SEGMENT,
        block_size: PAGE as u32,
        index_memory: 64 << 10,
        max_index_memory: 1 << 20,
    }
}

fn open(storage: &Arc<MemoryStorage>, segments: u32) -> Tier {
    open_at(storage, segments, &Arc::default())
}

/// Opens a tier whose clock shows `time`, in milliseconds.
fn open_at(storage: &Arc<MemoryStorage>, segments: u32, time: &Arc<AtomicU64>) -> Tier {
    let storage: Arc<dyn Storage> = Arc::<MemoryStorage>::clone(storage);
    let clock = Clock::Manual(Arc::clone(time));
    Tier::over(storage, FOLDER, &options(segments), clock).unwrap()
}

fn record(object: u32) -> VersionRecord {
    VersionRecord {
        url: "s3://data".to_owned(),
        object: format!("object-{object}"),
        validator: format!("\"{object}\""),
        size: 1 << 20,
        block_size: PAGE as u32,
    }
}

/// The bytes of a block: each page of each version and number has its own.
fn bytes(object: u32, number: u32, length: u32) -> Pages {
    let mut pages = Pages::zeroed(pages_of(length as usize));
    for (index, page) in pages.as_mut().chunks_mut(PAGE).enumerate() {
        let identity = [object, number, length, index as u32].map(u32::to_le_bytes);
        page[..16].copy_from_slice(identity.as_flattened());
        for filled in [16, 32, 64, 128, 256, 512, 1024, 2048] {
            page.copy_within(..filled, filled);
        }
    }
    pages.as_mut()[length as usize..].fill(0);
    pages
}

fn length(object: u32, number: u32) -> u32 {
    1 + (object * 7919 + number * 104_729) % 20_000
}

fn write(tier: &Tier, blocks: &[(u32, u32)]) -> Result<(), Declined> {
    let owned: Vec<_> = blocks
        .iter()
        .map(|&(object, number)| {
            let length = length(object, number);
            (
                record(object),
                number,
                bytes(object, number, length),
                length,
            )
        })
        .collect();
    let blocks: Vec<_> = owned
        .iter()
        .map(|(record, number, pages, length)| Block {
            record,
            version: VersionKey::of(record),
            number: *number,
            bytes: &pages.as_ref()[..*length as usize],
        })
        .collect();
    tier.write(&blocks)
}

/// Whether the block is found; panics if it has other bytes.
fn check(tier: &Tier, object: u32, number: u32) -> bool {
    let mut buffer = Pages::zeroed(8);
    let Some(found) = tier.read(VersionKey::of(&record(object)), number, buffer.as_mut()) else {
        return false;
    };
    let length = length(object, number);
    assert_eq!(found, length);
    let right = bytes(object, number, length);
    assert!(buffer.as_ref()[..length as usize] == right.as_ref()[..length as usize]);
    true
}

#[test]
fn blocks_are_found_after_a_restart_with_and_without_seal() {
    for close in [true, false] {
        let storage = Arc::default();
        let tier = open(&storage, 8);
        for batch in 0..10 {
            write(&tier, &[(1, batch), (2, batch)]).unwrap();
        }
        if close {
            tier.close().unwrap();
        }
        drop(tier);
        let tier = open(&storage, 8);
        for batch in 0..10 {
            assert!(check(&tier, 1, batch) && check(&tier, 2, batch));
        }
        assert!(!check(&tier, 3, 0));
        let stats = tier.stats();
        assert_eq!((stats.blocks, stats.versions, stats.hits), (20, 2, 20));
    }
}

#[test]
fn oldest_segments_are_used_again_and_the_size_holds() {
    let storage = Arc::default();
    let tier = open(&storage, 4);
    let mut last = 0;
    for number in 0..500 {
        write(&tier, &[(1, number)]).unwrap();
        assert!(check(&tier, 1, number));
        last = number;
        assert!(storage.allocated() <= u64::from(4 * SEGMENT));
    }
    assert!(!check(&tier, 1, 0), "it was the oldest");
    let found = (0..=last).filter(|&number| check(&tier, 1, number)).count() as u64;
    assert_eq!(found, tier.stats().blocks);
    drop(tier);
    let tier = open(&storage, 4);
    let again = (0..=last).filter(|&number| check(&tier, 1, number)).count() as u64;
    assert_eq!(again, found);
}

#[test]
fn fewer_segments_after_a_restart_keep_the_newest_blocks() {
    let storage = Arc::default();
    let tier = open(&storage, 8);
    for number in 0..200 {
        write(&tier, &[(1, number)]).unwrap();
    }
    drop(tier);
    let tier = open(&storage, 2);
    assert!(storage.allocated() <= u64::from(2 * SEGMENT));
    assert!(check(&tier, 1, 199));
    assert!(!check(&tier, 1, 0));
}

#[test]
fn smaller_index_after_a_restart_has_the_newest_blocks() {
    let storage = Arc::default();
    let tier = open(&storage, 16);
    for number in 0..200 {
        write(&tier, &[(1, number)]).unwrap();
    }
    drop(tier);
    let options = TierOptions {
        block_size: 16 * PAGE as u32,
        index_memory: 0,
        ..options(16)
    };
    let storage: Arc<dyn Storage> = storage;
    let tier = Tier::over(storage, FOLDER, &options, Clock::start()).unwrap();
    let found = (0..200).filter(|&number| check(&tier, 1, number)).count() as u64;
    assert!(found < 100 && found == tier.stats().blocks, "{found}");
    assert!(check(&tier, 1, 199) && !check(&tier, 1, 0));
}

/// The figures of `docs/decisions/0022-versions-on-the-disk-tier.md`.
#[test]
fn index_takes_about_a_hundred_bytes_a_block() {
    for shift in [16, 17] {
        let blocks = 1_u64 << shift;
        let options = TierOptions {
            size: blocks << 20,
            segment_size: 64 << 20,
            block_size: 1 << 20,
            index_memory: 0,
            max_index_memory: 100 * blocks,
            ..options(4)
        };
        let storage: Arc<dyn Storage> = Arc::new(MemoryStorage::default());
        let tier = Tier::over(storage, FOLDER, &options, Clock::start()).unwrap();
        let bytes = tier.index_memory() / blocks;
        assert!((90..=110).contains(&bytes), "{bytes} bytes a block");
    }
}

#[test]
fn erased_versions_are_not_found_and_stay_so_after_a_restart() {
    let storage = Arc::default();
    let tier = open(&storage, 8);
    write(&tier, &[(1, 0), (2, 0)]).unwrap();
    tier.erase(VersionKey::of(&record(1)));
    tier.write(&[]).unwrap();
    let erased = |tier: &Tier| {
        assert!(!check(tier, 1, 0));
        assert!(check(tier, 2, 0));
    };
    erased(&tier);
    tier.close().unwrap();
    drop(tier);
    let tier = open(&storage, 8);
    erased(&tier);
    // Blocks written later are found again.
    write(&tier, &[(1, 0)]).unwrap();
    assert!(check(&tier, 1, 0));
    drop(tier);
    assert!(check(&open(&storage, 8), 1, 0));
}

#[test]
fn erased_versions_stay_erased_after_a_clean_end_without_another_write() {
    for sealed in [false, true] {
        let storage = Arc::default();
        let tier = open(&storage, 8);
        write(&tier, &[(1, 0), (2, 0)]).unwrap();
        if sealed {
            tier.close().unwrap();
        }
        tier.erase(VersionKey::of(&record(1)));
        tier.close().unwrap();
        drop(tier);
        let tier = open(&storage, 8);
        assert!(!check(&tier, 1, 0) && check(&tier, 2, 0));
    }
}

#[test]
fn blocks_with_names_beyond_the_limit_are_declined() {
    let tier = open(&Arc::default(), 4);
    let write = |length: usize| {
        let record = VersionRecord {
            object: "k".repeat(length),
            ..record(1)
        };
        tier.write(&[Block {
            record: &record,
            version: VersionKey::of(&record),
            number: 0,
            bytes: &[7; 100],
        }])
    };
    assert!(write(MAX_TEXT_BYTES).is_ok());
    assert!(matches!(write(MAX_TEXT_BYTES + 1), Err(Declined::TooLarge)));
    assert_eq!(tier.stats().blocks, 1);
}
