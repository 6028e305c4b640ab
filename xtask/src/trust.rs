//! `cargo xtask trust`: every seeded proof on seeds that no run before had, and planted faults that the proofs must find.

mod catalog;
mod faults;
mod intervals;
mod page;
mod planted;
mod programs;
mod report;

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::run::{Failure, Step, doing, target};
use catalog::{PROOFS, Proof};
use intervals::Intervals;
use programs::{Programs, Run};
use report::Report;

/// Arguments of `cargo xtask trust`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Minutes that the proofs take together, without the build.
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// Only these proofs.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Play the seeds, and change neither `testing/seeds.toml` nor `docs/trust.md`.
    #[arg(long)]
    dry: bool,
    /// Build the programs with the profile `soak` first, which takes longer; by default they are those of the gate.
    #[arg(long)]
    optimised: bool,
    /// Run the proofs against planted faults instead, one after the other, and write `docs/planted-faults.md`.
    #[arg(long)]
    planted: bool,
    /// Of the planted faults, only those whose name contains one of these.
    #[arg(long, value_delimiter = ',', requires = "planted")]
    fault: Vec<String>,
    /// Longest time that a proof takes for one planted fault, in seconds.
    #[arg(long, default_value_t = 60, requires = "planted")]
    seconds: u64,
}

/// Runs the proofs, or the planted faults.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.planted {
        return planted::run(&planted::Limits {
            names: args.fault.clone(),
            seconds: args.seconds,
            dry: args.dry,
        });
    }
    let chosen = chosen(&args.only)?;
    let programs = match args.optimised {
        true => Programs::optimised()?,
        false => Programs::of_gate()?,
    };
    let commit = commit();
    let begun = Instant::now();
    let rounds = Rounds {
        programs: &programs,
        commit: &commit,
        dry: args.dry,
        intervals: Mutex::new(Intervals::read()?),
    };
    let ended = rounds.play(&chosen, args.minutes * 60.0);
    let seconds = begun.elapsed().as_secs_f64();
    let played = rounds.intervals.into_inner();
    let intervals = played.unwrap_or_else(std::sync::PoisonError::into_inner);
    let page = page::Page {
        ended: &ended,
        intervals: &intervals,
        commit: &commit,
        optimised: args.optimised,
        command: page::command(args.minutes, args.optimised, &args.only),
        seconds,
    };
    println!("\n{}", page.table());
    if !args.dry {
        page.write()?;
    }
    println!("{}", page.sums());
    let failed = ended.iter().filter(|ended| !ended.passed);
    let failed: Vec<_> = failed.map(|ended| ended.proof.name).collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::Missing(format!("failed: {}", failed.join(", "))))
}

fn chosen(only: &[String]) -> Result<Vec<&'static Proof>, Failure> {
    for name in only {
        if PROOFS.iter().all(|proof| proof.name != *name) {
            let known: Vec<_> = PROOFS.iter().map(|proof| proof.name).collect();
            let known = known.join(", ");
            return Err(Failure::Missing(format!("no proof {name}: {known}")));
        }
    }
    let is_chosen = |proof: &&Proof| only.is_empty() || only.iter().any(|name| name == proof.name);
    Ok(PROOFS.iter().filter(is_chosen).collect())
}

/// The commit, marked if the sources differ from it.
fn commit() -> String {
    let head = Step::new("git").args(["rev-parse", "--short=8", "HEAD"]);
    let head = head.output().unwrap_or_default();
    let sources = ["crates", "testing", "xtask", "Cargo.toml", "Cargo.lock"];
    let changed = Step::new("git").args(["status", "--porcelain", "--"]);
    let changed = changed.args(sources).args([":!testing/seeds.toml"]);
    let changed = changed.output().unwrap_or_default();
    let mark = if changed.trim().is_empty() {
        ""
    } else {
        "-changed"
    };
    format!("{}{mark}", head.trim())
}

/// How a proof ended.
struct Ended {
    proof: &'static Proof,
    passed: bool,
    seconds: f64,
    /// `None` if it did not say what it played.
    report: Option<Report>,
    /// Seeds that failed, now or in an earlier run, and have not passed since.
    failing: Vec<u64>,
}

