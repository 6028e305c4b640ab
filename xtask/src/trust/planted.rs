//! `cargo xtask trust --planted`: which proof finds each planted fault, and after how many seeds.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::catalog;
use super::commit;
use super::faults::{FAULTS, Fault, Tests, places};
use super::intervals::ENDLESS;
use super::programs::{PACKAGES, Programs, Run};
use crate::run::{Failure, Step, doing, root};

const PAGE: &str = "docs/planted-faults.md";
/// Faults that are hunted at once.
const LANES: usize = 4;
/// What a row says of a fault that nothing found.
const NOT_FOUND: &str = "**not found**";

/// Which faults are planted, and for how long a proof plays seeds against each.
pub(super) struct Limits {
    pub(super) names: Vec<String>,
    pub(super) seconds: u64,
    pub(super) dry: bool,
}

/// What found a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    /// A proof, at this seed of those that it played.
    Proof {
        name: &'static str,
        seeds: u64,
    },
    /// A proof that did not end.
    Hang {
        name: &'static str,
    },
    /// A test of the gate.
    Test(String),
    Nothing,
}

/// Builds all programs with the feature, plants each fault in turn, and writes the page. Fails if one is not found.
pub(super) fn run(limits: &Limits) -> Result<(), Failure> {
    let is_chosen = |fault: &&Fault| {
        let names = &limits.names;
        names.is_empty() || names.iter().any(|name| fault.name.contains(name.as_str()))
    };
    let chosen: Vec<_> = FAULTS.iter().filter(is_chosen).collect();
    let sources = sources()?;
    let places = places(&sources);
    let is_planted_in = |package: &&str| {
        let folder = format!("crates/{package}/");
        places.iter().any(|(_, place)| place.starts_with(&folder))
    };
    let packages = PACKAGES.iter().filter(|package| is_planted_in(package));
    let features: Vec<_> = packages
        .map(|name| format!("{name}/planted-faults"))
        .collect();
    let programs = Programs::with(&features)?;
    let hunt = Hunt {
        programs,
        seconds: limits.seconds,
    };
    hunt.control(&chosen)?;
    let begun = Instant::now();
    let rows = at_once(&chosen, |fault| {
        let begun = Instant::now();
        let found = hunt.find(fault)?;
        let (text, seconds) = (found.text(), begun.elapsed().as_secs_f64());
        println!("{}: {text} ({seconds:.0} s)", fault.name);
        Ok((*fault, found))
    })?;
    let missed = rows.iter().filter(|(_, found)| *found == Found::Nothing);
    let missed: Vec<_> = missed.map(|(fault, _)| fault.name).collect();
    println!(
        "{} of {} planted faults found",
        rows.len() - missed.len(),
        rows.len()
    );
    if !limits.dry && limits.names.is_empty() {
        write(&rows, &places, limits.seconds, begun.elapsed())?;
    }
    if missed.is_empty() {
        return Ok(());
    }
    Err(Failure::Missing(format!(
        "not found: {}",
        missed.join(", ")
    )))
}

impl Found {
    fn text(&self) -> String {
        match self {
            Self::Proof { name, seeds } => format!("found by `{name}` after {seeds} seeds"),
            Self::Hang { name } => format!("found by `{name}`, which does not end"),
            Self::Test(name) => format!("found by the test `{name}`"),
            Self::Nothing => "NOT FOUND".to_owned(),
        }
    }

    /// The last columns of a row.
    fn columns(&self) -> String {
        match self {
            Self::Proof { name, seeds } => format!("`{name}` | {seeds}"),
            Self::Hang { name } => format!("`{name}`, which does not end | 1"),
            Self::Test(name) => format!("test `{name}` | -"),
            Self::Nothing => format!("{NOT_FOUND} | -"),
        }
    }
}

