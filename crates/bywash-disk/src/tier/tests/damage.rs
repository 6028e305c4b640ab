//! Bytes that are not those written. Of a disk tier's 20 hardest cases: 2 (torn batches), 3 (flipped bits), 4 (an old footer, swapped
//! payloads), 11 (another origin, another block size).

use super::*;
use crate::format::{ENTRY_BYTES, Header, Seal};

/// A disk with 60 blocks of three versions in sealed segments.
fn filled() -> Arc<MemoryStorage> {
    let storage = Arc::<MemoryStorage>::default();
    let tier = open(&storage, 6);
    for number in 0..60 {
        write(&tier, &[(number % 3, number)]).unwrap();
    }
    tier.close().unwrap();
    storage
}

fn found(tier: &Tier) -> usize {
    let blocks = (0..60).filter(|&number| check(tier, number % 3, number));
    blocks.count()
}

#[test]
fn torn_batch_or_footer_loses_at_most_itself() {
    let storage = Arc::<MemoryStorage>::default();
    let tier = open(&storage, 4);
    write(&tier, &[(1, 0), (1, 1)]).unwrap();
    let before = storage.copy();
    write(&tier, &[(2, 0), (2, 1), (2, 2)]).unwrap();
    let batch = storage.copy();
    tier.close().unwrap();
    let footer = storage.copy();
    for (old, new) in [(&before, &batch), (&batch, &footer)] {
        let (mut from, mut to) = (Vec::new(), Vec::new());
        old.change(0, |bytes| from.clone_from(bytes));
        new.change(0, |bytes| to.clone_from(bytes));
        let changed: Vec<_> = (0..from.len() / PAGE)
            .map(|page| page * PAGE..(page + 1) * PAGE)
            .filter(|range| from[range.clone()] != to[range.clone()])
            .collect();
        assert!(changed.len() >= 2);
        // Each set of pages, as a power cut leaves them.
        for pages in 0..1_u32 << changed.len() {
            let torn = Arc::new(old.copy());
            torn.change(0, |bytes| {
                for (index, range) in changed.iter().enumerate() {
                    if pages & 1 << index != 0 {
                        bytes[range.clone()].copy_from_slice(&to[range.clone()]);
                    }
                }
            });
            let tier = open(&torn, 4);
            assert!(check(&tier, 1, 0) && check(&tier, 1, 1), "pages {pages:b}");
            let count = (0..3).filter(|&number| check(&tier, 2, number)).count();
            let whole = pages + 1 == 1 << changed.len() || std::ptr::eq(old, &batch);
            assert!(count == 3 || !whole, "pages {pages:b}");
        }
    }
}

#[test]
fn flipped_bit_costs_at_most_a_segment_and_is_counted() {
    let storage = filled();
    let (mut rng, mut mismatches) = (StdRng::seed_from_u64(1), 0);
    let min = 60 - 20;
    for _ in 0..1000 {
        let copy = Arc::new(storage.copy());
        copy.flip(&mut rng);
        let tier = open(&copy, 6);
        let found = found(&tier);
        assert!(found >= min, "{found} found");
        mismatches += tier.stats().mismatches;
    }
    assert!(mismatches > 100, "{mismatches}");
}

/// Each bit of header and seal, and of the first entries of a footer.
#[test]
fn flipped_bit_of_any_field_is_a_miss() {
    let storage = filled();
    let mut footer = 0;
    storage.change(0, |bytes| {
        let seal = Seal::decode(&bytes[bytes.len() - PAGE..]).unwrap();
        footer = seal.footer as usize * PAGE;
    });
    let end = SEGMENT as usize - PAGE;
    let regions = [0..44, footer..footer + 40 + 2 * ENTRY_BYTES, end..end + 28];
    for byte in regions.into_iter().flatten() {
        let copy = Arc::new(storage.copy());
        copy.change(0, |bytes| bytes[byte] ^= 1 << (byte % 8));
        let tier = open(&copy, 6);
        assert!(found(&tier) >= 40, "byte {byte}");
    }
}

