//! The gate: its stages, in order, each timed; it stops at the first that fails.

use std::fs;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::clients::{self, Selection};
use crate::counts::Counts;
use crate::disk;
use crate::load::Load;
use crate::proofs;
use crate::retry;
use crate::run::{Failure, Step, doing, root, target};
use crate::shard;
use crate::siege;
use crate::tools;

/// One stage of the gate, in the order they run: what fails fast comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Stage {
    /// Install what the gate needs into its cache.
    Tools,
    /// Formatting.
    Fmt,
    /// House rules: arrows between crates, file sizes, banned words, claims that name their tests.
    Tidy,
    /// Builds every target but those of xtask, which tidy builds; clippy lints them in the same pass, warnings denied.
    Clippy,
    /// The documentation builds, warnings denied. Only by name.
    Doc,
    /// The benchmarks build and their tests pass, warnings denied. Only by name.
    Bench,
    /// Licences, bans and sources of all dependencies.
    Deny,
    /// The crates that are for others can be packaged, and the engine builds without clients of stores.
    Package,
    /// Unit, property, integration and documentation tests.
    Unit,
    /// Model checks of the memory core, and of the disk tier.
    Loom,
    /// Stress tests of the memory core, on random schedules of shuttle.
    Shuttle,
    /// boto3 and the AWS CLI, of today and of 2023, DuckDB, pyarrow, Polars, obstore, rclone, s3fs, gcsfs, s3cmd, minio-py, delta-rs, PyIceberg,
    /// Lance, Google's storage libraries for Python, Go and Java, and Bywash's own Python package against the server of the stage before.
    Clients,
    /// A third of the cases of the siege once, chosen by the commit, against the same server in a control group.
    Siege,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Fmt => "fmt",
            Self::Tidy => "tidy",
            Self::Deny => "deny",
            Self::Package => "package",
            Self::Clippy => "clippy",
            Self::Doc => "doc",
            Self::Bench => "bench",
            Self::Unit => "unit",
            Self::Loom => "loom",
            Self::Shuttle => "shuttle",
            Self::Clients => "clients",
            Self::Siege => "siege",
        }
    }

    /// Maximum seconds on two idle cores in a fresh clone, as docs/testing.md has them.
    fn budget(self) -> u64 {
        match self {
            // Beside clippy.
            Self::Tools => 420,
            Self::Fmt => 10,
            Self::Tidy => 60,
            Self::Clippy => 720,
            Self::Unit => 600,
            Self::Clients => 540,
            // At the lowest priority.
            Self::Doc | Self::Loom | Self::Bench => 480,
            Self::Deny => 120,
            Self::Package => 300,
            Self::Shuttle => 240,
            Self::Siege => 360,
        }
    }

    /// Whether the stage runs tests that write into the temporary folder.
    pub(crate) fn runs_tests(&self) -> bool {
        matches!(self, Self::Unit | Self::Clients | Self::Siege)
    }

    /// Whether the stage only computes: it takes what `unit` and `clients` leave of the processor while they wait, with a target folder of its own, and
    /// has ended before the siege, which measures times.
    fn runs_in_background(self) -> bool {
        matches!(
            self,
            Self::Doc | Self::Deny | Self::Package | Self::Loom | Self::Shuttle
        )
    }

    /// Removes what the stage has built for itself alone.
    fn remove_target(self) {
        if matches!(self, Self::Doc | Self::Package | Self::Loom | Self::Shuttle) {
            // What cannot be removed only takes space.
            let _ = fs::remove_dir_all(target().join(self.name()));
        }
    }

    /// Whether the stage uses what [`Stage::Tools`] installs.
    fn needs_tools(self) -> bool {
        !matches!(
            self,
            Self::Fmt | Self::Tidy | Self::Clippy | Self::Doc | Self::Bench
        )
    }

    fn run(self, counts: &mut Counts, args: &Selection) -> Result<(), Failure> {
        match self {
            Self::Tools => tools::ensure().map(|_| tools::remove_go_caches()),
            Self::Fmt => Step::cargo(["fmt", "--all", "--check"]).run(),
            Self::Tidy => {
                Step::linting_cargo(["test", "--quiet", "-p", "xtask"]).run_counted(counts)
            }
            Self::Deny => deny(),
            Self::Package => package(),
            Self::Clippy => tests().args(["--no-run"]).run(),
            Self::Doc => Step::cargo(["doc", "--quiet", "--workspace", "--no-deps"])
                .target("doc")
                .env("RUSTDOCFLAGS", "-D warnings")
                .run(),
            Self::Bench => {
                Step::linting_cargo(["test", "--quiet", "-p", "bywash-bench"]).run_counted(counts)
            }
            Self::Unit => retry::run(
                |names, found| unit(names, args.whole).run_counted(found),
                counts,
            ),
            Self::Loom => loom(counts),
            Self::Shuttle => proofs::shuttle(None).run_counted(counts),
            Self::Clients => clients::run(counts, args),
            Self::Siege => siege::gate(counts, args.whole),
        }
    }
}

