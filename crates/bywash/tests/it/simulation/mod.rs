//! The engine in a seeded world: right bytes of one version, or the right error.
//!
//! `seeded_runs` plays a hundred random runs, each with a random half of the faults, and `calm_runs` runs without faults. To run one seed with
//! a full report: `BYWASH_SEED=123 cargo test -p bywash --test it simulation`. To run other seeds: `BYWASH_SEEDS=1000..5000`.

mod absences;
mod cancellation;
mod digests;
mod disk;
mod downloads;
mod faults;
mod hedges;
mod loads;
mod ranges;
mod readahead;
mod resident;
mod shared_downloads;
mod slow_consumers;
mod slow_disk;
mod stalls;
mod versions;
mod world;

use std::collections::BTreeMap;
use std::ops::Range;
use std::thread;

use bywash_sim::{Failure, FaultKind, Report, Scenario};
use bywash_support::proof::{Proof, class};

/// Runs of the fixed set. A run has some hundred reads.
const SEEDS: Range<u64> = 0..130;
/// Runs of the fixed set without faults.
const CALM_SEEDS: Range<u64> = 0..40;
/// Maximum failing seeds that are reported.
const FAILURES_SHOWN: usize = 40;

/// Classes of faults that no request of the origin has: readers that leave, and memory that holds few blocks.
const LEAVES: &str = "reader leaves";
const LITTLE: &str = "little memory";

/// Plays seeds until the last one, and returns the outcome of each.
fn play(proof: &Proof, draw: fn(u64) -> Scenario) -> Vec<Result<Report, Failure>> {
    let mut done = Vec::new();
    while let Some(mut trial) = proof.next() {
        let scenario = draw(trial.seed());
        let outcome = scenario.run();
        match &outcome {
            Ok(report) => {
                trial.operations(report.reads);
                for (kind, hits) in &report.faults {
                    trial.fault(class(kind), *hits);
                }
                // Calm runs have other purposes than faults.
                if !scenario.plan().fault_profile.faults.is_empty() {
                    let left = report.verdicts.get("cancelled");
                    trial.fault(LEAVES, left.copied().unwrap_or_default());
                    trial.fault(LITTLE, u64::from(scenario.plan().tight_memory));
                }
            }
            Err(_) => trial.fail(),
        }
        done.push(outcome);
    }
    done
}

#[test]
fn seeded_runs() {
    let kinds = FaultKind::WITHOUT_DIGEST.iter().map(class);
    let classes: Vec<_> = kinds.chain([LEAVES, LITTLE].map(str::to_owned)).collect();
    let repeat = "cargo test -p bywash --test it simulation::seeded_runs";
    let proof = Proof::new("engine-reads", repeat, SEEDS, &classes);
    let total = play_all(&proof, Scenario::new);
    if proof.is_fixed() {
        check_coverage(&total);
    }
}

/// Without faults no error is excused, no upload stays open, and no block is sent twice.
#[test]
fn calm_runs() {
    let repeat = "cargo test -p bywash --test it simulation::calm_runs";
    let no_class: [&str; 0] = [];
    let proof = Proof::new("engine-calm", repeat, CALM_SEEDS, &no_class);
    let total = play_all(&proof, Scenario::calm);
    assert!(total.faults.is_empty());
    if proof.is_fixed() {
        assert!(total.reads > 2_000, "only {} reads", total.reads);
    }
}

/// Plays all seeds of a proof on all processors; panics with the broken promises.
fn play_all(proof: &Proof, draw: fn(u64) -> Scenario) -> Report {
    let workers = thread::available_parallelism().map_or(2, usize::from);
    let done: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers)
            .map(|_| scope.spawn(|| play(proof, draw)))
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap())
            .collect()
    });
    let (right, wrong): (Vec<_>, Vec<_>) = done.into_iter().partition(Result::is_ok);
    let right: Vec<Report> = right.into_iter().map(Result::unwrap).collect();
    let wrong: Vec<_> = wrong.into_iter().map(Result::unwrap_err).collect();
    let total = sum(&right);
    println!(
        "{} of {} runs right: {total:#?}",
        right.len(),
        right.len() + wrong.len()
    );
    if !wrong.is_empty() {
        for failure in wrong.iter().take(FAILURES_SHOWN) {
            if proof.is_single() {
                failure
                    .requests
                    .iter()
                    .for_each(|request| eprintln!("{request}"));
                eprintln!("{:?}", failure.plan);
            }
            eprintln!("{failure}\n");
        }
        let seeds: Vec<_> = wrong.iter().map(|failure| failure.seed).collect();
        panic!(
            "{} of {} runs broke promises, seeds {seeds:?}",
            wrong.len(),
            wrong.len() + right.len()
        );
    }
    total
}

/// Checks that the runs covered their purpose: a change of the generator that empties them must not pass.
fn check_coverage(total: &Report) {
    assert!(total.reads > 5_000, "only {} reads", total.reads);
    assert!(
        total.downloads > 500,
        "only {} of them downloads",
        total.downloads
    );
    assert!(total.leases > 1_000, "only {} by lease", total.leases);
    let reads = total.verdicts["read"];
    assert!(
        reads * 2 > total.reads,
        "only {reads} of {} reads got bytes",
        total.reads
    );
    for kind in FaultKind::WITHOUT_DIGEST {
        assert!(
            total.faults.get(&kind).is_some_and(|hits| *hits >= 10),
            "{kind:?} hardly ever hit"
        );
    }
    for verdict in [
        "cancelled",
        "absent",
        "condition",
        "range",
        "explained error",
    ] {
        assert!(
            total.verdicts.contains_key(verdict),
            "no read was {verdict:?}"
        );
    }
}

fn sum(reports: &[Report]) -> Report {
    fn add<K: Ord + Copy>(into: &mut BTreeMap<K, u64>, from: &BTreeMap<K, u64>) {
        for (key, count) in from {
            *into.entry(*key).or_default() += count;
        }
    }
    let mut total = Report::default();
    for report in reports {
        total.reads += report.reads;
        total.downloads += report.downloads;
        total.leases += report.leases;
        total.bytes += report.bytes;
        total.origin_requests += report.origin_requests;
        add(&mut total.verdicts, &report.verdicts);
        add(&mut total.faults, &report.faults);
    }
    total
}

/// Makes the line that reproduces a failure meaningful.
#[test]
fn seed_reproduces_its_run() {
    for seed in 0..20 {
        let outcome = |_| {
            Scenario::new(seed)
                .run()
                .map_err(|failure| failure.violations)
        };
        let [first, second] = [0, 1].map(outcome);
        assert_eq!(first, second, "seed {seed}");
    }
}
