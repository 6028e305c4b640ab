//! `registry`: names that many threads look up and few insert, and the pool's table of blocks.

mod blocks;
mod designs;

use std::cell::RefCell;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use bywash_mem::Names;
use foldhash::fast::RandomState;

use super::crew::Crew;
use super::pin::{Picks, cpu_time};
use super::round::Rounds;
use super::{Args, Go, Report, Side, alternate};
use crate::Failure;
use designs::{Design, Plain};

const COUNTS: [usize; 3] = [100, 10_000, 1_000_000];
const THREADS: [usize; 3] = [1, 2, 20];
const ROUNDS: usize = 9;

const OURS: &str = "Bywash";
const PLAIN: &str = "unsynchronised HashMap";
const MUTEX: &str = "std Mutex";
const RW: &str = "std RwLock";
const PARKING: &str = "parking_lot RwLock";
const DASHMAP: &str = "dashmap";
const PAPAYA: &str = "papaya";
const GO_RW: &str = "Go RWMutex and map";
const GO_SYNC: &str = "Go sync.Map";

/// Goal of the design for a known name, relative to a map without a lock.
const GET_GOAL: f64 = 1.25;

/// Lookups before the same names come again: enough that those of a large table are not all in the nearer caches.
const SCRIPT: usize = 1 << 18;
/// Lookups per new name.
const NEW: usize = 100;
/// Max names of a table that is rebuilt for each turn that inserts names. In larger ones the new names are few.
const BUILT_ANEW: usize = 10_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Get,
    Create,
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Create => "get or create, 1 % new",
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Create => "create",
        }
    }
}

/// Figures in nanoseconds per lookup.
#[derive(Debug, Clone, Copy)]
struct Figures {
    /// Processor time of all threads.
    cpu: f64,
    /// Wall-clock time, divided by the lookups of all threads.
    wall: f64,
}

#[derive(Debug, Clone, Copy)]
struct Cell {
    op: Op,
    names: usize,
    threads: usize,
    /// Lookups of each thread in a turn.
    lookups: usize,
}

impl Cell {
    fn name(self) -> String {
        let threads = match self.threads {
            1 => "1 thread".to_owned(),
            n => format!("{n} threads"),
        };
        format!("{}, {} names, {threads}", self.op.name(), self.names)
    }
}

/// Returns the `n`th name, of 36 bytes.
fn name(n: usize) -> String {
    format!("dc1.rack{:02}.host{n:06}.cpu.usage_user", n % 40)
}

/// Returns the `n`th new name of a thread in a turn.
fn new_name(turn: usize, thread: usize, n: usize) -> String {
    format!("dc1.new{turn:05}.host{n:06}.thread{thread:02}")
}

/// Returns names adjacent in memory, which are never freed: a few MB per table size.
fn in_a_row(names: impl Iterator<Item = String>) -> Vec<&'static str> {
    let mut ends = vec![0];
    let mut text = String::new();
    for name in names {
        text.push_str(&name);
        ends.push(text.len());
    }
    let text: &'static str = Box::leak(text.into_boxed_str());
    let pair = |pair: &[usize]| &text[pair[0]..pair[1]];
    ends.windows(2).map(pair).collect()
}

/// Draws numbers below `below`.
fn draws(below: usize) -> impl Iterator<Item = usize> {
    let mut picks = Picks::all(0);
    std::iter::repeat_with(move || {
        ((u64::from(picks.next()) * below as u64) >> Picks::BITS) as usize
    })
}

/// Workload of a table size: its names, and the names to look up, adjacent in memory in their order, as if parsed from requests.
#[derive(Debug)]
struct LookupWorkload {
    names: Vec<&'static str>,
    script: Vec<&'static str>,
}

impl LookupWorkload {
    fn new(count: usize) -> Self {
        Self {
            names: in_a_row((0..count).map(name)),
            script: in_a_row(draws(count).take(SCRIPT).map(name)),
        }
    }
}

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let go = Go::start("registry").map(RefCell::new);
    notes(report, go.as_ref().err());
    let go = go.ok();
    for count in COUNTS {
        let lookups = |op, threads| {
            let all = if args.quick { 1 << 16 } else { 1 << 20 };
            // A turn that inserts names is shorter, so that a small table stays small.
            let all = if op == Op::Get { all } else { all >> 3 };
            all / threads
        };
        let cells: Vec<Cell> = [Op::Get, Op::Create]
            .into_iter()
            .flat_map(|op| THREADS.map(|threads| (op, threads)))
            .map(|(op, threads)| Cell {
                op,
                names: count,
                threads,
                lookups: lookups(op, threads),
            })
            .filter(|cell| args.wants(&cell.name()))
            .collect();
        if !cells.is_empty() {
            let bench = Bench {
                args,
                workload: Arc::new(LookupWorkload::new(count)),
                go: go.as_ref(),
            };
            bench.run(&cells, report)?;
        }
    }
    blocks::run(args, report)
}

