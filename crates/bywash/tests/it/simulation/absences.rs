//! Absent keys, and the time for which no request is sent for them.

use std::time::Duration;

use bywash::Consistency;
use bywash_sim::{Consume, Outcome, Verdict};
use futures::TryStreamExt as _;
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectStore as _, ObjectStoreExt as _, PutPayload};
use tokio::time::sleep;

use crate::simulation::world::{BLOCK, World};

const SECOND: Consistency = Consistency::Revalidate(Duration::from_secs(1));

/// Sends a GET and a HEAD; both must correctly find nothing.
async fn find_nothing(world: &World) {
    for head in [false, true] {
        let options = GetOptions {
            head,
            ..GetOptions::default()
        };
        let seen = world.see(options, Consume::All).await;
        assert!(
            matches!(&seen.outcome, Outcome::Failed(Error::NotFound { .. })),
            "{:?}",
            seen.outcome
        );
        assert_eq!(world.judge(&seen), Ok(Verdict::Absent));
    }
}

#[tokio::test(start_paused = true)]
async fn absent_key_costs_one_request_per_window() {
    let world = World::new(SECOND);
    for _ in 0..8 {
        find_nothing(&world).await;
    }
    assert_eq!(world.origin.requests(), 1);
    assert_eq!(world.stats().absences, 15);
    sleep(Duration::from_millis(1001)).await;
    find_nothing(&world).await;
    assert_eq!(world.origin.requests(), 2);
    // Another process writes: seen when the window ends.
    let new = world.origin.write(&world.path, BLOCK);
    find_nothing(&world).await;
    sleep(Duration::from_millis(1001)).await;
    assert_eq!(world.read_version().await, new.number);
    let stats = world.stats();
    assert_eq!(
        (stats.absences, stats.requests),
        (18, 21),
        "the others sent requests"
    );
}

#[tokio::test(start_paused = true)]
async fn write_ends_an_absence_at_once() {
    let world = World::new(SECOND);
    for body in ["first", "second"] {
        find_nothing(&world).await;
        let payload = PutPayload::from_static(body.as_bytes());
        world.bucket.put(&world.path, payload).await.unwrap();
        let result = world.bucket.get(&world.path).await.unwrap();
        assert_eq!(result.bytes().await.unwrap(), body);
        world.bucket.delete(&world.path).await.unwrap();
    }
    let other = Path::from("other");
    world
        .bucket
        .put(&other, PutPayload::from_static(b"copied"))
        .await
        .unwrap();
    find_nothing(&world).await;
    world.bucket.copy(&other, &world.path).await.unwrap();
    assert_eq!(world.bucket.head(&world.path).await.unwrap().size, 6);
}

#[tokio::test(start_paused = true)]
async fn listing_with_the_key_ends_an_absence() {
    let world = World::new(Consistency::Revalidate(Duration::from_secs(3600)));
    find_nothing(&world).await;
    let new = world.origin.write(&world.path, BLOCK);
    sleep(Duration::from_millis(1)).await;
    let listed: Vec<_> = world.bucket.list(None).try_collect().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(world.read_version().await, new.number);
}

#[tokio::test(start_paused = true)]
async fn absent_keys_are_not_cached_in_immutable_buckets() {
    let world = World::new(Consistency::Immutable);
    find_nothing(&world).await;
    assert_eq!(world.origin.requests(), 2);
    assert_eq!(world.stats().absences, 0);
}

#[tokio::test(start_paused = true)]
async fn full_table_evicts_the_oldest_absent_keys() {
    // Longer than the requests take.
    let window = Duration::from_secs(3600);
    let world = World::new(Consistency::Revalidate(window));
    let head = async |number: u64| {
        let path = Path::from(format!("none/{number}"));
        let before = world.stats().absences;
        world.bucket.head(&path).await.unwrap_err();
        world.stats().absences - before
    };
    let mut keys = 0;
    let full = loop {
        assert_eq!(head(keys).await, 0, "it is new");
        keys += 1;
        let absent = world.engine.stats().objects.absent;
        if keys > 2 * absent {
            break absent;
        }
    };
    for number in keys - 1000..keys {
        assert_eq!(head(number).await, 1, "the newest are remembered");
    }
    for number in 0..10 {
        assert_eq!(head(number).await, 0, "the oldest left");
    }
    let now = world.engine.stats().objects.absent;
    assert!(now.abs_diff(full) < full / 10, "{full} and {now}");
}