/// All tests of the product, and the lints of what they build.
pub(crate) fn tests() -> Step {
    Step::linting_cargo(["test", "--quiet", "--workspace", "--exclude", "xtask"])
        // Its rivals are 40 packages that nothing else needs.
        .args(["--exclude", "bywash-bench"])
}

/// Returns the step that runs the commit's shard of the unit tests, all unit tests if `whole` is set, or the tests with these names.
fn unit(names: &[String], whole: bool) -> Step {
    // Tests wait for servers and disks: more than processors.
    let threads = if names.is_empty() { "4" } else { "1" };
    let step = tests()
        .args(["--no-fail-fast"])
        .env("RUST_TEST_THREADS", threads);
    if !names.is_empty() {
        return step.args(["--", "--exact"]).args(names);
    }
    if whole {
        return step;
    }
    let left_out = shard::tests_left_out(shard::commit());
    println!("left to other commits: {}", left_out.join(", "));
    let skips = left_out.iter().flat_map(|name| ["--skip", name]);
    step.args(["--"]).args(skips)
}

/// Checks licences, bans and sources, and advisories where their database can be fetched.
fn deny() -> Result<(), Failure> {
    let program = tools::cargo_deny()?;
    let mut checks = vec!["check", "bans", "licenses", "sources"];
    if Step::new(&program).args(["fetch", "db"]).succeeds() {
        checks.push("advisories");
    } else {
        println!("advisories are not checked: their database cannot be fetched from here");
    }
    Step::new(program).args(checks).run()
}

/// Builds the engine without clients of stores, packages the crates that are for others, and compares their public interface with its list. Members that only test, and the extension of Python, say `publish = false`.
fn package() -> Result<(), Failure> {
    let crates = root().join("crates");
    let mut step = Step::cargo(["package", "--quiet", "--no-verify", "--allow-dirty"]);
    for folder in fs::read_dir(&crates).map_err(doing(format!("list {}", crates.display())))? {
        let folder = folder.map_err(doing(format!("list {}", crates.display())))?;
        let manifest = folder.path().join("Cargo.toml");
        let text =
            fs::read_to_string(&manifest).map_err(doing(format!("read {}", manifest.display())))?;
        if text.contains("publish.workspace = true") {
            step = step.args(["--package"]).args([folder.file_name()]);
        }
    }
    step.target("package").run()?;
    let check = ["check", "--quiet", "--package", "bywash"];
    Step::cargo(check)
        .args(["--no-default-features"])
        .target("package")
        .run()?;
    crate::api::run(false)
}

/// How a stage ended, and when.
struct Ended {
    stage: Stage,
    time: Duration,
    counts: Counts,
    outcome: Result<(), Failure>,
}

impl Ended {
    fn of(stage: Stage, args: &Selection) -> Self {
        println!("== {}", stage.name());
        let start = Instant::now();
        let mut counts = Counts::default();
        let outcome = stage.run(&mut counts, args);
        if outcome.is_err() && counts.failed == 0 {
            // A stage without tests of its own (fmt, clippy), or one that did not build, is one failed check.
            counts.failed = 1;
        }
        let time = start.elapsed();
        println!("== {}: {:.1} s", stage.name(), time.as_secs_f64());
        Self {
            stage,
            time,
            counts,
            outcome,
        }
    }

