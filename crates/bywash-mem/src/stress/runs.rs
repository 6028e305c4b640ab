//! Stress tests on threads.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::{Ordering, Plan, StressWorld, run_stress};

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

/// Operations of one seed: as many as evict, erase and change blocks some hundred times.
const SEED_OPS: u64 = 50_000;

/// Sums over the seeds that were played, printed in the form of `testing/support/src/proof.rs` in the end. This crate has no helpers of tests
/// that need a runtime.
struct Played {
    seeds: Range<u64>,
    next: u64,
    operations: u64,
    /// Seeds with each class of events, and these events.
    classes: [(&'static str, u64, u64); 4],
    /// Pairs of classes that were in one seed.
    pairs: BTreeSet<(usize, usize)>,
    failed: bool,
}

impl Played {
    fn add(&mut self, world: &StressWorld) {
        let erased = world
            .known
            .iter()
            .map(|known| known.left.load(Ordering::Relaxed));
        let hits = [
            world.pool.stats().evictions,
            erased.sum(),
            world.changed.load(Ordering::Relaxed),
            world.limits.load(Ordering::Relaxed) / 2,
        ];
        for ((_, seeds, sum), hits) in self.classes.iter_mut().zip(hits) {
            *seeds += u64::from(hits > 0);
            *sum += hits;
        }
        let active = |at: &usize| hits[*at] > 0;
        for one in (0..hits.len()).filter(active) {
            let others = (one + 1..hits.len()).filter(active);
            self.pairs.extend(others.map(|other| (one, other)));
        }
        self.operations += world.plan.ops;
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        let classes = self
            .classes
            .iter()
            .map(|(name, seeds, hits)| format!(r#""{name}":{{"seeds":{seeds},"hits":{hits}}}"#));
        let classes: Vec<_> = classes.collect();
        let all = classes.len() * (classes.len() - 1) / 2;
        let last = self.next - 1;
        let failed = if self.failed {
            last.to_string()
        } else {
            String::new()
        };
        if self.failed {
            println!(
                "\nrepeat: BYWASH_SEED={last} cargo test -p bywash-mem --lib seeds_in_turn -- --ignored"
            );
        }
        println!(
            "\nTRUST {{\"proof\":\"mem-stress\",\"first\":{},\"end\":{},\"seeds\":{},\"operations\":{},\"faults\":{{{}}},\"pairs\":{},\"all_pairs\":{all},\"failed\":[{failed}]}}",
            self.seeds.start,
            self.next,
            self.next - self.seeds.start,
            self.operations,
            classes.join(","),
            self.pairs.len()
        );
    }
}

/// The seeds of `BYWASH_SEED=N` or `BYWASH_SEEDS=A..B`.
fn seeds() -> Range<u64> {
    if let Ok(one) = std::env::var("BYWASH_SEED") {
        let seed = one.parse().unwrap();
        return seed..seed + 1;
    }
    let several = std::env::var("BYWASH_SEEDS").unwrap_or_else(|_| "0..10".to_owned());
    let (first, end) = several.split_once("..").unwrap();
    first.parse().unwrap()..end.parse().unwrap()
}

/// `cargo xtask trust` runs this: seed after seed, until `BYWASH_SECONDS` have passed. On threads a seed fixes the operations of each thread, not how they
/// meet.
#[test]
#[ignore = "run by `cargo xtask trust`, for the time given"]
fn seeds_in_turn() {
    let seeds = seeds();
    let time = Duration::from_secs_f64(
        std::env::var("BYWASH_SECONDS").map_or(60.0, |text| text.parse().unwrap()),
    );
    let start = Instant::now();
    let mut played = Played {
        next: seeds.start,
        seeds: seeds.clone(),
        operations: 0,
        classes: [
            "eviction",
            "erasure",
            "change of key or length",
            "change of the limit",
        ]
        .map(|name| (name, 0, 0)),
        pairs: BTreeSet::new(),
        failed: false,
    };
    for seed in seeds {
        if start.elapsed() >= time {
            return;
        }
        played.next = seed + 1;
        // Until the end of its run.
        played.failed = true;
        let plan = Plan {
            ops: SEED_OPS,
            seed,
            ..PLAN
        };
        played.add(&run_stress(plan, |_| ()));
        played.failed = false;
    }
}
