//! The hardest cases by name, each with the fault that it is about and no other: no read is wrong, and without the rule that the case is
//! about one is.

use super::chaos::Fault;
use super::plan::Plan;
use super::run_all;
use super::world::{Counts, MS, SECOND};
use crate::rules::Rule;

/// Seeds of a case.
const SEEDS: u64 = 16;

fn is_wrong(counts: &Counts) -> bool {
    counts.stale + counts.old > 0
}

/// Runs a case with all rules, and then without one for `max` seeds at most. Returns the counts of the runs with all rules.
#[track_caller]
fn run_case(plan: impl Fn(u64) -> Plan, rule: Rule, max: u64) -> Vec<Counts> {
    let plans: Vec<Plan> = (0..SEEDS).map(&plan).collect();
    let runs = run_all(&plans, |world| {
        let first = world.oracles.iter().find_map(|of| of.first.clone());
        assert_eq!(first, None, "seed {}", world.plan.seed);
        world.counts.clone()
    });
    let plans: Vec<Plan> = (0..max).map(|seed| plan(seed).without(rule)).collect();
    let wrong = run_all(&plans, |world| is_wrong(&world.counts));
    let found = wrong.iter().position(|wrong| *wrong);
    println!("{rule:?}: {found:?}");
    assert!(found.is_some(), "{rule:?}: none in {max} seeds");
    runs
}

/// Processes stop for up to half a minute between a look at the clock and the response that it decided.
#[test]
fn case_2_holder_that_stops_before_its_response_is_never_believed_later() {
    let stopped = |seed| Plan {
        only: &[Fault::ChangeByOthers],
        stopped: 0.2,
        stops: &[1500, 9000, 30_000],
        writes: 300 * MS,
        ..Plan::new(seed)
    };
    run_case(stopped, Rule::LeaseFromSending, 20);
}

/// Leases of live nodes end early, and keepalives are confirmed for two seconds more, as by a leader that was stopped.
#[test]
fn case_3_lease_that_ends_early_beside_confirmed_keepalives_makes_no_read_stale() {
    let lying = |seed| Plan {
        only: &[Fault::Revoke],
        lies: 60.0,
        faults: 900 * MS,
        writes: 300 * MS,
        ..Plan::new(seed)
    };
    run_case(lying, Rule::ClaimDelay, 10);
}

/// The lease of a live holder is revoked while it is cut off with one reader.
#[test]
fn case_4_revoked_holder_on_an_island_makes_no_read_stale() {
    let island = |seed| Plan {
        only: &[Fault::Island],
        revoked: 100.0,
        writes: 300 * MS,
        ..Plan::new(seed)
    };
    run_case(island, Rule::ClaimDelay, 10);
}

/// A holder and one reader have neither etcd nor the third node, which writes.
#[test]
fn case_6_holder_and_reader_on_an_island_return_no_stale_read() {
    let island = |seed| Plan {
        only: &[Fault::Island],
        revoked: 0.0,
        writes: 300 * MS,
        ..Plan::new(seed)
    };
    run_case(island, Rule::OwnDeadline, 20);
}

/// Changes at etcd reach one node a minute late: it is right or slow, and etcd refuses its claims.
#[test]
fn case_7_node_with_a_late_watch_returns_no_stale_read() {
    let late = |seed| Plan {
        only: &[Fault::Revoke, Fault::Restart, Fault::HandOver],
        late_watch: true,
        writes: 300 * MS,
        ..Plan::new(seed)
    };
    let runs = run_case(late, Rule::ClaimDelay, 40);
    let refused: u64 = runs.iter().map(|counts| counts.refused).sum();
    println!("{refused} claims were refused");
    assert!(refused > 0);
}

/// Clocks differ by 16 %, leases last a second, and readers that hold one are cut off.
#[test]
fn case_16_leases_end_in_time_on_the_slowest_and_the_fastest_clock() {
    let extreme = |seed| Plan {
        only: &[Fault::CutNodes, Fault::HandOver],
        extreme_clocks: true,
        faults: 900 * MS,
        window: 4 * SECOND,
        reads: 10 * MS,
        writes: 150 * MS,
        ..Plan::new(seed)
    };
    run_case(extreme, Rule::LeaseMargin, 20);
}

/// All leases end at once, as by an etcd that was stopped, and one holder does not learn it and is not heard.
#[test]
fn case_5_leases_that_all_end_make_no_read_stale() {
    let revoked = |seed| Plan {
        only: &[Fault::RevokeAll],
        faults: 6000 * MS,
        reads: 5 * MS,
        writes: 100 * MS,
        window: SECOND,
        ..Plan::new(seed)
    };
    run_case(revoked, Rule::ClaimDelay, 10);
}
