//! Processor counters by `perf stat`, if the machine permits it: instructions, and cache misses. Otherwise the instructions
//! of one thread, counted by callgrind, which emulates them.

use std::process::Command;
use std::sync::Arc;

use clap::ValueEnum as _;

use super::designs::Design;
use super::drive::{Picks, pairs};
use super::engine::BODY_BLOCKS;
use super::{ADDS, CAS, CAS_QUEUE, FOYER, MOKA, MUTEX, OURS, QUICK, Reach, Visitor, with_design};
use crate::Failure;
use crate::peers::crew::Crew;
use crate::peers::{Args, Report, Row};

/// Tool that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    Perf,
    Callgrind,
}

impl Tool {
    /// Pairs, or bodies, of one counted run. A run without pairs is subtracted, for what it takes to make the blocks.
    fn pairs(self, reach: Reach) -> usize {
        let pairs = match self {
            Self::Perf => 5_000_000,
            // Exact for any number of pairs, and 50 times slower.
            Self::Callgrind => 100_000,
        };
        match reach {
            Reach::Engine => pairs / BODY_BLOCKS,
            Reach::InHand | Reach::ByKey => pairs,
        }
    }

    /// Returns the command that counts; the counted command is appended.
    fn command(self) -> Command {
        match self {
            Self::Perf => {
                let events = EVENTS.map(|(event, _)| event).join(",");
                let mut command = Command::new("perf");
                command.args(["stat", "-x", ",", "-e", &events]);
                command
            }
            Self::Callgrind => {
                let mut command = Command::new("valgrind");
                command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
                // Without the start of the program: a clock that one of the libraries calibrates there takes a varying
                // number of instructions.
                command.arg(format!("--toggle-collect=*{COUNTED}*"));
                command
            }
        }
    }
}

const INSTRUCTIONS: &str = "instructions:u";
/// Events by their names in `perf` and in the table. A line that two cores write moves between them: each move is a miss of the
/// first-level cache, and of the second.
const EVENTS: [(&str, &str); 3] = [
    (INSTRUCTIONS, "instructions/pair"),
    ("L1-dcache-load-misses:u", "L1 misses/pair"),
    ("cache-misses:u", "cache misses/pair"),
];

/// Pins and unpins, for `perf stat` to count (started by `peers pin`).
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LoopArgs {
    /// A design by its name in the table
    design: String,
    /// How blocks are reached
    #[arg(long)]
    reach: Reach,
    #[arg(long)]
    blocks: u32,
    #[arg(long)]
    threads: usize,
    /// Pairs of each thread
    #[arg(long)]
    pairs: usize,
}

/// Name of [`run_loop`], by which callgrind finds what to count.
const COUNTED: &str = "run_loop";

// A function of its own in the program, so that callgrind sees where it begins and ends.
#[inline(never)]
pub(crate) fn run_loop(args: &LoopArgs) -> Result<(), Failure> {
    with_design(&args.design, args.reach, args.blocks, args)?
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

/// A case to count.
#[derive(Debug, Clone, Copy)]
struct Case {
    reach: Reach,
    name: &'static str,
    blocks: u32,
    threads: usize,
}

const CASES: [Case; 6] = {
    const fn case(reach: Reach, name: &'static str, blocks: u32, threads: usize) -> Case {
        Case {
            reach,
            name,
            blocks,
            threads,
        }
    }
    let all = super::BLOCKS;
    [
        case(
            Reach::InHand,
            "in hand, one hot block, 1 thread, counted",
            1,
            1,
        ),
        case(
            Reach::InHand,
            "in hand, one hot block, 2 threads, counted",
            1,
            2,
        ),
        case(Reach::InHand, "in hand, uniform, 1 thread, counted", all, 1),
        case(
            Reach::ByKey,
            "by key, one hot block, 1 thread, counted",
            1,
            1,
        ),
        case(Reach::ByKey, "by key, uniform, 1 thread, counted", all, 1),
        case(
            Reach::Engine,
            "through the engine: a warm body of 16 blocks, 1 thread, counted",
            1,
            1,
        ),
    ]
};

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let mut wanted = CASES
        .into_iter()
        .filter(|case| args.wants(case.name))
        .peekable();
    let Some(first) = wanted.peek().copied() else {
        return Ok(());
    };
    let counts = |tool| Ok::<_, Failure>(!counted(tool, first, OURS, 0)?.is_empty());
    let tool = if counts(Tool::Perf)? {
        Tool::Perf
    } else if counts(Tool::Callgrind)? {
        report.note(
            "`perf stat` counts nothing here: the instructions of one thread are callgrind's, cache lines are not counted.",
        );
        Tool::Callgrind
    } else {
        report.note("Neither `perf stat` nor callgrind counts here: no counts of instructions and cache lines.");
        return Ok(());
    };
    for case in wanted {
        if (tool == Tool::Callgrind && case.threads > 1) || !args.begins(case.name) {
            continue;
        }
        let peers: &[&str] = match case.reach {
            Reach::ByKey => &[MOKA, QUICK, FOYER],
            Reach::InHand => &[MUTEX, CAS, CAS_QUEUE, ADDS],
            Reach::Engine => &[ADDS],
        };
        let ours = per_pair(tool, case, OURS)?;
        for &peer in peers {
            let theirs = per_pair(tool, case, peer)?;
            for (event, unit) in EVENTS {
                if let (Some(ours), Some(theirs)) = (find(&ours, event), find(&theirs, event)) {
                    let unit = match case.reach {
                        Reach::Engine => &unit.replace("pair", "body"),
                        _ => unit,
                    };
                    report
                        .rows
                        .push(Row::info(case.name, unit, ours, peer, theirs));
                }
            }
        }
    }
    Ok(())
}

