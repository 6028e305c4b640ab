//! `series`: rows that threads write to series, by name beside Catena's design in Go, by handle beside Prometheus' appender; and
//! queries of them.

mod ours;
mod queries;
mod threads;

use std::cell::{LazyCell, RefCell};
use std::time::Duration;

use bywash_series::Ack;
use rustix::time::{ClockId, clock_gettime};

use self::ours::{LeftLog, Ours};
use super::pin::Picks;
use super::{Args, Go, Report, Row, Side, alternate};
use crate::Failure;

const COUNTS: [usize; 4] = [1, 100, 10_000, 1_000_000];
const THREADS: [usize; 3] = [1, 2, 4];
const ROUNDS: usize = 5;
/// Rows for which series are drawn in advance, as in the Go sides.
const SCRIPT: usize = 1 << 18;

const OURS: &str = "Bywash";
/// Name of a Go design, and its word in the Go program.
const GO: [(&str, &str); 3] = [
    ("Go, Mutex", "mutex"),
    ("Go, RWMutex looked at twice", "rwmutex"),
    ("Go, sync.Map", "syncmap"),
];
/// Prometheus' head, whose appender takes references.
const PROMETHEUS: &str = "Prometheus";
/// Name of the ancestor.
const CATENA: &str = GO[1].0;
/// Goal of the design for rows by name at 10,000 series.
const CATENA_GOAL: f64 = 0.2;

/// Addressing rows identify their series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Addressing {
    /// Both names in each row, series drawn at random.
    Names,
    /// The same, in batches of [`ours::LARGE`] rows, each a commit of its own.
    Batches,
    /// Handles, series drawn at random.
    Handles,
    /// Handles, a hundred consecutive rows of one series.
    Runs,
}

impl Addressing {
    fn name(self) -> &'static str {
        match self {
            Self::Names => "names",
            Self::Batches => "names in batches of 16 MiB",
            Self::Handles => "handles",
            Self::Runs => "handles in runs of 100",
        }
    }

    /// Goal of the design at 10,000 series without a log, in nanoseconds per row of one thread.
    fn goal(self) -> f64 {
        match self {
            Self::Names | Self::Batches => 200.0,
            Self::Handles => 100.0,
            Self::Runs => 25.0,
        }
    }
}

/// Goals of the design for rows written to the log, and for rows read back from it.
const WRITTEN_GOAL: f64 = 1000.0 / 6.0;
const REPLAY_GOAL: f64 = 200.0;

/// Kind of time to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Time {
    Clock,
    /// Processor time of all threads of the process.
    Processor,
}

impl Time {
    fn of(args: &Args) -> Self {
        if args.processor {
            Self::Processor
        } else {
            Self::Clock
        }
    }

