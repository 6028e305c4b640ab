//! `testing/seeds.toml`: which seeds of each proof were played, on which commit, and which of them fail.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use crate::run::{Failure, doing, root};

/// The first seed of each proof: the gate plays smaller ones.
pub(super) const FIRST: u64 = 1_000_000;
/// More seeds than a run can play.
pub(super) const ENDLESS: u64 = 1_000_000_000_000;

const HEAD: &str = "# Seeds that `cargo xtask trust` has played, by proof and commit. A run takes the seeds after the last one. A seed draws its run by the generator of \
                    its commit. A seed that failed is played first \
                    by each run, and stays listed until it passes. Written by the verb.\n";

/// Seeds that were played on a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Played {
    commit: String,
    seeds: Range<u64>,
}

/// A seed that failed, and has not passed since.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failing {
    /// Where it failed first.
    commit: String,
    seed: u64,
}

/// What is known of a proof.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Record {
    /// Oldest first.
    runs: Vec<Played>,
    failing: Vec<Failing>,
}

/// The records of all proofs.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Intervals(BTreeMap<String, Record>);

fn path() -> PathBuf {
    root().join("testing/seeds.toml")
}

impl Intervals {
    /// Reads the file; no interval if it does not exist.
    pub(super) fn read() -> Result<Self, Failure> {
        match fs::read_to_string(path()) {
            Ok(text) => Self::parse(&text).map_err(|line| {
                Failure::Missing(format!("testing/seeds.toml: not understood: {line}"))
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(doing("read testing/seeds.toml")(error)),
        }
    }

    /// Parses what [`Self::text`] has written; the error is a line that is none of it.
    fn parse(text: &str) -> Result<Self, String> {
        let mut all = Self::default();
        let (mut proof, mut is_failing) = (None, false);
        for line in text.lines().map(str::trim) {
            let wrong = || line.to_owned();
            if let Some(name) = line.strip_prefix('[') {
                proof = Some(name.strip_suffix(']').ok_or_else(wrong)?.to_owned());
            } else if let Some(rest) = line.strip_prefix('{') {
                let proof = proof.clone().ok_or_else(wrong)?;
                let record = all.0.entry(proof).or_default();
                if is_failing {
                    record.failing.push(Failing::parse(rest).ok_or_else(wrong)?);
                } else {
                    record.runs.push(Played::parse(rest).ok_or_else(wrong)?);
                }
            } else if ["runs = [", "failing = ["].contains(&line) {
                is_failing = line.starts_with("failing");
            } else if !line.is_empty() && !line.starts_with('#') && line != "]" {
                return Err(wrong());
            }
        }
        Ok(all)
    }

    fn text(&self) -> String {
        let mut text = HEAD.to_owned();
        for (proof, Record { runs, failing }) in &self.0 {
            text.push_str(&format!("\n[{proof}]\nruns = [\n"));
            for Played { commit, seeds } in runs {
                let Range { start, end } = seeds;
                text.push_str(&format!(
                    "  {{ commit = \"{commit}\", seeds = \"{start}..{end}\" }},\n"
                ));
            }
            text.push_str("]\n");
            if failing.is_empty() {
                continue;
            }
            text.push_str("failing = [\n");
            for Failing { commit, seed } in failing {
                text.push_str(&format!(
                    "  {{ commit = \"{commit}\", seed = \"{seed}\" }},\n"
                ));
            }
            text.push_str("]\n");
        }
        text
    }

    /// Writes the file.
    pub(super) fn write(&self) -> Result<(), Failure> {
        fs::write(path(), self.text()).map_err(doing("write testing/seeds.toml"))
    }

    fn runs(&self, proof: &str) -> &[Played] {
        self.0.get(proof).map_or(&[], |record| &record.runs)
    }

    /// Returns the seeds that failed and have not passed since.
    pub(super) fn failing(&self, proof: &str) -> Vec<u64> {
        let record = self.0.get(proof).into_iter();
        let failing = record.flat_map(|record| &record.failing);
        failing.map(|failing| failing.seed).collect()
    }

    /// Keeps a seed that has failed, or drops one that has passed.
    pub(super) fn judge(&mut self, proof: &str, commit: &str, seed: u64, passed: bool) {
        let failing = &mut self.0.entry(proof.to_owned()).or_default().failing;
        let is_kept = failing.iter().any(|failing| failing.seed == seed);
        if passed {
            failing.retain(|failing| failing.seed != seed);
        } else if !is_kept {
            let commit = commit.to_owned();
            failing.push(Failing { commit, seed });
        }
    }

    /// Returns the seed after the last that was played.
    pub(super) fn next(&self, proof: &str) -> u64 {
        let runs = self.runs(proof).iter();
        runs.map(|played| played.seeds.end).max().unwrap_or(FIRST)
    }

    /// Adds seeds that were played.
    pub(super) fn add(&mut self, proof: &str, commit: &str, seeds: Range<u64>) {
        if seeds.is_empty() {
            return;
        }
        let runs = &mut self.0.entry(proof.to_owned()).or_default().runs;
        match runs.last_mut() {
            Some(last) if last.commit == commit && last.seeds.end == seeds.start => {
                last.seeds.end = seeds.end;
            }
            _ => runs.push(Played {
                commit: commit.to_owned(),
                seeds,
            }),
        }
    }

    /// Returns how many seeds were played, on all commits.
    pub(super) fn count(&self, proof: &str) -> u64 {
        let runs = self.runs(proof).iter();
        runs.map(|played| played.seeds.end - played.seeds.start)
            .sum()
    }
}

impl Played {
    /// Parses `commit = "C", seeds = "A..B" },`.
    fn parse(text: &str) -> Option<Self> {
        let mut quoted = text.split('"').skip(1).step_by(2);
        let commit = quoted.next()?.to_owned();
        let (start, end) = quoted.next()?.split_once("..")?;
        let seeds = start.parse().ok()?..end.parse().ok()?;
        Some(Self { commit, seeds })
    }
}

impl Failing {
    /// Parses `commit = "C", seed = "N" },`.
    fn parse(text: &str) -> Option<Self> {
        let mut quoted = text.split('"').skip(1).step_by(2);
        let commit = quoted.next()?.to_owned();
        let seed = quoted.next()?.parse().ok()?;
        Some(Self { commit, seed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_read_as_it_was_written() {
        let mut all = Intervals::default();
        assert_eq!(all.next("a"), FIRST);
        all.add("a", "c1", FIRST..FIRST + 10);
        all.add("a", "c1", FIRST + 10..FIRST + 12);
        all.add("a", "c2", FIRST + 12..FIRST + 13);
        all.add("a", "c2", FIRST + 13..FIRST + 13);
        all.add("b-c", "c2", FIRST..FIRST + 1);
        assert_eq!((all.next("a"), all.count("a")), (FIRST + 13, 13));
        assert_eq!(Intervals::parse(&all.text()), Ok(all.clone()));
        assert_eq!(all.0["a"].runs.len(), 2);
    }

    #[test]
    fn seed_that_failed_stays_until_it_passes() {
        let mut all = Intervals::default();
        all.add("a", "c1", FIRST..FIRST + 10);
        all.judge("a", "c1", FIRST + 3, false);
        all.judge("a", "c1", FIRST + 5, false);
        all.judge("a", "c2", FIRST + 3, false);
        assert_eq!(all.failing("a"), [FIRST + 3, FIRST + 5]);
        assert_eq!(all.0["a"].failing[0].commit, "c1");
        let read = Intervals::parse(&all.text());
        assert_eq!(read, Ok(all.clone()));
        all.judge("a", "c2", FIRST + 3, true);
        assert_eq!(
            (all.failing("a"), all.failing("b")),
            (vec![FIRST + 5], vec![])
        );
        assert_eq!((all.next("a"), all.count("a")), (FIRST + 10, 10));
    }

    #[test]
    fn other_lines_are_refused() {
        for wrong in [
            "seeds",
            "[a]\n{ commit = \"c\" },",
            "{ commit = \"c\", seeds = \"1..2\" },",
            "[a]\nfailing = [\n{ commit = \"c\", seed = \"1..2\" },",
        ] {
            assert!(Intervals::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn committed_file_has_each_seed_once() {
        let all = Intervals::read().unwrap();
        for (proof, record) in &all.0 {
            let mut last = FIRST;
            for played in &record.runs {
                assert!(played.seeds.start >= last, "{proof}: {played:?}");
                last = played.seeds.end;
            }
        }
    }
}