    /// Removes what a stage that passed has built for itself, in a run of a fresh clone.
    fn removed_if(self, complete: bool) -> Self {
        if complete && self.outcome.is_ok() {
            self.stage.remove_target();
        }
        self
    }
}

/// Which stages are run, and how.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// Only these; all if it is empty.
    pub(crate) only: Vec<Stage>,
    /// Not these.
    pub(crate) skip: Vec<Stage>,
    /// Fail if this machine could not run something.
    pub(crate) complete: bool,
    /// Next to busy processes.
    pub(crate) under_load: bool,
}

impl Run {
    pub(crate) fn only(stage: Stage) -> Self {
        Self {
            only: vec![stage],
            ..Self::default()
        }
    }

    /// Returns the chosen stages in the gate's order. `doc` and `bench` are run by name only: one checks every dependency once more, the other
    /// builds those of rivals.
    fn stages(&self) -> Vec<Stage> {
        let is_chosen = |stage: &Stage| {
            if !self.only.is_empty() {
                self.only.contains(stage)
            } else if self.under_load {
                stage.runs_tests()
            } else {
                !matches!(stage, Stage::Doc | Stage::Bench)
            }
        };
        let all = Stage::value_variants().iter().copied();
        all.filter(|stage| is_chosen(stage) && !self.skip.contains(stage))
            .collect()
    }
}

/// Runs the chosen stages, the tools beside those that need none, and those that only compute beside the tests. Prints the time of each with its budget, the counts of all, and
/// what this machine could not run, which fails a run that must be `complete`. Such a run is of a fresh clone: what a stage has built for itself is
/// removed after it.
pub(crate) fn run(run: &Run, args: &Selection) -> Result<(), Failure> {
    let start = Instant::now();
    let mut chosen = run.stages();
    disk::check(&chosen)?;
    let _load = run.under_load.then(Load::start).transpose()?;
    let mut tools = None;
    if chosen.contains(&Stage::Tools) {
        chosen.retain(|stage| *stage != Stage::Tools);
        tools = Some(thread::spawn(|| {
            Ended::of(Stage::Tools, &Selection::default())
        }));
    }
    // Without the tests there is nothing to run beside.
    let has_tests = chosen.contains(&Stage::Unit);
    let (aside, chosen): (Vec<Stage>, Vec<Stage>) = chosen
        .into_iter()
        .partition(|stage| has_tests && stage.runs_in_background());
    let mut background = None;
    let mut ended = Vec::new();
    for stage in chosen {
        if stage.needs_tools() {
            ended.extend(tools.take().and_then(|tools| tools.join().ok()));
        }
        if stage == Stage::Siege {
            ended.extend(background.take().into_iter().flat_map(join));
        }
        if ended.iter().any(|ended| ended.outcome.is_err()) {
            break;
        }
        if stage == Stage::Unit {
            background = Some(start_background(aside.clone(), run.complete));
        }
        ended.push(Ended::of(stage, args).removed_if(run.complete));
    }
    ended.extend(tools.and_then(|tools| tools.join().ok()));
    ended.extend(background.into_iter().flat_map(join));
    report(ended, start.elapsed(), run.complete)
}

/// Runs these stages one after the other at the lowest priority, until the first fails.
fn start_background(stages: Vec<Stage>, complete: bool) -> JoinHandle<Vec<Ended>> {
    thread::spawn(move || {
        if let Err(error) = lower_priority() {
            println!("stages in the background run at the priority of the others: {error}");
        }
        let mut ended = Vec::new();
        for stage in stages {
            let stage = Ended::of(stage, &Selection::default()).removed_if(complete);
            let failed = stage.outcome.is_err();
            ended.push(stage);
            if failed {
                break;
            }
        }
        ended
    })
}

fn join(background: JoinHandle<Vec<Ended>>) -> Vec<Ended> {
    background.join().unwrap_or_default()
}

/// Gives this thread, and the processes that it will start, the lowest priority.
fn lower_priority() -> Result<(), Failure> {
    let own = fs::read_link("/proc/thread-self").map_err(doing("read the number of a thread"))?;
    let number = own.file_name().unwrap_or_default();
    Step::new("renice")
        .args(["-n", "19", "-p"])
        .args([number])
        .run()
}

