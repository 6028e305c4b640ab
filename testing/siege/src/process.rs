//! A `bywash serve` process: start in its control group, stop, kill, and observation through /proc.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bywash_support::group::Group;
use bywash_support::sign::{KEY, SECRET};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::CaseError;

/// Maximum wait for the `ready` line.
const START_TIMEOUT: Duration = Duration::from_secs(60);

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
    child: Child,
    pub pid: u32,
    pub s3: SocketAddr,
    pub admin: SocketAddr,
    /// The ceiling in bytes that the server logged at its start. `None` if its log level omits it.
    pub logged_ceiling: Option<u64>,
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
        for (name, _) in std::env::vars().filter(|(name, _)| redirects_server(name)) {
            command.env_remove(name);
        }
        let mut child = command
            .args(&setup.args)
            .envs(setup.env.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().ok_or("the server has no process id")?;
        let output = child.stdout.take().ok_or("the server has no output")?;
        let mut lines = BufReader::new(output).lines();
        let ready = async {
            while let Some(line) = lines.next_line().await? {
                if let Some(addresses) = ready_line(&line) {
                    return Ok(addresses);
                }
            }
            let log = fs::read_to_string(folder.join("stderr.log")).unwrap_or_default();
            let tail: Vec<_> = log.lines().rev().take(3).collect();
            Err(CaseError(format!(
                "the server ended before it was ready: {}",
                tail.join(" | ")
            )))
        };
        let (s3, admin) = tokio::time::timeout(START_TIMEOUT, ready)
            .await
            .map_err(|_| CaseError(format!("no ready line in {} s", START_TIMEOUT.as_secs())))??;
        // Keeps the pipe open: a closed standard output would disturb the server.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self {
            child,
            pid,
            s3,
            admin,
            logged_ceiling: logged_ceiling(&fs::read_to_string(folder.join("stderr.log"))?),
        })
    }

    /// Sends a signal by its name: KILL, STOP, CONT, TERM, HUP.
    ///
    /// # Errors
    /// If there is no such process.
    pub async fn signal(&self, name: &str) -> Result<(), CaseError> {
        let status = Command::new("kill")
            .args(["-s", name, &self.pid.to_string()])
            .stderr(Stdio::null())
            .status()
            .await?;
        if status.success() {
            return Ok(());
        }
        Err(CaseError(format!("kill -s {name} ended with {status}")))
    }

    /// Kills the server as a power failure would, and waits for its end.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub async fn kill(mut self) -> Result<(), CaseError> {
        Ok(self.child.kill().await?)
    }

    /// Returns the exit status, if the process has ended.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        Some(status.to_string())
    }
}

/// Returns the `resident_bytes` of the last start in a server's log.
fn logged_ceiling(log: &str) -> Option<u64> {
    let (_, rest) = log.rsplit_once("resident_bytes=")?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Returns whether an environment variable would redirect a server or its origins.
fn redirects_server(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    ["AWS_", "AZUR", "GOOGLE_", "BYWASH_"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
        || name.ends_with("_PROXY")
}

fn ready_line(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let (s3, admin) = line.strip_prefix("ready s3=http://")?.split_once(' ')?;
    let admin = admin.strip_prefix("admin=http://")?;
    Some((s3.parse().ok()?, admin.parse().ok()?))
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

    #[test]
    fn reads_the_addresses_of_a_ready_line() {
        let (s3, admin) = ready_line("ready s3=http://127.0.0.1:8420 admin=http://127.0.0.1:8422")
            .unwrap_or_else(|| panic!("none"));
        assert_eq!((s3.port(), admin.port()), (8420, 8422));
        assert!(ready_line("  s3       http://127.0.0.1:8420").is_none());
    }
}
