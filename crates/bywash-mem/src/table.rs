//! Open-addressed tables of numbers, read without a lock while one writer at a time enters and takes out.
//!
//! A cell is 64 bits: the high half of a key's hash (the tag), and a number + 1; all zero is an empty one. The key is not here:
//! the number names it, and the reader compares. Linear probing from the cell that the tag's top bits name, so the tag alone is
//! enough to move an entry or to grow.

use std::sync::OnceLock;

use crate::sync::{AtomicU64, AtomicUsize, Ordering, Step, order};

/// Cells of the first table: eight cache lines, for most pools of a test and many of a program's tables stay small.
#[cfg(not(any(loom, shuttle)))]
const FIRST: usize = 64;
/// Loom makes every cell, and models and storms grow the table.
#[cfg(any(loom, shuttle))]
const FIRST: usize = 4;

/// Each table is twice the one before; the last has 2^32 cells, one for each tag.
const TABLES: usize = 33 - FIRST.trailing_zeros() as usize;

/// The part of the cells that may be in use before the table doubles: 3/4. A hit then looks at 2.5 cells on average and a miss
/// at 8.5, mostly of one cache line. (Knuth, The Art of Computer Programming, vol. 3, 6.4.)
const FULL: (usize, usize) = (3, 4);

/// The part of a hash that the tables know a key by.
#[inline]
fn tag_of(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// A used cell.
#[inline]
fn cell_of(tag: u32, number: u32) -> u64 {
    let stored = number.checked_add(1).expect("numbers end below u32::MAX");
    u64::from(tag) << 32 | u64::from(stored)
}

#[inline]
fn tag_in(cell: u64) -> u32 {
    tag_of(cell)
}

/// The number in a used cell.
#[inline]
fn number_in(cell: u64) -> u32 {
    // Not 0 in a used cell.
    (cell as u32).wrapping_sub(1)
}

/// One table.
#[derive(Debug)]
pub(crate) struct Table {
    /// A power of two of them.
    cells: Box<[AtomicU64]>,
    /// By how much a tag is shifted to name a cell.
    shift: u32,
}

impl Table {
    fn new(cells: usize) -> Self {
        Self {
            cells: std::iter::repeat_with(|| AtomicU64::new(0))
                .take(cells)
                .collect(),
            shift: u32::BITS - cells.trailing_zeros(),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.cells.len()
    }

    #[inline]
    fn home(&self, tag: u32) -> usize {
        // In 64 bits, where a shift by all 32 is one.
        (u64::from(tag) >> self.shift) as usize
    }

    #[inline]
    fn cell(&self, at: usize) -> &AtomicU64 {
        &self.cells[at & (self.cells.len() - 1)]
    }

    /// Offers `check` each number entered under this hash's tag, until it answers. One round at most: a reader that entries are
    /// moved past need not rely on meeting an empty cell.
    #[inline]
    pub(crate) fn probe<R>(&self, hash: u64, mut check: impl FnMut(u32) -> Option<R>) -> Option<R> {
        let tag = tag_of(hash);
        let home = self.home(tag);
        for at in home..home + self.cells.len() {
            // Acquire: with `enter` and `take_out`. What the number names is there; and who sees one store of a move sees, in
            // `Registry::find_again`, that there was a move.
            let cell = self.cell(at).load(Ordering::Acquire);
            if cell == 0 {
                return None;
            }
            if tag_in(cell) == tag {
                let found = check(number_in(cell));
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }

    /// Enters a number. One writer at a time, and there is room.
    pub(crate) fn enter(&self, hash: u64, number: u32) {
        self.put(cell_of(tag_of(hash), number));
    }

    fn put(&self, cell: u64) {
        let mut at = self.home(tag_in(cell));
        // Relaxed: the writer reads what writers wrote, under their lock.
        while self.cell(at).load(Ordering::Relaxed) != 0 {
            at += 1;
        }
        // Release: to `probe`, what the number names.
        self.cell(at)
            .store(cell, order(Step::Enter, Ordering::Release));
    }

    /// Takes out the entry of this number, moving back those behind it that may be nearer to their first cell, so that no mark of
    /// it stays (Knuth's algorithm 6.4 R). `moving` is called before the first move; the answer is whether there was any, and
    /// `None` if there was no such entry. One writer at a time.
    pub(crate) fn take_out(
        &self,
        hash: u64,
        number: u32,
        mut moving: impl FnMut(),
    ) -> Option<bool> {
        let mut hole = self.position(cell_of(tag_of(hash), number))?;
        let mut moved = false;
        let mut at = hole + 1;
        loop {
            // Relaxed: as in `put`.
            let cell = self.cell(at).load(Ordering::Relaxed);
            if cell == 0 {
                break;
            }
            let mask = self.cells.len() - 1;
            let from_home = at.wrapping_sub(self.home(tag_in(cell))) & mask;
            if from_home >= at - hole {
                if !moved {
                    moving();
                    moved = true;
                }
                // Release: to `probe`, as in `put`, and the `moving` before.
                self.cell(hole).store(cell, Ordering::Release);
                hole = at;
            }
            at += 1;
        }
        // Release: to `probe`, the `moving` before.
        self.cell(hole).store(0, Ordering::Release);
        Some(moved)
    }

    /// Where a used cell is. For writers.
    fn position(&self, wanted: u64) -> Option<usize> {
        let same = |cell: u64| {
            cell == wanted || crate::sync::skipped(Step::Leave) && tag_in(cell) == tag_in(wanted)
        };
        let mut at = self.home(tag_in(wanted));
        loop {
            // Relaxed: as in `put`.
            match self.cell(at).load(Ordering::Relaxed) {
                0 => return None,
                cell if same(cell) => return Some(at),
                _ => at += 1,
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
impl Table {
    /// Cells that a reader of this entry looks at.
    pub(crate) fn distance(&self, hash: u64, number: u32) -> usize {
        let at = self.position(cell_of(tag_of(hash), number));
        1 + at.expect("it was entered") - self.home(tag_of(hash))
    }
}

/// A table and the smaller ones before it, which are kept: a reader may still be in one. Together those are smaller than it.
#[derive(Debug)]
pub(crate) struct Tables {
    tables: [OnceLock<Table>; TABLES],
    newest: AtomicUsize,
}

impl Tables {
    pub(crate) fn new() -> Self {
        let tables = [const { OnceLock::new() }; TABLES];
        tables[0].get_or_init(|| Table::new(FIRST));
        Self {
            tables,
            newest: AtomicUsize::new(0),
        }
    }

    /// The table to read. Whoever learned of an entry in any other way finds it in this one.
    #[inline]
    pub(crate) fn newest(&self) -> &Table {
        // Acquire: with `with_room`. (The `OnceLock` would order it as well, which loom does not know.)
        let newest = self.newest.load(Ordering::Acquire);
        self.tables[newest]
            .get()
            .expect("a table is made before its number is known")
    }

    /// The table to write to, after it grew if one more than `entries` need it. One writer at a time.
    ///
    /// Growing takes as long as reading and writing all of both tables once, in order, for their order is the same; some 5 ns an
    /// entry. Readers go on in the old table meanwhile.
    pub(crate) fn with_room(&self, entries: usize) -> &Table {
        let table = self.newest();
        if (entries + 1) * FULL.1 <= table.capacity() * FULL.0 {
            return table;
        }
        let larger = Table::new(table.capacity() * 2);
        for cell in &table.cells {
            // Relaxed: as in `put`.
            match cell.load(Ordering::Relaxed) {
                0 => {}
                cell => larger.put(cell),
            }
        }
        // Relaxed: as in `put`.
        let next = self.newest.load(Ordering::Relaxed) + 1;
        let larger = self.tables[next].get_or_init(|| larger);
        // Release: to `newest`, the entries put into it.
        self.newest
            .store(next, order(Step::Grow, Ordering::Release));
        larger
    }

    /// Memory of all tables, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.tables
            .iter()
            .filter_map(OnceLock::get)
            .map(|table| size_of_val(&*table.cells))
            .sum()
    }
}
