#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

fn record(object: &str) -> VersionRecord {
    VersionRecord {
        url: "s3://data".to_owned(),
        object: object.to_owned(),
        validator: "\"tag\"".to_owned(),
        size: 10_000_000,
        block_size: 1 << 20,
    }
}

fn summary() -> Summary {
    let records = vec![record("a"), record("b/ü")];
    Summary {
        generation: 7,
        number: 3,
        entries: (0..200)
            .map(|block| Entry {
                version: VersionKey::of(&records[block as usize % 2]),
                block,
                length: 5000 + block,
                page: 10 + 2 * block,
                crc: block * 77,
            })
            .collect(),
        erasures: vec![Erasure {
            version: VersionKey::of(&records[0]),
            position: 100,
        }],
        records,
    }
}

#[test]
fn header_seal_and_summary_are_read_as_written() {
    let header = Header {
        folder: [9; 16],
        generation: u64::MAX,
        segment: 12,
        pages: 64,
    };
    assert_eq!(Header::decode(&header.encode()), Some(header));
    let seal = Seal {
        generation: 5,
        footer: 60,
        footer_pages: 3,
    };
    assert_eq!(Seal::decode(&seal.encode()), Some(seal));
    let summary = summary();
    let bytes = summary.encode();
    assert_eq!(bytes.len(), summary.pages() as usize * PAGE);
    assert_eq!(
        Summary::pages_in(&bytes[..PAGE], 100),
        Some(summary.pages())
    );
    assert_eq!(
        Summary::pages_in(&bytes[..PAGE], 1),
        None,
        "more than may be"
    );
    assert_eq!(Summary::decode(&bytes), Some(summary));
}

#[test]
fn flipped_bits_and_lost_pages_are_noticed() {
    let bytes = summary().encode();
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Summary::decode(&damaged), None, "bit {bit}");
    }
    for page in 0..bytes.len() / PAGE {
        let mut torn = bytes.clone();
        torn[page * PAGE..(page + 1) * PAGE].fill(0xAA);
        assert_eq!(Summary::decode(&torn), None, "page {page}");
    }
    for end in 0..bytes.len() {
        assert_eq!(Summary::decode(&bytes[..end]), None);
    }
}

/// A summary with a right checksum and wrong counts reserves nothing and reads nothing beyond its end.
#[test]
fn counts_beyond_the_bytes_are_refused() {
    let good = summary().encode();
    for field in [24, 28, 32] {
        for count in [u32::MAX, 1 << 20] {
            let mut bytes = good.clone();
            bytes[field..field + 4].copy_from_slice(&count.to_le_bytes());
            let crc = crc32c(&bytes[8..]);
            bytes[4..8].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(Summary::decode(&bytes), None, "field {field}");
        }
    }
}

#[test]
fn every_part_of_a_version_is_in_its_key() {
    let base = record("a");
    let mut others = vec![base.clone(); 5];
    others[0].url.push('x');
    others[1].object.push('x');
    others[2].validator.push('x');
    others[3].size += 1;
    others[4].block_size += 1;
    // The same characters, cut elsewhere.
    others.push(VersionRecord {
        url: "s3://dat".to_owned(),
        object: "aa".to_owned(),
        ..base.clone()
    });
    for other in others {
        assert_ne!(VersionKey::of(&other), VersionKey::of(&base), "{other:?}");
    }
}

#[test]
fn checksum_binds_a_payload_to_version_block_generation_and_place() {
    let entry = summary().entries[0];
    let payload = vec![1; 5000];
    let right = entry.checksum(7, &payload);
    assert_ne!(entry.checksum(8, &payload), right);
    let changes: [fn(&mut Entry); 4] = [
        |entry| entry.version.0[3] ^= 1,
        |entry| entry.block += 1,
        |entry| entry.page += 1,
        |entry| entry.length += 1,
    ];
    for change in changes {
        let mut other = entry;
        change(&mut other);
        assert_ne!(other.checksum(7, &payload), right);
    }
}
