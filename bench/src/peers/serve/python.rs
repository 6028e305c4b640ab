//! The clients written in Python: one process, with one job per input line.

use std::io::Write as _;
use std::process::Command;

use serde_json::Value;

use crate::Failure;
use crate::peers::install::{peers, python_in};
use crate::process::Process;

/// A running `serve_peer.py`.
#[derive(Debug)]
pub(super) struct Python(Process);

impl Python {
    /// Starts it in its own environment, which is created on first use.
    pub(super) fn start() -> Result<Self, Failure> {
        let script = peers().join("serve-python/serve_peer.py");
        let mut process = Process::start(Command::new(python_in("serve-python")?).arg(script))?;
        process.line("ready")?;
        Ok(Self(process))
    }

    /// Runs a job. Returns its figures and its result.
    pub(super) fn run_job(&mut self, job: &Value) -> Result<(Figures, Value), Failure> {
        self.0.forget_peak()?;
        let orders = self.0.child.stdin.as_mut();
        let orders = orders.ok_or("a piped input is there")?;
        writeln!(orders, "{job}")?;
        orders.flush()?;
        let line = self.0.line("")?;
        let mut printed: Value = serde_json::from_str(&line)?;
        let figure = |name: &str| printed[name].as_f64();
        match (figure("seconds"), figure("cpu"), figure("sleeps")) {
            (Some(seconds), Some(cpu), Some(sleeps)) => {
                let figures = Figures {
                    seconds,
                    cpu,
                    sleeps,
                    peak_bytes: self.0.peak_bytes()? as f64,
                };
                Ok((figures, printed["result"].take()))
            }
            _ => Err(format!("{job} failed: {}", printed["error"]).into()),
        }
    }
}

/// Costs of one job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figures {
    pub(super) seconds: f64,
    /// Processor seconds of the client.
    pub(super) cpu: f64,
    /// Number of times that its threads slept, for a lock or for bytes.
    pub(super) sleeps: f64,
    /// Max resident memory of the client during the job.
    pub(super) peak_bytes: f64,
}