fn report(ended: Vec<Ended>, total: Duration, complete: bool) -> Result<(), Failure> {
    println!("\nstage      seconds  budget");
    let mut counts = Counts::default();
    let mut result = Ok(());
    for Ended {
        stage,
        time,
        counts: found,
        outcome,
    } in ended
    {
        let (seconds, budget) = (time.as_secs_f64(), stage.budget());
        let over = if seconds > budget as f64 {
            "  over"
        } else {
            ""
        };
        println!("{:<10} {seconds:>7.1} {budget:>7}{over}", stage.name());
        counts += found;
        if let (Err(cause), true) = (outcome, result.is_ok()) {
            let stage = stage.name();
            result = Err(Failure::Stage {
                stage,
                cause: Box::new(cause),
                repeat: format!("cargo xtask test --only {stage}"),
            });
        }
    }
    println!("{:<10} {:>7.1}\n", "all", total.as_secs_f64());
    for reason in &counts.left_out {
        println!("left out: {reason}");
    }
    for name in &counts.passed_alone {
        println!("depends on the speed of the machine, failed at first and passed alone: {name}");
    }
    println!("{counts}");
    if complete && result.is_ok() && !counts.left_out.is_empty() {
        return Err(Failure::Missing(format!(
            "the gate is incomplete ({} left out, see above): install what is missing, or run it without --complete",
            counts.left_out.len()
        )));
    }
    result
}

/// Loom replaces the atomics by a `cfg`, so its build has a target folder of its own: the other one stays warm.
fn loom(counts: &mut Counts) -> Result<(), Failure> {
    let models = |package: &str| {
        Step::cargo(["test", "--quiet", "--release", "-p", package])
            .args(["--lib"])
            .target("loom")
            .env("RUSTFLAGS", "--cfg loom")
    };
    models("bywash-mem").run_counted(counts)?;
    // Its other tests use the system's threads.
    models("bywash-disk").args(["models"]).run_counted(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_under_load_are_those_that_run_tests() {
        let under_load = |only: &[Stage], skip: &[Stage]| Run {
            only: only.to_vec(),
            skip: skip.to_vec(),
            under_load: true,
            ..Run::default()
        };
        let stages = under_load(&[], &[Stage::Siege]).stages();
        assert_eq!(stages, [Stage::Unit, Stage::Clients]);
        assert_eq!(under_load(&[Stage::Loom], &[]).stages(), [Stage::Loom]);
        assert_eq!(Run::only(Stage::Doc).stages(), [Stage::Doc]);
        let mut all = Stage::value_variants().to_vec();
        all.retain(|stage| !matches!(stage, Stage::Doc | Stage::Bench));
        assert_eq!(Run::default().stages(), all);
    }

    fn ended(outcome: Result<(), Failure>, left_out: &[&str]) -> Vec<Ended> {
        let counts = Counts {
            left_out: left_out.iter().map(|&line| line.to_owned()).collect(),
            ..Counts::default()
        };
        vec![Ended {
            stage: Stage::Clients,
            time: Duration::ZERO,
            counts,
            outcome,
        }]
    }

    #[test]
    fn incomplete_gate_fails_only_where_it_must_be_complete() {
        let report = |left_out, complete| report(ended(Ok(()), left_out), Duration::ZERO, complete);
        report(&["no Go"], false).unwrap();
        report(&[], true).unwrap();
        let failure = report(&["no Go"], true).unwrap_err();
        assert!(failure.to_string().contains("1 left out"), "{failure}");
    }

    #[test]
    fn failed_stage_is_reported_before_what_was_left_out() {
        let failed = Err(Failure::Missing("a reason".to_owned()));
        let failure = report(ended(failed, &["no Go"]), Duration::ZERO, true).unwrap_err();
        assert!(failure.to_string().contains("a reason"), "{failure}");
    }

    /// A row of the stages in docs/testing.md begins with the name and the budget.
    #[test]
    fn budgets_are_those_of_the_document() {
        let document = include_str!("../../docs/testing.md");
        for stage in Stage::value_variants() {
            let row = format!("| `{}` | {} |", stage.name(), stage.budget());
            assert!(document.contains(&row), "docs/testing.md lacks {row}");
        }
    }
}
