//! The processes of `peers upload`: the store, and clients that print a line of figures for each line of sizes.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use super::AT_ONCE;
use crate::Failure;
use crate::peers::install::{done, peers, python_in};
use crate::process::Process;

/// A store: its process and address.
#[derive(Debug)]
pub(super) struct Store {
    _process: Process,
    endpoint: String,
}

/// Concurrent parts of an object, in all clients of S3.
pub(super) const PARTS_AT_ONCE: usize = 4;

impl Store {
    pub(super) fn start() -> Result<Self, Failure> {
        Self::of(Command::new(std::env::current_exe()?).arg("upload-server"))
    }

    /// moto, a server of S3 in Python.
    pub(super) fn moto() -> Result<Self, Failure> {
        let python = python_in("upload-s3")?;
        Self::of(Command::new(python).arg(peers().join("upload-s3/store.py")))
    }

    fn of(command: &mut Command) -> Result<Self, Failure> {
        let mut process = Process::start(command)?;
        let endpoint = format!("http://{}", process.line("ready ")?);
        Ok(Self {
            _process: process,
            endpoint,
        })
    }
}

/// Costs of one round.
#[derive(Debug, Clone, Copy)]
pub(in crate::peers) struct Figures {
    pub(in crate::peers) seconds: f64,
    /// Processor seconds of the client's process, all threads.
    pub(in crate::peers) cpu: f64,
    /// Bytes allocated; not a number where the client does not count them.
    pub(super) allocated: f64,
    /// Max resident memory during the round, in bytes.
    pub(super) peak_bytes: f64,
}

/// A client that keeps running, so that it is warm.
#[derive(Debug)]
pub(in crate::peers) struct Client(Process);

impl Client {
    fn start(command: &mut Command) -> Result<Self, Failure> {
        let mut process = Process::start(command)?;
        process.line("ready")?;
        Ok(Self(process))
    }

    /// This program: an upload, or plain PUTs.
    pub(super) fn ours(store: &Store, how: &str, count: bool) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["upload-worker", how])
            .args(client_arguments(store))
            .env("STORAGE_EMULATOR_HOST", store.endpoint.clone())
            .envs(aws(store));
        if count {
            command.arg("--count");
        }
        Self::start(&mut command)
    }

    /// Google's client in Java, built by Maven.
    pub(super) fn java(store: &Store) -> Result<Self, Failure> {
        Self::java_to(&store.endpoint, AT_ONCE)
    }

    /// As [`Self::java`], to a server at an URL.
    pub(in crate::peers) fn java_to(endpoint: &str, at_once: usize) -> Result<Self, Failure> {
        let folder = peers().join("upload-java");
        let target = peers().join("../../target/peers/upload-java");
        std::fs::create_dir_all(&target)?;
        let target = target.canonicalize()?;
        let class_path = target.join("class-path");
        // Maven builds beside its file, which must not be in the source tree.
        let build = target.join("build");
        copy_folder(&folder, &build)?;
        done(
            Command::new("mvn")
                .args(["-q", "-B", "compile", "dependency:build-classpath"])
                .arg(format!("-Dmdep.outputFile={}", class_path.display()))
                .current_dir(&build),
        )?;
        let jars = std::fs::read_to_string(class_path)?;
        let classes = build.join("target/classes");
        let mut command = Command::new("java");
        command
            .arg("-cp")
            .arg(format!("{}:{}", classes.display(), jars.trim()))
            .arg("UploadPeer")
            .args([endpoint.to_owned(), at_once.to_string()]);
        Self::start(&mut command)
    }

    /// Google's client in Python, in its own environment.
    pub(super) fn python(store: &Store) -> Result<Self, Failure> {
        Self::script(store, "upload-python", "upload_peer.py")
    }

    /// boto3's transfer manager.
    pub(super) fn boto3(store: &Store) -> Result<Self, Failure> {
        Self::script(store, "upload-s3", "boto3_peer.py")
    }

    /// rclone, a run of it a round.
    pub(super) fn rclone(store: &Store) -> Result<Self, Failure> {
        let version = Command::new("rclone").arg("version").output();
        version.map_err(|error| format!("rclone is needed ({error}): apt-get install rclone"))?;
        Self::script(store, "upload-s3", "rclone_peer.py")
    }

    fn script(store: &Store, folder: &str, file: &str) -> Result<Self, Failure> {
        let mut command = Command::new(python_in(folder)?);
        command
            .arg(peers().join(folder).join(file))
            .args(client_arguments(store))
            // They share a module in that folder.
            .env("PYTHONPATH", peers())
            .envs(aws(store));
        Self::start(&mut command)
    }

    /// Uploads objects of these sizes.
    pub(in crate::peers) fn round(&mut self, sizes: &[usize]) -> Result<Figures, Failure> {
        let process = &mut self.0;
        process.forget_peak()?;
        let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
        let orders = process.child.stdin.as_mut();
        let orders = orders.ok_or("a piped input is there")?;
        writeln!(orders, "{}", sizes.join(" "))?;
        orders.flush()?;
        let line = process.line("")?;
        let figures: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        let figures = figures.unwrap_or_default();
        let [seconds, cpu, allocated] = *figures
            .first_chunk()
            .ok_or_else(|| format!("a client printed {line:?}"))?;
        // A client that starts another process reports the peak of that one.
        let peak_bytes = match figures.get(3) {
            Some(peak) => *peak,
            None => process.peak_bytes()? as f64,
        };
        Ok(Figures {
            seconds,
            cpu,
            allocated,
            peak_bytes,
        })
    }
}

fn client_arguments(store: &Store) -> [String; 2] {
    [store.endpoint.clone(), AT_ONCE.to_string()]
}

/// Environment variables that make a program use the store as S3.
fn aws(store: &Store) -> [(&'static str, String); 4] {
    [
        ("AWS_ENDPOINT_URL", store.endpoint.clone()),
        ("AWS_ACCESS_KEY_ID", "bench".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "bench".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
    ]
}

fn copy_folder(from: &Path, to: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &place)?;
        } else {
            std::fs::copy(entry.path(), place)?;
        }
    }
    Ok(())
}
