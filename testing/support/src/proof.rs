//! Runs of a seeded proof: which seeds it plays and until when, and how many operations and faults of each class they had.
//!
//! `BYWASH_SEED=N` plays one seed, `BYWASH_SEEDS=A..B` several, `BYWASH_SECONDS=S` seeds until that time has passed. In the end a proof prints
//! one line, `TRUST` and a JSON object, from which `cargo xtask trust` makes its table.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::settings::{seeds, setting};

/// Seeds and faults of one class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Class {
    /// Seeds in which a fault of the class happened.
    seeds: u64,
    /// Faults of the class.
    hits: u64,
}

/// Returns the name of a class of faults, from the name of a variant: `StallResponse` is `stall response`.
pub fn class(variant: impl std::fmt::Debug) -> String {
    let name = format!("{variant:?}");
    let mut words = String::with_capacity(name.len() + 4);
    for (at, letter) in name.chars().enumerate() {
        if letter.is_ascii_uppercase() && at > 0 {
            words.push(' ');
        }
        words.push(letter.to_ascii_lowercase());
    }
    words
}

/// Sums over the seeds that were played.
#[derive(Debug, Default)]
struct Sums {
    seeds: u64,
    operations: u64,
    classes: BTreeMap<String, Class>,
    /// Pairs of classes that were active in one seed.
    pairs: BTreeSet<(String, String)>,
    failed: Vec<u64>,
}

/// A proof that plays seed after seed, on one thread or several. Its line is printed when it is dropped.
#[derive(Debug)]
pub struct Proof {
    name: &'static str,
    /// The command that repeats a seed, after `BYWASH_SEED=N `.
    repeat: &'static str,
    fixed: Range<u64>,
    seeds: Range<u64>,
    next: AtomicU64,
    deadline: Option<Instant>,
    has_failed: AtomicBool,
    sums: Mutex<Sums>,
}

impl Proof {
    /// Creates a proof that plays the seeds of the environment, else `fixed`. `classes` are the classes of faults that its runs can have.
    ///
    /// # Panics
    /// If a variable of the environment has another form.
    #[must_use]
    pub fn new(
        name: &'static str,
        repeat: &'static str,
        fixed: Range<u64>,
        classes: &[impl AsRef<str>],
    ) -> Self {
        let seconds = setting("BYWASH_SECONDS", f64::INFINITY);
        let seconds = Duration::try_from_secs_f64(seconds).ok();
        Self::of(name, repeat, fixed.clone(), seeds(fixed), seconds, classes)
    }

    fn of(
        name: &'static str,
        repeat: &'static str,
        fixed: Range<u64>,
        seeds: Range<u64>,
        time: Option<Duration>,
        classes: &[impl AsRef<str>],
    ) -> Self {
        let classes = classes.iter();
        let classes = classes.map(|class| (class.as_ref().to_owned(), Class::default()));
        let sums = Sums {
            classes: classes.collect(),
            ..Sums::default()
        };
        Self {
            name,
            repeat,
            fixed,
            next: AtomicU64::new(seeds.start),
            seeds,
            deadline: time.map(|time| Instant::now() + time),
            has_failed: AtomicBool::new(false),
            sums: Mutex::new(sums),
        }
    }

    /// Returns the next seed to play, until the last one, the end of the time, or a failure in a run that ends by time.
    pub fn next(&self) -> Option<Trial<'_>> {
        let is_over =
            |deadline: &Instant| *deadline <= Instant::now() || self.has_failed.load(Relaxed);
        if self.deadline.as_ref().is_some_and(is_over) {
            return None;
        }
        // The counter orders nothing: each seed is played by itself.
        let seed = self.next.fetch_add(1, Relaxed);
        self.seeds.contains(&seed).then(|| Trial {
            proof: self,
            seed,
            operations: 0,
            faults: BTreeMap::new(),
            is_broken: false,
        })
    }

    /// Returns whether the fixed seeds are played, whose faults are known.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        self.seeds == self.fixed && self.deadline.is_none()
    }

    /// Returns whether one seed is played, to be reported in full.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.seeds.end - self.seeds.start == 1
    }

    fn sums(&self) -> MutexGuard<'_, Sums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The report of the seeds that were played until now.
    fn report(&self) -> serde_json::Value {
        let sums = self.sums();
        let classes = sums.classes.iter();
        let faults: serde_json::Map<_, _> = classes
            .map(|(name, class)| {
                let counts = json!({ "seeds": class.seeds, "hits": class.hits });
                (name.clone(), counts)
            })
            .collect();
        let of = sums.classes.len();
        json!({
            "proof": self.name,
            "first": self.seeds.start,
            "end": self.seeds.end.min(self.next.load(Relaxed)),
            "seeds": sums.seeds,
            "operations": sums.operations,
            "faults": faults,
            "pairs": sums.pairs.len(),
            "all_pairs": of * of.saturating_sub(1) / 2,
            "failed": sums.failed,
        })
    }
}

