//! Child processes of benchmarks, with a protocol of lines.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use bywash_support::group::Group;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use rustix::time::{ClockId, clock_gettime};

use crate::Failure;

/// Max time for a child to stop by itself before it is killed: servers without clients take milliseconds.
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
        // Its id may be another's once it was waited for.
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // Asked first, for a killed nginx leaves its workers behind. It may have ended by itself; there is nothing else to do
        // about it.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let signalled = Instant::now();
        while signalled.elapsed() < GRACE {
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

    /// As [`Self::start`], in a control group if there is one.
    pub(crate) fn start_in(group: Option<&Group>, command: &mut Command) -> Result<Self, Failure> {
        let Some(group) = group else {
            return Self::start(command);
        };
        // The shell enters the group before the program exists; the id stays the same.
        let script = format!("echo $$ > {} && exec \"$@\"", group.members().display());
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &script, "sh"])
            .arg(command.get_program())
            .args(command.get_args())
            .envs(
                command
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            );
        Self::start(&mut shell)
    }

    /// Sum of a figure in a file of `/proc` over the family.
    fn sum_of_family(&self, file: &str, field: &str) -> Result<u64, Failure> {
        let figure = |id: u32| figure_of(id, file, field);
        family(self.child.id()).into_iter().map(figure).sum()
    }

    /// Peak memory of the process and of all that it has started, in bytes; what they share counts in each.
    pub(crate) fn peak_bytes_of_family(&self) -> Result<u64, Failure> {
        Ok(self.sum_of_family("status", "VmHWM:")? * 1024)
    }

    /// Bytes that these have written to disks.
    pub(crate) fn written_bytes_of_family(&self) -> Result<u64, Failure> {
        self.sum_of_family("io", "write_bytes:")
    }

    /// Kills all of these, and waits until none is left.
    #[allow(
        clippy::disallowed_methods,
        reason = "the end of a process that another one started is nothing that can be waited for"
    )]
    pub(crate) fn kill_family(&mut self) -> Result<(), Failure> {
        let ids = family(self.child.id()).into_iter();
        let ids = ids.filter_map(|id| Pid::from_raw(id.try_into().ok()?));
        let ids: Vec<Pid> = ids.collect();
        for &id in &ids {
            // One may have ended by itself.
            let _ = kill_process(id, Signal::KILL);
        }
        self.child.wait()?;
        let killed = Instant::now();
        while killed.elapsed() < GRACE && ids.iter().any(|id| test_kill_process(*id).is_ok()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
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
        Err(format!(
            "process {} ended before it printed {word:?}",
            self.child.id()
        )
        .into())
    }

    pub(crate) fn peak_bytes(&self) -> Result<u64, Failure> {
        peak_bytes(self.child.id())
    }

    /// Sets the peak back to what is resident now.
    pub(crate) fn forget_peak(&self) -> Result<(), Failure> {
        forget_peak(self.child.id())
    }
}

/// Ids of a process and of all that it has started.
fn family(id: u32) -> Vec<u32> {
    let mut ids = vec![id];
    let mut at = 0;
    while let Some(&id) = ids.get(at) {
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let children = children.unwrap_or_default();
        ids.extend(children.split_whitespace().flat_map(str::parse::<u32>));
        at += 1;
    }
    ids
}

/// Processor time of a process and of all that it has started, in the threads that live.
pub(crate) fn cpu_of_family(id: u32) -> Result<Duration, Failure> {
    let mut nanos = 0;
    for id in family(id) {
        for thread in std::fs::read_dir(format!("/proc/{id}/task"))? {
            // A thread that has ended since is not counted.
            let figures = std::fs::read_to_string(thread?.path().join("schedstat"));
            let figures = figures.unwrap_or_default();
            let first = figures.split_whitespace().next();
            nanos += first.map_or(Ok(0), str::parse::<u64>)?;
        }
    }
    Ok(Duration::from_nanos(nanos))
}

/// Processor time of a process with its threads that have ended, to a tick of the system's clock.
pub(crate) fn cpu_with_ended(id: u32) -> Result<Duration, Failure> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
    // The name, in parentheses, may have spaces. After it, user and system time are the 12th and 13th field.
    let (_, fields) = text.rsplit_once(") ").ok_or("a stat file has a name")?;
    let mut fields = fields.split(' ').skip(11);
    let mut ticks = || -> Result<u64, Failure> { Ok(fields.next().ok_or("no time")?.parse()?) };
    let ticks = ticks()? + ticks()?;
    let second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_secs_f64(ticks as f64 / second as f64))
}

/// Resident memory of a process and of all that it has started, in bytes; what they share counts in each.
pub(crate) fn resident_bytes_of_family(id: u32) -> Result<u64, Failure> {
    let resident = family(id)
        .into_iter()
        .map(|id| figure_of(id, "status", "VmRSS:"));
    Ok(resident.sum::<Result<u64, _>>()? * 1024)
}

/// Peak memory of this process since [`forget_own_peak`], in bytes.
pub(crate) fn own_peak_bytes() -> Result<u64, Failure> {
    peak_bytes(std::process::id())
}

/// Sets the peak of this process back to what is resident now.
pub(crate) fn forget_own_peak() -> Result<(), Failure> {
    forget_peak(std::process::id())
}

/// Peak memory of a process since [`forget_peak`], in bytes.
pub(crate) fn peak_bytes(pid: u32) -> Result<u64, Failure> {
    Ok(figure_of(pid, "status", "VmHWM:")? * 1024)
}

/// Sets the peak of a process back to what is resident now (`man 5 proc_pid_clear_refs`, value 5).
pub(crate) fn forget_peak(pid: u32) -> Result<(), Failure> {
    Ok(std::fs::write(format!("/proc/{pid}/clear_refs"), "5")?)
}

/// A field of a file of a process in `/proc`.
fn figure_of(pid: u32, file: &str, field: &str) -> Result<u64, Failure> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let line = line.ok_or_else(|| format!("no {field} in /proc/{pid}/{file}"))?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Processor time of this process, all threads.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Returns the voluntary context switches of the thread with this `/proc/.../status` file.
pub(crate) fn sleeps_of_thread(status: &Path) -> Result<u64, Failure> {
    std::fs::read_to_string(status)?
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
        .and_then(|count| count.trim().parse().ok())
        .ok_or_else(|| format!("{} does not count context switches", status.display()).into())
}

/// Returns those of all threads of this process. Ended threads are not counted.
pub(crate) fn sleeps() -> Result<u64, Failure> {
    let threads = std::fs::read_dir("/proc/self/task")?;
    threads
        .map(|thread| sleeps_of_thread(&thread?.path().join("status")))
        .sum()
}
