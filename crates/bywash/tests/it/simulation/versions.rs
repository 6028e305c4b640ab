//! One version per read; and for how long a version is trusted.

use std::sync::Arc;
use std::time::Duration;

use bywash::{Consistency, EngineError};
use bywash_sim::{Consume, Fault, FaultKind, FaultProfile, Outcome, Validators};
use futures::TryStreamExt as _;
use futures::future::join_all;
use object_store::{GetOptions, GetRange, ObjectStore as _, ObjectStoreExt as _};
use tokio::time::sleep;

use crate::simulation::world::{BLOCK, World, steady};

const HOUR: Consistency = Consistency::Revalidate(Duration::from_secs(3600));
const SECOND: Consistency = Consistency::Revalidate(Duration::from_secs(1));
const CHECKED: [Validators; 3] = [
    Validators::Strong,
    Validators::Weak,
    Validators::LastModified,
];

/// The main case: one block is cached, the object is overwritten, and a read needs more blocks.
#[tokio::test(start_paused = true)]
async fn cached_blocks_of_an_old_version_never_mix_with_new_ones() {
    for validators in CHECKED {
        // Also when the origin ignores the precondition.
        for lies in [vec![], vec![Fault::IgnorePrecondition]] {
            let world = World::new(HOUR);
            world.origin.set_validators(validators);
            world.origin.write(&world.path, 4 * BLOCK);
            world
                .read_range(Some(GetRange::Bounded(0..BLOCK as u64)))
                .await;
            let new = world.origin.write(&world.path, 4 * BLOCK);
            world.origin.script(&world.path, [lies.clone()]);
            // The old version may be trusted for an hour, but its other blocks are gone. The first block may have
            // been returned before that is detected; then the read must fail.
            let seen = world.right(world.see(GetOptions::default(), Consume::All).await);
            match &seen.outcome {
                Outcome::Complete => assert_eq!(seen.body, new.body, "{validators:?} {lies:?}"),
                outcome => assert!(
                    is_version_change(outcome),
                    "{validators:?} {lies:?}: {outcome:?}"
                ),
            }
            assert_eq!(world.read().await, new.body, "{validators:?} {lies:?}");
            assert_eq!(
                world.read_range(Some(GetRange::Bounded(0..9))).await,
                new.body.slice(..9)
            );
        }
    }
}

fn is_version_change(outcome: &Outcome) -> bool {
    let Outcome::Failed(error) = outcome else {
        return false;
    };
    matches!(
        EngineError::find(error),
        Some(EngineError::VersionChanged { .. })
    )
}

