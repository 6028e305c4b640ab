//! The real program as a process: its start, its addresses, its signals and its end.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Lines of output that wait to be read.
const LINES: usize = 64;
/// Max wait for the `ready` line, and for the end of a process: longer than either takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Removes the variables from the environment of a command that would redirect a server or its origins.
pub fn without_settings(command: &mut Command) -> &mut Command {
    let prefixes = ["AWS_", "AZURE_", "GOOGLE_", "BYWASH_"];
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().to_ascii_uppercase();
        // A fault that is planted in the tests is planted in the programs that they start.
        if text == "BYWASH_PLANTED" {
            continue;
        }
        if prefixes.iter().any(|prefix| text.starts_with(prefix)) || text.ends_with("_PROXY") {
            command.env_remove(&name);
        }
    }
    command
}

/// Addresses in the `ready` line of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    /// URL of the S3 endpoint.
    pub s3: String,
    pub admin: SocketAddr,
    /// URL of the GCS endpoint, unless it is off.
    pub gcs: Option<String>,
}

impl Addresses {
    /// Parses the line `ready s3=URL admin=URL`, which may have more words. Returns `None` for any other line.
    fn parse(line: &str) -> Option<Self> {
        let words = line.strip_prefix("ready ")?;
        let url = |name| words.split(' ').find_map(|word| word.strip_prefix(name));
        Some(Self {
            s3: url("s3=")?.to_owned(),
            admin: without_scheme(url("admin=")?)?.parse().ok()?,
            gcs: url("gcs=").map(str::to_owned),
        })
    }

    /// Returns the address of the S3 endpoint.
    pub fn s3_address(&self) -> SocketAddr {
        let address = without_scheme(&self.s3).map(str::parse);
        match address {
            Some(Ok(address)) => address,
            _ => panic!(
                "{} is not http://ADDRESS:PORT or https://ADDRESS:PORT",
                self.s3
            ),
        }
    }
}

fn without_scheme(url: &str) -> Option<&str> {
    url.strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"))
}

/// A process that is killed when dropped.
#[derive(Debug)]
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A `bywash serve` that has not written its `ready` line yet. Killed when dropped.
#[derive(Debug)]
pub struct StartingProcess {
    child: KilledOnDrop,
    lines: Receiver<String>,
}

impl StartingProcess {
    /// Waits for the `ready` line. Blocks the thread.
    ///
    /// # Errors
    /// If the process ends before, or takes longer than a minute; it is killed.
    pub fn wait_until_ready(self) -> io::Result<BywashProcess> {
        let began = Instant::now();
        let mut output = String::new();
        loop {
            let left = TIMEOUT.saturating_sub(began.elapsed());
            let line = self.lines.recv_timeout(left).map_err(|error| {
                io::Error::other(match error {
                    RecvTimeoutError::Disconnected => {
                        format!("the server ended before it was ready:\n{output}")
                    }
                    RecvTimeoutError::Timeout => format!("no ready line in {TIMEOUT:?}"),
                })
            })?;
            output.push_str(&line);
            output.push('\n');
            if let Some(addresses) = Addresses::parse(&line) {
                return Ok(BywashProcess {
                    child: self.child,
                    addresses,
                    output,
                });
            }
        }
    }
}

/// A running `bywash serve`. Killed when dropped.
#[derive(Debug)]
pub struct BywashProcess {
    child: KilledOnDrop,
    pub addresses: Addresses,
    /// Standard output up to the `ready` line.
    pub output: String,
}

impl BywashProcess {
    /// Starts a server by `command`, which is `bywash serve` with its arguments, and waits until it is ready.
    ///
    /// # Errors
    /// As [`Self::spawn`] and [`StartingProcess::wait_until_ready`].
    pub fn start(command: &mut Command) -> io::Result<Self> {
        Self::spawn(command)?.wait_until_ready()
    }

    /// Starts a server and does not wait.
    ///
    /// # Errors
    /// If the program cannot be run.
    pub fn spawn(command: &mut Command) -> io::Result<StartingProcess> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().expect("it is piped");
        let (sender, lines) = sync_channel(LINES);
        // Reads on to the end: a closed standard output would disturb the server.
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // After the `ready` line there is no receiver.
                let _ = sender.send(line);
            }
        });
        Ok(StartingProcess {
            child: KilledOnDrop(child),
            lines,
        })
    }

    pub fn id(&self) -> u32 {
        self.child.0.id()
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child.0), signal)?)
    }

    /// Returns the exit status if the process has ended.
    ///
    /// # Errors
    /// If the status cannot be read.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.0.try_wait()
    }

    /// Waits for the end. Blocks the thread.
    ///
    /// # Errors
    /// If the process runs for another minute; it is killed.
    pub fn wait(mut self) -> io::Result<ExitStatus> {
        let pid = Pid::from_child(&self.child.0);
        let (sender, ended) = sync_channel(1);
        let waiter = thread::spawn(move || sender.send(self.child.0.wait()));
        let status = ended.recv_timeout(TIMEOUT);
        if status.is_err() {
            kill_process(pid, Signal::KILL)?;
        }
        // Ends at once: the process has ended, or was killed.
        let _ = waiter.join();
        status.unwrap_or_else(|_| Err(io::Error::other("the server did not end")))
    }

    /// Kills the server as a power failure would, and waits for its end.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn kill(self) -> io::Result<ExitStatus> {
        self.signal(Signal::KILL)?;
        self.wait()
    }

    /// Asks the server to end, as `systemctl stop` does, and waits for its end.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn stop(self) -> io::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell in place of the program.
    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn ready_line_has_the_addresses_in_any_order_with_and_without_metrics() {
        let parse = |line| Addresses::parse(line).map(|found| (found.s3, found.admin.port()));
        let expected = Some(("http://127.0.0.1:8420".to_owned(), 8422));
        for line in [
            "ready s3=http://127.0.0.1:8420 admin=http://127.0.0.1:8422",
            "ready s3=http://127.0.0.1:8420 admin=http://127.0.0.1:8422 metrics=http://[::]:9",
            "ready admin=http://127.0.0.1:8422 s3=http://127.0.0.1:8420",
        ] {
            assert_eq!(parse(line), expected, "{line}");
        }
        for line in [
            "  s3       http://127.0.0.1:8420",
            "ready",
            "ready s3=http://127.0.0.1:8420",
            "ready s3=http://127.0.0.1:8420 admin=127.0.0.1:8422",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn started_process_has_its_output_and_ends_by_signals() {
        let ready =
            "echo first; echo ready s3=http://127.0.0.1:1 admin=http://127.0.0.1:2; exec sleep 600";
        let process = BywashProcess::start(&mut shell(ready)).unwrap();
        assert!(process.output.starts_with("first\nready "));
        assert_eq!(process.addresses.s3_address().port(), 1);
        assert_eq!(process.kill().unwrap().code(), None);
        let process = BywashProcess::start(&mut shell(ready)).unwrap();
        assert_eq!(process.stop().unwrap().code(), None);
    }

    #[test]
    fn process_that_ends_before_it_is_ready_is_an_error_with_its_output() {
        let error = BywashProcess::start(&mut shell("echo no room")).unwrap_err();
        assert!(error.to_string().contains("no room"), "{error}");
    }
}
