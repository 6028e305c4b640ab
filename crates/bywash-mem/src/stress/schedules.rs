//! Storms on shuttle's schedules: one thread runs at a time, and which is next is drawn at random, or by priorities that change
//! a few times (PCT, which finds what needs few preemptions in unlikely places).
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p bywash-mem --profile soak --lib --target-dir target/shuttle`

use shuttle::rand::RngCore as _;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};

use super::{Plan, storm};
use crate::sync::{Step, weaken};

/// Schedules of each kind in the gate; `BYWASH_SHUTTLE_SCHEDULES` says another number.
const SCHEDULES: usize = 500;
/// The storm keeps some kilobytes on its stack, and panics format their message there.
const STACK: usize = 256 << 10;
/// Changes of priority in a PCT schedule.
const DEPTH: usize = 4;

/// Few threads and blocks, so that they meet often.
const PLAN: Plan = Plan {
    readers: 4,
    uploaders: 1,
    ops: 100,
    objects: 2,
    pages: 8,
    longest: 4200,
    samples: 100,
    seed: 0,
};

fn setting(name: &str, default: usize) -> usize {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => default,
    }
}

fn run<S: Scheduler + 'static>(
    scheduler: impl FnOnce(u64, usize) -> S,
    schedule: impl Fn() + Send + Sync + 'static,
) {
    let seed = setting("BYWASH_SOAK_SEED", 1) as u64;
    let schedules = setting("BYWASH_SHUTTLE_SCHEDULES", SCHEDULES);
    // Shown when the test fails, above the failing schedule that shuttle prints.
    println!("BYWASH_SOAK_SEED={seed}, {schedules} schedules");
    let mut config = Config::new();
    config.stack_size = STACK;
    config.silence_warnings = true;
    Runner::new(scheduler(seed, schedules), config).run(schedule);
}

fn small_storm() {
    // Drawn from the schedule, so that a replay makes the same storm.
    let seed = shuttle::rand::thread_rng().next_u64();
    storm(Plan { seed, ..PLAN }, |_| ());
}

/// Runs a meeting of a few threads on schedules of both kinds.
pub(super) fn on_all(meeting: fn()) {
    run(RandomScheduler::new_from_seed, meeting);
    run(pct, meeting);
}

fn pct(seed: u64, schedules: usize) -> PctScheduler {
    PctScheduler::new_from_seed(seed, DEPTH, schedules)
}

#[test]
fn a_storm_in_random_order() {
    run(RandomScheduler::new_from_seed, small_storm);
}

#[test]
fn a_storm_by_changing_priorities() {
    run(pct, small_storm);
}

/// A storm with one step left out fails; which check sees it depends on the schedule. In a process of its own, for a word that was
/// damaged may end that.
fn control(step: Step, storm: fn()) {
    const CHILD: &str = "BYWASH_WEAKENED";
    if std::env::var_os(CHILD).is_some() {
        weaken(step);
        return storm();
    }
    let this = std::thread::current();
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([this.name().unwrap(), "--exact"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert!(
        !output.status.success(),
        "no storm found fault without {step:?}"
    );
}

#[test]
fn without_the_look_at_the_key_a_storm_finds_the_wrong_block() {
    control(Step::Key, a_storm_by_changing_priorities);
}

#[test]
fn without_hand_off_pins_run_out() {
    control(Step::HandOff, a_storm_in_random_order);
}

#[test]
fn without_one_lock_for_check_and_charge_a_storm_breaks_the_limit() {
    control(Step::Charge, a_storm_in_random_order);
}

#[test]
fn without_the_look_at_the_slot_a_storm_loses_a_name() {
    control(Step::Leave, a_storm_by_changing_priorities);
}
