//! Downloads next to each other and to reads: one buffer for a version, and blocks for later readers.

use std::time::Duration;

use bywash::{Consistency, DownloadOptions, EngineError};
use object_store::ObjectStoreExt as _;
use tokio::io::AsyncReadExt as _;
use tokio::time::sleep;

use crate::simulation::world::{BLOCK, World};

const HOUR: Consistency = Consistency::Revalidate(Duration::from_secs(3600));
/// Bytes of one ranged GET: not a multiple of any frame.
const SHARD: u64 = 3 * BLOCK as u64 + 5;
const SIZE: usize = 20 * BLOCK + 77;

fn options() -> DownloadOptions {
    DownloadOptions {
        part_size: SHARD,
        ..DownloadOptions::default()
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_downloads_of_a_version_are_one_and_each_can_be_dropped() {
    // Memory for one download.
    let world = World::with(HOUR, |builder| builder.memory(40 * BLOCK as u64));
    let version = world.origin.write(&world.path, SIZE);
    let begin = || world.bucket.download(&world.path, options());
    let (first, second, third) = tokio::join!(begin(), begin(), begin());
    let (first, second, third) = (first.unwrap(), second.unwrap(), third.unwrap());
    let mut reader = third.reader();
    sleep(Duration::from_millis(15)).await;
    // The one that began it is the first to leave.
    drop(first);
    let late = begin().await.unwrap();
    assert!(late.contiguous() > 0, "it is the same");
    drop(third);
    assert_eq!(
        second.finish().await.unwrap().into_contiguous(),
        version.body
    );
    assert_eq!(late.finish().await.unwrap().into_contiguous(), version.body);
    let mut read = Vec::new();
    reader.read_to_end(&mut read).await.unwrap();
    assert_eq!(read, version.body);
    drop(reader);
    assert_eq!(world.origin.data_bytes(None), SIZE as u64);
    assert_eq!(world.stats().bytes, 3 * SIZE as u64, "of all callers");
    world.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn download_stops_when_the_last_of_its_callers_is_dropped() {
    let world = World::new(HOUR);
    world.origin.write(&world.path, SIZE);
    let begin = || world.bucket.download(&world.path, options());
    let both = tokio::join!(begin(), begin());
    sleep(Duration::from_millis(15)).await;
    drop(both);
    sleep(Duration::from_millis(1)).await;
    let sent = world.origin.data_bytes(None);
    world.assert_idle().await;
    assert_eq!(world.origin.data_bytes(None), sent, "nothing more is sent");
    assert!(sent < SIZE as u64 / 2, "{sent}");
    assert_eq!(world.engine.stats().pool.resident_blocks, 0);
}

#[tokio::test(start_paused = true)]
async fn download_that_begins_after_a_write_does_not_join_one_of_the_older_version() {
    let world = World::new(Consistency::Revalidate(Duration::ZERO));
    world.origin.write(&world.path, SIZE);
    let old = world.bucket.download(&world.path, options()).await.unwrap();
    let new = world.origin.write(&world.path, SIZE);
    let bytes = world.bucket.download(&world.path, options()).await.unwrap();
    assert_eq!(bytes.finish().await.unwrap().into_contiguous(), new.body);
    let error = old.finish().await.unwrap_err();
    let found = EngineError::find(&error);
    assert!(
        matches!(found, Some(EngineError::VersionChanged { .. })),
        "{error}"
    );
    world.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn downloaded_blocks_are_read_without_a_request_unless_asked_otherwise() {
    for cached in [true, false] {
        let world = World::new(HOUR);
        let version = world.origin.write(&world.path, SIZE);
        let wanted = DownloadOptions {
            cached,
            ..options()
        };
        let download = world.bucket.download(&world.path, wanted).await.unwrap();
        let segments = download.finish().await.unwrap();
        let sent = world.origin.data_bytes(None);
        // In the same frames, without further ones.
        let used = world.engine.stats().budget.downloads;
        assert_eq!(world.read().await, version.body);
        let requested = world.origin.data_bytes(None) - sent;
        assert_eq!(requested, if cached { 0 } else { SIZE as u64 });
        if cached {
            assert_eq!(world.engine.stats().budget.downloads, used);
        }
        assert_eq!(segments.into_contiguous(), version.body);
        world.assert_idle().await;
    }
    // Of a range, the blocks that are whole in it.
    let world = World::new(HOUR);
    world.origin.write(&world.path, SIZE);
    let range = BLOCK as u64..5 * BLOCK as u64 + 7;
    let wanted = DownloadOptions {
        range: Some(range.into()),
        ..options()
    };
    let download = world.bucket.download(&world.path, wanted).await.unwrap();
    drop(download.finish().await.unwrap());
    assert_eq!(world.engine.stats().pool.resident_blocks, 4);
    let sent = world.origin.data_requests(None);
    let read = world
        .bucket
        .get_range(&world.path, BLOCK as u64..5 * BLOCK as u64);
    read.await.unwrap();
    assert_eq!(world.origin.data_requests(None), sent);
    world.assert_idle().await;
}
