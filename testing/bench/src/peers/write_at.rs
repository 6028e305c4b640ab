//! `write-at`: shards of 4 MiB written side by side into a buffer made anew each time.

use std::sync::Arc;
use std::time::Duration;

use memmap2::MmapMut;

use super::crew::Crew;
use super::{Args, Go, Pace, Report, Side, alternate};
use crate::Failure;

const SHARD: usize = 4 << 20;
/// What `io.Copy` moves at a time.
const PIECE: usize = 32 << 10;
const ROUNDS: usize = 15;
/// Where one operation of the Go designs takes seconds.
const SLOW_ROUNDS: usize = 2;

const FRESH: &str = "memcpy, fresh memory";
const REUSED: &str = "memcpy, reused memory";
const DESIGNS: [(&str, &str); 2] = [
    ("Go aws-sdk WriteAtBuffer", "aws"),
    ("Go RWMutex and extent", "rwmutex"),
];

/// What the buffer knows of its size when it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strategy {
    Presized,
    Half,
    Dynamic,
}

/// One cell of the table.
#[derive(Debug, Clone, Copy)]
struct Cell {
    strategy: Strategy,
    shards: usize,
    /// Bytes a write: a whole shard, or [`PIECE`].
    piece: usize,
}

impl Cell {
    fn name(self) -> String {
        let strategy = match self.strategy {
            Strategy::Presized => "presized",
            Strategy::Half => "half",
            Strategy::Dynamic => "dynamic",
        };
        let piece = match self.piece {
            SHARD => "one write a shard",
            _ => "32 KiB pieces",
        };
        format!("{strategy}, {} x 4 MiB, {piece}", self.shards)
    }

    fn total(self) -> usize {
        self.shards * SHARD
    }

    fn size_hint(self) -> usize {
        match self.strategy {
            Strategy::Presized => self.total(),
            Strategy::Half => self.total() / 2,
            Strategy::Dynamic => 0,
        }
    }

    /// Whether the Go designs reallocate at every piece.
    fn is_slow(self) -> bool {
        self.strategy != Strategy::Presized && self.piece < SHARD
    }
}

fn cells() -> impl Iterator<Item = Cell> {
    [SHARD, PIECE].into_iter().flat_map(|piece| {
        [Strategy::Presized, Strategy::Half, Strategy::Dynamic]
            .into_iter()
            .flat_map(move |strategy| {
                [1, 4, 10].map(move |shards| Cell {
                    strategy,
                    shards,
                    piece,
                })
            })
    })
}

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    report.note(
        "Timed: making the buffer, handing the shards to one thread (goroutine) each, writing them, waiting for all, \
         dropping the buffer. Threads of the Rust sides wait for work in a pool, the caller's takes the first shard. Each \
         write copies from the same source of one piece. In half and dynamic cells with 32 KiB pieces the Go designs take \
         seconds an operation: two rounds of one operation.",
    );
    let mut go = Go::start("write-at")?;
    for cell in cells() {
        if args.begins(&cell.name()) {
            measure(args, cell, &mut go, report)?;
        }
    }
    Ok(())
}

fn measure(args: &Args, cell: Cell, go: &mut Go, report: &mut Report) -> Result<(), Failure> {
    let crew = Crew::new(cell.shards);
    let source: Arc<[u8]> = (0..cell.piece).map(|at| at as u8).collect();
    let mut sides = vec![
        fresh(args, cell, &crew, &source),
        reused(args, cell, &crew, &source),
    ];
    let go = std::cell::RefCell::new(go);
    for (name, design) in DESIGNS {
        let mut pace = Pace::new(args.turn());
        let go = &go;
        sides.push(Side::new(name, move || {
            let turn = |operations| {
                let case = case(cell, design, operations, false);
                let [ns] = go.borrow_mut().ask(&case)?;
                Ok(Duration::from_nanos((ns * operations as f64) as u64))
            };
            if cell.is_slow() {
                return Ok(turn(1)?.as_nanos() as f64);
            }
            pace.ns(turn)
        }));
    }
    let rounds = args.rounds(if cell.is_slow() { SLOW_ROUNDS } else { ROUNDS });
    let rounds = alternate(rounds, sides)?;
    for (peer, _) in DESIGNS {
        report
            .rows
            .push(rounds.row(&cell.name(), "ns", REUSED, peer));
    }
    report
        .rows
        .push(rounds.row(&cell.name(), "ns", REUSED, FRESH));
    Ok(())
}

/// The line that asks the Go side for a turn.
fn case(cell: Cell, design: &str, operations: usize, count: bool) -> String {
    format!(
        "{design} {} {} {} {operations} {}",
        cell.size_hint(),
        cell.shards,
        cell.piece,
        u8::from(count)
    )
}

/// Plain copies into pages the process has not touched, mapped and unmapped each time.
fn fresh<'a>(args: &Args, cell: Cell, crew: &'a Crew, source: &'a Arc<[u8]>) -> Side<'a> {
    let mut pace = Pace::new(args.turn());
    Side::new(FRESH, move || {
        pace.each(|| {
            let maps: Result<Vec<MmapMut>, _> =
                (0..cell.shards).map(|_| MmapMut::map_anon(SHARD)).collect();
            let filled = crew.run(maps?.into_iter().map(|mut map| {
                let source = Arc::clone(source);
                move || {
                    copy(&mut map, &source);
                    map
                }
            }))?;
            drop(filled);
            Ok(())
        })
    })
}

/// Plain copies into the same memory over and over.
fn reused<'a>(args: &Args, cell: Cell, crew: &'a Crew, source: &'a Arc<[u8]>) -> Side<'a> {
    let mut pace = Pace::new(args.turn());
    let mut memory: Vec<Vec<u8>> = vec![vec![1; SHARD]; cell.shards];
    Side::new(REUSED, move || {
        pace.each(|| {
            memory = crew.run(std::mem::take(&mut memory).into_iter().map(|mut shard| {
                let source = Arc::clone(source);
                move || {
                    copy(&mut shard, &source);
                    shard
                }
            }))?;
            Ok(())
        })
    })
}

fn copy(into: &mut [u8], piece: &[u8]) {
    for part in into.chunks_mut(piece.len()) {
        part.copy_from_slice(piece);
        std::hint::black_box(&part);
    }
}
