//! Processes that benchmarks start and talk to by lines.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

use crate::Failure;

/// How long a child may take to end when it is asked to, before it is killed: servers without clients take milliseconds.
const GRACE: Duration = Duration::from_secs(2);

/// A child that is ended when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Drop for Process {
    #[allow(
        clippy::disallowed_methods,
        reason = "the end of a child, with a deadline, is nothing that can be waited for"
    )]
    fn drop(&mut self) {
        // Asked first, for a killed nginx leaves its workers behind. It may have ended by itself; there is nothing else to do
        // about it.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let asked = Instant::now();
        while asked.elapsed() < GRACE {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Result<Self, Failure> {
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
    pub(crate) fn line(&mut self, word: &str) -> Result<String, Failure> {
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
    pub(crate) fn peak_bytes(&self) -> Result<u64, Failure> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .ok_or("no VmHWM in /proc")?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kib * 1024)
    }

    /// Sets the peak back to what is resident now (`man 5 proc_pid_clear_refs`, value 5).
    pub(crate) fn forget_peak(&self) -> Result<(), Failure> {
        Ok(std::fs::write(
            format!("/proc/{}/clear_refs", self.child.id()),
            "5",
        )?)
    }
}

/// Processor time of this process, all threads.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// How often the thread of this file in `/proc`, `.../status`, has gone to sleep: voluntary context switches.
pub(crate) fn sleeps_of_thread(status: &Path) -> Result<u64, Failure> {
    std::fs::read_to_string(status)?
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
        .and_then(|count| count.trim().parse().ok())
        .ok_or_else(|| format!("{} does not count context switches", status.display()).into())
}

/// The same of all threads of this process. One that ended is not counted any more.
pub(crate) fn sleeps() -> Result<u64, Failure> {
    let threads = std::fs::read_dir("/proc/self/task")?;
    threads
        .map(|thread| sleeps_of_thread(&thread?.path().join("status")))
        .sum()
}
