//! `testing/seeds.toml`: which seeds of each proof were played, on which commit.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use crate::run::{Failure, doing, root};

/// The first seed of each proof: the gate plays smaller ones.
pub(super) const FIRST: u64 = 1_000_000;
/// More seeds than a run can play.
pub(super) const ENDLESS: u64 = 1_000_000_000_000;

const HEAD: &str = "# Seeds that `cargo xtask trust` has played, by proof and commit. A run takes the seeds after the last one. Written by the verb.\n";

/// Seeds that were played on a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Played {
    commit: String,
    seeds: Range<u64>,
}

/// The intervals of all proofs, oldest first.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Intervals(BTreeMap<String, Vec<Played>>);

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
        let mut proof = None;
        for line in text.lines().map(str::trim) {
            if let Some(name) = line
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'))
            {
                proof = Some(name.to_owned());
            } else if let Some(rest) = line.strip_prefix('{') {
                let played = Played::parse(rest).zip(proof.clone());
                let (played, proof) = played.ok_or_else(|| line.to_owned())?;
                all.0.entry(proof).or_default().push(played);
            } else if !line.is_empty()
                && !line.starts_with('#')
                && !["runs = [", "]"].contains(&line)
            {
                return Err(line.to_owned());
            } else if line == "]" {
                proof = None;
            }
        }
        Ok(all)
    }

    fn text(&self) -> String {
        let mut text = HEAD.to_owned();
        for (proof, runs) in &self.0 {
            text.push_str(&format!("\n[{proof}]\nruns = [\n"));
            for Played { commit, seeds } in runs {
                let Range { start, end } = seeds;
                text.push_str(&format!(
                    "  {{ commit = \"{commit}\", seeds = \"{start}..{end}\" }},\n"
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

    /// Returns the seed after the last that was played.
    pub(super) fn next(&self, proof: &str) -> u64 {
        let runs = self.0.get(proof).into_iter().flatten();
        runs.map(|played| played.seeds.end).max().unwrap_or(FIRST)
    }

    /// Adds seeds that were played.
    pub(super) fn add(&mut self, proof: &str, commit: &str, seeds: Range<u64>) {
        if seeds.is_empty() {
            return;
        }
        let runs = self.0.entry(proof.to_owned()).or_default();
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
        let runs = self.0.get(proof).into_iter().flatten();
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
        assert_eq!(all.0["a"].len(), 2);
    }

    #[test]
    fn other_lines_are_refused() {
        for wrong in [
            "seeds",
            "[a]\n{ commit = \"c\" },",
            "{ commit = \"c\", seeds = \"1..2\" },",
        ] {
            assert!(Intervals::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn committed_file_has_each_seed_once() {
        let all = Intervals::read().unwrap();
        for (proof, runs) in &all.0 {
            let mut last = FIRST;
            for played in runs {
                assert!(played.seeds.start >= last, "{proof}: {played:?}");
                last = played.seeds.end;
            }
        }
    }
}
