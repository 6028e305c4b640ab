//! Output of the siege: one line per case, findings with the command that repeats them, figures, and a closing line.

use std::time::Duration;

use crate::ceiling::resident_limit;
use crate::judge::Finding;
use crate::record::Facts;

/// Result of one case.
#[derive(Debug)]
pub struct CaseResult {
    pub name: &'static str,
    pub seed: u64,
    pub took: Duration,
    pub facts: Facts,
    pub findings: Vec<Finding>,
    /// Findings of the first run, all of timing, if this is the second one.
    pub before: Vec<Finding>,
}

impl CaseResult {
    /// Returns whether the machine supports no part of the case.
    #[must_use]
    pub fn skipped(&self) -> bool {
        !self.facts.skipped.is_empty() && self.facts.requests == 0 && self.findings.is_empty()
    }

    fn verdict(&self) -> &'static str {
        match (self.findings.is_empty(), self.skipped()) {
            (false, _) => "FAILED",
            (true, true) => "skipped",
            (true, false) => "passed",
        }
    }

    /// Returns whether all findings are of timing and a second run is due.
    #[must_use]
    pub fn runs_again(&self) -> bool {
        !self.findings.is_empty()
            && self.before.is_empty()
            && self.findings.iter().all(Finding::is_timing)
    }

    /// Returns the peak memory above `--memory`, in MiB.
    fn over(&self) -> i64 {
        (self.facts.peak_rss as i64 - self.facts.memory as i64) >> 20
    }

    /// Returns the excess of the worst sample over its ceiling, in MiB; negative below it.
    fn over_ceiling(&self) -> Option<i64> {
        let worst = self.facts.worst?;
        let limit = resident_limit(self.facts.memory, &worst);
        Some((worst.rss as i64 - limit as i64) >> 20)
    }

    /// Formats the line of the case, its findings, and the skipped parts.
    #[must_use]
    pub fn lines(&self, repeat: &str) -> String {
        let facts = &self.facts;
        let figures: Vec<_> = facts
            .figures
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        let mut text = format!(
            "{:<22} {:<8} {:>6.1} s {:>8} requests  RSS {:>5} MiB ({:+} over --memory)  probe {:>5} ms  {}\n",
            self.name,
            self.verdict(),
            self.took.as_secs_f64(),
            facts.requests,
            facts.peak_rss >> 20,
            self.over(),
            facts.longest_probe.as_millis(),
            figures.join(", ")
        );
        for skipped in &facts.skipped {
            text.push_str(&format!("    skipped: {skipped}\n"));
        }
        for finding in &self.before {
            text.push_str(&format!(
                "    first run, {}: {}\n",
                finding.judge, finding.text
            ));
        }
        for finding in &self.findings {
            text.push_str(&format!("    {}: {}\n", finding.judge, finding.text));
        }
        if self.runs_again() {
            text.push_str("    only findings of timing: runs once more, alone\n");
        } else if !self.findings.is_empty() {
            text.push_str(&format!("    repeat it: {repeat}\n"));
        }
        text
    }
}

/// Formats the figures of all cases, and the closing line that the gate parses.
#[must_use]
pub fn summary(results: &[CaseResult], seed: u64, took: Duration) -> String {
    let requests: u64 = results.iter().map(|result| result.facts.requests).sum();
    let kills: u64 = results.iter().map(|result| result.facts.kills).sum();
    let peak = results.iter().max_by_key(|result| result.over());
    let wait = results
        .iter()
        .max_by_key(|result| result.facts.longest_probe);
    let ceilings = results
        .iter()
        .filter_map(|result| Some((result.over_ceiling()?, result.name)));
    let ceiling = ceilings.max().map_or_else(String::new, |(over, name)| {
        format!("{over:+} MiB over the ceiling ({name}), ")
    });
    let peak = peak.map_or_else(String::new, |result| {
        format!(
            "peak {:+} MiB over --memory ({})",
            result.over(),
            result.name
        )
    });
    let wait = wait.map_or_else(String::new, |result| {
        let millis = result.facts.longest_probe.as_millis();
        format!("longest wait of the probe {millis} ms ({})", result.name)
    });
    let failed = results.iter().filter(|result| !result.findings.is_empty());
    let failed = failed.count();
    let skipped = results.iter().filter(|result| result.skipped()).count();
    let passed = results.len() - failed - skipped;
    let again = results.iter().filter(|result| !result.before.is_empty());
    let again = match again.count() {
        0 => String::new(),
        count => format!(", {count} run twice because of timing"),
    };
    let grouped = |yes: bool| {
        let found = results.iter().filter(|r| r.facts.grouped == Some(yes));
        found.count()
    };
    let groups = match (grouped(true), grouped(false)) {
        (all, 0) => format!("{all} cases in a memory control group"),
        (some, none) => format!(
            "{none} cases without a memory control group, whose resident memory was sampled only, and {some} in one"
        ),
    };
    let mut closing = format!("{passed} passed, {failed} failed");
    if skipped > 0 {
        closing.push_str(&format!(", {skipped} skipped"));
    }
    format!(
        "seed {seed}: {requests} requests, {kills} kills, {peak}, {ceiling}{wait}, {groups}{again}\n{closing} in {:.2}s",
        took.as_secs_f64()
    )
}