#[tokio::test(start_paused = true)]
async fn read_that_returned_bytes_never_continues_with_another_version() {
    for validators in CHECKED {
        let world = World::new(HOUR);
        world.origin.set_validators(validators);
        world.origin.write(&world.path, 8 * BLOCK);
        let broken = vec![
            Fault::ChangeDuring { after: 20_000 },
            Fault::Reset { after: 40_000 },
        ];
        world.origin.script(&world.path, [broken]);
        let seen = world.see(GetOptions::default(), Consume::All).await;
        assert!(
            matches!(seen.outcome, Outcome::Failed(_)),
            "{validators:?}: {:?}",
            seen.outcome
        );
        assert!(world.judge(&seen).is_ok() || !seen.body.is_empty());
        let prefix = bywash_sim::Observation {
            outcome: Outcome::Cancelled,
            ..seen
        };
        world.right(prefix);
        assert_eq!(
            world.read().await,
            world.oracle.current(&world.path).unwrap().body
        );
        world.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn change_is_seen_after_the_window_by_one_request() {
    for validators in CHECKED {
        let world = Arc::new(World::new(SECOND));
        world.origin.set_validators(validators);
        let old = world.origin.write(&world.path, 2 * BLOCK);
        assert_eq!(world.read_version().await, old.number);
        sleep(Duration::from_secs(2)).await;
        let (requests, bytes) = (world.origin.requests(), world.origin.data_bytes(None));
        let reads = (0..16).map(|_| {
            let world = Arc::clone(&world);
            tokio::spawn(async move { world.read_version().await })
        });
        for number in join_all(reads).await {
            assert_eq!(number.unwrap(), old.number);
        }
        let log = world.origin.log();
        assert_eq!(
            world.origin.requests(),
            requests + 1,
            "{validators:?}: one question for all: {log:?}"
        );
        assert_eq!(
            world.origin.data_bytes(None),
            bytes,
            "{validators:?}: nothing changed, nothing came"
        );
        let new = world.origin.write(&world.path, 2 * BLOCK);
        sleep(Duration::from_secs(2)).await;
        assert_eq!(world.read_version().await, new.number);
    }
}

#[tokio::test(start_paused = true)]
async fn immutable_bucket_requests_the_version_once() {
    let world = World::new(Consistency::Immutable);
    let version = world.origin.write(&world.path, 2 * BLOCK);
    for _ in 0..3 {
        assert_eq!(world.read_version().await, version.number);
        sleep(Duration::from_secs(86_400)).await;
    }
    assert_eq!(world.origin.requests(), 1);
}

#[tokio::test(start_paused = true)]
async fn listing_confirms_versions() {
    let world = World::new(HOUR);
    let old = world.origin.write(&world.path, 2 * BLOCK);
    assert_eq!(world.read_version().await, old.number);
    let new = world.origin.write(&world.path, 2 * BLOCK);
    assert_eq!(
        world.read_version().await,
        old.number,
        "trusted for an hour"
    );
    let listed: Vec<_> = world.bucket.list(None).try_collect().await.unwrap();
    assert_eq!(listed[0].e_tag, new.meta.e_tag);
    assert_eq!(
        world.read_version().await,
        new.number,
        "but a list knows better"
    );
}

#[tokio::test(start_paused = true)]
async fn deleted_object_is_not_found_after_the_window() {
    let world = World::new(SECOND);
    world.origin.write(&world.path, 2 * BLOCK);
    world.read().await;
    world.origin.remove(&world.path);
    sleep(Duration::from_secs(2)).await;
    let seen = world.right(world.see(GetOptions::default(), Consume::All).await);
    assert!(
        matches!(
            seen.outcome,
            Outcome::Failed(object_store::Error::NotFound { .. })
        ),
        "{:?}",
        seen.outcome
    );
    assert_eq!(world.engine.stats().pool.flights, 0);
}

#[tokio::test(start_paused = true)]
async fn object_deleted_while_read_is_version_changed_or_read_whole() {
    let world = World::new(HOUR);
    world.origin.write(&world.path, 4 * BLOCK);
    world.read_range(Some(GetRange::Bounded(0..9))).await;
    // One 404 for the pinned version, but a new version exists when the read starts over.
    world.origin.script(&world.path, [vec![Fault::NotFound]]);
    let new = world.origin.write(&world.path, 4 * BLOCK);
    let absent = GetRange::Offset(2 * BLOCK as u64);
    assert_eq!(
        world.read_range(Some(absent)).await,
        new.body.slice(2 * BLOCK..)
    );
}

#[tokio::test(start_paused = true)]
async fn write_invalidates_after_the_origin_confirmed_and_not_before() {
    for validators in [
        Validators::Strong,
        Validators::Weak,
        Validators::LastModified,
        Validators::None,
    ] {
        let world = World::new(HOUR);
        world.origin.set_validators(validators);
        let old = world.origin.write(&world.path, 2 * BLOCK);
        assert_eq!(world.read_version().await, old.number);
        world.origin.set_fault_profile(FaultProfile {
            faults: vec![(FaultKind::Unavailable, 1.0)],
            ..steady()
        });
        let body = bywash_support::pattern(99, 3 * BLOCK);
        world
            .bucket
            .put(&world.path, body.clone().into())
            .await
            .unwrap_err();
        world.origin.set_fault_profile(steady());
        assert_eq!(
            world.read_version().await,
            old.number,
            "{validators:?}: the origin never confirmed it"
        );
        let start = world.oracle.now();
        world
            .bucket
            .put(&world.path, body.clone().into())
            .await
            .unwrap();
        world
            .oracle
            .acknowledge(&world.path, start, bywash_sim::WriteEffect::Body(&body))
            .unwrap();
        assert_eq!(world.read().await, body, "{validators:?}");
        let start = world.oracle.now();
        world.bucket.delete(&world.path).await.unwrap();
        world
            .oracle
            .acknowledge(&world.path, start, bywash_sim::WriteEffect::Deleted)
            .unwrap();
        let seen = world.right(world.see(GetOptions::default(), Consume::All).await);
        assert!(
            matches!(
                seen.outcome,
                Outcome::Failed(object_store::Error::NotFound { .. })
            ),
            "{:?}",
            seen.outcome
        );
    }
}

#[tokio::test(start_paused = true)]
async fn long_body_is_an_atomic_upload() {
    let world = World::new(HOUR);
    let old = world.origin.write(&world.path, BLOCK);
    let body = bywash_support::pattern(5, 9 * BLOCK + 1);
    let stream = |bytes: &bytes::Bytes, fails: bool| {
        let pieces: Vec<_> = bytes
            .chunks(10_000)
            .map(bytes::Bytes::copy_from_slice)
            .map(Ok)
            .collect();
        let error = fails.then(|| {
            Err(object_store::Error::Generic {
                store: "test",
                source: "client left".into(),
            })
        });
        let stream: bywash::PartBody =
            Box::pin(futures::stream::iter(pieces.into_iter().chain(error)));
        stream
    };
    world
        .bucket
        .put_stream(&world.path, Default::default(), stream(&body, true))
        .await
        .unwrap_err();
    assert_eq!(world.read_version().await, old.number);
    assert_eq!(world.origin.open_uploads(), 0, "what was begun is aborted");
    let start = world.oracle.now();
    world
        .bucket
        .put_stream(&world.path, Default::default(), stream(&body, false))
        .await
        .unwrap();
    world
        .oracle
        .acknowledge(&world.path, start, bywash_sim::WriteEffect::Body(&body))
        .unwrap();
    assert_eq!(world.read().await, body);
    assert_eq!(world.origin.open_uploads(), 0);
}

#[tokio::test(start_paused = true)]
async fn preconditions_are_checked_against_the_current_version() {
    let world = World::new(SECOND);
    let old = world.origin.write(&world.path, BLOCK);
    world.read().await;
    let same = GetOptions::new().with_if_none_match(old.meta.e_tag.clone());
    let seen = world.right(world.see(same.clone(), Consume::All).await);
    assert!(
        matches!(
            seen.outcome,
            Outcome::Failed(object_store::Error::NotModified { .. })
        ),
        "{:?}",
        seen.outcome
    );
    world.origin.write(&world.path, BLOCK);
    sleep(Duration::from_secs(2)).await;
    let seen = world.right(world.see(same, Consume::All).await);
    assert!(
        matches!(seen.outcome, Outcome::Complete),
        "{:?}",
        seen.outcome
    );
    let gone = GetOptions::new().with_if_match(old.meta.e_tag.clone());
    let seen = world.right(world.see(gone, Consume::All).await);
    assert!(
        matches!(
            seen.outcome,
            Outcome::Failed(object_store::Error::Precondition { .. })
        ),
        "{:?}",
        seen.outcome
    );
}