    fn now(self) -> Duration {
        match self {
            Self::Processor => crate::process::cpu_time(),
            Self::Clock => {
                let now = clock_gettime(ClockId::Monotonic);
                Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Cell {
    how: Addressing,
    series: usize,
    threads: usize,
    /// None: there is no log.
    ack: Option<Ack>,
}

impl Cell {
    fn name(self) -> String {
        let Self {
            how,
            series,
            threads,
            ack,
        } = self;
        let how = how.name();
        let log = match ack {
            None => "no log",
            Some(Ack::Memory) => "log behind",
            Some(Ack::Written) => "log written",
            Some(Ack::Synced) => "log synced",
        };
        let s = if threads == 1 { "" } else { "s" };
        format!("{how}, {log}, {series} series, {threads} thread{s}")
    }

    /// Rows of each thread in a turn.
    fn rows(self, quick: bool) -> usize {
        let all = match (self.how, self.ack) {
            // Four commits.
            (Addressing::Batches, _) => 4 * ours::LARGE,
            (_, Some(Ack::Synced)) => 1 << 13,
            _ => 1 << 20,
        };
        all / self.threads / if quick { 4 } else { 1 }
    }
}

/// SeriesWorkload: series, and the order in which rows belong to them.
#[derive(Debug)]
struct SeriesWorkload {
    names: Vec<(String, String)>,
    script: Vec<u32>,
}

impl SeriesWorkload {
    fn new(count: usize) -> Self {
        let name = |n| {
            (
                format!("host_{:06}", n / 10),
                format!("usage_metric_{}", n % 10),
            )
        };
        let mut picks = Picks::all(0);
        let draw = || ((u64::from(picks.next()) * count as u64) >> Picks::BITS) as u32;
        Self {
            names: (0..count).map(name).collect(),
            script: std::iter::repeat_with(draw).take(SCRIPT).collect(),
        }
    }
}

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let go = Go::start("series").map(RefCell::new);
    let prometheus = Go::start_apart("prometheus-go", &[]).map(RefCell::new);
    report.note(
        "A row has two names of 11 and 14 bytes, or a handle, a timestamp and a value, and goes to memory; series exist before. \
         Without a log 1,000 rows a call, with one 100; of batches of 16 MiB (of timestamps and values) 1,048,576. Time by the rows of all threads. Go: Catena's way of a row, two \
         maps and the metric's lock, with three ways to share the maps; it has no log. Replay: a log of 10,000 series opened, on all \
         cores.",
    );
    report.note(
        "Prometheus: its head's appender by reference, as many rows a commit as ours a call; each thread has series of its own, for \
         the head refuses rows that come late. It compresses rows as they come. Its log is written and not synced, as our \"written\".",
    );
    if args.processor {
        report.note("Times are processor times of all threads of a side: wall-clock times are unreliable on a busy machine.");
    }
    report.note("What two cores cannot show: how it goes on with more.");
    for no_go in [go.as_ref().err(), prometheus.as_ref().err()]
        .into_iter()
        .flatten()
    {
        report.note(format!("Go sides are left out: {no_go}."));
    }
    let peers = Peers {
        catena: go.ok(),
        prometheus: prometheus.ok(),
    };
    for series in COUNTS {
        // A million names take a while, so they are generated only for selected cases.
        let workload = LazyCell::new(|| SeriesWorkload::new(series));
        for threads in THREADS {
            for how in [Addressing::Names, Addressing::Handles, Addressing::Runs] {
                let cell = |ack| Cell {
                    how,
                    series,
                    threads,
                    ack,
                };
                one(args, report, &workload, cell(None), &peers)?;
                for ack in [Ack::Memory, Ack::Written, Ack::Synced] {
                    if series == 10_000 {
                        one(args, report, &workload, cell(Some(ack)), &peers)?;
                    }
                }
            }
        }
    }
    batches(args, report, &peers)?;
    threads::run(args, report)?;
    replays(args, report)?;
    queries::run(args, report)
}

/// Batches of 16 MiB, each a commit.
fn batches(args: &Args, report: &mut Report, peers: &Peers) -> Result<(), Failure> {
    let world = LazyCell::new(|| SeriesWorkload::new(10_000));
    for ack in [None, Some(Ack::Written), Some(Ack::Synced)] {
        let cell = Cell {
            how: Addressing::Batches,
            series: 10_000,
            threads: 1,
            ack,
        };
        one(args, report, &world, cell, peers)?;
    }
    Ok(())
}

/// The peers' programs.
struct Peers {
    catena: Option<RefCell<Go>>,
    prometheus: Option<RefCell<Go>>,
}

impl Peers {
    /// Returns the peers of this cell: name, program, and its case.
    fn of(&self, cell: Cell, rows: usize) -> Vec<(&'static str, &RefCell<Go>, String)> {
        let Cell {
            how,
            series,
            threads,
            ack,
        } = cell;
        let run = if how == Addressing::Runs {
            ours::RUN
        } else {
            1
        };
        match (how, ack) {
            (Addressing::Names, None) => {
                let case = |word| format!("{word} {series} {threads} {rows}");
                let all = self.catena.iter();
                all.flat_map(|go| GO.map(|(name, word)| (name, go, case(word))))
                    .collect()
            }
            (Addressing::Handles | Addressing::Runs, None | Some(Ack::Written))
                if series == 10_000 =>
            {
                let log = if ack.is_some() { "on" } else { "off" };
                let batch = ours::batch(how, ack);
                let case = format!("{log} {series} {threads} {rows} {batch} {run}");
                let all = self.prometheus.iter();
                all.map(|go| (PROMETHEUS, go, case.clone())).collect()
            }
            _ => Vec::new(),
        }
    }
}

fn one(
    args: &Args,
    report: &mut Report,
    workload: &LazyCell<SeriesWorkload, impl FnOnce() -> SeriesWorkload>,
    cell: Cell,
    peers: &Peers,
) -> Result<(), Failure> {
    let case = cell.name();
    if !args.begins(&case) {
        return Ok(());
    }
    let folder = tempfile::tempdir_in("target")?;
    let (rows, time) = (cell.rows(args.quick), Time::of(args));
    let size = (cell.threads, rows);
    let batch = ours::batch(cell.how, cell.ack);
    let mut ours = Ours::new(folder.path(), cell.ack, workload)?;
    // Not counted: the first touch of each series' memory.
    ours.turn(workload, cell.how, batch, size, time)?;
    let others = peers.of(cell, rows);
    let mut sides = vec![Side::new(OURS, || {
        ours.turn(workload, cell.how, batch, size, time)
    })];
    for (name, go, order) in &others {
        sides.push(Side::new(*name, move || {
            let [wall, cpu] = go.borrow_mut().run_case(order)?;
            Ok(if time == Time::Clock { wall } else { cpu })
        }));
    }
    let rounds = alternate(args.rounds(ROUNDS), sides)?;
    for (_, go, _) in others.iter().filter(|(name, ..)| *name == PROMETHEUS) {
        // It drops rejected rows silently.
        let [_] = go.borrow_mut().run_case("check")?;
    }
    let found = rounds.median(OURS);
    let goal = match cell.ack {
        None if cell.how == Addressing::Batches => None,
        None => Some(cell.how.goal()),
        Some(Ack::Written) if matches!(cell.how, Addressing::Handles | Addressing::Runs) => {
            Some(WRITTEN_GOAL)
        }
        Some(_) => None,
    };
    let row = match goal.filter(|_| cell.series == 10_000 && cell.threads == 1) {
        Some(max) => Row::at_most(&case, "ns/row", found, max),
        None => Row::info(&case, "ns/row", found, "itself", found),
    };
    report.rows.push(row);
    for (name, ..) in others {
        let row = rounds.row(&case, "ns/row", OURS, name);
        let held = name == CATENA && cell.series == 10_000;
        report
            .rows
            .push(if held { row.goal(CATENA_GOAL) } else { row });
    }
    Ok(())
}

fn replays(args: &Args, report: &mut Report) -> Result<(), Failure> {
    for (how, name) in [
        (Addressing::Handles, "replay"),
        (Addressing::Runs, "replay of runs of 100"),
    ] {
        if !args.begins(name) {
            continue;
        }
        let workload = SeriesWorkload::new(10_000);
        let rows = if args.quick { 1 << 20 } else { 1 << 23 };
        let time = Time::of(args);
        let log = LeftLog::new(&workload, how, rows, time)?;
        let sides = vec![Side::new(OURS, || log.replay(time))];
        let rounds = alternate(args.rounds(ROUNDS), sides)?;
        let cores = match time {
            Time::Clock => std::thread::available_parallelism()?.get() as f64,
            Time::Processor => 1.0,
        };
        let found = rounds.median(OURS) * cores;
        report
            .rows
            .push(Row::at_most(name, "ns/row of one core", found, REPLAY_GOAL));
    }
    Ok(())
}
