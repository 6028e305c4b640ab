//! Footers and columns: many ranges of one object in few requests.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bywash::{BucketOptions, Consistency, EngineError};
use futures::StreamExt;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectStore as _, ObjectStoreExt as _};

use crate::simulation::world::{World, steady};

const HOUR: Consistency = Consistency::Revalidate(Duration::from_secs(3600));
const MIB: u64 = 1 << 20;

/// A world with blocks of the default size and fast pieces.
fn world() -> World {
    let world = World::with(HOUR, |builder| {
        builder.memory(256 * MIB).block_size(MIB as usize)
    });
    world.origin.set_fault_profile(bywash_sim::FaultProfile {
        piece: 256 << 10..256 << 10,
        ..steady()
    });
    world
}

#[tokio::test(start_paused = true)]
async fn near_ranges_are_merged_and_far_ones_are_not() {
    for (gaps, requests) in [
        (vec![0, 1, 300, 64 << 10], 1),
        (vec![MIB, MIB - 1], 1),
        (vec![6 * MIB], 2),
        (vec![5, 6 * MIB, 5, 6 * MIB], 3),
    ] {
        let world = world();
        let version = world.origin.write(&world.path, 32 * MIB as usize);
        // The version is known, as after reading the footer.
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

/// The first read of Parquet readers: the last 64 KiB of a file of unknown length.
#[tokio::test(start_paused = true)]
async fn footer_of_an_unknown_object_is_one_request_of_about_a_block() {
    for size in [100 << 10, MIB, 5 * MIB + 77, 8 * MIB] {
        let world = world();
        let version = world.origin.write(&world.path, size as usize);
        let footer = world.read_range(Some(GetRange::Suffix(64 << 10))).await;
        assert_eq!(footer, version.body.slice(size as usize - (64 << 10)..));
        assert_eq!(world.origin.requests(), 1, "{:?}", world.origin.log());
        let sent = world.origin.data_bytes(None);
        assert!(sent <= MIB + (64 << 10), "{sent} bytes of {size}");
        // The following reads: the length in the last 8 bytes, then the footer itself.
        world.read_range(Some(GetRange::Suffix(8))).await;
        world
            .read_range(Some(GetRange::Bounded(size - 5000..size - 8)))
            .await;
        assert_eq!(world.origin.requests(), 1, "{:?}", world.origin.log());
    }
}

/// Two buckets of one engine over one origin: each requests blocks of its own size, and both share one memory.
#[tokio::test(start_paused = true)]
async fn buckets_read_in_blocks_of_their_own_size() {
    let world = world();
    let version = world.origin.write(&world.path, 9 * MIB as usize);
    let mount = |name: &str, block_size| {
        let options = BucketOptions {
            consistency: HOUR,
            block_size: Some(block_size),
            ..BucketOptions::default()
        };
        let origin = Arc::new(world.origin.clone());
        world.engine.mount(name, origin, options)
    };
    for (name, block) in [
        ("small", 4 << 10),
        ("medium", 256 << 10),
        ("large", 4 << 20),
    ] {
        let bucket = mount(name, block as usize).unwrap();
        let before = world.origin.log().len();
        let at = 5 * MIB + 17..5 * MIB + 27;
        let read = bucket.get_range(&world.path, at.clone()).await.unwrap();
        assert_eq!(read, version.body.slice(at.start as usize..at.end as usize));
        let log = world.origin.log();
        let first = at.start / block * block;
        assert_eq!(log[before].sent_range, Some(first..first + block), "{name}");
        assert_eq!(log.len(), before + 1);
        // A partially awaited block is requested again, so this object is another one.
        let path = Path::from(format!("whole/{name}"));
        let version = world.origin.write(&path, 9 * MIB as usize + 5);
        for _ in 0..2 {
            let whole = bucket.get(&path).await.unwrap().bytes().await.unwrap();
            assert_eq!(whole, version.body);
        }
        let sent = world.origin.data_bytes(Some(&path));
        assert_eq!(sent, version.meta.size, "{name}: each byte once");
    }
    for bad in [0, 2048, 8 << 20, 65_535] {
        let refused = mount("refused", bad).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("power of two from 4 KiB to 4 MiB"), "{text}");
    }
    // Eight of the largest blocks must fit while there is such a bucket.
    world.engine.set_memory(32 * MIB).unwrap();
    let refused = world.engine.set_memory(32 * MIB - 1).unwrap_err();
    assert!(matches!(
        refused,
        EngineError::InvalidSetting {
            setting: "memory",
            ..
        }
    ));
    world.assert_idle().await;
}

/// Readers of columnar files read the footer first, by the last bytes of the object or by a range up to its known end.
#[tokio::test(start_paused = true)]
async fn footers_read_once_outlast_scans_larger_than_memory() {
    let world = World::with(HOUR, |builder| builder.memory(8 * MIB).block_size(64 << 10));
    let size = 2 * MIB + 1000;
    let tables: Vec<_> = (0..6).map(|n| Path::from(format!("table/{n}"))).collect();
    let footer = async |path: &Path, known: bool| {
        let range = if known {
            GetRange::Bounded(size - 8..size)
        } else {
            GetRange::Suffix(8)
        };
        let options = GetOptions::new().with_range(Some(range));
        let read = world.bucket.get_opts(path, options).await.unwrap();
        read.bytes().await.unwrap()
    };
    let middle = async |path: &Path| {
        let range = MIB..MIB + 3000;
        world.bucket.get_range(path, range).await.unwrap()
    };
    for (n, path) in tables.iter().enumerate() {
        world.origin.write(path, size as usize);
        if n % 2 == 0 {
            world.bucket.head(path).await.unwrap();
        }
        footer(path, n % 2 == 0).await;
        middle(path).await;
    }
    let scanned = Path::from("scanned");
    let version = world.origin.write(&scanned, 32 * MIB as usize);
    for _ in 0..2 {
        let read = world.bucket.get(&scanned).await.unwrap();
        assert_eq!(read.bytes().await.unwrap(), version.body);
    }
    let requests = || world.origin.data_requests(None);
    let before = requests();
    for path in &tables {
        footer(path, true).await;
    }
    assert_eq!(requests(), before, "all footers are in memory");
    for path in &tables {
        middle(path).await;
    }
    assert_eq!(requests(), before + 6, "the scan evicted other blocks");
    world.assert_idle().await;
}

/// A range fetch takes a sixteenth of the memory at most, also after the limit was lowered.
#[tokio::test(start_paused = true)]
async fn range_fetches_follow_a_lowered_and_a_raised_limit() {
    let world = world();
    for (number, (memory, longest)) in [(256, 8), (32, 2), (256, 8)].into_iter().enumerate() {
        world.engine.set_memory(memory * MIB).unwrap();
        let path = Path::from(format!("object/{number}"));
        let version = world.origin.write(&path, 24 * MIB as usize);
        let read = world.bucket.get(&path).await.unwrap().bytes().await;
        assert_eq!(read.unwrap(), version.body);
        let log = world.origin.log();
        let sent = log.iter().filter(|request| request.path == path);
        let lengths = sent.filter_map(|request| request.sent_range.as_ref());
        let longest_sent = lengths.map(|range| range.end - range.start).max();
        assert_eq!(longest_sent, Some(longest * MIB), "at {memory} MiB");
    }
    world.assert_idle().await;
}

/// Read-ahead is bounded in bytes, with any block sizes of its readers.
#[tokio::test(start_paused = true)]
async fn readers_of_small_and_large_blocks_share_the_readahead_limit() {
    let world = Arc::new(World::with(HOUR, |builder| builder.memory(32 * MIB)));
    let reads = (0..24).map(|n| {
        let block_size = Some(if n % 2 == 0 { 4 << 10 } else { 2 << 20 });
        let options = BucketOptions {
            consistency: HOUR,
            block_size,
            ..BucketOptions::default()
        };
        let origin = Arc::new(world.origin.clone());
        let bucket = world.engine.mount(&format!("bucket-{n}"), origin, options);
        let (bucket, path) = (bucket.unwrap(), Path::from(format!("object/{n}")));
        let version = world.origin.write(&path, 5 * MIB as usize + 3);
        tokio::spawn(async move {
            let mut body = bucket.get(&path).await.unwrap().into_stream();
            let mut read = Vec::new();
            while let Some(piece) = body.next().await {
                read.extend_from_slice(&piece.unwrap());
            }
            assert_eq!(read, version.body);
        })
    });
    for read in futures::future::join_all(reads.collect::<Vec<_>>()).await {
        read.unwrap();
    }
    let sent = world.origin.data_bytes(None);
    assert_eq!(sent, 24 * (5 * MIB + 3), "each byte once");
    world.assert_idle().await;
}
