//! Rounds: every side once, in turn; medians over rounds, and ratios within a round.

use std::time::{Duration, Instant};

use super::Row;
use crate::Failure;
use crate::read::load::median;

/// One contestant in a cell. Its turn measures once and answers a figure in the cell's unit, where less is better, or several.
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

/// Runs every side once a round. Odd rounds go backwards, so that nobody always comes after the same neighbour.
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

/// What the sides of one cell measured, round by round.
#[derive(Debug, Clone)]
pub(crate) struct Rounds<F = f64> {
    sides: Vec<(String, Vec<F>)>,
}

impl<F> Rounds<F> {
    /// One of several figures, in all rounds of all sides.
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
    /// The values of a side; empty for one that did not take part.
    pub(crate) fn of(&self, side: &str) -> &[f64] {
        self.sides
            .iter()
            .find(|(name, _)| name == side)
            .map_or(&[], |(_, values)| values)
    }

    pub(crate) fn median(&self, side: &str) -> f64 {
        median(self.of(side).to_vec())
    }

    /// The one of `among` with the least median.
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

    /// `ours` beside `peer`: the ratio is the median of the rounds' ratios, not the ratio of the medians. Without a goal.
    pub(crate) fn row(&self, case: &str, unit: &str, ours: &str, peer: &str) -> Row {
        let pairs = self.of(ours).iter().zip(self.of(peer));
        let ratio = median(pairs.map(|(ours, peer)| ours / peer).collect());
        Row {
            ratio,
            ..Row::info(case, unit, self.median(ours), peer, self.median(peer))
        }
    }
}

/// Repeats an operation for about as long as a turn shall last.
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

    /// Nanoseconds an operation. `run` does so many operations and answers how long they took; the first call, of one
    /// operation, warms up, the second sets the pace, and neither is counted.
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
