//! The processes that are measured.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::load::{Cell, Load};
use crate::Failure;
use crate::worker::Order;

/// A child that is killed when dropped.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; there is nothing else to do about it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start(command: &mut Command) -> Result<Self, Failure> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child =
            child.map_err(|error| format!("cannot start {:?}: {error}", command.get_program()))?;
        let stdout = child.stdout.take().ok_or("a piped output is there")?;
        Ok(Self {
            child,
            stdout: BufReader::new(stdout),
        })
    }

    /// The next line that begins with `word`, without it.
    fn line(&mut self, word: &str) -> Result<String, Failure> {
        let mut line = String::new();
        while self.stdout.read_line(&mut line)? > 0 {
            if let Some(rest) = line.strip_prefix(word) {
                return Ok(rest.trim().to_owned());
            }
            line.clear();
        }
        Err(format!("process {} ended before it said {word:?}", self.child.id()).into())
    }

    /// Peak memory since [`Self::forget_peak`], in bytes.
    pub(super) fn peak_bytes(&self) -> Result<u64, Failure> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .ok_or("no VmHWM in /proc")?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kib * 1024)
    }

    /// Sets the peak back to what is resident now (`man 5 proc_pid_clear_refs`, value 5).
    pub(super) fn forget_peak(&self) -> Result<(), Failure> {
        Ok(std::fs::write(
            format!("/proc/{}/clear_refs", self.child.id()),
            "5",
        )?)
    }
}

/// Where the S3 client of a child finds the origin.
fn with_origin(command: &mut Command, origin: SocketAddr) -> &mut Command {
    command
        .env("AWS_ENDPOINT_URL", format!("http://{origin}"))
        .env("AWS_ACCESS_KEY_ID", "bench")
        .env("AWS_SECRET_ACCESS_KEY", "bench")
        .env("AWS_REGION", "us-east-1")
}

/// The origin's process and address.
pub(super) fn start_origin(
    first_byte_ms: u64,
    rate_mb: u64,
) -> Result<(Process, SocketAddr), Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("origin")
        .arg(format!("--first-byte-ms={first_byte_ms}"))
        .arg(format!("--rate-mb={rate_mb}"));
    let mut process = Process::start(&mut command)?;
    let address = process.line("ready ")?.parse()?;
    Ok((process, address))
}

/// The engine behind its Rust API.
#[derive(Debug)]
pub(super) struct Worker(pub(super) Process);

impl Worker {
    pub(super) fn start(origin: SocketAddr, memory: u64) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("worker").arg(format!("--memory={memory}"));
        Process::start(with_origin(&mut command, origin)).map(Self)
    }

    pub(super) fn load(&mut self, cell: &Cell, direct: bool) -> Result<Load, Failure> {
        let order = serde_json::to_string(&Order {
            cell: cell.clone(),
            direct,
        })?;
        let stdin = self
            .0
            .child
            .stdin
            .as_mut()
            .ok_or("a piped input is there")?;
        writeln!(stdin, "{order}")?;
        Ok(serde_json::from_str(&self.0.line("")?)?)
    }
}

/// `bywash serve` over the origin, and the address of its S3 endpoint.
pub(super) fn start_server(
    program: &Path,
    origin: SocketAddr,
    memory: u64,
    data_dir: &Path,
) -> Result<(Process, SocketAddr), Failure> {
    let mut command = Command::new(program);
    command.args([
        "serve",
        "s3://bench",
        "--anonymous",
        "--s3-addr=127.0.0.1:0",
        "--admin-addr=127.0.0.1:0",
    ]);
    // A line a request on a terminal would be measured as well.
    command.env("BYWASH_LOG", "warn");
    command
        .arg(format!("--memory={memory}"))
        .arg("--data-dir")
        .arg(data_dir);
    let mut process = Process::start(with_origin(&mut command, origin))?;
    let ready = process.line("ready s3=http://")?;
    let address = ready
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .parse()?;
    Ok((process, address))
}

/// The `bywash` program of this build: beside this one, built first so that it is not an old one.
pub(super) fn build_server() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()?;
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "-p", "bywash-cli"]);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    if !command.status()?.success() {
        return Err("cargo build -p bywash-cli failed; build it, or give --bywash".into());
    }
    Ok(own.with_file_name("bywash"))
}
