//! Read-ahead: blocks that are loaded before they are requested.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bywash::Consistency;
use futures::future::join_all;
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _};
use tokio::time::{Instant, sleep};

use crate::simulation::world::{BLOCK, World};

const HOUR: Consistency = Consistency::Revalidate(Duration::from_secs(3600));
/// Bytes of one read of these clients.
const RANGE: u64 = 8 * BLOCK as u64;
/// Duration of one read in `steady` weather: 10 ms to the response, 1 ms a piece of 4 KiB.
const ALONE: Duration = Duration::from_millis(10 + RANGE / 4096);
/// After this time a stream has ended, and its read-ahead is released by the next read.
const LONG: Duration = Duration::from_secs(11);

fn ranges(size: u64) -> impl Iterator<Item = Range<u64>> {
    (0..size.div_ceil(RANGE)).map(move |n| n * RANGE..((n + 1) * RANGE).min(size))
}

#[tokio::test(start_paused = true)]
async fn sequential_ranged_gets_are_read_ahead() {
    let world = World::new(HOUR);
    let version = world.origin.write(&world.path, 256 * BLOCK + 77);
    let (size, begun) = (version.meta.size, Instant::now());
    let mut last = Duration::ZERO;
    for range in ranges(size) {
        let sent_at = Instant::now();
        let bytes = world.bucket.get_range(&world.path, range.clone()).await;
        assert_eq!(
            bytes.unwrap(),
            version.body.slice(range.start as usize..range.end as usize)
        );
        last = sent_at.elapsed();
    }
    let reads = ranges(size).count() as u32;
    assert!(
        begun.elapsed() < ALONE * reads * 2 / 3,
        "{:?} for {reads} reads of {ALONE:?} each",
        begun.elapsed()
    );
    assert!(last < ALONE / 8, "the last one waited {last:?}");
    assert_eq!(world.origin.data_bytes(None), size, "each byte once");
    let requests = world.origin.data_requests(None);
    assert!(requests <= u64::from(reads), "{requests} requests");
    let stats = world.stats();
    assert_eq!(stats.hits + stats.misses, 257, "each block counted once");
    world.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn concurrent_sequential_ranged_gets_fetch_each_byte_once() {
    let world = Arc::new(World::new(HOUR));
    let version = world.origin.write(&world.path, 256 * BLOCK + 77);
    let size = version.meta.size;
    let next = Arc::new(AtomicU64::new(0));
    let threads = (0..4).map(|_| {
        let (world, next) = (Arc::clone(&world), Arc::clone(&next));
        tokio::spawn(async move {
            loop {
                let start = next.fetch_add(RANGE, Relaxed);
                if start >= size {
                    return;
                }
                let range = start..(start + RANGE).min(size);
                let body = world.bucket.get_range(&world.path, range).await.unwrap();
                drop(body);
            }
        })
    });
    for thread in join_all(threads).await {
        thread.unwrap();
    }
    assert_eq!(world.origin.data_bytes(None), size);
    world.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn random_reads_load_only_their_blocks() {
    let world = World::new(HOUR);
    let blocks = 1024;
    let version = world.origin.write(&world.path, blocks * BLOCK);
    let mut requested = std::collections::BTreeSet::new();
    // Two neighbouring reads now and then are no stream.
    for n in 0..100u64 {
        let block = n * 7919 % (blocks as u64 - 1);
        for block in block..=block + n % 2 {
            let size = BLOCK as u64;
            let range = block * size..(block + 1) * size;
            let bytes = world.bucket.get_range(&world.path, range.clone()).await;
            assert_eq!(
                bytes.unwrap(),
                version.body.slice(range.start as usize..range.end as usize)
            );
            requested.insert(block);
        }
    }
    assert_eq!(
        world.origin.data_bytes(None),
        (requested.len() * BLOCK) as u64
    );
}

#[tokio::test(start_paused = true)]
async fn stopped_client_leaves_bounded_readahead_and_blocks_no_reader() {
    let world = World::with(HOUR, |builder| builder.memory(64 * BLOCK as u64));
    world.origin.write(&world.path, 256 * BLOCK);
    for range in ranges(256 * BLOCK as u64).take(4) {
        let bytes = world.bucket.get_range(&world.path, range).await;
        bytes.unwrap();
    }
    sleep(Duration::from_secs(1)).await;
    let sent = world.origin.data_bytes(None);
    assert!(
        (4 * RANGE..=8 * RANGE).contains(&sent),
        "{sent} bytes for {} read",
        4 * RANGE
    );
    // All of the memory, held piece by piece: no part of it is reserved for the stream.
    let other = Path::from("other");
    let version = world.origin.write(&other, 40 * BLOCK);
    let mut held = Vec::new();
    for block in 0..40u64 {
        let size = BLOCK as u64;
        let range = block * size..(block + 1) * size;
        held.push(world.bucket.get_range(&other, range).await.unwrap());
    }
    assert_eq!(held.concat(), version.body);
    drop(held);
    sleep(LONG).await;
    world.bucket.get_range(&other, 0..1).await.unwrap();
    world.assert_idle().await;
}

/// Blocks read once evict no block that is read repeatedly.
#[tokio::test(start_paused = true)]
async fn cold_scan_keeps_the_hot_set_resident() {
    let memory = 1024;
    let world = World::with(HOUR, |builder| builder.memory(memory * BLOCK as u64));
    let hot = memory * 6 / 10;
    let version = world.origin.write(&world.path, hot as usize * BLOCK);
    assert_eq!(world.read().await, version.body);
    assert_eq!(world.read().await, version.body);
    // Read as one body, and as the ranged GETs of a client.
    for (name, step) in [("whole", 2 * memory), ("ranges", 8)] {
        let scan = Path::from(name);
        let blocks = 2 * memory;
        world.origin.write(&scan, blocks as usize * BLOCK);
        for first in (0..blocks).step_by(step as usize) {
            let range = first * BLOCK as u64..(first + step) * BLOCK as u64;
            let options = object_store::GetOptions::new().with_range(Some(range));
            let mut body = world
                .bucket
                .get_opts(&scan, options)
                .await
                .unwrap()
                .into_stream();
            while let Some(piece) = futures::StreamExt::next(&mut body).await {
                piece.unwrap();
            }
        }
    }
    let before = world.origin.data_bytes(Some(&world.path));
    assert_eq!(world.read().await, version.body);
    let again = world.origin.data_bytes(Some(&world.path)) - before;
    assert!(
        again <= hot * BLOCK as u64 / 10,
        "{again} bytes of the hot set had to be loaded again"
    );
}
