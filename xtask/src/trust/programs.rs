//! The programs of the tests, built once, and runs of single tests.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::catalog::{Proof, Target};
use super::report::Report;
use super::{End, logs};
use crate::counts::Counts;
use crate::gate;
use crate::run::{Failure, Step, doing};

/// Packages with proofs, or with tests that find planted faults.
pub(super) const PACKAGES: [&str; 11] = [
    "bywash-mem",
    "bywash-disk",
    "bywash-store",
    "bywash",
    "bywash-series",
    "bywash-series-proofs",
    "bywash-cluster",
    "bywash-gateway",
    "bywash-local",
    "bywash-client",
    "bywash-cli",
];
/// Lines that a test has written and that were not looked at.
const QUEUED_LINES: usize = 1024;
/// Lines of a failed test that are shown.
const SHOWN: usize = 30;

/// A program of tests.
#[derive(Debug, Clone)]
struct Program {
    file: PathBuf,
    /// The package's folder, where cargo runs its tests.
    folder: PathBuf,
}

/// Programs by package and place of the tests.
#[derive(Debug, Default)]
pub(super) struct Programs(HashMap<(String, bool), Program>);

/// Seeds that a proof plays.
#[derive(Debug)]
pub(super) struct Run<'a> {
    pub(super) proof: &'a Proof,
    pub(super) seeds: Range<u64>,
    /// Time after which no seed begins.
    pub(super) seconds: f64,
    /// Time after which the program is killed.
    pub(super) limit: Duration,
    /// A planted fault.
    pub(super) fault: Option<&'a str>,
}

/// How a run ended.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) end: End,
    pub(super) report: Option<Report>,
    /// The last lines of its output.
    pub(super) lines: Vec<String>,
    log: PathBuf,
}

impl Outcome {
    /// Whether all that was judged was right.
    pub(super) fn passed(&self) -> bool {
        let failed = self
            .report
            .as_ref()
            .is_some_and(|report| !report.failed.is_empty());
        self.end.is_some_and(|status| status.success()) && !failed
    }

    /// Shows what a failed run wrote.
    fn show(&self) {
        let last = self.lines.len().saturating_sub(SHOWN);
        self.lines[last..]
            .iter()
            .for_each(|line| println!("    {line}"));
        let errors = fs::read(&self.log).unwrap_or_default();
        let errors = String::from_utf8_lossy(&errors).into_owned();
        let errors: Vec<_> = errors.lines().collect();
        let last = errors.len().saturating_sub(SHOWN);
        errors[last..]
            .iter()
            .for_each(|line| println!("    {line}"));
        println!("    more in {}", self.log.display());
    }
}

impl Program {
    /// Runs the program as cargo does, at most for `limit`. Returns how it ended, and the lines that it wrote.
    fn run(
        &self,
        mut command: Command,
        errors: Stdio,
        limit: Duration,
    ) -> Result<(End, Vec<String>), Failure> {
        command
            .current_dir(&self.folder)
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            // A group of its own, so that what it starts can be ended with it.
            .process_group(0);
        let child = command
            .spawn()
            .map_err(doing(format!("start {}", self.file.display())))?;
        watch(child, limit)
    }
}

impl Programs {
    /// Builds the programs of the gate, as its stage `clippy` does.
    pub(super) fn of_gate() -> Result<Self, Failure> {
        Self::built_by(gate::tests().args(["--no-run"]))
    }

    /// Builds the programs with the profile of soaks: optimised, with the checks of a debug build.
    pub(super) fn optimised() -> Result<Self, Failure> {
        let step = Step::cargo(["test", "--no-run", "--profile", "soak"]).target("soak");
        Self::built_by(Self::with_packages(step))
    }

    /// Builds the programs with these features, in a folder of their own.
    pub(super) fn with(features: &[String]) -> Result<Self, Failure> {
        let step = Step::cargo(["test", "--no-run", "--features"]);
        let step = step.args([features.join(",")]).target("planted");
        Self::built_by(Self::with_packages(step))
    }

    fn with_packages(step: Step) -> Step {
        let packages = PACKAGES.iter().flat_map(|package| ["-p", package]);
        step.args(packages).args(["--lib", "--test", "it"])
    }

    fn built_by(step: Step) -> Result<Self, Failure> {
        let messages = step
            .args(["--message-format", "json-render-diagnostics"])
            .output()?;
        let mut programs = Self::default();
        for message in messages
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
        {
            programs.add(&message)?;
        }
        Ok(programs)
    }