/// Runs `run` for each item, a few at once, as proofs also wait, and returns the results in their order.
fn at_once<T: Sync, R: Send>(
    items: &[T],
    run: impl Fn(&T) -> Result<R, Failure> + Sync,
) -> Result<Vec<R>, Failure> {
    let next = AtomicUsize::new(0);
    let lane = || {
        let mut done = Vec::new();
        loop {
            // The counter orders nothing: each item is taken once.
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else {
                return done;
            };
            done.push((at, run(item)));
        }
    };
    let mut done: Vec<_> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        let ended = lanes
            .into_iter()
            .map(|lane| lane.join().unwrap_or_default());
        ended.flatten().collect()
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

struct Hunt {
    programs: Programs,
    seconds: u64,
}

impl Hunt {
    fn play(
        &self,
        name: &str,
        seconds: u64,
        fault: Option<&str>,
    ) -> Result<super::programs::Outcome, Failure> {
        let proof = catalog::find(name);
        let proof = proof.ok_or_else(|| Failure::Missing(format!("no proof {name}")))?;
        self.programs.play(&Run {
            proof,
            seeds: 0..ENDLESS,
            seconds: seconds as f64,
            limit: Duration::from_secs(2 * seconds + 60),
            fault,
        })
    }

    /// The control: without a fault, each of the proofs and tests passes in the same programs.
    fn control(&self, faults: &[&Fault]) -> Result<(), Failure> {
        let mut proofs: Vec<_> = faults.iter().flat_map(|fault| fault.proofs).collect();
        proofs.sort_unstable();
        proofs.dedup();
        let controls = at_once(&proofs, |name| {
            let outcome = self.play(name, 2, None)?;
            if outcome.passed() && outcome.report.is_some() {
                return Ok(());
            }
            let text = format!("{name} fails without a planted fault");
            Err(Failure::Missing(text))
        });
        controls.map(drop)
    }

    fn find(&self, fault: &Fault) -> Result<Found, Failure> {
        for proof in fault.proofs {
            let outcome = self.play(proof, self.seconds, Some(fault.name))?;
            match outcome.end {
                None => return Ok(Found::Hang { name: proof }),
                Some(_) if outcome.passed() => {}
                Some(_) => {
                    let seeds = outcome.report.map_or(1, |report| report.seeds.max(1));
                    return Ok(Found::Proof { name: proof, seeds });
                }
            }
        }
        let Some(tests) = fault.tests else {
            return Ok(Found::Nothing);
        };
        let failed = self.failed(tests, Some(fault.name))?;
        if failed.is_empty() {
            return Ok(Found::Nothing);
        }
        // A test that fails without the fault too shows nothing.
        let without = self.failed(tests, None)?;
        let found = failed.into_iter().find(|name| !without.contains(name));
        Ok(found.map_or(Found::Nothing, Found::Test))
    }

    fn failed(&self, tests: Tests, fault: Option<&str>) -> Result<Vec<String>, Failure> {
        // Tests that are killed on a busy machine have found nothing.
        let limit = Duration::from_secs((10 * self.seconds).max(300));
        let place = (tests.package, tests.target, tests.filter);
        self.programs.failed_tests(place, fault, limit)
    }
}

fn write(
    rows: &[(&Fault, Found)],
    places: &[(String, String)],
    seconds: u64,
    took: Duration,
) -> Result<(), Failure> {
    let date = Step::new("date").args(["-u", "+%F"]).output()?;
    let found = rows.iter().filter(|(_, found)| *found != Found::Nothing);
    let mut text = format!(
        "# Planted faults\n\nWritten by `cargo xtask trust --planted --seconds {seconds}` on {}, commit {}, in {:.0} s. Each fault is one wrong step behind \
         the feature `planted-faults`, which no build for use has; `BYWASH_PLANTED=NAME` plants it in a build with the feature. A proof plays seeds \
         from 0 on until one fails, for at most {seconds} s; where a test of the gate is named, the proofs of the crate have not found the fault or do \
         not reach it. Without a fault all of them pass in the same programs.\n\n{} of {} were found.\n\n\
         | fault | what goes wrong | where | found by | seeds |\n|---|---|---|---|---|\n",
        date.trim(),
        commit(),
        took.as_secs_f64(),
        found.count(),
        rows.len()
    );
    for (fault, found) in rows {
        let place = places.iter().find(|(name, _)| name == fault.name);
        let place = place.map_or("", |(_, place)| place.split(':').next().unwrap_or(place));
        text.push_str(&format!(
            "| `{}` | {} | `{place}` | {} |\n",
            fault.name,
            fault.what,
            found.columns()
        ));
    }
    fs::write(root().join(PAGE), text).map_err(doing(format!("write {PAGE}")))
}

/// What the page says of all planted faults, for the line of sums.
pub(super) fn sums() -> String {
    let text = fs::read_to_string(root().join(PAGE)).unwrap_or_default();
    let rows: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("| `"))
        .collect();
    let missed = rows.iter().filter(|row| row.contains(NOT_FOUND)).count();
    let seeds = rows.iter().filter_map(|row| {
        let seeds = row.trim_end_matches(" |").rsplit("| ").next()?;
        seeds.parse::<u64>().ok()
    });
    let mut seeds: Vec<_> = seeds.collect();
    seeds.sort_unstable();
    let most = seeds.last().copied().unwrap_or_default();
    let median = seeds.get(seeds.len() / 2).copied().unwrap_or_default();
    format!(
        "planted faults found: {} of {}, by seeds {} of them, after {median} seeds in the median, {most} at most",
        rows.len() - missed,
        rows.len(),
        seeds.len()
    )
}

/// The sources of the crates, with their paths from the root.
pub(super) fn sources() -> Result<Vec<(String, String)>, Failure> {
    fn walk(folder: &Path, found: &mut Vec<(String, String)>) -> std::io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                walk(&path, found)?;
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let below = path.strip_prefix(root()).unwrap_or(&path);
                found.push((below.display().to_string(), fs::read_to_string(&path)?));
            }
        }
        Ok(())
    }
    let mut found = Vec::new();
    walk(&root().join("crates"), &mut found).map_err(doing("read crates"))?;
    found.sort();
    Ok(found)
}
