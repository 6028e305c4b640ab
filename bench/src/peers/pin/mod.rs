//! `pin`: blocks pinned for a moment by many threads at once.

mod caches;
mod counters;
mod designs;
mod drive;
mod engine;
mod seed;
mod workload;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use counters::{LoopArgs, run_loop};

use caches::{Foyer, Moka, Quick};
use designs::{ByKey, Design, InHand, Locked, TwoAdds};
use drive::Figures;
pub(super) use drive::{Picks, cpu_time};
use engine::{EachBlock, WarmBody};
use seed::CasIfPinned;

use super::crew::Crew;
use super::pool::key;
use super::{Args, Pace, Report, Row, Side, alternate};
use crate::Failure;

/// Blocks to choose from when no block is hot. Their headers fill 256 KiB: past the first cache, within the second.
const BLOCKS: u32 = 4096;
const ROUNDS: usize = 11;
const CROWD: usize = 20;

const OURS: &str = "Bywash";
const ADDS: &str = "two uncontended adds";
const MUTEX: &str = "mutex a block";
const CAS: &str = "CAS if pinned";
const CAS_QUEUE: &str = "CAS if pinned, eviction queue";
const MOKA: &str = "moka";
const QUICK: &str = "quick_cache";
const FOYER: &str = "foyer";

/// Goal of the design for a pair of pin and unpin, relative to two adds.
const PAIR_GOAL: f64 = 1.3;
/// Its goal for one hot block and two threads, relative to compare-and-swap.
const HOT_GOAL: f64 = 0.35;
/// Fastest in every cell.
const FASTEST: f64 = 1.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Reach {
    InHand,
    ByKey,
    /// A warm body of 16 blocks instead of a pair.
    Engine,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heat {
    /// Any of [`BLOCKS`].
    Uniform,
    /// One block, unpinned in between.
    Hot,
    /// One block that another thread keeps pinned: no transition from or to zero, the best case of compare-and-swap.
    Kept,
}

#[derive(Debug, Clone, Copy)]
struct Cell {
    reach: Reach,
    heat: Heat,
    threads: usize,
}

impl Cell {
    fn name(self) -> String {
        let reach = match self.reach {
            Reach::InHand => "in hand",
            Reach::ByKey => "by key",
            Reach::Engine => "through the engine: a warm body of 16 blocks",
        };
        let heat = match self.heat {
            _ if self.reach == Reach::Engine => "one hot object",
            Heat::Uniform => "uniform",
            Heat::Hot => "one hot block",
            Heat::Kept => "one hot block kept pinned",
        };
        let threads = match self.threads {
            1 => "1 thread".to_owned(),
            2 => "2 threads, proven overlap".to_owned(),
            n => format!("{n} threads"),
        };
        format!("{reach}, {heat}, {threads}")
    }

    fn unit(self) -> &'static str {
        match self.reach {
            Reach::Engine => "ns/body",
            _ => "ns/pair",
        }
    }

    fn blocks(self) -> u32 {
        match self.heat {
            Heat::Uniform => BLOCKS,
            Heat::Hot | Heat::Kept => 1,
        }
    }
}

fn cells() -> impl Iterator<Item = Cell> {
    [
        (Reach::InHand, Heat::Uniform),
        (Reach::InHand, Heat::Hot),
        (Reach::InHand, Heat::Kept),
        (Reach::ByKey, Heat::Uniform),
        (Reach::ByKey, Heat::Hot),
        (Reach::Engine, Heat::Hot),
    ]
    .into_iter()
    .flat_map(|(reach, heat)| {
        [1, 2, CROWD].map(|threads| Cell {
            reach,
            heat,
            threads,
        })
    })
    .filter(|cell| cell.reach != Reach::Engine || cell.threads <= 2)
}

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    notes(report);
    for cell in cells() {
        if args.begins(&cell.name()) {
            measure(args, cell, report)?;
        }
    }
    workload::run(args, report)?;
    counters::run(args, report)
}

fn notes(report: &mut Report) {
    report.note(
        "A pair is pin and unpin. 1 thread: CPU time of the thread. 2 threads: each is bound to a core of its own and looks at \
         the clock about every 0.1 ms; a stretch between two looks counts only if it took under 1 ms (longer: another process had \
         the core) and the other thread was at work, in such stretches too, from its beginning to its end; the figure is the \
         clock's, median of the stretches (p50) and 90th percentile (p90). 20 threads: CPU time of all threads by all their \
         pairs; beside it the clock's, where a thread that sleeps on a lock shows only as far as a core runs dry.",
    );
    report.note(
        "Two adds: one add and one subtract on a line of 64 bytes that no other thread uses, found through a list as long as our handles. Mutex a block: taken twice, no \
         eviction queue. CAS if pinned: the readers' count by compare-and-swap while above zero, else the block's mutex; with \
         eviction queue: as the ancestor has it, a node a last unpin and purges. Caches are read by key, with our hasher, and \
         give a clone of an `Arc` (foyer: its own entry). Nothing is ever evicted.",
    );
    report.note(
        "What two cores cannot show: how a hot line behaves when many cores access it at once. 20 threads on 2 cores show the \
         cost of being preempted, not that of 20 cores; at most two are ever at work together.",
    );
}

/// Work that is the same for each design.
trait Visitor {
    type Out;
    fn visit(self, design: impl Design) -> Self::Out;
}

