//! One load a block, streamed as it arrives, and no unnecessary request.

use std::sync::Arc;
use std::time::Duration;

use bywash::{CacheOutcome, Consistency, ReadInfo};
use bywash_sim::{Consume, Outcome, SimOrigin, Validators};
use futures::StreamExt as _;
use futures::future::join_all;
use object_store::{GetOptions, GetRange, ObjectStore as _, ObjectStoreExt as _};
use tokio::time::{Instant, sleep};

use crate::simulation::world::{BLOCK, World};

const HOUR: Consistency = Consistency::Revalidate(Duration::from_secs(3600));

#[tokio::test(start_paused = true)]
async fn thirty_two_cold_readers_fetch_each_byte_once() {
    let world = Arc::new(World::new(HOUR));
    let version = world.origin.write(&world.path, 8 * BLOCK + 5);
    let reads = (0..32).map(|_| {
        let world = Arc::clone(&world);
        tokio::spawn(async move { world.read().await })
    });
    for body in join_all(reads).await {
        assert_eq!(body.unwrap(), version.body);
    }
    assert_eq!(world.origin.data_bytes(None), version.meta.size);
    assert_eq!(world.stats().origin_bytes, version.meta.size);
    assert_eq!(world.stats().bytes, 32 * version.meta.size);
    world.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn cold_read_costs_one_origin_request_and_a_warm_one_none() {
    let ranges = [
        None,
        Some(GetRange::Bounded(0..10)),
        Some(GetRange::Bounded(BLOCK as u64 + 1..BLOCK as u64 + 2)),
        Some(GetRange::Offset(3 * BLOCK as u64 - 1)),
        Some(GetRange::Suffix(7)),
    ];
    for range in ranges {
        let world = World::new(HOUR);
        world.origin.write(&world.path, 3 * BLOCK);
        world.read_range(range.clone()).await;
        assert_eq!(
            world.origin.requests(),
            1,
            "cold {range:?}: {:?}",
            world.origin.log()
        );
        world.read_range(range.clone()).await;
        if matches!(range, Some(GetRange::Suffix(_))) {
            // The first block of a suffix of an unknown object arrived partially: it may be requested again.
            assert!(world.origin.requests() <= 2, "warm {range:?}");
            world.read_range(range.clone()).await;
            assert!(world.origin.requests() <= 2, "warmer {range:?}");
        } else {
            assert_eq!(
                world.origin.requests(),
                1,
                "warm {range:?}: {:?}",
                world.origin.log()
            );
        }
        assert_eq!(world.stats().origin_requests, world.origin.requests());
        assert_eq!(
            world.stats().origin_data_requests,
            world.origin.data_requests(None)
        );
        assert_eq!(world.stats().origin_bytes, world.origin.data_bytes(None));
    }
}

#[tokio::test(start_paused = true)]
async fn read_reports_its_cache_outcome() {
    let world = World::new(HOUR);
    let version = world.origin.write(&world.path, 3 * BLOCK);
    let outcome = async |range: std::ops::Range<u64>| {
        let options = GetOptions::new().with_range(Some(range));
        let result = world.bucket.get_opts(&world.path, options).await.unwrap();
        let info = result.extensions.get::<ReadInfo>().unwrap().clone();
        result.bytes().await.unwrap();
        info
    };
    let block = BLOCK as u64;
    let first = outcome(0..block).await;
    assert_eq!(first.outcome, CacheOutcome::Miss);
    assert!(
        first
            .version
            .contains(version.meta.e_tag.as_ref().unwrap().trim_matches('"')),
        "{first:?}"
    );
    assert_eq!(outcome(0..block).await.outcome, CacheOutcome::Hit);
    assert_eq!(outcome(0..2 * block).await.outcome, CacheOutcome::Partial);
    assert_eq!(
        outcome(2 * block..3 * block).await.outcome,
        CacheOutcome::Miss
    );
}

#[tokio::test(start_paused = true)]
async fn first_byte_arrives_before_the_body_is_complete() {
    let world = World::new(HOUR);
    // 512 pieces at 1 ms each: half a second.
    let version = world.origin.write(&world.path, 2 << 20);
    let begun = Instant::now();
    let mut body = world.bucket.get(&world.path).await.unwrap().into_stream();
    let first = body.next().await.unwrap().unwrap();
    // 10 ms to the response, then at most the pieces of one block.
    assert!(
        begun.elapsed() < Duration::from_millis(20),
        "{:?}",
        begun.elapsed()
    );
    assert!(
        world
            .origin
            .log()
            .iter()
            .any(|request| request.is_data() && !request.complete)
    );
    let mut whole = first.to_vec();
    while let Some(piece) = body.next().await {
        whole.extend_from_slice(&piece.unwrap());
    }
    assert_eq!(whole, version.body);
}

#[tokio::test(start_paused = true)]
async fn object_without_validator_is_streamed_and_not_cached() {
    let world = World::new(HOUR);
    world.origin.set_validators(Validators::None);
    let version = world.origin.write(&world.path, 3 * BLOCK);
    for turn in 1..=3 {
        assert_eq!(world.read().await, version.body);
        assert_eq!(
            world.origin.data_requests(None),
            turn,
            "{:?}",
            world.origin.log()
        );
        assert_eq!(world.engine.stats().pool.resident_blocks, 0);
    }
    assert_eq!(
        world.read_range(Some(GetRange::Bounded(5..10))).await,
        version.body.slice(5..10)
    );
    world.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn empty_objects_are_readable() {
    for validators in [
        Validators::Strong,
        Validators::Weak,
        Validators::LastModified,
        Validators::None,
    ] {
        let world = World::new(HOUR);
        world.origin.set_validators(validators);
        world.origin.write(&world.path, 0);
        assert!(world.read().await.is_empty());
        let cold = world.origin.requests();
        // A ranged GET of an empty object is a 416, then its length is requested; without a validator its body too.
        let max = if validators == Validators::None { 3 } else { 2 };
        assert!(cold <= max, "{validators:?}: {:?}", world.origin.log());
        assert!(world.read().await.is_empty());
        if validators != Validators::None {
            assert_eq!(
                world.origin.requests(),
                cold,
                "{validators:?}: known to be empty"
            );
        }
        let meta = world.bucket.head(&world.path).await.unwrap();
        assert_eq!(meta.size, 0);
        let beyond = GetOptions::new().with_range(Some(5..6));
        let seen = world.see(beyond, Consume::All).await;
        assert!(
            matches!(seen.outcome, Outcome::Failed(_)),
            "{validators:?}: {:?}",
            seen.outcome
        );
        world.right(seen);
    }
}

#[tokio::test(start_paused = true)]
async fn unsatisfiable_ranges_have_their_own_error() {
    let world = World::new(HOUR);
    world.origin.write(&world.path, BLOCK);
    for known in [false, true] {
        for range in [
            GetRange::Bounded(BLOCK as u64..BLOCK as u64 + 1),
            GetRange::Offset(BLOCK as u64),
        ] {
            let options = GetOptions {
                range: Some(range.clone()),
                ..GetOptions::default()
            };
            let seen = world.see(options, Consume::All).await;
            assert!(
                matches!(seen.outcome, Outcome::Failed(_)),
                "known {known}, {range:?}: {:?}",
                seen.outcome
            );
            world.right(seen);
        }
        world.read().await;
    }
}

#[tokio::test(start_paused = true)]
async fn reads_succeed_within_the_minimum_memory() {
    let world = Arc::new(World::with(HOUR, |builder| {
        builder.memory(16 * BLOCK as u64)
    }));
    let version = world.origin.write(&world.path, 40 * BLOCK);
    let reads = (0..8).map(|_| {
        let world = Arc::clone(&world);
        tokio::spawn(async move { world.read().await })
    });
    let watch = tokio::spawn(watch_limit(Arc::clone(&world)));
    for body in join_all(reads).await {
        assert_eq!(body.unwrap(), version.body);
    }
    watch.abort();
    assert!(
        watch.await.is_err_and(|error| error.is_cancelled()),
        "the limit was passed"
    );
    world.assert_idle().await;
}

/// Blocks read ahead are not evicted before their reader reaches them, however many readers there are.
#[tokio::test(start_paused = true)]
async fn readers_of_more_than_memory_fetch_each_block_once() {
    // In blocks: the memory, the length of each object, and the maximum requests of a reader for it.
    for (readers, memory, length, max) in [
        (1, 64, 100, 26),
        (8, 64, 100, 26),
        (12, 64, 100, 52),
        (64, 1024, 256, 34),
    ] {
        let small = 4096;
        let world = Arc::new(World::with(HOUR, |builder| {
            builder
                .memory(memory * small)
                .block_size(small as usize)
                .chunk_size(4 * small as usize)
        }));
        let size = length * small + 7;
        let paths: Vec<_> = (0..readers)
            .map(|n| object_store::path::Path::from(format!("large/{n}")))
            .collect();
        let versions: Vec<_> = paths
            .iter()
            .map(|path| world.origin.write(path, size as usize))
            .collect();
        let reads = paths.iter().map(|path| {
            let (world, path) = (Arc::clone(&world), path.clone());
            tokio::spawn(async move {
                let mut body = world.bucket.get(&path).await.unwrap().into_stream();
                let mut bytes = Vec::new();
                // Each piece is dropped before the next: pieces kept by readers are not read-ahead.
                while let Some(piece) = body.next().await {
                    bytes.extend_from_slice(&piece.unwrap());
                }
                bytes
            })
        });
        for (body, version) in join_all(reads).await.into_iter().zip(&versions) {
            assert_eq!(body.unwrap(), version.body);
        }
        for path in &paths {
            let sent = world.origin.data_bytes(Some(path));
            assert_eq!(sent, size, "{readers} readers, {path}");
        }
        let requests = world.origin.data_requests(None);
        assert!(
            requests <= readers * max,
            "{requests} requests of {readers} readers"
        );
        world.assert_idle().await;
    }
}

/// Checks the budget each millisecond; panics when the limit is exceeded, else runs forever.
async fn watch_limit(world: Arc<World>) {
    loop {
        let budget = world.engine.stats().budget;
        assert!(budget.used <= budget.limit, "{budget:?}");
        sleep(Duration::from_millis(1)).await;
    }
}

/// Tests the oracle with a faulty reader: two ranges of a changing object, put together.
#[tokio::test(start_paused = true)]
async fn oracle_detects_a_torn_read() {
    let world = World::new(HOUR);
    world.origin.write(&world.path, 2 * BLOCK);
    let mut seen = world
        .see(
            GetOptions::new().with_range(Some(0..2 * BLOCK as u64)),
            Consume::Cancel { after: 1 },
        )
        .await;
    let naive: SimOrigin = world.origin.clone();
    let (block, size) = (BLOCK as u64, 2 * BLOCK as u64);
    let first = naive.get_range(&world.path, 0..block).await.unwrap();
    world.origin.write(&world.path, 2 * BLOCK);
    let second = naive.get_range(&world.path, block..size).await.unwrap();
    seen.body = [first, second].concat();
    seen.outcome = Outcome::Complete;
    seen.end = world.oracle.now();
    let judged = world.judge(&seen);
    assert!(
        matches!(judged, Err(bywash_sim::Violation::Torn { at, .. }) if at == block),
        "{judged:?}"
    );
}
