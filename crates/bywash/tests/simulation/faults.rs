//! An origin that fails: what is repeated, from where, for how long, and who gets the error.

use std::sync::Arc;
use std::time::Duration;

use bywash::{Consistency, EngineError, RetryPolicy};
use bywash_sim::{Consume, Fault, FaultKind, Observation, Outcome, Validators, Weather};
use futures::future::join_all;
use object_store::{GetOptions, GetRange};
use tokio::time::Instant;

use crate::world::{BLOCK, World, steady};

const HOUR: Consistency = Consistency::Ttl(Duration::from_secs(3600));

fn down() -> Weather {
    Weather {
        faults: vec![(FaultKind::Unavailable, 1.0)],
        ..steady()
    }
}

fn is_unavailable(seen: &Observation) -> bool {
    let Outcome::Failed(error) = &seen.outcome else {
        return false;
    };
    matches!(
        EngineError::find(error),
        Some(EngineError::OriginUnavailable { .. })
    )
}

#[tokio::test(start_paused = true)]
async fn a_failure_belongs_to_those_who_waited() {
    let policy = RetryPolicy {
        deadline: Duration::from_secs(5),
        ..RetryPolicy::default()
    };
    let world = Arc::new(World::with(HOUR, |builder| builder.retry(policy)));
    let version = world.origin.write(&world.path, 2 * BLOCK);
    world.origin.set_weather(down());
    let reads = (0..8).map(|_| {
        let world = Arc::clone(&world);
        tokio::spawn(async move { world.see(GetOptions::default(), Consume::All).await })
    });
    for seen in join_all(reads).await {
        let seen = world.right(seen.unwrap());
        assert!(is_unavailable(&seen), "{:?}", seen.outcome);
    }
    world.assert_idle().await;
    world.origin.set_weather(steady());
    assert_eq!(
        world.read().await,
        version.body,
        "the next reader tries anew"
    );
}

#[tokio::test(start_paused = true)]
async fn one_fault_of_each_kind_is_not_noticed() {
    let faults = [
        Fault::Unavailable,
        Fault::StallAnswer,
        Fault::SlowFirstByte(Duration::from_secs(3)),
        Fault::Reset { after: 0 },
        Fault::Reset { after: 5_000 },
        Fault::Short { after: 5_000 },
        Fault::Stall { after: 5_000 },
        Fault::Long { by: 10 },
        Fault::OtherRange,
        Fault::RangeIgnored,
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
async fn after_a_reset_the_load_continues_at_the_byte_reached() {
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
    assert_eq!(log[1].answered.as_ref().unwrap().start, reached);
    assert!(log[1].pinned, "the rest is asked of the same version");
}

#[tokio::test(start_paused = true)]
async fn progress_starts_the_deadline_anew() {
    let world = World::new(HOUR);
    let version = world.origin.write(&world.path, 4 * BLOCK);
    let policy = RetryPolicy::default();
    // Each try brings 4 KiB and then no sign of life: longer altogether than the deadline.
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
async fn without_progress_the_deadline_ends_it() {
    let world = World::new(HOUR);
    world.origin.write(&world.path, 4 * BLOCK);
    world
        .origin
        .script(&world.path, vec![vec![Fault::StallAnswer]; 100]);
    let begun = Instant::now();
    let seen = world.right(world.see(GetOptions::default(), Consume::All).await);
    assert!(is_unavailable(&seen), "{:?}", seen.outcome);
    let policy = RetryPolicy::default();
    let longest = policy.deadline + policy.stall + policy.longest_pause;
    assert!(begun.elapsed() <= longest, "{:?}", begun.elapsed());
    world.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn unreachable_is_never_deleted() {
    let world = World::with(Consistency::Revalidate(Duration::from_secs(1)), |builder| {
        builder.retry(RetryPolicy {
            deadline: Duration::from_secs(5),
            ..RetryPolicy::default()
        })
    });
    let version = world.origin.write(&world.path, BLOCK);
    world.read().await;
    world.origin.set_weather(down());
    tokio::time::sleep(Duration::from_secs(10)).await;
    let seen = world.right(world.see(GetOptions::default(), Consume::All).await);
    assert!(is_unavailable(&seen), "{:?}", seen.outcome);
    world.origin.set_weather(steady());
    let bytes = world.origin.data_bytes(None);
    assert_eq!(world.read().await, version.body);
    assert_eq!(
        world.origin.data_bytes(None),
        bytes,
        "what was cached is still good"
    );
}

/// A body without validator cannot be continued: its rest could be that of another version.
#[tokio::test(start_paused = true)]
async fn a_broken_body_without_validator_is_an_error_not_a_guess() {
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
