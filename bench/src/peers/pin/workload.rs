//! The ancestor's workload: queries that pin the blocks of random rows of a wide table and copy the cells.

use std::sync::Arc;
use std::time::Instant;

use super::designs::{InHand, Locked};
use super::drive::cpu_time;
use super::seed::CasIfPinned;
use super::{CAS, CAS_QUEUE, FASTEST, MUTEX, OURS, Picks};
use crate::Failure;
use crate::peers::crew::Crew;
use crate::peers::pool::key;
use crate::peers::{Args, Report, Side, alternate};

const COLUMNS: u32 = 194;
/// Rows of a query.
const QUERY_ROWS: usize = 1000;
/// Bytes of a block. A block of the table covers about 1985 rows of a column, whose cells wrap around in it: only the pin is
/// measured, and all lines of a block are equally distant.
pub(super) const BLOCK_LEN: usize = 4096;
const CELLS: u32 = (BLOCK_LEN / 8) as u32;
const ROUNDS: usize = 7;

/// The table of one store.
#[derive(Debug, Clone, Copy)]
struct Table {
    rows: u32,
    blocks: u32,
}

/// The ancestor's own: 95,000 rows of 194 columns in 9,284 blocks.
const ONE: Table = Table {
    rows: 95_000,
    blocks: 9_284,
};
/// A quarter of it, for cells with many stores: 40 whole ones beside those of three peers would not fit a small machine.
const OF_MANY: Table = Table {
    rows: ONE.rows / 4,
    blocks: ONE.blocks / 4,
};

impl Table {
    /// Returns the location of a cell: its block in the store, and its offset in the block.
    #[inline]
    fn place(self, row: u32, column: u32) -> (u32, usize) {
        let cell = u64::from(column) * u64::from(self.rows) + u64::from(row);
        let cells = u64::from(COLUMNS) * u64::from(self.rows);
        let block = cell * u64::from(self.blocks) / cells;
        (block as u32, 8 * (row % CELLS) as usize)
    }
}

/// Stores of blocks that are pinned for each cell.
pub(super) trait Cells: Send + Sync + 'static {
    /// Copies 8 bytes out of block `at` while it is pinned.
    fn cell(&self, at: u32, offset: usize) -> [u8; 8];
}

/// Sets the bytes of block `at`, counted over all stores.
fn fill(at: u32, bytes: &mut [u8]) {
    for (word, bytes) in (0..).zip(bytes.chunks_exact_mut(8)) {
        bytes.copy_from_slice(&(u64::from(at) << 32 | word).to_le_bytes());
    }
}

fn boxed(at: u32) -> Box<[u8]> {
    let mut bytes = vec![0; BLOCK_LEN].into_boxed_slice();
    fill(at, &mut bytes);
    bytes
}

/// Runs one query of one reader over the cells of random rows. Returns their sum.
fn query<C: Cells>(cells: &C, table: Table, store: u32, picks: &mut Picks) -> u64 {
    let first = store * table.blocks;
    let mut row_of_cells = [0; COLUMNS as usize];
    let mut sum = 0_u64;
    for _ in 0..QUERY_ROWS {
        let row = ((u64::from(picks.next()) * u64::from(table.rows)) >> Picks::BITS) as u32;
        for (column, into) in (0..).zip(&mut row_of_cells) {
            let (block, offset) = table.place(row, column);
            *into = u64::from_le_bytes(cells.cell(first + block, offset));
        }
        sum = std::hint::black_box(&row_of_cells)
            .iter()
            .fold(sum, |sum, cell| sum.wrapping_add(*cell));
    }
    sum
}

