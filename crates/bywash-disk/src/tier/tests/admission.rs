//! Choice of blocks to write once the disk is full.

use super::*;

/// With its summary a block takes 5 of the 64 pages of a segment.
const LENGTH: u32 = 4 * PAGE as u32;
const SEGMENTS: u32 = 16;
/// Blocks that the disk holds.
const HELD: u32 = SEGMENTS * 12;

/// Reads a block as an engine does: from the disk or, if it is not there, from the origin. Returns whether it was there.
fn load(tier: &Tier, object: u32, number: u32) -> bool {
    let record = record(object);
    let version = VersionKey::of(&record);
    let mut buffer = Pages::zeroed(4);
    if let Some(length) = tier.read(version, number, buffer.as_mut()) {
        assert!(length == LENGTH && buffer.as_ref() == bytes(object, number, LENGTH).as_ref());
        return true;
    }
    if tier.wants(version, number, LENGTH) {
        let content = bytes(object, number, LENGTH);
        let block = Block {
            record: &record,
            version,
            number,
            bytes: content.as_ref(),
        };
        tier.write(&[block]).unwrap();
    }
    false
}

fn hits(tier: &Tier, object: u32, numbers: impl Iterator<Item = u32>) -> u32 {
    numbers.filter(|&number| load(tier, object, number)).count() as u32
}

#[test]
fn data_that_fits_is_there_the_second_time() {
    let tier = open(&Arc::default(), SEGMENTS);
    let blocks = HELD / 2;
    assert_eq!(hits(&tier, 1, 0..blocks), 0);
    assert_eq!(hits(&tier, 1, 0..blocks), blocks);
    assert_eq!(tier.stats().declined_new, 0);
}

#[test]
fn loop_larger_than_the_disk_keeps_what_is_there() {
    for blocks in [HELD * 3 / 2, HELD * 5] {
        let tier = open(&Arc::default(), SEGMENTS);
        hits(&tier, 1, 0..blocks);
        let first = hits(&tier, 1, 0..blocks);
        assert_eq!(first, HELD);
        for _ in 0..5 {
            assert_eq!(hits(&tier, 1, 0..blocks), first);
        }
        let stats = tier.stats();
        assert_eq!(
            (stats.recycled_segments, stats.blocks),
            (0, u64::from(first))
        );
        assert!(stats.declined_new > 0);
        assert!(stats.write_amplification().unwrap() < 1.35, "{stats:?}");
    }
}

#[test]
fn scan_of_ten_disks_keeps_the_hot_blocks() {
    let tier = open(&Arc::default(), SEGMENTS);
    // The hot blocks came last to a disk that was full of others.
    hits(&tier, 2, 0..2 * HELD);
    let hot = HELD / 3;
    for _ in 0..3 {
        hits(&tier, 1, 0..hot);
    }
    let mut rng = StdRng::seed_from_u64(7);
    let mut read = |reads: u32| hits(&tier, 1, (0..reads).map(|_| rng.random_range(0..hot)));
    let before = read(5000);
    assert!(before >= 4900, "{before} hits before the scan");
    let mut during = 0;
    for step in 0..10 * HELD {
        assert!(!load(&tier, 3, step));
        during += read(2);
    }
    let expected = before * (2 * 10 * HELD) / 5000;
    assert!(during >= expected * 98 / 100, "{during} of {expected} hits");
}

#[test]
fn blocks_that_come_back_replace_others_and_blocks_in_use_are_kept() {
    let tier = open(&Arc::default(), SEGMENTS);
    hits(&tier, 1, 0..HELD);
    let (hot, mut hot_hits) = (HELD / 16, 0);
    // New blocks, each looked up twice soon: all are taken. The hot ones are read between them.
    for new in 0..20 * HELD {
        load(&tier, 2, new);
        assert!(
            !tier.contains(VersionKey::of(&record(2)), new),
            "{new} is new"
        );
        load(&tier, 2, new);
        hot_hits += u32::from(load(&tier, 1, new % hot));
    }
    let stats = tier.stats();
    assert!(stats.recycled_segments > 100, "{stats:?}");
    let new = VersionKey::of(&record(3));
    assert!(!tier.wants(new, 0, LENGTH) && tier.wants_settled(new, 1));
    let reads = 20 * HELD;
    assert!(hot_hits >= reads * 95 / 100, "{hot_hits} of {reads} hits");
}