fn notes(report: &mut Report, no_go: Option<&Failure>) {
    report.note(
        "Names of 36 bytes, drawn evenly in advance, the same for all sides, and lying one behind the other in the order of their \
         use. Values are 64-bit numbers. All Rust sides hash with foldhash. Get: 1 thread and all rows beside the unsynchronised \
         map: CPU time of the threads by their lookups (Go: of the process); else the clock's time by the lookups of all threads. \
         Get or create: one lookup in 100 is of a new name; tables of up to 10,000 names are made anew for each turn, untimed.",
    );
    report.note(
        "What two cores cannot show: what the words that locks write cost when many cores access them. 20 threads on 2 cores are \
         preempted, two at most are at work together.",
    );
    if let Some(no_go) = no_go {
        report.note(format!("The Go sides are left out: {no_go}."));
    }
}

#[derive(Debug)]
struct Bench<'a> {
    args: &'a Args,
    workload: Arc<LookupWorkload>,
    go: Option<&'a RefCell<Go>>,
}

type Map = std::collections::HashMap<Box<str>, u64, RandomState>;

impl Bench<'_> {
    fn run(&self, cells: &[Cell], report: &mut Report) -> Result<(), Failure> {
        let plain = Arc::new(Plain::of(&self.workload.names));
        let ours = self.table::<Names<u64>>();
        let mutex = self.table::<std::sync::Mutex<Map>>();
        let rw = self.table::<std::sync::RwLock<Map>>();
        let parking = self.table::<parking_lot::RwLock<Map>>();
        let dashmap = self.table::<dashmap::DashMap<Box<str>, u64, RandomState>>();
        let papaya = self.table::<papaya::HashMap<Box<str>, u64, RandomState>>();
        for &cell in cells {
            if !self.args.begins(&cell.name()) {
                continue;
            }
            let crew = Crew::new(cell.threads);
            let mut sides = vec![
                self.side(OURS, &ours, cell, &crew),
                self.side(MUTEX, &mutex, cell, &crew),
                self.side(RW, &rw, cell, &crew),
                self.side(PARKING, &parking, cell, &crew),
                self.side(DASHMAP, &dashmap, cell, &crew),
                self.side(PAPAYA, &papaya, cell, &crew),
            ];
            if cell.op == Op::Get {
                sides.insert(1, self.plain(&plain, cell, &crew));
            }
            if let Some(go) = self.go {
                sides.push(go_side(GO_RW, "rwmutex", go, cell));
                sides.push(go_side(GO_SYNC, "syncmap", go, cell));
            }
            let rounds = alternate(self.args.rounds(ROUNDS), sides)?;
            self.rows(cell, &rounds, report);
        }
        Ok(())
    }

    fn rows(&self, cell: Cell, rounds: &Rounds<Figures>, report: &mut Report) {
        let (cpu, wall) = (rounds.map(|f| f.cpu), rounds.map(|f| f.wall));
        let name = cell.name();
        if cell.op == Op::Get {
            let row = cpu.row(&name, "ns/lookup", OURS, PLAIN);
            report.rows.push(row.goal(GET_GOAL));
        }
        let go: &[&str] = if self.go.is_some() {
            &[GO_RW, GO_SYNC]
        } else {
            &[]
        };
        let clock = if cell.threads == 1 { &cpu } else { &wall };
        for peer in [MUTEX, RW, PARKING, DASHMAP, PAPAYA].iter().chain(go) {
            let row = clock.row(&name, "ns/lookup", OURS, peer);
            report.rows.push(row);
        }
    }

    fn table<D: Design>(&self) -> Arc<D> {
        let table = D::empty();
        for name in &self.workload.names {
            table.get_or_create(name);
        }
        Arc::new(table)
    }

    fn plain<'a>(&self, plain: &Arc<Plain>, cell: Cell, crew: &'a Crew) -> Side<'a, Figures> {
        let (plain, workload) = (Arc::clone(plain), Arc::clone(&self.workload));
        Side::new(PLAIN, move || {
            let (plain, workload) = (Arc::clone(&plain), Arc::clone(&workload));
            measure(cell, crew, move |thread| {
                sum(workload.lookups(cell, thread).map(|name| plain.get(name)))
            })
        })
    }

    fn side<'a, D: Design>(
        &'a self,
        name: &str,
        kept: &Arc<D>,
        cell: Cell,
        crew: &'a Crew,
    ) -> Side<'a, Figures> {
        let kept = Arc::clone(kept);
        let mut turns = 0;
        Side::new(name, move || {
            let (table, workload) = (Arc::clone(&kept), Arc::clone(&self.workload));
            if cell.op == Op::Get {
                return measure(cell, crew, move |thread| {
                    sum(workload.lookups(cell, thread).map(|name| table.get(name)))
                });
            }
            let table = if cell.names > BUILT_ANEW {
                table
            } else {
                self.table::<D>()
            };
            turns += 1;
            // A name is new only once in a kept table, so names depend on the number of threads.
            let turn = turns * 100 + cell.threads;
            let new: Vec<Vec<String>> = (0..cell.threads)
                .map(|thread| {
                    let names = 0..=cell.lookups / NEW;
                    names.map(|n| new_name(turn, thread, n)).collect()
                })
                .collect();
            measure(cell, crew, move |thread| {
                let new = new[thread].iter().map(String::as_str);
                let names = every(NEW, new, workload.lookups(cell, thread));
                sum(names.map(|name| Some(table.get_or_create(name))))
            })
        })
    }
}

