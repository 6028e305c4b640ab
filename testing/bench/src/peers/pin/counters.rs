//! What the processor counts, by `perf stat`, where it lets us: instructions, and lines of the caches missed.

use std::process::Command;
use std::sync::Arc;

use super::designs::Design;
use super::drive::{Picks, pairs};
use super::{ADDS, CAS, CAS_QUEUE, FOYER, MOKA, MUTEX, OURS, QUICK, Reach, Visitor, with_design};
use crate::Failure;
use crate::peers::crew::Crew;
use crate::peers::{Args, Report, Row};

/// Pairs of one counted run; enough that making the blocks, subtracted by a run without pairs, says nothing.
const PAIRS: usize = 5_000_000;

/// A line that two cores write moves from one to the other: each move is a miss of the first cache, and of the second.
const EVENTS: [(&str, &str); 3] = [
    ("instructions:u", "instructions/pair"),
    ("L1-dcache-load-misses:u", "L1 misses/pair"),
    ("cache-misses:u", "cache misses/pair"),
];

/// Pins and unpins, for `perf stat` to count (started by `peers pin`).
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LoopArgs {
    /// A design by its name in the table
    design: String,
    /// Reach blocks by key
    #[arg(long)]
    by_key: bool,
    #[arg(long)]
    blocks: u32,
    #[arg(long)]
    threads: usize,
    /// Of each thread
    #[arg(long)]
    pairs: usize,
}

pub(crate) fn run_loop(args: &LoopArgs) -> Result<(), Failure> {
    let reach = if args.by_key {
        Reach::ByKey
    } else {
        Reach::InHand
    };
    with_design(&args.design, reach, args.blocks, args)?
}

impl Visitor for &LoopArgs {
    type Out = Result<(), Failure>;

    fn visit(self, design: impl Design) -> Self::Out {
        let (blocks, count, design) = (self.blocks, self.pairs, Arc::new(design));
        Crew::new(self.threads).run((0..self.threads).map(|thread| {
            let design = Arc::clone(&design);
            move || {
                let mut picks = Picks::new(blocks, thread);
                pairs(&*design, &mut picks, thread as u32, count);
            }
        }))?;
        Ok(())
    }
}

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let name = |by_key, heat, threads| {
        let reach = if by_key { "by key" } else { "in hand" };
        format!("counted: {reach}, {heat}, {threads} threads")
    };
    let hand: &[&str] = &[MUTEX, CAS, CAS_QUEUE, ADDS];
    let keyed: &[&str] = &[MOKA, QUICK, FOYER];
    let cases = [
        (false, "one hot block", 1, 1, hand),
        (false, "one hot block", 1, 2, hand),
        (false, "uniform", super::BLOCKS, 1, hand),
        (true, "one hot block", 1, 1, keyed),
        (true, "uniform", super::BLOCKS, 1, keyed),
    ];
    for (by_key, heat, blocks, threads, peers) in cases {
        let name = name(by_key, heat, threads);
        if !args.begins(&name) {
            continue;
        }
        let counted = |design: &str| {
            count(&LoopArgs {
                design: design.to_owned(),
                by_key,
                blocks,
                threads,
                pairs: PAIRS,
            })
        };
        let Some(ours) = counted(OURS)? else {
            report.note(
                "`perf stat` is not installed or counts nothing on this machine: no counts of instructions and cache lines.",
            );
            return Ok(());
        };
        for &peer in peers {
            let theirs = counted(peer)?.unwrap_or_default();
            for (event, unit) in EVENTS {
                let of = |counts: &[(&str, f64)]| {
                    counts
                        .iter()
                        .find(|(name, _)| *name == event)
                        .map(|&(_, count)| count)
                };
                if let (Some(ours), Some(theirs)) = (of(&ours), of(&theirs)) {
                    report.rows.push(Row::info(&name, unit, ours, peer, theirs));
                }
            }
        }
    }
    Ok(())
}

/// Counts a pair. Nothing, if there are no counters.
fn count(args: &LoopArgs) -> Result<Option<Vec<(&'static str, f64)>>, Failure> {
    let with = perf(args)?;
    let without = perf(&LoopArgs {
        pairs: 0,
        ..args.clone()
    })?;
    let all = (args.threads * args.pairs) as f64;
    let per_pair: Vec<_> = with
        .iter()
        .filter_map(|&(event, count)| {
            let (_, base) = without.iter().find(|(name, _)| *name == event)?;
            Some((event, (count - base) / all))
        })
        .collect();
    Ok((!per_pair.is_empty()).then_some(per_pair))
}

fn perf(args: &LoopArgs) -> Result<Vec<(&'static str, f64)>, Failure> {
    let mut command = Command::new("perf");
    command.args([
        "stat",
        "-x",
        ",",
        "-e",
        &EVENTS.map(|(event, _)| event).join(","),
    ]);
    command
        .arg(std::env::current_exe()?)
        .args(["pin-loop", &args.design]);
    command.args(args.by_key.then_some("--by-key"));
    command.args(["--blocks", &args.blocks.to_string()]);
    command.args(["--threads", &args.threads.to_string()]);
    command.args(["--pairs", &args.pairs.to_string()]);
    // No perf, no counts.
    let Ok(output) = command.output() else {
        return Ok(Vec::new());
    };
    Ok(parse(&String::from_utf8_lossy(&output.stderr)))
}

/// Lines of `perf stat -x ,`: the count, its unit, the event, and more.
fn parse(text: &str) -> Vec<(&'static str, f64)> {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let (event, _) = EVENTS
            .into_iter()
            .find(|(event, _)| fields.get(2) == Some(event))?;
        Some((event, fields.first()?.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_counted_is_left_out() {
        let text = "<not supported>,,instructions:u,0,100.00,,\n1234,,cache-misses:u,500,100.00,,\nnoise\n";
        assert_eq!(parse(text), [("cache-misses:u", 1234.0)]);
    }
}
