//! The peers written in Go: built once, kept running, with one case per input line.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::Failure;

/// A running `bywash-peers WHAT`, or another program with the same protocol.
#[derive(Debug)]
pub(crate) struct Go {
    child: Child,
    cases: Option<ChildStdin>,
    results: BufReader<ChildStdout>,
}

impl Go {
    /// Builds the program if it changed, and starts it.
    pub(crate) fn start(what: &str) -> Result<Self, Failure> {
        Self::run(Command::new(build("")?).arg(what))
    }

    /// As [`Self::start`], for a program in a separate folder, so that others do not need its dependencies.
    pub(crate) fn start_apart(folder: &str, env: &[(&str, &str)]) -> Result<Self, Failure> {
        Self::run(Command::new(build(folder)?).envs(env.iter().copied()))
    }

    /// As [`Self::start`], for a program that is asked in the same way.
    pub(crate) fn start_as(command: &mut Command) -> Result<Self, Failure> {
        Self::run(command)
    }

    fn run(command: &mut Command) -> Result<Self, Failure> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(cases), Some(results)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the Go peers were started without pipes".into());
        };
        Ok(Self {
            child,
            cases: Some(cases),
            results: BufReader::new(results),
        })
    }

    /// Runs one case and returns its figures, at least `N` of them.
    pub(crate) fn run_case<const N: usize>(&mut self, case: &str) -> Result<[f64; N], Failure> {
        let cases = self.cases.as_mut().ok_or("the Go peers have ended")?;
        writeln!(cases, "{case}")?;
        cases.flush()?;
        let mut line = String::new();
        self.results.read_line(&mut line)?;
        let figures: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        figures
            .ok()
            .and_then(|figures| figures.first_chunk().copied())
            .ok_or_else(|| format!("case {case:?} of the Go peers gave {line:?}").into())
    }
}

impl Drop for Go {
    fn drop(&mut self) {
        // The program ends when its input does.
        self.cases = None;
        let _ = self.child.wait();
    }
}

/// Builds the program of a folder in `bench/peers`.
fn build(folder: &str) -> Result<PathBuf, Failure> {
    let bench = Path::new(env!("CARGO_MANIFEST_DIR"));
    let name = if folder.is_empty() { "peers" } else { folder };
    let program = bench.join(format!("../target/peers/bywash-{name}"));
    let status = Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(bench.join("peers").join(folder))
        .status()
        .map_err(|error| format!("start go: {error}; install Go 1.26 or later"))?;
    if !status.success() {
        return Err("the Go peers do not build; look at the output above".into());
    }
    Ok(program)
}