type Counts = Vec<(&'static str, f64)>;

fn find(counts: &Counts, event: &str) -> Option<f64> {
    let found = counts.iter().find(|(name, _)| *name == event)?;
    Some(found.1)
}

fn per_pair(tool: Tool, case: Case, design: &str) -> Result<Counts, Failure> {
    let pairs = tool.pairs(case.reach);
    let with = counted(tool, case, design, pairs)?;
    let without = counted(tool, case, design, 0)?;
    let all = (case.threads * pairs) as f64;
    let event = |&(event, count): &(&'static str, f64)| {
        Some((event, (count - find(&without, event)?) / all))
    };
    Ok(with.iter().filter_map(event).collect())
}

/// Counts one run. Empty if the tool is missing or counts nothing.
fn counted(tool: Tool, case: Case, design: &str, pairs: usize) -> Result<Counts, Failure> {
    let Case {
        reach,
        blocks,
        threads,
        ..
    } = case;
    let mut command = tool.command();
    command.arg(std::env::current_exe()?);
    command.args(["pin-loop", design]);
    let reach = reach.to_possible_value();
    let reach = reach.ok_or("each way has a name")?;
    command.args(["--reach", reach.get_name()]);
    command.args(["--blocks", &blocks.to_string()]);
    command.args(["--threads", &threads.to_string()]);
    command.args(["--pairs", &pairs.to_string()]);
    let Ok(output) = command.output() else {
        return Ok(Counts::new());
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        return Ok(parse(&errors));
    }
    // `perf` fails where the machine forbids it to count; callgrind ends as the program does, and what it counted until
    // then is no figure.
    if tool == Tool::Callgrind {
        let last = errors
            .lines()
            .find(|line| line.starts_with("bywash-bench:"));
        let reason = last.map_or_else(|| output.status.to_string(), str::to_owned);
        eprintln!(
            "left out: {design} {} under callgrind: {reason}",
            reach.get_name()
        );
    }
    Ok(Counts::new())
}

/// Parses lines of `perf stat -x ,` (the count, its unit, the event, and more) and of callgrind.
fn parse(text: &str) -> Counts {
    let line = |line: &str| {
        if let Some((_, count)) = line.split_once("== Collected : ") {
            return Some((INSTRUCTIONS, count.trim().parse().ok()?));
        }
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
    fn uncounted_events_are_omitted() {
        let text = "<not supported>,,instructions:u,0,100.00,,\n1234,,cache-misses:u,500,100.00,,\nnoise\n";
        assert_eq!(parse(text), [("cache-misses:u", 1234.0)]);
        let text = "==7== Events    : Ir\n==7== Collected : 9690660\n==7== \n";
        assert_eq!(parse(text), [(INSTRUCTIONS, 9_690_660.0)]);
    }
}
