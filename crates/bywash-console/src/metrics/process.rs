//! Metrics of the process, under the names of Prometheus' own client libraries.

use std::fs;

use super::{head, sample};

/// Ticks a second of the times in `/proc` (`USER_HZ`), the same on all architectures this program is built for.
const TICKS: f64 = 100.0;

/// The kernel's figures of this process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Process {
    cpu_seconds: f64,
    resident_bytes: u64,
    virtual_bytes: u64,
    threads: u64,
    open_files: u64,
    max_files: u64,
    /// Seconds since 1970.
    started: f64,
}

impl Process {
    /// Reads `/proc`; `None` where it does not exist.
    pub(super) fn read() -> Option<Self> {
        let text = |name: &str| fs::read_to_string(format!("/proc/{name}")).ok();
        let open_files = fs::read_dir("/proc/self/fd").ok()?.count() as u64;
        Self::parse(
            &text("self/stat")?,
            &text("self/status")?,
            &text("self/limits")?,
            &text("stat")?,
            open_files,
        )
    }

    fn parse(
        stat: &str,
        status: &str,
        limits: &str,
        system: &str,
        open_files: u64,
    ) -> Option<Self> {
        // The name of the program is in parentheses and may contain any character. The field after it is the third.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
        let value = |text: &str, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let booted = value(system, "btime")? as f64;
        Some(Self {
            cpu_seconds: (ticks(14)? + ticks(15)?) / TICKS,
            resident_bytes: value(status, "VmRSS:")? << 10,
            virtual_bytes: value(status, "VmSize:")? << 10,
            threads: value(status, "Threads:")?,
            open_files,
            // No limit is a word.
            max_files: value(limits, "Max open files").unwrap_or(u64::MAX),
            started: booted + ticks(22)? / TICKS,
        })
    }

    pub(super) fn render(&self, text: &mut String) {
        let mut one = |name: &str, kind: &str, help: &str, value: f64| {
            head(text, name, kind, help);
            sample(text, name, &[], value);
        };
        one(
            "process_cpu_seconds_total",
            "counter",
            "Processor time of all threads, in user and system mode.",
            self.cpu_seconds,
        );
        for (name, help, value) in [
            (
                "process_resident_memory_bytes",
                "Resident memory, pages of files included.",
                self.resident_bytes,
            ),
            (
                "process_virtual_memory_bytes",
                "Address space; most of it is reserved and not used.",
                self.virtual_bytes,
            ),
            ("process_threads", "Threads.", self.threads),
            (
                "process_open_fds",
                "Open file descriptors.",
                self.open_files,
            ),
            (
                "process_max_fds",
                "Limit of open file descriptors.",
                self.max_files,
            ),
        ] {
            one(name, "gauge", help, value as f64);
        }
        one(
            "process_start_time_seconds",
            "gauge",
            "Time of the start, in seconds since 1970.",
            self.started,
        );
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn fields_are_found_behind_a_name_with_brackets() {
        let stat = "7 (a) b) c) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 9 0 1234 1 1";
        let status = "Name:\tx\nVmSize:\t    2048 kB\nVmRSS:\t     4 kB\nThreads:\t9\n";
        let limits =
            "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024  4096  files\n";
        let found = Process::parse(stat, status, limits, "cpu 1\nbtime 1700000000\n", 5);
        let expected = Process {
            cpu_seconds: 3.0,
            resident_bytes: 4096,
            virtual_bytes: 2 << 20,
            threads: 9,
            open_files: 5,
            max_files: 1024,
            started: 1_700_000_012.34,
        };
        assert_eq!(found, Some(expected));
        let endless = limits.replace("1024", "unlimited");
        let found = Process::parse(stat, status, &endless, "btime 1\n", 5);
        assert_eq!(found.unwrap().max_files, u64::MAX);
        assert_eq!(Process::parse("", status, limits, "btime 1\n", 5), None);
    }

    #[test]
    fn this_process_is_read() {
        let process = Process::read().unwrap();
        assert!(process.resident_bytes > 1 << 20 && process.threads > 0 && process.started > 1e9);
    }
}
