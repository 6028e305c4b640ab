//! Description of the machine and the build that figures are from.

use std::process::Command;

use crate::Failure;

/// The machine, the command and the commit of a run.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Machine {
    pub(crate) command: String,
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    memory_kib: u64,
    pub(crate) commit: String,
    pub(crate) build: &'static str,
}

impl Machine {
    pub(crate) fn look() -> Result<Self, Failure> {
        let field = |text: &str, name: &str| {
            let value = text
                .lines()
                .find(|line| line.starts_with(name))
                .and_then(|line| line.split(':').nth(1));
            value.unwrap_or("unknown").trim().to_owned()
        };
        let memory = field(&std::fs::read_to_string("/proc/meminfo")?, "MemTotal");
        let arguments: Vec<_> = std::env::args().skip(1).collect();
        let verb = match arguments.first().map(String::as_str) {
            Some("peers") => "",
            _ => "bench ",
        };
        Ok(Self {
            command: format!("cargo xtask {verb}{}", arguments.join(" ")),
            cpu: field(&std::fs::read_to_string("/proc/cpuinfo")?, "model name"),
            cores: std::thread::available_parallelism()?.get(),
            memory_kib: memory.trim_end_matches(" kB").parse().unwrap_or_default(),
            commit: commit(),
            build: if cfg!(debug_assertions) {
                "debug"
            } else {
                "release"
            },
        })
    }
}

/// Returns the commit, with a mark if files differ from it.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".into();
    };
    let changed = git(&["status", "--porcelain"]).is_some_and(|list| !list.is_empty());
    if changed {
        format!("{commit} with changes")
    } else {
        commit
    }
}