/// What all proofs of a run share.
struct Rounds<'a> {
    programs: &'a Programs,
    commit: &'a str,
    dry: bool,
    intervals: Mutex<Intervals>,
}

impl Rounds<'_> {
    /// Plays proofs within so many seconds: those that use all processors one after the other, then the others side by side.
    fn play(&self, proofs: &[&'static Proof], seconds: f64) -> Vec<Ended> {
        let weights: f64 = proofs.iter().map(|proof| proof.weight).sum();
        let lanes = thread::available_parallelism().map_or(1, usize::from);
        let (wide, narrow): (Vec<_>, Vec<_>) = proofs.iter().partition(|proof| proof.is_wide);
        let time = |proof: &Proof| seconds * proof.weight / weights;
        let mut ended: Vec<_> = wide
            .into_iter()
            .map(|proof| self.one(proof, time(proof)))
            .collect();
        let next = AtomicUsize::new(0);
        let lane = || {
            let mut ended = Vec::new();
            // The counter orders nothing: each proof is taken once.
            while let Some(proof) = narrow.get(next.fetch_add(1, Ordering::Relaxed)) {
                ended.push(self.one(proof, time(proof) * lanes as f64));
            }
            ended
        };
        thread::scope(|scope| {
            let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
            ended.extend(
                lanes
                    .into_iter()
                    .flat_map(|lane| lane.join().unwrap_or_default()),
            );
        });
        ended.sort_by_key(|ended| {
            PROOFS
                .iter()
                .position(|proof| proof.name == ended.proof.name)
        });
        ended
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Intervals> {
        let intervals = self.intervals.lock();
        intervals.unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Plays these seeds of a proof. Returns whether all passed, and what it reported.
    fn run(
        &self,
        proof: &'static Proof,
        seeds: Range<u64>,
        seconds: f64,
    ) -> (bool, Option<Report>) {
        let run = Run {
            proof,
            seeds,
            seconds,
            // A proof ends its last seed after its time.
            limit: Duration::from_secs_f64(seconds * 2.0 + 300.0),
            fault: None,
        };
        match self.programs.play(&run) {
            Ok(outcome) => (outcome.passed(), outcome.report),
            Err(failure) => {
                println!("{}: {failure}", proof.name);
                (false, None)
            }
        }
    }

    /// Plays one proof for so long: the seeds that failed before, then those after the last.
    fn one(&self, proof: &'static Proof, seconds: f64) -> Ended {
        let begun = Instant::now();
        let name = proof.name;
        let (failing, first) = {
            let intervals = self.lock();
            (intervals.failing(name), intervals.next(name))
        };
        for seed in failing {
            let (passed, _) = self.run(proof, seed..seed + 1, seconds);
            let verdict = if passed { "passes now" } else { "FAILS still" };
            println!("{name}: seed {seed} {verdict}");
            self.lock().judge(name, self.commit, seed, passed);
        }
        let (passed, report) = self.run(proof, first..first + intervals::ENDLESS, seconds);
        let seconds = begun.elapsed().as_secs_f64();
        let seeds = report.as_ref().map_or(0, |report| report.seeds);
        let verdict = if passed { "" } else { ", FAILED" };
        println!("{name}: {seeds} seeds from {first} in {seconds:.0} s{verdict}");
        let mut intervals = self.lock();
        for seed in report.iter().flat_map(|report| &report.failed) {
            intervals.judge(name, self.commit, *seed, false);
        }
        let failing = intervals.failing(name);
        if let (Some(report), false) = (&report, self.dry) {
            intervals.add(name, self.commit, first..report.end);
            if let Err(failure) = intervals.write() {
                println!("{name}: {failure}");
            }
        }
        Ended {
            proof,
            passed: passed && report.is_some() && failing.is_empty(),
            seconds,
            report,
            failing,
        }
    }
}

/// The folder of what proofs write to standard error.
fn logs() -> Result<PathBuf, Failure> {
    let folder = target().join("trust");
    std::fs::create_dir_all(&folder).map_err(doing(format!("create {}", folder.display())))?;
    Ok(folder)
}

/// How a program ended; `None` if it was killed after its longest time.
type End = Option<ExitStatus>;
