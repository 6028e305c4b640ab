//! A `bywash serve` process: start in its control group, stop, kill, and observation through /proc.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bywash_support::group::Group;
use bywash_support::process::{Addresses, BywashProcess, without_settings};
use bywash_support::sign::{KEY, SECRET};
use rustix::process::Signal;
use tokio::task::spawn_blocking;

use crate::CaseError;
use crate::tunnel::{Certificate, Tunnel};

/// Parameters of a server.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Bytes of `--memory`.
    pub memory: u64,
    /// Arguments after `serve`: origins and options.
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Text of a `--config` file.
    pub config: Option<String>,
    /// Soft and hard limit of open descriptors. The soft one is the usual default of shells.
    pub descriptors: (u64, u64),
    /// Threads and connections for the limit of the control group.
    pub group: (u64, u64),
    /// Data folder, if not the case's own.
    pub data: Option<PathBuf>,
    /// Whether requests need no signature.
    pub anonymous: bool,
    /// Whether the server has a GCS endpoint too.
    pub gcs: bool,
    /// Whether the server speaks TLS only. Clients and judges reach it through tunnels.
    pub tls: bool,
    /// Bytes of the disk tier. The default has room for the fewest segments.
    pub disk: u64,
    /// Folder of the disk tier, if not one in the case's own.
    pub disk_folder: Option<PathBuf>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            memory: 64 << 20,
            args: Vec::new(),
            env: Vec::new(),
            config: None,
            descriptors: (1024, 20_000),
            group: (128, 1024),
            data: None,
            anonymous: false,
            gcs: false,
            tls: false,
            disk: 40 << 20,
            disk_folder: None,
        }
    }
}

impl Setup {
    /// Returns the folder of the disk tier of a case in `folder`.
    #[must_use]
    pub fn disk_folder(&self, folder: &Path) -> PathBuf {
        let given = self.disk_folder.clone();
        given.unwrap_or_else(|| folder.join("tier"))
    }

    fn disk_argument(&self, folder: &Path) -> String {
        format!("{}:{}", self.disk_folder(folder).display(), self.disk)
    }

    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    #[must_use]
    pub fn config(mut self, text: impl Into<String>) -> Self {
        self.config = Some(text.into());
        self
    }
}

/// A running server. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    process: BywashProcess,
    pub pid: u32,
    pub s3: SocketAddr,
    /// The S3 endpoint without a tunnel: that of TLS, if the server speaks it.
    pub bare_s3: SocketAddr,
    pub admin: SocketAddr,
    /// Address of the GCS endpoint, if there is one.
    pub gcs: Option<SocketAddr>,
    /// The ceiling in bytes that the server logged at its start. `None` if its log level omits it.
    pub logged_ceiling: Option<u64>,
    /// Tunnels to a server that speaks TLS.
    _tunnels: Option<[Tunnel; 2]>,
}

