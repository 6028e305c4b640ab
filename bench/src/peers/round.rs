//! Rounds, each of which runs every side once; medians over rounds, and ratios within a round.

use std::time::{Duration, Instant};

use super::Row;
use super::significance::{p_value, spread};
use crate::Failure;
use crate::read::load::median;

/// One side of a cell. Its turn measures once and returns a figure in the cell's unit, or several; less is better.
pub(crate) struct Side<'a, F = f64> {
    name: String,
    turn: Box<dyn FnMut() -> Result<F, Failure> + 'a>,
}

impl<'a, F> Side<'a, F> {
    pub(crate) fn new(
        name: impl Into<String>,
        turn: impl FnMut() -> Result<F, Failure> + 'a,
    ) -> Self {
        Self {
            name: name.into(),
            turn: Box::new(turn),
        }
    }
}

/// Runs every side once per round. Odd rounds run in reverse, so that no side always follows the same neighbour.
pub(crate) fn alternate<F>(
    rounds: usize,
    mut sides: Vec<Side<'_, F>>,
) -> Result<Rounds<F>, Failure> {
    let mut values: Vec<Vec<F>> = sides.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for turn in 0..sides.len() {
            let at = if round % 2 == 0 {
                turn
            } else {
                sides.len() - 1 - turn
            };
            values[at].push((sides[at].turn)()?);
        }
    }
    let names = sides.into_iter().map(|side| side.name);
    Ok(Rounds {
        sides: names.zip(values).collect(),
    })
}

/// Measurements of the sides of one cell, by round.
#[derive(Debug, Clone)]
pub(crate) struct Rounds<F = f64> {
    sides: Vec<(String, Vec<F>)>,
}

impl<F> Rounds<F> {
    /// Returns one of several figures, in all rounds of all sides.
    pub(crate) fn map(&self, figure: impl Fn(&F) -> f64) -> Rounds {
        let sides = self.sides.iter().map(|(name, values)| {
            let figures = values.iter().map(&figure).collect();
            (name.clone(), figures)
        });
        Rounds {
            sides: sides.collect(),
        }
    }
}

impl Rounds {
    /// Returns the values of a side; empty if it did not run.
    pub(crate) fn of(&self, side: &str) -> &[f64] {
        self.sides
            .iter()
            .find(|(name, _)| name == side)
            .map_or(&[], |(_, values)| values)
    }

    pub(crate) fn median(&self, side: &str) -> f64 {
        median(self.of(side).to_vec())
    }

    /// Returns the side of `among` with the lowest median.
    #[allow(
        dead_code,
        reason = "for cells where ours is held against the better of several"
    )]
    pub(crate) fn best<'a>(&self, among: &[&'a str]) -> Option<&'a str> {
        among
            .iter()
            .copied()
            .min_by(|one, other| self.median(one).total_cmp(&self.median(other)))
    }

    /// Returns a row that compares `ours` with `peer`, without a goal. The ratio is the median of the rounds' ratios, not the ratio
    /// of the medians.
    pub(crate) fn row(&self, case: &str, unit: &str, ours: &str, peer: &str) -> Row {
        let (ours_all, peer_all) = (self.of(ours), self.of(peer));
        let pairs = ours_all.iter().zip(peer_all);
        let ratio = median(pairs.map(|(ours, peer)| ours / peer).collect());
        Row {
            ratio,
            spread: spread(ours_all)
                .zip(spread(peer_all))
                .map(|(ours, peer)| [ours, peer]),
            p: p_value(ours_all, peer_all),
            ..Row::info(case, unit, self.median(ours), peer, self.median(peer))
        }
    }
}

/// Repeats an operation for about the target duration of a turn.
#[derive(Debug)]
pub(crate) struct Pace {
    turn: Duration,
    operations: Option<usize>,
}

impl Pace {
    pub(crate) fn new(turn: Duration) -> Self {
        Self {
            turn,
            operations: None,
        }
    }

    /// Returns the nanoseconds of an operation. `run` executes the given number of operations and returns their duration. The
    /// first call, of one operation, warms up, the second determines the number, and neither is counted.
    pub(crate) fn ns(
        &mut self,
        mut run: impl FnMut(usize) -> Result<Duration, Failure>,
    ) -> Result<f64, Failure> {
        let operations = match self.operations {
            Some(operations) => operations,
            None => {
                run(1)?;
                let once = run(1)?.max(Duration::from_nanos(1));
                let operations = (self.turn.as_nanos() / once.as_nanos()).max(1) as usize;
                *self.operations.insert(operations)
            }
        };
        Ok(run(operations)?.as_nanos() as f64 / operations as f64)
    }

    /// As [`Self::ns`], for one operation at a time.
    pub(crate) fn each(
        &mut self,
        mut operation: impl FnMut() -> Result<(), Failure>,
    ) -> Result<f64, Failure> {
        self.ns(|operations| {
            let begun = Instant::now();
            for _ in 0..operations {
                operation()?;
            }
            Ok(begun.elapsed())
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn ratios_are_taken_within_a_round() {
        let (mut ours, mut peer) = ([1.0, 10.0, 100.0].iter(), [2.0, 20.0, 1000.0].iter());
        let rounds = alternate(
            3,
            vec![
                Side::new("ours", || Ok(*ours.next().unwrap())),
                Side::new("peer", || Ok(*peer.next().unwrap())),
            ],
        )
        .unwrap();
        let row = rounds.row("case", "ns", "ours", "peer");
        assert_eq!((row.ours, row.peer, row.ratio), (10.0, 20.0, 0.5));
        assert_eq!(rounds.best(&["peer", "ours"]), Some("ours"));
    }
}