impl Drop for Proof {
    fn drop(&mut self) {
        // The harness may have begun the line.
        println!("\nTRUST {}", self.report());
    }
}

/// One seed that is played. It counts when it is dropped, and has failed if that is during a panic.
#[derive(Debug)]
pub struct Trial<'a> {
    proof: &'a Proof,
    seed: u64,
    operations: u64,
    faults: BTreeMap<String, u64>,
    is_broken: bool,
}

impl Trial<'_> {
    /// Returns the seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Counts operations whose outcome was judged.
    pub fn operations(&mut self, count: u64) {
        self.operations += count;
    }

    /// Counts faults of a class that happened; none if `hits` is 0.
    pub fn fault(&mut self, class: impl Into<String>, hits: u64) {
        if hits > 0 {
            *self.faults.entry(class.into()).or_default() += hits;
        }
    }

    /// Notes that a promise was broken, in a proof that collects failures.
    pub fn fail(&mut self) {
        self.is_broken = true;
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        let (proof, seed) = (self.proof, self.seed);
        let mut sums = proof.sums();
        if self.is_broken || std::thread::panicking() {
            sums.failed.push(seed);
            proof.has_failed.store(true, Relaxed);
            println!("\nrepeat: BYWASH_SEED={seed} {}", proof.repeat);
        }
        sums.seeds += 1;
        sums.operations += self.operations;
        for (class, hits) in &self.faults {
            let known = sums.classes.entry(class.clone()).or_default();
            known.seeds += 1;
            known.hits += hits;
            let later = self.faults.keys().filter(|other| *other > class);
            let pairs = later.map(|other| (class.clone(), other.clone()));
            sums.pairs.extend(pairs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proof(seeds: Range<u64>, time: Option<Duration>) -> Proof {
        Proof::of("test", "cargo test", 0..3, seeds, time, &["cut", "kill"])
    }

    #[test]
    fn classes_are_named_in_words() {
        #[derive(Debug)]
        struct StallResponse;
        assert_eq!(class(StallResponse), "stall response");
    }

    #[test]
    fn shares_of_faults_are_those_of_seeds() {
        let proof = proof(7..10, None);
        while let Some(mut trial) = proof.next() {
            trial.operations(10);
            trial.fault("cut", trial.seed() - 7);
            trial.fault("kill", u64::from(trial.seed() == 9));
        }
        let report = proof.report();
        assert_eq!(report["faults"]["cut"], json!({ "seeds": 2, "hits": 3 }));
        assert_eq!(report["faults"]["kill"], json!({ "seeds": 1, "hits": 1 }));
        assert_eq!((&report["first"], &report["end"]), (&json!(7), &json!(10)));
        assert_eq!(
            (&report["pairs"], &report["all_pairs"]),
            (&json!(1), &json!(1))
        );
        assert_eq!(
            (&report["seeds"], &report["operations"]),
            (&json!(3), &json!(30))
        );
    }

    #[test]
    fn failed_seeds_are_named_and_end_a_run_by_time() {
        let hour = Duration::from_secs(3600);
        for (time, played) in [(None, 3), (Some(hour), 2)] {
            let proof = proof(7..10, time);
            while let Some(mut trial) = proof.next() {
                if trial.seed() == 8 {
                    trial.fail();
                }
            }
            let report = proof.report();
            assert_eq!(
                (&report["failed"], &report["seeds"]),
                (&json!([8]), &json!(played))
            );
        }
    }

    #[test]
    fn panic_fails_its_seed() {
        let proof = proof(7..10, None);
        let outcome = std::panic::catch_unwind(|| {
            let _trial = proof.next();
            panic!("planted");
        });
        assert!(outcome.is_err());
        assert_eq!(proof.report()["failed"], json!([7]));
    }

    #[test]
    fn no_seed_is_played_after_the_time() {
        let proof = proof(7..10, Some(Duration::ZERO));
        assert!(proof.next().is_none());
        assert_eq!(proof.report()["end"], json!(7));
        assert!(!proof.is_fixed() && !proof.is_single());
    }
}