impl Process {
    /// Starts a server and waits until it is ready. `s3` is its address; port 0 takes a free one.
    ///
    /// # Errors
    /// If it ends, or is not ready in time.
    pub async fn start(
        binary: &Path,
        folder: &Path,
        setup: &Setup,
        group: Option<&Group>,
        s3: &str,
    ) -> Result<Self, CaseError> {
        let certificate = setup.tls.then(|| Certificate::write(folder)).transpose()?;
        let mut command = command(binary, folder, setup, group, s3)?;
        if let Some(made) = &certificate {
            command.arg("--tls-cert").arg(&made.certificate);
            command.arg("--tls-key").arg(&made.key);
        }
        // Not on a thread for blocking calls: `--pdeathsig` kills the server when the thread that spawned it ends.
        let starting = BywashProcess::spawn(&mut command)?;
        let started = spawn_blocking(move || starting.wait_until_ready());
        let read_log = || fs::read_to_string(folder.join("stderr.log")).unwrap_or_default();
        let process = started
            .await
            .map_err(std::io::Error::other)?
            .map_err(|error| {
                let log = read_log();
                let tail: Vec<_> = log.lines().rev().take(3).collect();
                CaseError(format!("{error}; its log: {}", tail.join(" | ")))
            })?;
        let (bare_s3, bare_admin) = (process.addresses.s3_address(), process.addresses.admin);
        let tunnels = match &certificate {
            None => None,
            Some(made) => {
                let s3 = Tunnel::open(bare_s3, made).await?;
                Some([s3, Tunnel::open(bare_admin, made).await?])
            }
        };
        let [s3, admin] = tunnels.as_ref().map_or([bare_s3, bare_admin], |tunnels| {
            tunnels.each_ref().map(|tunnel| tunnel.address)
        });
        Ok(Self {
            pid: process.id(),
            s3,
            bare_s3,
            admin,
            gcs: gcs_address(&process.addresses),
            process,
            logged_ceiling: logged_ceiling(&read_log()),
            _tunnels: tunnels,
        })
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn signal(&self, signal: Signal) -> Result<(), CaseError> {
        Ok(self.process.signal(signal)?)
    }

    /// Kills the server as a power failure would, and waits for its end.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub async fn kill(self) -> Result<(), CaseError> {
        let killed = spawn_blocking(move || self.process.kill()).await;
        killed.map_err(std::io::Error::other)??;
        Ok(())
    }

    /// Returns the exit status, if the process has ended.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.process.try_wait().ok()??;
        Some(status.to_string())
    }
}

/// Returns the command of a server in its control group.
fn command(
    binary: &Path,
    folder: &Path,
    setup: &Setup,
    group: Option<&Group>,
    s3: &str,
) -> Result<Command, CaseError> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(folder.join("stderr.log"))?;
    let (soft, hard) = setup.descriptors;
    // The shell enters the group before the server exists; the pid stays the same through each exec.
    let enter = group.map_or_else(String::new, |group| {
        format!("echo $$ > {} && ", group.members().display())
    });
    let script =
        format!("{enter}exec setpriv --pdeathsig KILL prlimit --nofile={soft}:{hard} \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh"]).arg(binary);
    command
        .args(["serve", "--s3-addr", s3, "--admin-addr", "127.0.0.1:0"])
        .args(["--gcs-addr", if setup.gcs { "127.0.0.1:0" } else { "off" }])
        .args(["--memory", &setup.memory.to_string()])
        .args(["--disk", &setup.disk_argument(folder)])
        .arg("--data-dir")
        .arg(setup.data.clone().unwrap_or_else(|| folder.join("data")));
    if setup.anonymous {
        command.arg("--anonymous");
    } else {
        command.args(["--access-key", KEY, "--secret-key", SECRET]);
    }
    if let Some(text) = &setup.config {
        let path = folder.join("config.toml");
        fs::write(&path, text)?;
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        command.arg("--config").arg(path);
    }
    without_settings(&mut command)
        .args(&setup.args)
        .envs(setup.env.iter().cloned())
        .stdin(Stdio::null())
        .stderr(log);
    Ok(command)
}

fn gcs_address(addresses: &Addresses) -> Option<SocketAddr> {
    let url = addresses.gcs.as_ref()?;
    url.strip_prefix("http://")?.parse().ok()
}

/// Returns the `resident_bytes` of the last start in a server's log.
fn logged_ceiling(log: &str) -> Option<u64> {
    let (_, rest) = log.rsplit_once("resident_bytes=")?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Returns the soft limit of open descriptors of a process.
#[must_use]
pub fn descriptor_limit(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = text
        .lines()
        .find(|line| line.starts_with("Max open files"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_ceiling_of_the_last_start() {
        let log = "INFO at most connections=9 resident_bytes=7 socket_bytes=1\nINFO at most connections=9 resident_bytes=8 socket_bytes=1\n";
        assert_eq!(logged_ceiling(log), Some(8));
        assert_eq!(logged_ceiling("INFO ready\n"), None);
    }
}
