//! Facts of a case, recorded by clients and watchers and read by the judges.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::watch::Sample;

/// Maximum number of stored messages of one kind; further ones are only counted.
const MAX_MESSAGES: usize = 8;

/// Behaviour of a client, which determines the permitted outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Respects all limits: must be served.
    WellBehaved,
    /// Exceeds the named limit or is hostile: may be rejected.
    Excessive(&'static str),
}

/// Outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// As the client expected.
    Correct,
    /// 503 with SlowDown.
    SlowDown,
    /// Another error, a lost connection, or no response in time.
    Failed(String),
    /// A response that is neither correct nor an error: the worst outcome.
    Wrong(String),
}

/// Messages of one kind: the first ones, and their number.
#[derive(Debug, Default, Clone)]
pub struct Messages {
    pub count: u64,
    pub first: Vec<String>,
}

impl Messages {
    fn add(&mut self, text: String) {
        self.count += 1;
        if self.first.len() < MAX_MESSAGES {
            self.first.push(text);
        }
    }
}

/// State of a server before or after an attack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RestState {
    pub before: Sample,
    pub after: Sample,
}

/// Facts that the judges use.
#[derive(Debug, Default, Clone)]
pub struct Facts {
    pub requests: u64,
    pub well_right: u64,
    pub well_failed: Messages,
    pub slow_downs_to_well: u64,
    pub slow_downs_to_past: u64,
    pub wrong: Messages,
    pub lost_writes: Messages,
    pub kills: u64,
    /// Bytes of `--memory`.
    pub memory: u64,
    /// Maximum bytes resident, as the server logged at its start.
    pub logged_ceiling: Option<u64>,
    /// Maximum open descriptors of the process, as the kernel has it.
    pub descriptor_limit: u64,
    pub samples: u64,
    /// The sample farthest above its ceiling, or least below it.
    pub worst: Option<Sample>,
    pub peak_rss: u64,
    pub peak_descriptors: u64,
    /// Samples of the disk tier's folder above the tier's size.
    pub disk_excesses: Messages,
    pub probes: u64,
    /// Without the machine's delay, which is not counted.
    pub longest_probe: Duration,
    /// By the wall clock.
    pub longest_probe_elapsed: Duration,
    pub probe_errors: Messages,
    /// The server ended by itself.
    pub died: Option<String>,
    pub rest_state: Option<RestState>,
    /// Waits that a case measured as too long.
    pub late: Messages,
    /// Violations that only the case can detect.
    pub case_findings: Messages,
    /// Features that this machine does not support.
    pub skipped: Vec<String>,
    /// Whether the server ran in a memory control group; `None` before the first start.
    pub grouped: Option<bool>,
    /// Figures to print.
    pub figures: BTreeMap<String, String>,
}

/// Facts shared by clients, watchers and the case.
#[derive(Debug, Default)]
pub struct Record(Mutex<Facts>);

impl Record {
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.0.lock().clone()
    }

    pub fn request(&self, class: Class, end: Outcome) {
        let mut facts = self.0.lock();
        facts.requests += 1;
        match (class, end) {
            (_, Outcome::Wrong(text)) => facts.wrong.add(text),
            (Class::WellBehaved, Outcome::Correct) => facts.well_right += 1,
            (Class::WellBehaved, Outcome::SlowDown) => {
                facts.slow_downs_to_well += 1;
                facts.well_failed.add("SlowDown".to_owned());
            }
            (Class::WellBehaved, Outcome::Failed(text)) => facts.well_failed.add(text),
            (Class::Excessive(_), Outcome::SlowDown) => facts.slow_downs_to_past += 1,
            (Class::Excessive(_), Outcome::Correct | Outcome::Failed(_)) => {}
        }
    }

    /// Records the loss of an acknowledged write.
    pub fn lost_write(&self, text: String) {
        self.0.lock().lost_writes.add(text);
    }

    /// Records a wait, without the machine's delay, that is too long.
    pub fn late(&self, text: impl Into<String>) {
        self.0.lock().late.add(text.into());
    }

    /// Records a violation that only the case can detect.
    pub fn finding(&self, text: impl Into<String>) {
        self.0.lock().case_findings.add(text.into());
    }

    pub fn skipped(&self, text: impl Into<String>) {
        self.0.lock().skipped.push(text.into());
    }

    pub fn grouped(&self, grouped: bool) {
        self.0.lock().grouped = Some(grouped);
    }

    pub fn figure(&self, name: &str, value: impl ToString) {
        let value = value.to_string();
        self.0.lock().figures.insert(name.to_owned(), value);
    }

    pub fn kill(&self) {
        self.0.lock().kills += 1;
    }

    pub fn died(&self, how: String) {
        self.0.lock().died.get_or_insert(how);
    }

    pub fn server(&self, memory: u64, descriptor_limit: u64, logged_ceiling: Option<u64>) {
        let mut facts = self.0.lock();
        facts.memory = memory;
        facts.descriptor_limit = descriptor_limit;
        facts.logged_ceiling = logged_ceiling;
    }

    pub fn sample(&self, sample: Sample) {
        let mut facts = self.0.lock();
        facts.samples += 1;
        facts.peak_rss = facts.peak_rss.max(sample.rss);
        facts.peak_descriptors = facts.peak_descriptors.max(sample.descriptors);
        let over = |s: &Sample| {
            i128::from(s.rss) - i128::from(crate::ceiling::resident_limit(facts.memory, s))
        };
        if facts
            .worst
            .as_ref()
            .is_none_or(|worst| over(&sample) > over(worst))
        {
            facts.worst = Some(sample);
        }
    }

    /// Records that the folder of the disk tier takes more than the tier's size.
    pub fn disk_excess(&self, bytes: u64, size: u64) {
        let text = format!("{bytes} of at most {size} bytes");
        self.0.lock().disk_excesses.add(text);
    }

    /// Returns the number of probes that have ended.
    #[must_use]
    pub fn probes(&self) -> u64 {
        self.0.lock().probes
    }

    /// Records a probe's wait of `elapsed`, of which `counted` is the server's.
    pub fn probe(&self, counted: Duration, elapsed: Duration, error: Option<String>) {
        let mut facts = self.0.lock();
        facts.probes += 1;
        facts.longest_probe = facts.longest_probe.max(counted);
        facts.longest_probe_elapsed = facts.longest_probe_elapsed.max(elapsed);
        if let Some(text) = error {
            facts.probe_errors.add(text);
        }
    }

    pub fn rest_state(&self, rest: RestState) {
        self.0.lock().rest_state = Some(rest);
    }
}
