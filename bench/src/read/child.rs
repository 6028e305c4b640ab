//! Measured programs: the origin, the engine and the server, each in a separate process.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use bywash_support::process::BywashProcess;

use super::load::{Cell, Load};
use crate::Failure;
use crate::process::Process;
use crate::worker::Order;

/// Environment variables by which the S3 client of a child finds the origin.
pub(crate) fn with_origin(command: &mut Command, origin: SocketAddr) -> &mut Command {
    command
        .env("AWS_ENDPOINT_URL", format!("http://{origin}"))
        .env("AWS_ACCESS_KEY_ID", "bench")
        .env("AWS_SECRET_ACCESS_KEY", "bench")
        .env("AWS_REGION", "us-east-1")
}

/// The origin's process and address.
pub(crate) fn start_origin(
    first_byte_ms: u64,
    rate_mb: u64,
    folder: Option<&Path>,
) -> Result<(Process, SocketAddr), Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("origin")
        .arg(format!("--first-byte-ms={first_byte_ms}"))
        .arg(format!("--rate-mb={rate_mb}"));
    if let Some(folder) = folder {
        command.arg("--folder").arg(folder);
    }
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

/// `bywash serve` over the origin.
pub(crate) fn start_server(
    program: &Path,
    origin: SocketAddr,
    memory: u64,
    data_dir: &Path,
) -> Result<BywashProcess, Failure> {
    let mut command = Command::new(program);
    command.args([
        "serve",
        "s3://bench",
        "--anonymous",
        "--s3-addr=127.0.0.1:0",
        "--admin-addr=127.0.0.1:0",
        "--gcs-addr=off",
    ]);
    command
        .arg(format!("--memory={memory}"))
        .arg("--data-dir")
        .arg(data_dir);
    Ok(BywashProcess::start(with_origin(&mut command, origin))?)
}

/// Returns the path of the `bywash` program of this build, built first so that it is current.
pub(crate) fn build_server() -> Result<PathBuf, Failure> {
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
