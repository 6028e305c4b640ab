//! Reads of one resident block without a future: they return the bytes of other reads, or are refused and count nothing.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use bywash::{Consistency, ContentDigest, Verify};
use object_store::GetRange;
use tokio::time::sleep;

use crate::simulation::world::{BLOCK, World};

const WINDOW: Duration = Duration::from_secs(60);
const MINUTE: Consistency = Consistency::Revalidate(WINDOW);

fn body(world: &World) -> Bytes {
    world.oracle.current(&world.path).unwrap().body.clone()
}

/// Reads a range; `None` if it was refused, which must count nothing.
fn read(world: &World, range: Range<u64>) -> Option<Bytes> {
    let before = world.stats();
    let object = world.bucket.resident(world.path.as_ref());
    let bytes = object.and_then(|object| object.read(range));
    if bytes.is_none() {
        assert_eq!(world.stats(), before);
    }
    bytes
}

fn crc32c(bytes: &[u8]) -> ContentDigest {
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes);
    ContentDigest::Crc32c(u32::try_from(crc).unwrap())
}

#[tokio::test(start_paused = true)]
async fn ranges_within_a_resident_block_are_read_and_counted_as_hits() {
    let world = World::new(MINUTE);
    let size = 2 * BLOCK as u64 + 77;
    world.origin.write(&world.path, size as usize);
    assert!(world.bucket.resident(world.path.as_ref()).is_none());
    world.read().await;
    let block = BLOCK as u64;
    for range in [
        0..block,
        5..6,
        block..2 * block,
        2 * block..size,
        size - 1..size,
    ] {
        let before = world.stats();
        let bytes = read(&world, range.clone()).unwrap();
        assert_eq!(
            bytes,
            body(&world)[range.start as usize..range.end as usize]
        );
        let after = world.stats();
        assert_eq!(after.requests - before.requests, 1);
        assert_eq!(after.hits - before.hits, 1);
        assert_eq!(after.bytes - before.bytes, range.end - range.start);
        assert_eq!(after.origin_requests, before.origin_requests);
    }
    for range in [0..size, block - 1..block + 1, size..size + 1] {
        assert!(read(&world, range.clone()).is_none(), "{range:?}");
    }
    world.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn blocks_that_are_not_in_memory_are_refused() {
    let world = World::new(MINUTE);
    world.origin.write(&world.path, 8 * BLOCK);
    world
        .read_range(Some(GetRange::Bounded(0..BLOCK as u64)))
        .await;
    let far = 7 * BLOCK as u64;
    assert!(read(&world, 0..5).is_some());
    assert!(read(&world, far..far + 5).is_none());
    world.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn version_is_read_until_its_window_ends_and_never_after_a_write() {
    let world = World::new(MINUTE);
    world.origin.write(&world.path, 100);
    world.read().await;
    sleep(WINDOW - Duration::from_secs(1)).await;
    assert_eq!(read(&world, 0..100).unwrap(), body(&world));
    sleep(Duration::from_secs(2)).await;
    assert!(read(&world, 0..100).is_none());
    // Read again, the same version is fresh.
    world.read().await;
    assert!(read(&world, 0..100).is_some());
    // Another version at the origin, within the window; once it is known, only its own bytes are returned.
    world.origin.write(&world.path, 50);
    sleep(WINDOW + Duration::from_secs(1)).await;
    assert_eq!(world.read().await.len(), 50);
    assert_eq!(read(&world, 0..50).unwrap(), body(&world));
    assert!(read(&world, 0..100).is_none());
    world.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn whole_object_is_read_once_it_was_compared_with_its_digest() {
    for verify in [Verify::Off, Verify::Whole, Verify::Always] {
        let world = World::with(MINUTE, |builder| builder.verify(verify));
        world.origin.state_digest(crc32c);
        world.origin.write(&world.path, BLOCK);
        let end = BLOCK as u64;
        world.read_range(Some(GetRange::Bounded(0..end - 1))).await;
        // A ranged read before `always` compares the object; with `whole` it does not.
        assert_eq!(read(&world, 0..end).is_some(), verify != Verify::Whole);
        assert!(read(&world, 0..end - 1).is_some());
        world.read().await;
        assert_eq!(read(&world, 0..end).unwrap(), body(&world));
        world.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn reads_that_continue_a_sequential_stream_are_refused() {
    let world = World::new(MINUTE);
    world.origin.write(&world.path, 64 * BLOCK);
    let end = BLOCK as u64;
    world.read_range(Some(GetRange::Bounded(0..end))).await;
    world
        .read_range(Some(GetRange::Bounded(end..2 * end)))
        .await;
    assert!(read(&world, 0..end).is_some(), "begins none");
    // Brings the next block into memory, and ends the stream elsewhere.
    let next = 2 * end;
    world
        .read_range(Some(GetRange::Bounded(next + 1..next + end)))
        .await;
    assert!(read(&world, next + 5..next + end).is_some());
    assert!(read(&world, next..next + end).is_none());
    world.assert_idle().await;
}
