//! Retries failed tests once, one test at a time. A test that then passes is flaky.

use crate::counts::Counts;
use crate::run::Failure;

/// Maximum number of failed tests that are repeated: more of them are no matter of the machine's speed.
const MAX_RETRIED: usize = 3;

/// Runs tests, and those that failed once more, alone: a test that passes then depends on the speed of the machine. It is reported by name as a
/// fault of the test, and does not fail the gate. Seeds are fixed, so what a seed finds fails twice.
///
/// `tests` runs and counts all tests, or those whose names it gets.
pub(crate) fn run(
    tests: impl Fn(&[String], &mut Counts) -> Result<(), Failure>,
    counts: &mut Counts,
) -> Result<(), Failure> {
    let mut found = Counts::default();
    let first = tests(&[], &mut found);
    let names = std::mem::take(&mut found.names);
    let repeated = first.is_err() && (1..=MAX_RETRIED).contains(&names.len());
    let mut outcome = first;
    if repeated && found.failed == names.len() as u64 {
        println!("once more, alone: {}", names.join(", "));
        let mut alone = Counts::default();
        let second = tests(&names, &mut alone);
        if second.is_ok() && alone.passed >= names.len() as u64 {
            found.pass_alone(names);
            outcome = Ok(());
        }
    }
    *counts += found;
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `tests`, of which one fails at first, and prints `repeated` when it is repeated.
    fn run_twice(repeated: &str) -> (bool, Counts) {
        let mut counts = Counts::default();
        let tests = |names: &[String], counts: &mut Counts| {
            let all = ["FAILED test_a.py::test_b - x", "1 failed, 4 passed in 1s"];
            let lines: &[&str] = if names.is_empty() { &all } else { &[repeated] };
            lines.iter().for_each(|line| counts.add_line(line));
            if counts.failed == 0 {
                return Ok(());
            }
            Err(Failure::Missing("tests failed".to_owned()))
        };
        (run(tests, &mut counts).is_ok(), counts)
    }

    #[test]
    fn a_test_that_passes_alone_is_reported_by_name() {
        let (passed, counts) = run_twice("1 passed in 1s");
        assert!(passed);
        assert_eq!(counts.passed_alone, ["test_a.py::test_b"]);
        assert_eq!((counts.passed, counts.failed), (5, 0));
    }

    #[test]
    fn a_test_that_fails_twice_or_is_not_found_fails_the_stage() {
        for repeated in ["1 failed in 1s", "0 passed in 1s"] {
            let (passed, counts) = run_twice(repeated);
            assert!(!passed);
            assert_eq!((counts.passed, counts.failed), (4, 1));
        }
    }
}
