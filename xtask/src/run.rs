//! Child processes: started, waited for, and turned into a typed failure.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::counts::Counts;

/// Why a task ended early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command ran and failed.
    Exit { command: String, status: String },
    /// The command could not be started, or a file could not be read or written.
    Io { what: String, error: io::Error },
    /// A requirement of the gate is missing or wrong; the text names the remedy.
    Missing(String),
    /// A stage failed; the text is the line that repeats it.
    Stage {
        stage: &'static str,
        cause: Box<Failure>,
        repeat: String,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit { command, status } => write!(f, "`{command}` ended with {status}"),
            Self::Io { what, error } => write!(f, "{what}: {error}"),
            Self::Missing(text) => f.write_str(text),
            Self::Stage {
                stage,
                cause,
                repeat,
            } => {
                write!(f, "stage {stage} failed: {cause}\nrepeat it: {repeat}")
            }
        }
    }
}

/// Maps an I/O error to a [`Failure`] that names the operation.
pub(crate) fn doing(what: impl Into<String>) -> impl FnOnce(io::Error) -> Failure {
    |error| Failure::Io {
        what: what.into(),
        error,
    }
}

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_path_buf()
}

/// Returns cargo's folder of builds, which its configuration may set too: the one that this program was built in.
pub(crate) fn target() -> PathBuf {
    let own = std::env::current_exe().ok();
    let built_in = own.as_deref().and_then(|own| own.ancestors().nth(2));
    built_in.map_or_else(|| root().join("target"), Into::into)
}

/// One command, run from the workspace root.
#[derive(Debug)]
pub(crate) struct Step {
    command: Command,
    line: String,
}

impl Step {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(program.as_ref());
        command.current_dir(root()).stdin(Stdio::null());
        Self {
            command,
            line: program.as_ref().to_string_lossy().into_owned(),
        }
    }

    /// The cargo that runs this task, by its full path; shown as plain `cargo`.
    pub(crate) fn cargo<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Self {
        let mut step =
            Self::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
        "cargo".clone_into(&mut step.line);
        // What incremental compilation writes for a next time takes time and a fifth more of the disk here.
        step.args(args).env("CARGO_INCREMENTAL", "0")
    }

    /// A cargo that compiles the packages of the workspace by clippy's compiler, which lints what it builds, warnings denied: one pass instead of a check
    /// and a build of each crate.
    pub(crate) fn linting_cargo<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Self {
        let name = "clippy-driver";
        let cargo = std::env::var_os("CARGO").map(PathBuf::from);
        // Cargo's own folder: what rustup puts on the path only finds the toolchain by its name.
        let driver = cargo.map(|cargo| cargo.with_file_name(name));
        let driver = driver.filter(|driver| driver.is_file());
        Self::cargo(args)
            .env(
                "RUSTC_WORKSPACE_WRAPPER",
                driver.unwrap_or_else(|| name.into()),
            )
            // The arguments after `--` of `cargo clippy`, in the form in which it hands them over.
            .env(
                "CLIPPY_ARGS",
                "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__",
            )
    }

    pub(crate) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        for arg in args {
            self.line.push(' ');
            self.line.push_str(&arg.as_ref().to_string_lossy());
            self.command.arg(arg);
        }
        self
    }

    /// Builds in a folder of its own below the one where cargo builds, so that the others stay as they are.
    pub(crate) fn target(self, folder: &str) -> Self {
        self.args(["--target-dir".as_ref(), target().join(folder).as_os_str()])
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn unset<const N: usize>(mut self, names: [&str; N]) -> Self {
        for name in names {
            self.command.env_remove(name);
        }
        self
    }

    pub(crate) fn folder(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// Runs to the end; the output goes where ours goes.
    pub(crate) fn run(mut self) -> Result<(), Failure> {
        let status = self
            .command
            .status()
            .map_err(doing(format!("start `{}`", self.line)))?;
        self.ended(status)
    }

    /// Runs to the end and hands back whether it succeeded; its output is dropped.
    pub(crate) fn succeeds(mut self) -> bool {
        self.command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }

    /// Runs to the end and hands back what it wrote to standard output.
    pub(crate) fn output(mut self) -> Result<String, Failure> {
        let output = self
            .command
            .stderr(Stdio::inherit())
            .output()
            .map_err(doing(format!("start `{}`", self.line)))?;
        self.ended(output.status)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs to the end, shows its standard output as it comes, and adds the test counts found in it.
    pub(crate) fn run_counted(mut self, counts: &mut Counts) -> Result<(), Failure> {
        self.command.stdout(Stdio::piped());
        let mut child = self
            .command
            .spawn()
            .map_err(doing(format!("start `{}`", self.line)))?;
        if let Some(output) = child.stdout.take() {
            for line in BufReader::new(output).split(b'\n') {
                let mut line =
                    line.map_err(doing(format!("read the output of `{}`", self.line)))?;
                counts.add_line(&String::from_utf8_lossy(&line));
                line.push(b'\n');
                // One call a line, without a lock between: a stage in the background prints too.
                io::stdout()
                    .write_all(&line)
                    .map_err(doing("write to standard output"))?;
            }
        }
        let status = child
            .wait()
            .map_err(doing(format!("wait for `{}`", self.line)))?;
        self.ended(status)
    }

    fn ended(self, status: std::process::ExitStatus) -> Result<(), Failure> {
        if status.success() {
            return Ok(());
        }
        Err(Failure::Exit {
            command: self.line,
            status: status.to_string(),
        })
    }
}