#[test]
fn old_footer_and_swapped_payloads_are_misses() {
    let storage = Arc::<MemoryStorage>::default();
    let tier = open(&storage, 2);
    let mut old = Vec::new();
    let mut number = 0;
    // Until the first segment is used a second time.
    while tier.stats().recycled_segments == 0 {
        if number > 0 {
            storage.change(0, |bytes| old.clone_from(bytes));
        }
        write(&tier, &[(1, number)]).unwrap();
        number += 1;
    }
    drop(tier);
    let seal = Seal::decode(&old[SEGMENT as usize - PAGE..]).unwrap();
    let header = Header::decode(&old).unwrap();
    assert_eq!(header.generation, seal.generation);
    // The header, footer and seal of before over the payloads of now.
    storage.change(0, |bytes| {
        bytes[..PAGE].copy_from_slice(&old[..PAGE]);
        let footer = seal.footer as usize * PAGE;
        bytes[footer..].copy_from_slice(&old[footer..]);
    });
    let tier = open(&storage, 2);
    let found = (0..number).filter(|&number| check(&tier, 1, number));
    assert!(found.count() > 0);
    assert!(tier.stats().mismatches > 0, "the first payload is of now");

    let storage = Arc::<MemoryStorage>::default();
    let tier = open(&storage, 2);
    let record = record(1);
    let contents = [Pages::copy_of(&[1; PAGE]), Pages::copy_of(&[2; PAGE])];
    let blocks = [0, 1].map(|number| Block {
        record: &record,
        version: VersionKey::of(&record),
        number: number as u32,
        bytes: contents[number].as_ref(),
    });
    tier.write(&blocks).unwrap();
    storage.change(0, |bytes| {
        // Header, summary, and the two payloads.
        let (first, second) = bytes[2 * PAGE..].split_at_mut(PAGE);
        first.swap_with_slice(&mut second[..PAGE]);
    });
    let mut buffer = Pages::zeroed(1);
    for block in blocks {
        assert_eq!(
            tier.read(block.version, block.number, buffer.as_mut()),
            None
        );
    }
    assert_eq!(tier.stats().mismatches, 2);
}

#[test]
fn segments_of_another_folder_or_number_are_not_read() {
    let storage = Arc::<MemoryStorage>::default();
    let tier = open(&storage, 4);
    write(&tier, &[(1, 0)]).unwrap();
    tier.close().unwrap();
    drop(tier);
    let copy = Arc::new(storage.copy());
    copy.rename(0, 2);
    assert!(!check(&open(&copy, 4), 1, 0));
    let other: Arc<dyn Storage> = Arc::new(storage.copy());
    let other = Tier::over(other, [4; 16], &options(4), Clock::start()).unwrap();
    assert!(!check(&other, 1, 0));
    assert!(check(&open(&storage, 4), 1, 0));
}

#[test]
fn objects_of_one_name_at_other_origins_or_in_other_blocks_are_others() {
    let tier = open(&Arc::default(), 4);
    write(&tier, &[(1, 0)]).unwrap();
    let changes: [fn(&mut VersionRecord); 4] = [
        |record| record.url = "s3://other".to_owned(),
        |record| record.validator = "\"2\"".to_owned(),
        |record| record.size += 1,
        |record| record.block_size *= 2,
    ];
    let mut buffer = Pages::zeroed(8);
    for change in changes {
        let mut other = record(1);
        change(&mut other);
        let version = VersionKey::of(&other);
        assert!(!tier.contains(version, 0));
        assert_eq!(tier.read(version, 0, buffer.as_mut()), None);
    }
    assert!(!tier.has_object("s3://other", "object-1") && tier.has_object("s3://data", "object-1"));
}

/// Replaces some bytes.
fn mutate(bytes: &mut [u8], rng: &mut StdRng) {
    for _ in 0..rng.random_range(1..5) {
        let at = rng.random_range(0..bytes.len() - 8);
        match rng.random_range(0..3) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes[at..at + 8].fill(0xFF),
            _ => bytes[at] = rng.random(),
        }
    }
}

/// Any fields with right checksums in header, seal and summaries of a segment: the tier opens, works, and reads nothing wrong.
#[test]
fn any_contents_with_right_checksums_open() {
    let storage = filled();
    for seed in 0..3000 {
        let mut rng = StdRng::seed_from_u64(seed);
        let copy = Arc::new(storage.copy());
        copy.change(0, |bytes| {
            let end = bytes.len() - PAGE;
            let seal = Seal::decode(&bytes[end..]).unwrap();
            let footer = seal.footer as usize * PAGE..end;
            let mut set_crc = |range: std::ops::Range<usize>, at: usize| {
                mutate(
                    &mut bytes[range.start..range.end.min(range.start + 400)],
                    &mut rng,
                );
                let crc = crate::format::crc32c(&bytes[range]);
                bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
            };
            match seed % 4 {
                0 => set_crc(8..40, 40),
                1 => set_crc(end + 8..end + 24, end + 24),
                2 => {
                    let pages = seal.footer_pages as usize * PAGE;
                    set_crc(footer.start + 8..footer.start + pages, footer.start + 4);
                }
                // Without a footer the batches are read.
                _ => {
                    set_crc(PAGE + 8..2 * PAGE, PAGE + 4);
                    bytes[end] ^= 1;
                }
            }
        });
        // The checksum of a header begins at its first byte.
        copy.change(0, |bytes| {
            if seed % 4 < 2 {
                let start = [0, bytes.len() - PAGE][seed as usize % 4];
                let length = [40, 24][seed as usize % 4];
                let crc = crate::format::crc32c(&bytes[start..start + length]);
                bytes[start + length..start + length + 4].copy_from_slice(&crc.to_le_bytes());
            }
        });
        let tier = open(&copy, 6);
        found(&tier);
        for number in 60..80 {
            write(&tier, &[(1, number)]).unwrap();
            assert!(check(&tier, 1, number));
        }
    }
}