/// Creates the design of that name with that many blocks.
fn with_design<V: Visitor>(
    name: &str,
    reach: Reach,
    blocks: u32,
    visitor: V,
) -> Result<V::Out, Failure> {
    let one_byte = || (0..blocks).map(|_| Box::from([1_u8]));
    let keys = (0..blocks).map(|block| key(0, block));
    Ok(match (name, reach) {
        (OURS, Reach::InHand) => visitor.visit(InHand::new(keys, 1, |_, _| ())?),
        (OURS, Reach::ByKey) => visitor.visit(ByKey::new(blocks)?),
        (OURS, Reach::Engine) => visitor.visit(WarmBody::new()?),
        (ADDS, Reach::Engine) => visitor.visit(EachBlock(TwoAdds::new(blocks))),
        (ADDS, _) => visitor.visit(TwoAdds::new(blocks)),
        (MUTEX, _) => visitor.visit(Locked::new(one_byte())),
        (CAS, _) => visitor.visit(CasIfPinned::new(one_byte(), false)),
        (CAS_QUEUE, _) => visitor.visit(CasIfPinned::new(one_byte(), true)),
        (MOKA, _) => visitor.visit(Moka::new(blocks)),
        (QUICK, _) => visitor.visit(Quick::new(blocks)),
        (FOYER, _) => visitor.visit(Foyer::new(blocks)),
        _ => return Err(format!("no design is called {name:?}").into()),
    })
}

fn measure(args: &Args, cell: Cell, report: &mut Report) -> Result<(), Failure> {
    let crew = Crew::new(cell.threads);
    let context = |name| Context {
        name,
        cell,
        crew: &crew,
        turn: args.turn(),
    };
    let peers: &[&str] = match cell.reach {
        Reach::InHand => &[MUTEX, CAS, CAS_QUEUE],
        Reach::ByKey => &[MOKA, QUICK, FOYER],
        Reach::Engine => &[],
    };
    let sides: Result<Vec<_>, Failure> = [OURS, ADDS]
        .iter()
        .chain(peers)
        .map(|name| with_design(name, cell.reach, cell.blocks(), context(name)))
        .collect();
    let rounds = alternate(args.rounds(ROUNDS), sides?)?;
    let name = cell.name();
    let (cpu, wall) = (rounds.map(|f| f.cpu), rounds.map(|f| f.wall));
    let main = if cell.threads == 2 { &wall } else { &cpu };
    let adds = main.row(&name, cell.unit(), OURS, ADDS);
    let pair = cell.reach == Reach::InHand && cell.threads == 1;
    report
        .rows
        .push(if pair { adds.goal(PAIR_GOAL) } else { adds });
    for &peer in peers {
        let row = main.row(&name, "ns/pair", OURS, peer);
        report.rows.push(row.goal(goal(cell, peer)));
        report.rows.extend(besides(cell, peer, &rounds));
    }
    if cell.threads == 2 {
        let proven = rounds.map(|f| f.proven).median(OURS);
        report.rows.push(Row::info(
            &format!("{name}: stretches that proved it"),
            "part",
            proven,
            "all",
            1.0,
        ));
    }
    Ok(())
}

/// The other clock of a crowd, and the slow end of two threads.
fn besides(cell: Cell, peer: &str, rounds: &super::round::Rounds<Figures>) -> Option<Row> {
    let name = cell.name();
    match cell.threads {
        1 => None,
        2 => {
            let p90 = rounds.map(|f| f.wall_p90);
            Some(p90.row(&format!("{name}, p90"), "ns/pair", OURS, peer))
        }
        _ => {
            let wall = rounds.map(|f| f.wall);
            Some(wall.row(&format!("{name}, by the clock"), "ns/pair", OURS, peer))
        }
    }
}

fn goal(cell: Cell, peer: &str) -> f64 {
    let cas = peer == CAS || peer == CAS_QUEUE;
    if cas && cell.threads == 2 && cell.heat != Heat::Uniform {
        HOT_GOAL
    } else {
        FASTEST
    }
}

/// Context of a cell, shared by all its sides.
#[derive(Debug, Clone, Copy)]
struct Context<'a> {
    name: &'a str,
    cell: Cell,
    crew: &'a Crew,
    turn: Duration,
}

impl<'a> Visitor for Context<'a> {
    type Out = Side<'a, Figures>;

    fn visit(self, design: impl Design) -> Side<'a, Figures> {
        let design = Arc::new(design);
        if self.cell.heat == Heat::Kept {
            design.keep(0);
        }
        let Self {
            name,
            cell,
            crew,
            turn,
        } = self;
        let blocks = cell.blocks();
        let mut pace = Pace::new(turn);
        // Nanoseconds that one thread alone needs for a pair; pairs of a stretch.
        let mut each = None;
        let mut stretch = None;
        Side::new(name, move || {
            if cell.threads == 1 {
                return drive::alone(&*design, blocks, &mut pace);
            }
            let each = match each {
                Some(each) => each,
                None => {
                    let mut pace = Pace::new(turn);
                    *each.insert(drive::alone(&*design, blocks, &mut pace)?.cpu)
                }
            };
            if cell.threads == 2 {
                let stretch = stretch.get_or_insert(drive::pairs_a_stretch(each));
                return drive::overlapped(&design, blocks, crew, turn, stretch);
            }
            let pairs = turn.as_nanos() as f64 / each / cell.threads as f64;
            drive::crowd(&design, blocks, cell.threads, crew, (pairs as usize).max(1))
        })
    }
}
