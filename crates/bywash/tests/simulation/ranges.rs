//! Footers and columns: many ranges of one object in few requests.

use std::ops::Range;
use std::time::Duration;

use bywash::Consistency;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectStore as _};

use crate::world::{World, steady};

const HOUR: Consistency = Consistency::Ttl(Duration::from_secs(3600));
const MIB: u64 = 1 << 20;

/// A world with blocks of the default size, in which pieces come fast.
fn world() -> World {
    let world = World::with(HOUR, |builder| {
        builder.memory(256 * MIB).block_size(MIB as usize)
    });
    world.origin.set_weather(bywash_sim::Weather {
        piece: 256 << 10..256 << 10,
        ..steady()
    });
    world
}

#[tokio::test(start_paused = true)]
async fn near_ranges_are_one_request_and_far_ones_are_not() {
    for (gaps, requests) in [
        (vec![0, 1, 300, 64 << 10], 1),
        (vec![MIB, MIB - 1], 1),
        (vec![6 * MIB], 2),
        (vec![5, 6 * MIB, 5, 6 * MIB], 3),
    ] {
        let world = world();
        let version = world.origin.write(&world.path, 32 * MIB as usize);
        // The version is known, as it is to who has read the footer.
        world
            .bucket
            .get_opts(&world.path, GetOptions::new().with_head(true))
            .await
            .unwrap();
        let mut at = 1000;
        let mut ranges: Vec<Range<u64>> = std::iter::once(at..at + 500).collect();
        for gap in &gaps {
            at += 500 + gap;
            ranges.push(at..at + 500);
        }
        ranges.reverse();
        let read = world.bucket.get_ranges(&world.path, &ranges).await.unwrap();
        for (bytes, range) in read.iter().zip(&ranges) {
            let range = range.start as usize..range.end as usize;
            assert_eq!(*bytes, version.body.slice(range));
        }
        assert_eq!(
            world.origin.data_requests(None),
            requests,
            "gaps {gaps:?}: {:?}",
            world.origin.log()
        );
        world.bucket.get_ranges(&world.path, &ranges).await.unwrap();
        assert_eq!(world.origin.data_requests(None), requests, "warm");
    }
}

#[tokio::test(start_paused = true)]
async fn ranges_overlap_repeat_and_end_with_the_object() {
    let world = world();
    let version = world.origin.write(&world.path, 3 * MIB as usize + 9);
    let end = version.meta.size;
    let ranges = [
        end - 4..end + 100,
        10..20,
        15..30,
        10..20,
        2 * MIB - 3..2 * MIB + 3,
    ];
    let read = world.bucket.get_ranges(&world.path, &ranges).await.unwrap();
    for (bytes, range) in read.iter().zip(&ranges) {
        let range = range.start as usize..range.end.min(end) as usize;
        assert_eq!(*bytes, version.body.slice(range));
    }
    assert!(
        world
            .bucket
            .get_ranges(&world.path, &[])
            .await
            .unwrap()
            .is_empty()
    );
    for wrong in [5..5, end..end + 1] {
        let error = world
            .bucket
            .get_ranges(&world.path, &[0..4, wrong.clone()])
            .await;
        assert!(error.is_err(), "{wrong:?}");
    }
    let missing = world
        .bucket
        .get_ranges(&Path::from("missing"), &[0..1, 2..3])
        .await;
    assert!(
        matches!(missing, Err(Error::NotFound { .. })),
        "{missing:?}"
    );
}

/// How readers of Parquet begin: the last 64 KiB of a file of unknown length.
#[tokio::test(start_paused = true)]
async fn a_footer_of_an_unknown_object_is_one_request_of_little_more_than_a_block() {
    for size in [100 << 10, MIB, 5 * MIB + 77, 8 * MIB] {
        let world = world();
        let version = world.origin.write(&world.path, size as usize);
        let footer = world.read_range(Some(GetRange::Suffix(64 << 10))).await;
        assert_eq!(footer, version.body.slice(size as usize - (64 << 10)..));
        assert_eq!(world.origin.requests(), 1, "{:?}", world.origin.log());
        let sent = world.origin.data_bytes(None);
        assert!(sent <= MIB + (64 << 10), "{sent} bytes of {size}");
        // What follows: its length in its last 8 bytes, then the footer itself.
        world.read_range(Some(GetRange::Suffix(8))).await;
        world
            .read_range(Some(GetRange::Bounded(size - 5000..size - 8)))
            .await;
        assert_eq!(world.origin.requests(), 1, "{:?}", world.origin.log());
    }
}
