//! Readers that leave: which of their loads continue, and which are cancelled.

use std::sync::Arc;
use std::time::Duration;

use bywash::Consistency;
use bywash_sim::{Consume, FaultProfile, Outcome};
use futures::StreamExt as _;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStoreExt as _};
use tokio::time::sleep;

use crate::simulation::world::{BLOCK, World, steady};

const HOUR: Consistency = Consistency::Revalidate(Duration::from_secs(3600));

#[tokio::test(start_paused = true)]
async fn leaving_reader_cancels_only_loads_without_other_waiters() {
    let world = Arc::new(World::new(HOUR));
    let version = world.origin.write(&world.path, 4 * BLOCK);
    let stays = tokio::spawn({
        let world = Arc::clone(&world);
        async move { world.read().await }
    });
    // Starts the load that both wait for, and leaves in the middle of it.
    let leaves = world
        .see(
            GetOptions::default(),
            Consume::Timeout(Duration::from_millis(15)),
        )
        .await;
    assert!(matches!(leaves.outcome, Outcome::Cancelled));
    assert_eq!(stays.await.unwrap(), version.body);
    assert_eq!(
        world.origin.data_bytes(None),
        version.meta.size,
        "the load went on, and was the only one"
    );
}

#[tokio::test(start_paused = true)]
async fn load_without_waiters_is_cancelled() {
    let world = World::new(HOUR);
    let version = world.origin.write(&world.path, 2 << 20);
    let seen = world
        .see(GetOptions::default(), Consume::Cancel { after: 1 })
        .await;
    world.right(seen);
    sleep(Duration::from_secs(10)).await;
    let sent = world.origin.data_bytes(None);
    assert!(
        sent < version.meta.size / 2,
        "{sent} of {} bytes were loaded without a waiter",
        version.meta.size
    );
    world.assert_idle().await;
    assert_eq!(
        world.read().await,
        version.body,
        "and the next reader gets it all"
    );
}

/// A reader of a part of a block leaves with its bytes before the block is complete; the next reader must find it all
/// the same.
#[tokio::test(start_paused = true)]
async fn partially_read_block_is_loaded_once() {
    let block = 16 * BLOCK as u64;
    let world = World::with(HOUR, |builder| builder.block_size(block as usize));
    let version = world.origin.write(&world.path, 3 * block as usize);
    // The beginning, as one range of several blocks and as one within a block; each ends early in a block.
    for range in [0..block + 10, 2 * block..2 * block + 1] {
        let read = world
            .read_range(Some(GetRange::Bounded(range.clone())))
            .await;
        assert_eq!(read.len() as u64, range.end - range.start);
        world.assert_idle().await;
    }
    assert_eq!(world.origin.data_requests(None), 2);
    assert_eq!(world.read().await, version.body);
    assert_eq!(world.origin.data_requests(None), 2, "all of it was here");
    assert_eq!(world.origin.data_bytes(None), version.meta.size);
}

#[tokio::test(start_paused = true)]
async fn at_most_one_block_loads_without_waiters_for_at_most_a_second() {
    let block = 16 * BLOCK as u64;
    let world = World::with(HOUR, |builder| builder.block_size(block as usize));
    for after in [1, block / 2, block - 1, block, block + 1] {
        let path = Path::from(format!("left after {after}"));
        let version = world.origin.write(&path, 8 * block as usize);
        let mut body = world.bucket.get(&path).await.unwrap().into_stream();
        let mut read = 0;
        while read < after {
            read += body.next().await.unwrap().unwrap().len() as u64;
        }
        drop(body);
        world.assert_idle().await;
        let sent = world.origin.data_bytes(Some(&path));
        assert!(
            (read..=read + block + 5 * 4096).contains(&sent),
            "{sent} bytes sent, {read} of {} read",
            version.meta.size
        );
    }
    // 64 pieces of a block, 100 ms each: too long for a load without waiters.
    let slow = FaultProfile {
        pause: Duration::from_millis(100)..Duration::from_millis(100),
        ..steady()
    };
    world.origin.set_fault_profile(slow);
    let path = Path::from("slow");
    world.origin.write(&path, block as usize);
    world.bucket.get_range(&path, 0..1).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    world.assert_idle().await;
    let sent = world.origin.data_bytes(Some(&path));
    assert!(
        (8 * 4096..16 * 4096).contains(&sent),
        "{sent} bytes in a second and a bit"
    );
}

#[tokio::test(start_paused = true)]
async fn reader_that_leaves_before_the_response_leaves_no_load() {
    let world = World::new(HOUR);
    world.origin.write(&world.path, 4 * BLOCK);
    world
        .see(
            GetOptions::default(),
            Consume::Timeout(Duration::from_millis(5)),
        )
        .await;
    sleep(Duration::from_secs(10)).await;
    world.assert_idle().await;
    world.read().await;
}
