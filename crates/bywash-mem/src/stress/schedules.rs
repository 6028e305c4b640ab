//! Stress tests on shuttle's schedules: one thread runs at a time, and the next is drawn at random, or by priorities that change
//! a few times (PCT, which finds faults that need few preemptions in unlikely places).
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p bywash-mem --profile soak --lib --target-dir target/shuttle`

use shuttle::rand::RngCore as _;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};

use super::{Plan, run_stress};
use crate::sync::{Step, weaken};

/// Schedules of each kind in the gate; `BYWASH_SHUTTLE_SCHEDULES` overrides it.
const SCHEDULES: usize = 500;
/// The test keeps some kilobytes on its stack, and panics format their message there.
const STACK: usize = 256 << 10;
/// Changes of priority in a PCT schedule.
const DEPTH: usize = 4;

/// Few threads and blocks, so that they interact often.
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

fn small_stress() {
    // Drawn from the schedule, so that a replay runs the same test.
    let seed = shuttle::rand::thread_rng().next_u64();
    run_stress(Plan { seed, ..PLAN }, |_| ());
}

/// Runs a race of a few threads on schedules of both kinds.
pub(super) fn on_all(round: fn()) {
    run(RandomScheduler::new_from_seed, round);
    run(pct, round);
}

fn pct(seed: u64, schedules: usize) -> PctScheduler {
    PctScheduler::new_from_seed(seed, DEPTH, schedules)
}

#[test]
fn stress_test_in_random_order() {
    run(RandomScheduler::new_from_seed, small_stress);
}

#[test]
fn stress_test_with_changing_priorities() {
    run(pct, small_stress);
}

/// Runs a stress test with one step left out, which must fail; the failing check depends on the schedule. In a process of its own: a word that was
/// damaged may end that.
fn control(step: Step, stress: fn()) {
    const CHILD: &str = "BYWASH_WEAKENED";
    if std::env::var_os(CHILD).is_some() {
        weaken(step);
        return stress();
    }
    let this = std::thread::current();
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([this.name().unwrap(), "--exact"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert!(
        !output.status.success(),
        "no stress test failed without {step:?}"
    );
}

#[test]
fn control_pin_without_key_check_fails_the_stress_test() {
    control(Step::Key, stress_test_with_changing_priorities);
}

#[test]
fn control_publish_without_hand_off_pins_fails_the_stress_test() {
    control(Step::HandOff, stress_test_in_random_order);
}

#[test]
fn control_separate_locks_fail_the_stress_test() {
    control(Step::Charge, stress_test_in_random_order);
}

#[test]
fn control_removal_by_tag_fails_the_stress_test() {
    control(Step::RemoveSlot, stress_test_with_changing_priorities);
}
