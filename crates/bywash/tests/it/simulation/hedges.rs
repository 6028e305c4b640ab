//! Hedged requests: sent a second time because the first is slow.

use std::time::Duration;

use bywash::{Consistency, DownloadOptions, HEDGED_PERCENT};
use bywash_sim::Fault;
use object_store::ObjectStoreExt as _;
use object_store::path::Path;
use tokio::time::Instant;

use crate::simulation::world::{BLOCK, World};

const HOUR: Consistency = Consistency::Revalidate(Duration::from_secs(3600));
/// Blocks of each object: 10 ms to the response, 16 ms of body.
const BLOCKS: usize = 4;
/// Twice that and some margin: a slow response detected, and the hedged one.
const SOON: Duration = Duration::from_millis(60);

/// A world with an engine that has latency samples of whole fetches and of first requests.
async fn acquainted(hedge: bool) -> World {
    let world = World::with(HOUR, |builder| builder.hedge(hedge));
    for n in 0..50 {
        let path = Path::from(format!("peer/{n}"));
        let version = world.origin.write(&path, BLOCKS * BLOCK);
        if n % 2 == 0 {
            // Its version is known, so all of it is one fetch.
            world.bucket.head(&path).await.unwrap();
        }
        let body = world.bucket.get(&path).await.unwrap().bytes().await;
        assert_eq!(body.unwrap(), version.body);
    }
    assert_eq!(world.stats().hedges, 0, "no response was slow");
    world
}

/// Reads an object with `fault` in its first response; returns the duration.
async fn read(world: &World, known: bool, fault: Fault) -> Duration {
    let version = world.origin.write(&world.path, BLOCKS * BLOCK);
    if known {
        world.bucket.head(&world.path).await.unwrap();
    }
    world.origin.script(&world.path, [vec![fault]]);
    let begun = Instant::now();
    assert_eq!(world.read().await, version.body);
    begun.elapsed()
}

#[tokio::test(start_paused = true)]
async fn stalled_fetch_is_hedged_and_published_once() {
    for fault in [Fault::StallResponse, Fault::Stall { after: 20_000 }] {
        let world = acquainted(true).await;
        let before = world.engine.stats().pool.resident_blocks;
        let took = read(&world, true, fault).await;
        assert!(took < SOON, "{fault:?}: {took:?}");
        let stats = world.stats();
        assert_eq!((stats.hedges, stats.hedges_won), (1, 1), "{fault:?}");
        let blocks = world.engine.stats().pool.resident_blocks - before;
        assert_eq!(blocks, BLOCKS as u64, "{fault:?}");
        // Bytes from before the stall were not requested again.
        let sent = world.origin.data_bytes(Some(&world.path));
        assert_eq!(sent, (BLOCKS * BLOCK) as u64, "{fault:?}");
        assert_eq!(stats.origin_bytes, world.origin.data_bytes(None));
        world.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn stalled_part_of_a_download_is_hedged() {
    let world = acquainted(true).await;
    let version = world.origin.write(&world.path, BLOCKS * BLOCK);
    let fault = Fault::Stall { after: 20_000 };
    world.origin.script(&world.path, [vec![fault]]);
    let begun = Instant::now();
    let download = world
        .bucket
        .download(&world.path, DownloadOptions::default());
    let bytes = download.await.unwrap().finish().await.unwrap();
    assert!(bytes.into_contiguous() == version.body);
    // Without a hedged request, or waiting for the first response to end, a stall timeout.
    assert!(begun.elapsed() < 2 * SOON, "{:?}", begun.elapsed());
    assert_eq!((world.stats().hedges, world.stats().hedges_won), (1, 1));
    world.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn first_request_of_an_object_is_hedged() {
    let world = acquainted(true).await;
    let took = read(&world, false, Fault::StallResponse).await;
    assert!(took < SOON, "{took:?}");
    assert_eq!((world.stats().hedges, world.stats().hedges_won), (1, 1));
    world.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn slow_first_response_is_used_if_it_completes_first() {
    let world = acquainted(true).await;
    // Detected after some 26 ms; the hedged response would be complete at 52.
    let late = Fault::SlowFirstByte(Duration::from_millis(15));
    let took = read(&world, true, late).await;
    assert!(took < SOON, "{took:?}");
    assert_eq!((world.stats().hedges, world.stats().hedges_won), (1, 0));
    world.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn requests_are_not_hedged_by_default() {
    let world = acquainted(false).await;
    let took = read(&world, true, Fault::StallResponse).await;
    assert!(took > Duration::from_secs(10), "{took:?}");
    assert_eq!(world.stats().hedges, 0);
}

#[tokio::test(start_paused = true)]
async fn hedged_requests_stay_within_their_share() {
    let world = acquainted(true).await;
    for n in 0..200 {
        let path = Path::from(format!("slow/{n}"));
        let version = world.origin.write(&path, BLOCKS * BLOCK);
        world.bucket.head(&path).await.unwrap();
        let late = Fault::SlowFirstByte(Duration::from_millis(20 * n));
        world.origin.script(&path, [vec![late]]);
        let body = world.bucket.get(&path).await.unwrap().bytes().await;
        assert_eq!(body.unwrap(), version.body);
    }
    let stats = world.stats();
    assert!(stats.hedges >= 5, "{stats:?}");
    assert!(
        stats.hedges * 100 <= stats.origin_data_requests * HEDGED_PERCENT,
        "{stats:?}"
    );
}
