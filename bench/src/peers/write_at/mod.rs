//! `write-at`: shards of 4 MiB written concurrently into a new buffer each time.

mod counts;
mod sides;

use std::cell::RefCell;
use std::sync::Arc;

use bywash_mem::{BlockPool, PoolConfig};
use sides::{Context, write_pieces, write_shard};

use super::crew::Crew;
use super::{Args, Go, Report, alternate};
use crate::Failure;

const SHARD: usize = 4 << 20;
/// Bytes that `io.Copy` moves at a time.
const PIECE: usize = 32 << 10;
const ROUNDS: usize = 15;
/// Where one operation of the Go designs takes seconds.
const SLOW_ROUNDS: usize = 2;

/// Memory of the pool: more than any cell fills, so that warm frames stay warm.
const POOL: u64 = 128 << 20;

const OURS: &str = "Bywash, warm frames";
const COLD: &str = "Bywash, cold frames";
const PIECEWISE: &str = "Bywash, write_at a piece";
const FRESH: &str = "memcpy, fresh memory";
const REUSED: &str = "memcpy, reused memory";
const AWS: &str = "Go aws-sdk WriteAtBuffer";
const RW_MUTEX: &str = "Go RWMutex and extent";
/// Names of the Go designs in the table and in the Go program.
const DESIGNS: [(&str, &str); 2] = [(AWS, "aws"), (RW_MUTEX, "rwmutex")];

/// Goal relative to the better Go design.
const GO_GOAL: f64 = 0.5;
/// Goal relative to a plain copy: at least 0.9 of its speed.
const COPY_GOAL: f64 = 1.0 / 0.9;

/// What is known of a buffer's size at its creation.
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
    /// Bytes of a write: a whole shard, or [`PIECE`].
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

    /// Returns the case for the Go side with this number of operations.
    fn go_case(self, design: &str, operations: usize, count: bool) -> String {
        format!(
            "{design} {} {} {} {operations} {}",
            self.size_hint(),
            self.shards,
            self.piece,
            u8::from(count)
        )
    }

    /// Whether the Go designs reallocate for every piece.
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
        "Timed, of all sides: making the buffer, handing the shards to a thread (goroutine) each, writing them, waiting for all, \
         and giving the buffer up; ours is frozen first, which checks that nothing is missing. The threads of the Rust sides wait \
         for work in a pool, the caller's own takes the first shard. Every write copies the same piece. Ours claims each shard once \
         and writes pieces into it; beside it, `write_at` with an offset for each piece, as the Go designs are called. Warm frames: \
         one pool for all operations. Cold ones: a new pool for each, made and dropped in the timed part. The memory of a plain copy \
         is one piece a shard; fresh memory is mapped and unmapped each time.",
    );
    report.note(format!(
        "Half and dynamic cells in 32 KiB pieces: the Go designs reallocate at each piece and take up to seconds an operation, so \
         that a turn of theirs is one operation and they get {SLOW_ROUNDS} rounds, apart from the plain copies. Contended waits: of Go, events of the mutex \
         profile inside WriteAt; ours, voluntary context switches of the threads while they claim, write, make and freeze."
    ));
    let mut go = Go::start("write-at")?;
    let pool = new_pool()?;
    for cell in cells() {
        if args.begins(&cell.name()) {
            measure(args, cell, &pool, &mut go, report)?;
        }
    }
    Ok(())
}

fn measure(
    args: &Args,
    cell: Cell,
    pool: &Arc<BlockPool>,
    go: &mut Go,
    report: &mut Report,
) -> Result<(), Failure> {
    let crew = Crew::new(cell.shards);
    let context = Context {
        cell,
        turn: args.turn(),
        crew: &crew,
        source: (0..cell.piece).map(|at| at as u8).collect(),
    };
    let go = RefCell::new(go);
    let ours = || context.side(OURS, || context.fill(pool, write_shard));
    let mut sides = vec![
        ours(),
        context.side(PIECEWISE, || context.fill(pool, write_pieces)),
        context.side(COLD, || context.fill(&new_pool()?, write_shard)),
        context.side(FRESH, || context.fill_fresh()),
        context.reused(),
    ];
    let theirs = DESIGNS.map(|(name, design)| context.go(name, design, &go));
    let (rounds, beside_go);
    if cell.is_slow() {
        rounds = alternate(args.rounds(ROUNDS), sides)?;
        let sides = [ours()].into_iter().chain(theirs).collect();
        beside_go = alternate(args.rounds(SLOW_ROUNDS), sides)?;
    } else {
        sides.extend(theirs);
        rounds = alternate(args.rounds(ROUNDS), sides)?;
        beside_go = rounds.clone();
    }
    let name = cell.name();
    let better = beside_go.best(&[AWS, RW_MUTEX]);
    for (peer, _) in DESIGNS {
        let row = beside_go.row(&name, "ns", OURS, peer);
        report.rows.push(if better == Some(peer) {
            row.goal(GO_GOAL)
        } else {
            row
        });
    }
    let row = rounds.row(&name, "ns", OURS, REUSED);
    report.rows.push(row.goal(COPY_GOAL));
    for (label, ours, peers) in [
        ("write_at a piece", PIECEWISE, [OURS, REUSED].as_slice()),
        ("cold frames", COLD, &[FRESH, AWS, RW_MUTEX]),
    ] {
        let name = format!("{name}, {label}");
        let measured = |peer: &&&str| !rounds.of(peer).is_empty();
        for peer in peers.iter().filter(measured) {
            report.rows.push(rounds.row(&name, "ns", ours, peer));
        }
    }
    counts::run(&context, pool, *go.borrow_mut(), report)
}

fn new_pool() -> Result<Arc<BlockPool>, Failure> {
    let mut config = PoolConfig::new(POOL);
    config.upload_guarantee = 0;
    Ok(BlockPool::new(config)?)
}
