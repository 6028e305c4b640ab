//! A failing origin: which requests are retried, from which byte, for how long, and which readers get the error.

use std::sync::Arc;
use std::time::Duration;

use bywash::{Consistency, OriginError, RetryPolicy};
use bywash_sim::{Consume, Fault, FaultKind, FaultProfile, Observation, Outcome, Validators};
use futures::future::join_all;
use object_store::{GetOptions, GetRange};
use tokio::time::Instant;

use crate::simulation::world::{BLOCK, World, steady};

const HOUR: Consistency = Consistency::Revalidate(Duration::from_secs(3600));

fn down() -> FaultProfile {
    FaultProfile {
        faults: vec![(FaultKind::Unavailable, 1.0)],
        ..steady()
    }
}

fn is_unavailable(seen: &Observation) -> bool {
    let Outcome::Failed(error) = &seen.outcome else {
        return false;
    };
    matches!(
        OriginError::find(error),
        Some(OriginError::OriginUnavailable { .. })
    )
}

#[tokio::test(start_paused = true)]
async fn failure_is_returned_to_the_waiting_readers_only() {
    let policy = RetryPolicy {
        deadline: Duration::from_secs(5),
        ..RetryPolicy::default()
    };
    let world = Arc::new(World::with(HOUR, |builder| builder.retry(policy)));
    let version = world.origin.write(&world.path, 2 * BLOCK);
    world.origin.set_fault_profile(down());
    let reads = (0..8).map(|_| {
        let world = Arc::clone(&world);
        tokio::spawn(async move { world.see(GetOptions::default(), Consume::All).await })
    });
    for seen in join_all(reads).await {
        let seen = world.right(seen.unwrap());
        assert!(is_unavailable(&seen), "{:?}", seen.outcome);
    }
    world.assert_idle().await;
    world.origin.set_fault_profile(steady());
    assert_eq!(
        world.read().await,
        version.body,
        "the next reader tries anew"
    );
}

#[tokio::test(start_paused = true)]
async fn one_fault_of_each_kind_is_recovered() {
    let faults = [
        Fault::Unavailable,
        Fault::StallResponse,
        Fault::SlowFirstByte(Duration::from_secs(3)),
        Fault::Reset { after: 0 },
        Fault::Reset { after: 5_000 },
        Fault::Short { after: 5_000 },
        Fault::Stall { after: 5_000 },
        Fault::Long { by: 10 },
        Fault::WrongRange,
        Fault::IgnoreRange,
    ];
    for validators in [
        Validators::Strong,
        Validators::Weak,
        Validators::LastModified,
    ] {
        for fault in faults {
            for range in [
                None,
                Some(GetRange::Bounded(100..2 * BLOCK as u64)),
                Some(GetRange::Suffix(9_000)),
            ] {
                let world = World::new(HOUR);
                world.origin.set_validators(validators);
                let version = world.origin.write(&world.path, 3 * BLOCK);
                world.origin.script(&world.path, [vec![fault]]);
                println!("{validators:?} {fault:?} {range:?}");
                let right = match &range {
                    None => 0..3 * BLOCK,
                    Some(range) => {
                        let range = range.as_range(version.meta.size).unwrap();
                        usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()
                    }
                };
                assert_eq!(world.read_range(range).await, version.body.slice(right));
                world.assert_idle().await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn load_continues_at_the_byte_reached_after_a_reset() {
    let world = World::new(HOUR);
    let version = world.origin.write(&world.path, 4 * BLOCK);
    let reached = BLOCK as u64 + 4096;
    world
        .origin
        .script(&world.path, [vec![Fault::Reset { after: reached }]]);
    assert_eq!(world.read().await, version.body);
    let log = world.origin.log();
    assert_eq!(
        world.origin.data_bytes(None),
        version.meta.size,
        "no byte came twice: {log:?}"
    );
    assert_eq!(log[1].sent_range.as_ref().unwrap().start, reached);
    assert!(log[1].pinned, "the rest is requested of the same version");
    assert_eq!(world.stats().retries, 1);
}

#[tokio::test(start_paused = true)]
async fn progress_resets_the_retry_deadline() {
    let world = World::new(HOUR);
    let version = world.origin.write(&world.path, 4 * BLOCK);
    let policy = RetryPolicy::default();
    // Each attempt returns 4 KiB and then stalls: longer altogether than the deadline.
    let tries = 8;
    world
        .origin
        .script(&world.path, vec![vec![Fault::Stall { after: 4096 }]; tries]);
    let begun = Instant::now();
    assert_eq!(world.read().await, version.body);
    assert!(begun.elapsed() > policy.deadline, "{:?}", begun.elapsed());
    assert_eq!(world.origin.data_bytes(None), version.meta.size);
}

#[tokio::test(start_paused = true)]
async fn retries_end_at_the_deadline_without_progress() {
    let world = World::new(HOUR);
    world.origin.write(&world.path, 4 * BLOCK);
    world
        .origin
        .script(&world.path, vec![vec![Fault::StallResponse]; 100]);
    let begun = Instant::now();
    let seen = world.right(world.see(GetOptions::default(), Consume::All).await);
    assert!(is_unavailable(&seen), "{:?}", seen.outcome);
    let policy = RetryPolicy::default();
    let longest = policy.deadline + policy.stall + policy.max_backoff;
    assert!(begun.elapsed() <= longest, "{:?}", begun.elapsed());
    world.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn unreachable_origin_is_never_not_found() {
    let world = World::with(Consistency::Revalidate(Duration::from_secs(1)), |builder| {
        builder.retry(RetryPolicy {
            deadline: Duration::from_secs(5),
            ..RetryPolicy::default()
        })
    });
    let version = world.origin.write(&world.path, BLOCK);
    world.read().await;
    world.origin.set_fault_profile(down());
    tokio::time::sleep(Duration::from_secs(10)).await;
    let seen = world.right(world.see(GetOptions::default(), Consume::All).await);
    assert!(is_unavailable(&seen), "{:?}", seen.outcome);
    world.origin.set_fault_profile(steady());
    let bytes = world.origin.data_bytes(None);
    assert_eq!(world.read().await, version.body);
    assert_eq!(
        world.origin.data_bytes(None),
        bytes,
        "what was cached is still good"
    );
}

/// A body without validator cannot be continued: its rest could be of another version.
#[tokio::test(start_paused = true)]
async fn broken_body_without_validator_is_an_error() {
    let world = World::new(HOUR);
    world.origin.set_validators(Validators::None);
    world.origin.write(&world.path, 3 * BLOCK);
    world.origin.script(
        &world.path,
        [vec![
            Fault::Reset { after: 9_000 },
            Fault::ChangeDuring { after: 5_000 },
        ]],
    );
    let seen = world.see(GetOptions::default(), Consume::All).await;
    assert!(
        matches!(seen.outcome, Outcome::Failed(_)),
        "{:?}",
        seen.outcome
    );
    world.right(seen);
    world.assert_idle().await;
}
