//! The peers written in Go: built once, kept running, asked one case a line.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::Failure;

/// A running `bywash-peers WHAT`, or another program that is asked as it is.
#[derive(Debug)]
pub(crate) struct Go {
    child: Child,
    asks: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Go {
    /// Builds the program if it changed, and starts it.
    pub(crate) fn start(what: &str) -> Result<Self, Failure> {
        Self::run(Command::new(build("")?).arg(what))
    }

    /// As [`Self::start`], for a program in a folder of its own, so that others need not build what it depends on.
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
        let (Some(asks), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the Go peers were started without pipes".into());
        };
        Ok(Self {
            child,
            asks: Some(asks),
            answers: BufReader::new(answers),
        })
    }

    /// Runs one case and answers its figures, at least `N` of them.
    pub(crate) fn ask<const N: usize>(&mut self, case: &str) -> Result<[f64; N], Failure> {
        let asks = self.asks.as_mut().ok_or("the Go peers have ended")?;
        writeln!(asks, "{case}")?;
        asks.flush()?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let figures: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        figures
            .ok()
            .and_then(|figures| figures.first_chunk().copied())
            .ok_or_else(|| format!("case {case:?} of the Go peers gave {line:?}").into())
    }
}

impl Drop for Go {
    fn drop(&mut self) {
        // The end of its input ends it.
        self.asks = None;
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