    /// Takes over a message of cargo, if it is about a program of tests.
    fn add(&mut self, message: &Value) -> Result<(), Failure> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let (Some(file), Some(manifest)) = (
            text(&message["executable"]),
            text(&message["manifest_path"]),
        ) else {
            return Ok(());
        };
        if message["profile"]["test"] != true {
            return Ok(());
        }
        let is_lib = message["target"]["kind"][0] != "test";
        // Tests that count resources of a process are programs of their own.
        if !is_lib && message["target"]["name"] != "it" {
            return Ok(());
        }
        let text = fs::read_to_string(&manifest).map_err(doing(format!("read {manifest}")))?;
        let name = text.lines().find_map(|line| line.strip_prefix("name = "));
        let name = name.unwrap_or_default().trim_matches('"').to_owned();
        let folder = PathBuf::from(manifest).with_file_name("");
        self.0.insert(
            (name, is_lib),
            Program {
                file: file.into(),
                folder,
            },
        );
        Ok(())
    }

    fn program(&self, package: &str, target: Target) -> Result<&Program, Failure> {
        let program = self.0.get(&(package.to_owned(), target == Target::Lib));
        program.ok_or_else(|| Failure::Missing(format!("no program of the tests of {package}")))
    }

    /// Plays seeds of a proof, and shows what it wrote if it failed without a planted fault.
    pub(super) fn play(&self, run: &Run<'_>) -> Result<Outcome, Failure> {
        let Range { start, end } = run.seeds;
        let mut settings = vec![
            ("BYWASH_SEEDS", format!("{start}..{end}")),
            ("BYWASH_SECONDS", run.seconds.to_string()),
        ];
        settings.extend(
            run.proof
                .kills
                .map(|kills| ("BYWASH_KILLS", kills.to_string())),
        );
        settings.extend(run.fault.map(|fault| ("BYWASH_PLANTED", fault.to_owned())));
        let proof = run.proof;
        let outcome = self.test(
            (proof.package, proof.target, proof.test),
            &settings,
            run.limit,
        )?;
        if run.fault.is_none() && !outcome.passed() {
            outcome.show();
        }
        Ok(outcome)
    }

    /// Runs the tests of a package whose names contain a text, with a planted fault, and returns the names of those that fail.
    pub(super) fn failed_tests(
        &self,
        (package, target, filter): (&str, Target, &str),
        fault: Option<&str>,
        limit: Duration,
    ) -> Result<Vec<String>, Failure> {
        let program = self.program(package, target)?;
        let mut command = Command::new(&program.file);
        command
            .args([filter, "--test-threads=4"])
            .envs(fault.map(|fault| ("BYWASH_PLANTED", fault)));
        let (end, lines) = program.run(command, Stdio::null(), limit)?;
        let mut counts = Counts::default();
        lines.iter().for_each(|line| counts.add_line(line));
        if counts.passed + counts.failed == 0 && end.is_some_and(|status| status.success()) {
            return Err(Failure::Missing(format!("{package} has no test {filter}")));
        }
        let is_bad = end.is_none_or(|status| !status.success());
        if is_bad && counts.names.is_empty() {
            // It was ended by a signal, or did not end.
            counts.names.push(format!("{filter} of {package}"));
        }
        Ok(counts.names)
    }

    /// Runs one test with these settings, at most for `limit`.
    pub(super) fn test(
        &self,
        (package, target, test): (&str, Target, &str),
        settings: &[(&str, String)],
        limit: Duration,
    ) -> Result<Outcome, Failure> {
        let program = self.program(package, target)?;
        let fault = settings.iter().find(|(name, _)| *name == "BYWASH_PLANTED");
        let fault = fault.map_or("none", |(_, fault)| fault);
        let log = logs()?.join(format!("{}-{fault}.log", test.replace("::", "-")));
        let errors = File::create(&log).map_err(doing(format!("create {}", log.display())))?;
        let mut command = Command::new(&program.file);
        command
            .args([
                "--exact",
                test,
                "--include-ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .envs(settings.iter().map(|(name, value)| (*name, value)));
        let (end, lines) = program.run(command, errors.into(), limit)?;
        let report = lines.iter().rev().find_map(|line| Report::parse(line));
        if lines.iter().any(|line| line.starts_with("running 0 tests")) {
            return Err(Failure::Missing(format!("{package} has no test {test}")));
        }
        Ok(Outcome {
            end,
            report,
            lines,
            log,
        })
    }
}

/// Reads the output of a program to its end. Kills it, and what it has started, after `limit`.
fn watch(mut child: Child, limit: Duration) -> Result<(End, Vec<String>), Failure> {
    let begun = Instant::now();
    let (send, receive) = mpsc::sync_channel(QUEUED_LINES);
    let output = child.stdout.take();
    let reader = thread::spawn(move || {
        let Some(output) = output else { return };
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            if send
                .send(String::from_utf8_lossy(&line).into_owned())
                .is_err()
            {
                return;
            }
        }
    });
    let mut lines = Vec::new();
    let is_late = loop {
        match receive.recv_timeout(limit.saturating_sub(begun.elapsed())) {
            Ok(line) => {
                if line.starts_with("repeat: ") {
                    println!("{line}");
                }
                lines.push(line);
            }
            Err(RecvTimeoutError::Disconnected) => break false,
            Err(RecvTimeoutError::Timeout) => break true,
        }
    };
    if is_late {
        let group = format!("-{}", child.id());
        Step::new("kill").args(["-KILL", "--", &group]).run()?;
    }
    let status = child.wait().map_err(doing("wait for a test"))?;
    drop(receive);
    let _ = reader.join();
    Ok(((!is_late).then_some(status), lines))
}