/// Returns the milliseconds of a query.
#[derive(Debug, Clone, Copy)]
struct Figures {
    cpu: f64,
    wall: f64,
}

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    report.note(format!(
        "Queries: {QUERY_ROWS} random rows of {COLUMNS} columns, the block of each cell pinned, 8 bytes copied. One store: {} \
         rows in {} blocks; of many stores each has a quarter of that; blocks of {BLOCK_LEN} bytes. Milliseconds of CPU a query; \
         beside it the clock's, all readers together, a query.",
        ONE.rows, ONE.blocks
    ));
    let many: [(u32, Table, &[usize]); 4] = [
        (1, ONE, &[1, 10, 20]),
        (20, OF_MANY, &[20]),
        (40, OF_MANY, &[40]),
        (10, OF_MANY, &[16]),
    ];
    for (stores, table, readers) in many {
        let name = |readers| format!("queries, {stores} stores, {readers} readers");
        if !readers.iter().any(|&readers| args.wants(&name(readers))) {
            continue;
        }
        let blocks = stores * table.blocks;
        let keys = (0..blocks).map(|at| key(at / table.blocks, at % table.blocks));
        let ours = Arc::new(InHand::new(keys, BLOCK_LEN, fill)?);
        let locked = Arc::new(Locked::new((0..blocks).map(boxed)));
        let cas = Arc::new(CasIfPinned::new((0..blocks).map(boxed), false));
        let queued = Arc::new(CasIfPinned::new((0..blocks).map(boxed), true));
        for &readers in readers {
            let name = name(readers);
            if !args.begins(&name) {
                continue;
            }
            let crew = Crew::new(readers);
            let load = Load {
                table,
                stores,
                readers,
                crew: &crew,
            };
            let sides = vec![
                load.side(OURS, &ours),
                load.side(MUTEX, &locked),
                load.side(CAS, &cas),
                load.side(CAS_QUEUE, &queued),
            ];
            let rounds = alternate(args.rounds(ROUNDS), sides)?;
            for peer in [MUTEX, CAS, CAS_QUEUE] {
                let cpu = rounds.map(|f| f.cpu).row(&name, "ms/query", OURS, peer);
                report.rows.push(cpu.goal(FASTEST));
                let name = format!("{name}, by the clock");
                let wall = rounds.map(|f| f.wall).row(&name, "ms/query", OURS, peer);
                report.rows.push(wall);
            }
        }
    }
    Ok(())
}

#[derive(Debug, Clone, Copy)]
struct Load<'a> {
    table: Table,
    stores: u32,
    readers: usize,
    crew: &'a Crew,
}

impl<'a> Load<'a> {
    fn side<C: Cells>(self, name: &str, cells: &Arc<C>) -> Side<'a, Figures> {
        let cells = Arc::clone(cells);
        let mut turns = 0;
        Side::new(name, move || {
            turns += 1;
            self.turn(&cells, turns)
        })
    }

    /// Runs one query per reader. With the same seed all sides get the same rows.
    fn turn<C: Cells>(self, cells: &Arc<C>, seed: usize) -> Result<Figures, Failure> {
        let Self {
            table,
            stores,
            readers,
            crew,
        } = self;
        let begun = Instant::now();
        let took = crew.run((0..readers).map(|reader| {
            let cells = Arc::clone(cells);
            move || {
                let mut picks = Picks::all(seed * readers + reader);
                let cpu = cpu_time();
                std::hint::black_box(query(&*cells, table, reader as u32 % stores, &mut picks));
                cpu_time() - cpu
            }
        }))?;
        let wall = begun.elapsed();
        let cpu: std::time::Duration = took.into_iter().sum();
        let ms = |all: std::time::Duration| all.as_secs_f64() * 1e3 / readers as f64;
        Ok(Figures {
            cpu: ms(cpu),
            wall: ms(wall),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn cells_lie_in_all_blocks() {
        let last = ONE.place(ONE.rows - 1, COLUMNS - 1).0;
        assert_eq!((ONE.place(0, 0).0, last), (0, ONE.blocks - 1));
        let blocks: std::collections::HashSet<u32> = (0..ONE.rows)
            .step_by(100)
            .flat_map(|row| (0..COLUMNS).map(move |column| ONE.place(row, column).0))
            .collect();
        assert_eq!(blocks.len(), ONE.blocks as usize);
    }

    #[test]
    fn all_sides_copy_the_same_cells() {
        let table = Table {
            rows: 1000,
            blocks: 200,
        };
        let keys = (0..2 * table.blocks).map(|at| key(at / table.blocks, at % table.blocks));
        let ours = InHand::new(keys, BLOCK_LEN, fill).unwrap();
        let cas = CasIfPinned::new((0..2 * table.blocks).map(boxed), true);
        let locked = Locked::new((0..2 * table.blocks).map(boxed));
        let picks = || Picks::all(7);
        let sum = query(&ours, table, 1, &mut picks());
        assert_eq!(query(&cas, table, 1, &mut picks()), sum);
        assert_eq!(query(&locked, table, 1, &mut picks()), sum);
        assert_ne!(query(&locked, table, 0, &mut picks()), sum);
    }
}