/// All blocks are read, so as many are written again as may be.
#[test]
fn write_amplification_is_bounded_when_all_blocks_are_read() {
    let segment = 1024 * PAGE as u32;
    let options = TierOptions {
        size: size_of(8, u64::from(segment)),
        segment_size: segment,
        block_size: LENGTH,
        ..options(8)
    };
    let storage: Arc<MemoryStorage> = Arc::default();
    let tier = Tier::over(storage, FOLDER, &options, Clock::start()).unwrap();
    let record = record(1);
    let version = VersionKey::of(&record);
    let content = bytes(1, 0, LENGTH);
    let mut buffer = Pages::zeroed(4);
    for batch in 0..200 {
        let blocks: Vec<_> = (0..60)
            .map(|block| Block {
                record: &record,
                version,
                number: batch * 60 + block,
                bytes: content.as_ref(),
            })
            .collect();
        tier.write(&blocks).unwrap();
        for block in &blocks {
            assert!(tier.read(version, block.number, buffer.as_mut()).is_some());
        }
    }
    let stats = tier.stats();
    let amplification = stats.write_amplification().unwrap();
    assert!(stats.reinserted_blocks > 1000, "{stats:?}");
    assert!(amplification <= 1.35, "{amplification}");
}

#[test]
fn reinserted_blocks_are_found_after_a_restart_and_erased_ones_are_not() {
    let storage = Arc::default();
    let tier = open(&storage, 4);
    for number in 0..500 {
        write(&tier, &[(1, number)]).unwrap();
        write(&tier, &[(2, number)]).unwrap();
        // Only read while they are there.
        let _ = (check(&tier, 1, 0), check(&tier, 2, 0));
        if number == 20 {
            assert!(check(&tier, 1, 0));
            tier.erase(VersionKey::of(&record(2)));
        }
    }
    assert!(check(&tier, 1, 0), "read again and again");
    assert!(!check(&tier, 2, 0));
    drop(tier);
    let tier = open(&storage, 4);
    assert!(check(&tier, 1, 0) && !check(&tier, 2, 0) && check(&tier, 2, 499));
}

#[test]
fn writes_beyond_the_bytes_of_a_day_are_declined() {
    let time = Arc::default();
    let tier = open_at(&Arc::default(), 16, &time);
    let daily = 24 * u64::from(LENGTH) * 10;
    tier.set_daily_writes(Some(daily));
    let mut written = 0;
    for hour in 0..48 {
        time.store(hour * 60 * 60 * 1000, Ordering::Relaxed);
        while write(&tier, &[(1, written)]).is_ok() {
            written += 1;
        }
        let version = VersionKey::of(&record(1));
        assert!(!tier.wants(version, written, LENGTH));
    }
    let stats = tier.stats();
    assert_eq!(stats.declined_rate, 2 * 48, "{stats:?}");
    let range = daily * 19 / 10..=2 * daily + 100_000;
    assert!(range.contains(&stats.written_bytes), "{stats:?}");
    tier.set_daily_writes(None);
    write(&tier, &[(1, written)]).unwrap();
}

#[test]
fn full_index_takes_what_comes_back_in_place_of_the_oldest() {
    let options = TierOptions {
        block_size: 4 * PAGE as u32,
        index_memory: 0,
        ..options(64)
    };
    let storage: Arc<MemoryStorage> = Arc::default();
    let tier = Tier::over(storage, FOLDER, &options, Clock::start()).unwrap();
    let memory = tier.index_memory();
    let record = record(1);
    let version = VersionKey::of(&record);
    let load = |number| {
        let wanted = tier.wants(version, number, 1);
        if wanted {
            let block = Block {
                record: &record,
                version,
                number,
                bytes: &[7],
            };
            tier.write(&[block]).unwrap();
        }
        wanted
    };
    let wanted = (0..3000).filter(|&number| load(number)).count() as u64;
    let stats = tier.stats();
    assert_eq!((stats.blocks, stats.blocks_written), (wanted, wanted));
    assert_eq!(
        (stats.index_full, stats.recycled_segments),
        (3000 - wanted, 0)
    );
    assert!(load(2999) && tier.contains(version, 2999) && !tier.contains(version, 0));
    let stats = tier.stats();
    assert!(stats.segments < 64 && stats.blocks < wanted, "{stats:?}");
    assert_eq!(tier.index_memory(), memory);
}
