//! Negative controls: each rule left out gives a wrong read within a stated number of seeds.
//!
//! [`Rule::Forget`] alone is kept by argument: knowledge from before a lapse is older than the
//! window by the time at which a write without an end is acknowledged, so no read is wrong without
//! it.

use super::plan::Plan;
use std::time::Duration;

use super::run_all;
use super::world::{MS, SECOND};
use crate::rules::Rule;

/// A run without faults, judged from the time at which shards have holders.
pub(super) fn calm(seed: u64) -> Plan {
    Plan {
        calm: true,
        reads: 10 * MS,
        writes: 500 * MS,
        ..Plan::new(seed)
    }
}

/// The first seed below `max` whose run has a wrong read.
fn first_wrong(max: u64, plan: impl Fn(u64) -> Plan) -> Option<u64> {
    first_wrong_of(0..max, plan)
}

/// The first of these seeds whose run has a wrong read; seeds are run by parts.
fn first_wrong_of(seeds: std::ops::Range<u64>, plan: impl Fn(u64) -> Plan) -> Option<u64> {
    const PART: u64 = 16;
    let max = seeds.end;
    seeds.step_by(PART as usize).find_map(|first| {
        let plans: Vec<Plan> = (first..max.min(first + PART)).map(&plan).collect();
        let wrong = run_all(&plans, |world| world.counts.stale + world.counts.old > 0);
        let found = wrong.iter().position(|wrong| *wrong);
        found.map(|at| first + at as u64)
    })
}

/// Rules, and the seeds within which their absence is found.
const SEEDS: [(Rule, u64); 13] = [
    (Rule::OwnDeadline, 50),
    (Rule::ClaimDelay, 30),
    (Rule::Drain, 20),
    (Rule::LeasesKept, 150),
    (Rule::Quiet, 600),
    (Rule::End, 10),
    (Rule::WaitOut, 10),
    (Rule::LeaseFromSending, 50),
    (Rule::LeaseAge, 50),
    (Rule::LeaseDropped, 20),
    (Rule::WaitedLeases, 100),
    (Rule::WriteSince, 50),
    (Rule::JoinUnsent, 1),
];

#[test]
fn rule_left_out_gives_a_wrong_read() {
    for (rule, max) in SEEDS {
        let found = first_wrong(max, |seed| Plan::new(seed).without(rule));
        println!("{rule:?}: {found:?}");
        assert!(found.is_some(), "{rule:?}: none in {max} seeds");
    }
}

/// Responses of the origin are slow, so that questions last longer than the window.
#[test]
fn question_older_than_the_window_gives_an_old_version() {
    let slow = |seed| Plan {
        slow: 30.0,
        ..Plan::new(seed)
    };
    let found = first_wrong(200, |seed| slow(seed).without(Rule::JoinWindow));
    println!("{found:?}");
    assert!(found.is_some());
    assert_eq!(first_wrong(20, slow), None);
}

/// The origin's load, not the results of reads: without the rule a slow origin gets one question
/// more each 150 ms.
#[test]
fn questions_without_their_bound_pile_up() {
    let plans: Vec<Plan> = (0..4)
        .map(|seed| Plan::new(seed).without(Rule::TwoQuestions))
        .collect();
    let most = run_all(&plans, |world| world.counts.direct)
        .into_iter()
        .max();
    println!("{most:?} questions at the same time");
    assert!(most > Some(2));
}

#[test]
fn claim_without_its_guard_gives_a_wrong_read() {
    let unguarded = |seed| Plan {
        unguarded: true,
        ..Plan::new(seed)
    };
    let found = first_wrong(200, unguarded);
    println!("{found:?}");
    assert!(found.is_some());
}

/// The claim delay has two seconds more than a holder's authority. Without them, the moment from which authority counts decides.
#[test]
fn authority_counted_from_the_response_gives_a_wrong_read() {
    let tight = |seed| {
        let mut plan = Plan {
            slow_etcd: true,
            window: SECOND,
            writes: 150 * MS,
            ..Plan::new(seed)
        };
        plan.timing.read_lease = Duration::from_millis(100);
        plan.timing.claim_delay = Duration::from_millis(3720);
        plan
    };
    // One seed in some hundred: those before it find nothing and take a minute.
    let found = first_wrong_of(304..400, |seed| tight(seed).without(Rule::KeepaliveSent));
    println!("{found:?}");
    assert!(found.is_some());
    assert_eq!(first_wrong_of(304..324, tight), None);
}

/// A lease of a full second, and a reader that is cut off.
#[test]
fn leases_without_a_margin_give_a_wrong_read() {
    let busy = |seed| Plan {
        window: 4 * SECOND,
        writes: 150 * MS,
        ..Plan::new(seed)
    };
    let found = first_wrong(400, |seed| busy(seed).without(Rule::LeaseMargin));
    println!("{found:?}");
    assert!(found.is_some());
}

/// No read is stale without it, but reads during a write move back in time.
#[test]
fn write_without_its_begin_makes_reads_go_back() {
    let plans: Vec<Plan> = (0..20)
        .map(|seed| calm(seed).without(Rule::Begin))
        .collect();
    let back: u64 = run_all(&plans, |world| world.counts.back).iter().sum();
    println!("{back} reads went back");
    assert!(back > 0);
}
