//! How many tests passed and failed, read from the closing lines of cargo test and pytest.

use std::fmt;
use std::ops::AddAssign;

/// Tests that passed, failed and were skipped.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    /// What this machine lacks and the tests that did not run for it, one line each.
    pub(crate) left_out: Vec<String>,
    /// Names of the tests that failed.
    pub(crate) names: Vec<String>,
    /// Names of the tests that failed beside others and passed alone.
    pub(crate) passed_alone: Vec<String>,
    /// Names that cargo test lists, until the closing line.
    pub(crate) listed: Option<Vec<String>>,
}

impl Counts {
    /// Adds the counts of one output line, if it is a closing line: `test result: ok. 3 passed; 0 failed; 1 ignored; ..`
    /// of cargo test, or `== 1 failed, 12 passed, 2 skipped in 3.21s ==` of pytest (the rule is left out with `-q`).
    /// A line `skipped: REASON` of the siege is part of a case that this machine cannot run.
    pub(crate) fn add_line(&mut self, line: &str) {
        if let Some(reason) = line.trim_start().strip_prefix("skipped: ") {
            self.left_out.push(format!("siege: {reason}"));
            return;
        }
        self.add_name(line);
        let numbers = if let Some(rest) = line.strip_prefix("test result: ") {
            rest.split_once(". ").map_or("", |(_, numbers)| numbers)
        } else {
            let bare = line.trim_matches(|c| c == '=' || c == ' ');
            match bare.rsplit_once(" in ") {
                Some((numbers, time)) if pytest_time(time) => numbers,
                _ => "",
            }
        };
        for part in numbers.split([',', ';']) {
            let mut words = part.split_whitespace();
            let (Some(count), Some(kind)) = (
                words.next().and_then(|w| w.parse::<u64>().ok()),
                words.next(),
            ) else {
                continue;
            };
            match kind {
                "passed" => self.passed += count,
                "failed" | "error" | "errors" => self.failed += count,
                "ignored" | "skipped" => self.skipped += count,
                _ => {}
            }
        }
    }

    /// Adds the name of a failed test. cargo test prints `failures:` twice: before their outputs, and before their names, each indented by four.
    /// pytest ends with lines `FAILED file.py::name - cause`.
    fn add_name(&mut self, line: &str) {
        if line == "failures:" {
            self.listed = Some(Vec::new());
        } else if line.starts_with("test result: ") {
            self.names.extend(self.listed.take().into_iter().flatten());
        } else if let Some(listed) = &mut self.listed {
            let name = line.strip_prefix("    ").filter(|name| !name.contains(' '));
            listed.extend(name.map(ToOwned::to_owned));
        } else if let Some(rest) = line
            .strip_prefix("FAILED ")
            .or_else(|| line.strip_prefix("ERROR "))
        {
            let name = rest.split(" - ").next().unwrap_or(rest);
            self.names.push(name.to_owned());
        }
    }

    /// Takes over that tests which failed passed when they were repeated alone.
    pub(crate) fn pass_alone(&mut self, names: Vec<String>) {
        let number = names.len() as u64;
        self.failed -= number;
        self.passed += number;
        self.passed_alone.extend(names);
    }
}

/// Whether the text is pytest's run time: `3.21s` or `75.10s (0:01:15)`.
fn pytest_time(text: &str) -> bool {
    text.split(' ')
        .next()
        .and_then(|first| first.strip_suffix('s'))
        .is_some_and(|s| s.parse::<f64>().is_ok())
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.left_out.extend(other.left_out);
        self.names.extend(other.names);
        self.passed_alone.extend(other.passed_alone);
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(lines: &[&str]) -> (u64, u64, u64) {
        let mut counts = Counts::default();
        for line in lines {
            counts.add_line(line);
        }
        (counts.passed, counts.failed, counts.skipped)
    }

    #[test]
    fn reads_the_closing_lines_of_both_runners() {
        assert_eq!(
            counted(&[
                "running 3 tests",
                "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.01s",
                "test result: FAILED. 2 passed; 5 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s",
                "=========== 1 failed, 12 passed, 2 skipped, 3 warnings in 75.10s (0:01:15) ===========",
                "7 passed in 0.40s",
                "1 error in 0.40s",
            ]),
            (24, 7, 3)
        );
    }

    #[test]
    fn reads_the_names_of_failed_tests() {
        let mut counts = Counts::default();
        for line in [
            "failures:",
            "---- serve::idle stdout ----",
            "    indented",
            "failures:",
            "    serve::idle",
            "",
            "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s",
            "    after",
            "FAILED test_a.py::test_b[s3-x] - AssertionError: 1 - 2",
            "ERROR test_a.py::test_c",
        ] {
            counts.add_line(line);
        }
        let names = [
            "serve::idle",
            "test_a.py::test_b[s3-x]",
            "test_a.py::test_c",
        ];
        assert_eq!(counts.names, names);
    }

    #[test]
    fn other_lines_count_nothing() {
        assert_eq!(
            counted(&[
                "12 passed",
                "5 failed in all",
                "test a ... ok",
                "3 passed in time",
                ""
            ]),
            (0, 0, 0)
        );
    }

    #[test]
    fn cases_that_the_siege_skips_are_left_out() {
        let mut counts = Counts::default();
        counts.add_line("    skipped: no libfaketime: apt-get install libfaketime");
        assert_eq!(
            counts.left_out,
            ["siege: no libfaketime: apt-get install libfaketime"]
        );
    }

    #[test]
    fn the_plain_line_leaves_out_a_zero_of_skipped() {
        let mut counts = Counts {
            passed: 3,
            ..Counts::default()
        };
        assert_eq!(counts.to_string(), "3 passed, 0 failed");
        counts.skipped = 1;
        assert_eq!(counts.to_string(), "3 passed, 0 failed, 1 skipped");
    }
}
