//! `docs/trust.md`: what the last run played, and its one line of sums.

use std::fs;

use super::Ended;
use super::intervals::Intervals;
use super::planted;
use super::report::Class;
use crate::run::{Failure, Step, doing, root};

/// Part of the seeds in which each class of faults should be active, in percent.
const OFTEN: f64 = 40.0;

/// All that the page says.
pub(super) struct Page<'a> {
    pub(super) ended: &'a [Ended],
    pub(super) intervals: &'a Intervals,
    pub(super) commit: &'a str,
    pub(super) optimised: bool,
    pub(super) command: String,
    pub(super) seconds: f64,
}

/// Returns the command that repeats a run.
pub(super) fn command(minutes: f64, optimised: bool, only: &[String]) -> String {
    let only = match only {
        [] => String::new(),
        only => format!(" --only {}", only.join(",")),
    };
    let optimised = if optimised { " --optimised" } else { "" };
    format!("cargo xtask trust --minutes {minutes}{optimised}{only}")
}

/// A number with its digits in threes.
fn threes(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

impl Page<'_> {
    /// All classes of faults of all proofs.
    fn classes(&self) -> impl Iterator<Item = (&str, &Class, f64)> {
        let reports = self.ended.iter().filter_map(|ended| ended.report.as_ref());
        reports.flat_map(|report| {
            let classes = report.faults.iter();
            classes.map(|(name, class)| (name.as_str(), class, report.share(class)))
        })
    }

    /// The tables: proofs, and classes of faults.
    pub(super) fn table(&self) -> String {
        let mut text = String::from(
            "| proof | seeds | operations | seconds | failed seeds | seeds of all runs | what is drawn; what is judged |\n|---|---|---|---|---|---|---|\n",
        );
        for ended in self.ended {
            let proof = ended.proof;
            let (seeds, operations, failed) = match &ended.report {
                Some(report) if ended.passed => (
                    threes(report.seeds),
                    threes(report.operations),
                    "0".to_owned(),
                ),
                Some(report) => (
                    threes(report.seeds),
                    threes(report.operations),
                    format!("**{:?}**", ended.failing),
                ),
                None => ("?".to_owned(), "?".to_owned(), "**no report**".to_owned()),
            };
            text.push_str(&format!(
                "| `{}` | {seeds} | {operations} | {:.0} | {failed} | {} | {} |\n",
                proof.name,
                ended.seconds,
                threes(self.intervals.count(proof.name)),
                proof.shows
            ));
        }
        text.push_str(
            "\n| proof | class of faults | seeds with it, % | faults |\n|---|---|---|---|\n",
        );
        for ended in self.ended {
            let Some(report) = &ended.report else {
                continue;
            };
            for (name, class) in &report.faults {
                let share = report.share(class);
                let mark = if share < OFTEN { " (rare)" } else { "" };
                text.push_str(&format!(
                    "| `{}` | {name} | {share:.1}{mark} | {} |\n",
                    ended.proof.name,
                    threes(class.hits)
                ));
            }
        }
        text.push_str("\n| proof | pairs of classes that met in one seed |\n|---|---|\n");
        for ended in self.ended {
            if let Some(report) = ended.report.as_ref().filter(|report| report.pairs.1 > 0) {
                let (met, all) = report.pairs;
                text.push_str(&format!("| `{}` | {met} of {all} |\n", ended.proof.name));
            }
        }
        text
    }

    /// The line of sums.
    pub(super) fn sums(&self) -> String {
        let reports: Vec<_> = self
            .ended
            .iter()
            .filter_map(|ended| ended.report.as_ref())
            .collect();
        let seeds: u64 = reports.iter().map(|report| report.seeds).sum();
        let operations: u64 = reports.iter().map(|report| report.operations).sum();
        let failed = self.ended.iter().filter(|ended| !ended.passed).count();
        let (mut often, mut rare, mut never, mut hits) = (0, 0, 0, 0);
        for (_, class, share) in self.classes() {
            hits += class.hits;
            match class.seeds {
                0 => never += 1,
                _ if share < OFTEN => rare += 1,
                _ => often += 1,
            }
        }
        format!(
            "trust: {} proofs, {failed} failed; {} seeds, {} operations, {} faults in {:.0} s; classes of faults active in {OFTEN} % of the \
             seeds or more: {often}, in fewer: {rare}, never: {never}; {}",
            self.ended.len(),
            threes(seeds),
            threes(operations),
            threes(hits),
            self.seconds,
            planted::sums()
        )
    }

    /// Writes the page.
    pub(super) fn write(&self) -> Result<(), Failure> {
        let date = Step::new("date").args(["-u", "+%F %H:%M UTC"]).output()?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let text = format!(
            "# Trust\n\nWhat the seeded proofs played, written by `{}` on {}, commit {}, {cores} processors, in {:.0} s without the build. Each \
             run takes seeds that no run before had ([testing/seeds.toml](../testing/seeds.toml)); a failing seed prints the line that repeats \
             it, fails the verb, and is played again by each run until it passes. {} have debug assertions and checks of overflow.\n\n{}\n\nA class of faults counts for a seed if it happened, not if it could have. `rare` marks less than {OFTEN} % of the \
             seeds. Operations of proofs by kills are kills or operations between them. Planted faults: \
             [planted-faults.md](planted-faults.md).\n\n{}",
            self.command,
            date.trim(),
            self.commit,
            self.seconds,
            if self.optimised {
                "The programs are built with the profile `soak`, optimised; they"
            } else {
                "The programs are those of the gate, hardly optimised; they"
            },
            self.sums(),
            self.table()
        );
        fs::write(root().join("docs/trust.md"), text).map_err(doing("write docs/trust.md"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_in_threes() {
        let texts = [0, 999, 1000, 1_234_567].map(threes);
        assert_eq!(texts, ["0", "999", "1,000", "1,234,567"]);
    }
}
