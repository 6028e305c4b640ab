//! Stress tests on threads.

use std::time::{Duration, Instant};

use super::{Ordering, Plan, run_stress};

/// Operations of the test in the gate; `BYWASH_STRESS_OPS` overrides it.
const OPS: u64 = if cfg!(miri) { 400 } else { 1_000_000 };
/// Interval of a soak's progress lines.
const NEWS: Duration = Duration::from_secs(10);

/// Eight threads on a pool that holds half of the keys at best.
const PLAN: Plan = Plan {
    readers: 6,
    uploaders: 2,
    ops: OPS,
    objects: 16,
    pages: 16,
    longest: 6000,
    samples: u64::MAX,
    seed: 1,
};

#[test]
fn random_operations_read_no_wrong_byte() {
    let ops = setting("BYWASH_STRESS_OPS", OPS);
    let world = run_stress(Plan { ops, ..PLAN }, |_| ());
    let compared = world.compared.load(Ordering::Relaxed);
    assert!(compared > ops / 4, "only {compared} blocks were read");
    let evictions = world.pool.stats().evictions;
    assert!(
        cfg!(miri) || evictions > ops / 50,
        "only {evictions} evictions"
    );
    let changed = world.changed.load(Ordering::Relaxed);
    assert!(cfg!(miri) || changed > ops / 200, "only {changed} changes");
}

/// A number from the environment.
fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => default,
    }
}

/// `cargo xtask soak mem` runs this, for the time given.
#[test]
#[ignore = "takes minutes; run by `cargo xtask soak mem`"]
fn soak() {
    let plan = Plan {
        ops: setting("BYWASH_SOAK_OPS", 100_000_000),
        seed: setting("BYWASH_SOAK_SEED", 1),
        ..PLAN
    };
    if !cfg!(debug_assertions) {
        panic!("without debug assertions freed frames are not overwritten");
    }
    println!("{plan:?}");
    let start = Instant::now();
    let mut reported = start;
    let news = |begun: u64, compared: u64, evictions: u64| {
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{seconds:7.0} s  {begun:>11} operations  {:>9.0} a second  {compared:>11} blocks compared  {evictions:>10} evictions",
            begun as f64 / seconds
        );
    };
    let world = run_stress(plan, |world| {
        if reported.elapsed() >= NEWS {
            reported = Instant::now();
            news(
                world.begun.load(Ordering::Relaxed),
                world.compared.load(Ordering::Relaxed),
                world.pool.stats().evictions,
            );
        }
    });
    news(
        world.begun.load(Ordering::Relaxed),
        world.compared.load(Ordering::Relaxed),
        world.pool.stats().evictions,
    );
}