impl LookupWorkload {
    /// Returns the names that a thread looks up in a turn: each thread begins at another offset.
    fn lookups(&self, cell: Cell, thread: usize) -> impl Iterator<Item = &'static str> {
        let from = thread * (SCRIPT / cell.threads);
        let script = self.script[from..].iter().chain(self.script.iter().cycle());
        script.copied().take(cell.lookups)
    }
}

/// Returns the second iterator, with an item of the first at each multiple of `each`, until the first ends.
fn every<'a>(
    each: usize,
    mut first: impl Iterator<Item = &'a str>,
    second: impl Iterator<Item = &'static str>,
) -> impl Iterator<Item = &'a str> {
    let mut left = each;
    second.map(move |name| {
        left -= 1;
        if left > 0 {
            return name;
        }
        left = each;
        first.next().unwrap_or(name)
    })
}

/// Sums the results of lookups, so that the compiler keeps them. An unknown name counts as a fixed number.
#[inline]
fn sum(found: impl Iterator<Item = Option<u64>>) -> u64 {
    found.fold(0, |sum, found| sum.wrapping_add(found.unwrap_or(1 << 63)))
}

/// Runs `job` on each thread, timed from the moment at which all are ready.
fn measure(
    cell: Cell,
    crew: &Crew,
    job: impl Fn(usize) -> u64 + Send + Sync + 'static,
) -> Result<Figures, Failure> {
    let (job, barrier) = (Arc::new(job), Arc::new(Barrier::new(cell.threads)));
    let times = crew.run((0..cell.threads).map(|thread| {
        let (job, barrier) = (Arc::clone(&job), Arc::clone(&barrier));
        move || {
            barrier.wait();
            let (begun, cpu) = (Instant::now(), cpu_time());
            std::hint::black_box(job(thread));
            (begun, Instant::now(), cpu_time() - cpu)
        }
    }))?;
    let begun = times.iter().map(|time| time.0).min();
    let ended = times.iter().map(|time| time.1).max();
    let wall = begun
        .zip(ended)
        .map_or(Duration::ZERO, |(begun, ended)| ended - begun);
    let cpu: Duration = times.iter().map(|time| time.2).sum();
    let lookups = (cell.threads * cell.lookups) as f64;
    Ok(Figures {
        cpu: cpu.as_nanos() as f64 / lookups,
        wall: wall.as_nanos() as f64 / lookups,
    })
}

fn go_side<'a>(name: &str, design: &'a str, go: &'a RefCell<Go>, cell: Cell) -> Side<'a, Figures> {
    Side::new(name, move || {
        let Cell {
            op,
            names,
            threads,
            lookups,
        } = cell;
        let case = format!("{design} {} {names} {threads} {lookups}", op.word());
        let [cpu, wall] = go.borrow_mut().run_case(&case)?;
        Ok(Figures { cpu, wall })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_has_known_names_and_one_new_name_in_a_hundred() {
        let workload = LookupWorkload::new(100);
        assert!(
            workload
                .script
                .iter()
                .all(|name| workload.names.contains(name))
        );
        let cell = Cell {
            op: Op::Create,
            names: 100,
            threads: 20,
            lookups: 1000,
        };
        let last: Vec<_> = workload.lookups(cell, 19).collect();
        assert_eq!(last.len(), 1000);
        assert_eq!(last[0], workload.script[19 * (SCRIPT / 20)]);
        let new = (0..11).map(|n| new_name(1, 2, n)).collect::<Vec<_>>();
        let all = every(NEW, new.iter().map(String::as_str), last.into_iter());
        let unknown: Vec<_> = all.filter(|name| !workload.names.contains(name)).collect();
        assert_eq!(unknown, new[..10]);
    }
}
