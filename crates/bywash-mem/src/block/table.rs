//! Open-addressed tables of numbers, read without a lock while one writer at a time enters and takes out.
//!
//! A cell is 64 bits: the high half of a key's hash (the tag), and a number + 1; all zero is an empty one. The key is not here:
//! the number names it, and the reader compares. Cells lie in groups, and a reader compares all tags of a group before it
//! branches. Linear probing, group by group, from the one that the tag's top bits name, so the tag alone is enough to move an
//! entry or to grow.

use std::sync::{Arc, OnceLock};

use crate::sync::{AtomicPtr, AtomicU64, Ordering, Step, order};

/// Cells that are looked at together. Half a cache line: a second group is often in the same one.
#[cfg(not(any(loom, shuttle)))]
const GROUP: usize = 4;
/// Two groups make a table that models overfill.
#[cfg(any(loom, shuttle))]
const GROUP: usize = 2;

/// Cells of the first table: eight cache lines, for most pools of a test and many of a program's tables stay small.
#[cfg(not(any(loom, shuttle)))]
const FIRST: usize = 64;
/// Loom makes every cell, and models and storms grow the table.
#[cfg(any(loom, shuttle))]
const FIRST: usize = 4;

/// There is more than one group, so that a shift is by less than 64.
const _: () = assert!(FIRST / GROUP > 1);

/// Each table is twice the one before; the last has 2^32 cells, one for each number.
const TABLES: usize = 33 - FIRST.trailing_zeros() as usize;

/// The part of the cells that may be in use before the table doubles: 3/4. There is always an empty cell.
const FULL: (usize, usize) = (3, 4);

/// The part of a hash that the tables know a key by: its high half. Not 0, so that no empty cell has it.
#[inline]
fn tag_of(hash: u64) -> u64 {
    (hash >> 32 | 1) << 32
}

/// A used cell.
#[inline]
fn cell_of(tag: u64, number: u32) -> u64 {
    let stored = number.checked_add(1).expect("numbers end below u32::MAX");
    tag | u64::from(stored)
}

/// The number in a cell, of which `rest` is left when a reader's tag is taken from it by exclusive or: none if it is another's.
#[inline]
fn number_in(rest: u64) -> Option<u32> {
    // Not 0 in a used cell.
    (rest >> 32 == 0).then_some((rest as u32).wrapping_sub(1))
}

/// The cells that one look compares.
#[derive(Debug)]
#[repr(align(32))]
struct Group([AtomicU64; GROUP]);

/// One table, and what its owner keeps beside each of its tables.
#[derive(Debug)]
pub(crate) struct Table<S = ()> {
    /// A power of two of them.
    groups: Box<[Group]>,
    /// By how much a hash, or a cell of it, is shifted to name a group.
    shift: u32,
    side: S,
}

impl<S> Table<S> {
    fn new(cells: usize, side: S) -> Self {
        let groups = cells / GROUP;
        Self {
            groups: std::iter::repeat_with(|| Group(std::array::from_fn(|_| AtomicU64::new(0))))
                .take(groups)
                .collect(),
            shift: u64::BITS - groups.trailing_zeros(),
            side,
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.groups.len() * GROUP
    }

    #[inline]
    pub(crate) fn side(&self) -> &S {
        &self.side
    }

    /// The group where the search for a hash begins, and for any cell of it: it takes fewer bits than cell and hash share.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        (hash >> self.shift) as usize
    }

    fn group(&self, at: usize) -> &Group {
        &self.groups[at & (self.groups.len() - 1)]
    }

    /// The cell of this number, from the first of group 0.
    fn cell(&self, at: usize) -> &AtomicU64 {
        &self.group(at / GROUP).0[at % GROUP]
    }

    /// A number entered under this hash's tag, most likely the one if there is one: nearly all are in the group where the search
    /// begins. No answer says nothing.
    #[inline]
    pub(crate) fn likely(&self, hash: u64) -> Option<u32> {
        let tag = tag_of(hash);
        let home = self.home(hash);
        debug_assert!(home < self.groups.len(), "a hash's top bits");
        // SAFETY: `home` has as many bits as it takes to number the groups, whose number is a power of two.
        let Group(group) = unsafe { self.groups.get_unchecked(home) };
        // Acquire: with `enter` and `take_out`. What the number names is there.
        let rest = |cell: &AtomicU64| cell.load(Ordering::Acquire) ^ tag;
        // All before the first branch, which one of four would be guessed wrong; in pairs, so that the processor finds two
        // comparisons to make at once.
        let (front, back) = group.split_at(GROUP / 2);
        let pairs = front.iter().zip(back);
        let least = pairs
            .map(|(one, other)| rest(one).min(rest(other)))
            .fold(u64::MAX, u64::min);
        number_in(least)
    }

    /// Offers `check` each number entered under this hash's tag, until it answers. One round at most: a reader that entries are
    /// moved past need not rely on meeting an empty cell.
    pub(crate) fn probe<R>(&self, hash: u64, mut check: impl FnMut(u32) -> Option<R>) -> Option<R> {
        let tag = tag_of(hash);
        let home = self.home(hash);
        for at in home..home + self.groups.len() {
            let mut full = true;
            for cell in &self.group(at).0 {
                // Acquire: with `enter` and `take_out`. What the number names is there; and who sees one store of a move sees, in
                // `Registry::find_again`, that there was a move.
                let cell = cell.load(Ordering::Acquire);
                full &= cell != 0;
                let found = number_in(cell ^ tag).and_then(&mut check);
                if found.is_some() {
                    return found;
                }
            }
            if !full {
                return None;
            }
        }
        None
    }

    /// Enters a number. One writer at a time, and there is room.
    pub(crate) fn enter(&self, hash: u64, number: u32) {
        self.put(cell_of(tag_of(hash), number));
    }

    /// Into the first empty cell: the groups before its own are full, as `probe` relies on.
    fn put(&self, cell: u64) {
        let mut at = self.home(cell) * GROUP;
        // Relaxed: the writer reads what writers wrote, under their lock.
        while self.cell(at).load(Ordering::Relaxed) != 0 {
            at += 1;
        }
        // Release: to `probe`, what the number names.
        self.cell(at)
            .store(cell, order(Step::Enter, Ordering::Release));
    }

    /// Takes out the entry of this number. If its group was full, entries may have been put behind it for that reason: one of
    /// them moves here, and one to its place, and so on, so that no mark of it stays (as Knuth's algorithm 6.4 R does with
    /// cells). `moving` is called before the first move; the answer is whether there was any, and `None` if there was no such
    /// entry. One writer at a time.
    pub(crate) fn take_out(
        &self,
        hash: u64,
        number: u32,
        mut moving: impl FnMut(),
    ) -> Option<bool> {
        let mut hole = self.position(cell_of(tag_of(hash), number))?;
        let mut moved = false;
        let mut group = hole / GROUP;
        // What is behind a group that is not full has its home behind it too.
        while self.is_full(group) {
            group += 1;
            let Some((at, cell)) = self.behind(hole / GROUP, group) else {
                continue;
            };
            if !moved {
                moving();
                moved = true;
            }
            // Release: to `probe`, as in `put`, and the `moving` before.
            self.cell(hole).store(cell, Ordering::Release);
            hole = at;
        }
        // Release: to `probe`, the `moving` before.
        self.cell(hole).store(0, Ordering::Release);
        Some(moved)
    }

    /// An entry in `group`, and its cell's number, that may as well be in the group `before`: its home is not behind that.
    fn behind(&self, before: usize, group: usize) -> Option<(usize, u64)> {
        let mask = self.groups.len() - 1;
        (group * GROUP..(group + 1) * GROUP).find_map(|at| {
            // Relaxed: as in `put`.
            let cell = self.cell(at).load(Ordering::Relaxed);
            let from_home = group.wrapping_sub(self.home(cell)) & mask;
            (cell != 0 && from_home >= group - before).then_some((at, cell))
        })
    }

    /// For writers.
    fn is_full(&self, group: usize) -> bool {
        let Group(cells) = self.group(group);
        // Relaxed: as in `put`.
        cells.iter().all(|cell| cell.load(Ordering::Relaxed) != 0)
    }

    /// Number of a used cell. For writers.
    fn position(&self, wanted: u64) -> Option<usize> {
        let same = |cell: u64| {
            cell == wanted || crate::sync::skipped(Step::Leave) && cell >> 32 == wanted >> 32
        };
        let mut group = self.home(wanted);
        loop {
            let mut cells = group * GROUP..(group + 1) * GROUP;
            // Relaxed: as in `put`.
            let found = cells.find(|&at| same(self.cell(at).load(Ordering::Relaxed)));
            if found.is_some() || !self.is_full(group) {
                return found;
            }
            group += 1;
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
impl<S> Table<S> {
    /// Groups that a reader of this entry looks at.
    pub(crate) fn distance(&self, hash: u64, number: u32) -> usize {
        let at = self.position(cell_of(tag_of(hash), number));
        1 + at.expect("it was entered") / GROUP - self.home(hash)
    }
}

/// A table and the smaller ones before it, which are kept: a reader may still be in one. Together those are smaller than it.
#[derive(Debug)]
pub(crate) struct Tables<S = ()> {
    /// Those made so far.
    kept: [OnceLock<Arc<Table<S>>>; TABLES],
    /// The last of them. Written by one writer at a time, under the lock of whoever owns this; read by every lookup.
    newest: AtomicPtr<Table<S>>,
}

/// The most entries of a table of so many cells.
fn most(cells: usize) -> usize {
    cells / FULL.1 * FULL.0
}

impl<S> Tables<S> {
    /// With what is beside the first table, made from the most entries that it takes.
    pub(crate) fn new(side: impl FnOnce(usize) -> S) -> Self {
        let kept = [const { OnceLock::new() }; TABLES];
        let first = kept[0].get_or_init(|| Arc::new(Table::new(FIRST, side(most(FIRST)))));
        let newest = AtomicPtr::new(Arc::as_ptr(first).cast_mut());
        Self { kept, newest }
    }

    /// The table to read. Whoever learned of an entry in any other way finds it in this one.
    #[inline]
    pub(crate) fn newest(&self) -> &Table<S> {
        // Acquire: with `with_room`.
        let newest = self.newest.load(Ordering::Acquire);
        // SAFETY: it points into one of the `kept`, which stay as long as this does and are written through cells alone.
        unsafe { &*newest }
    }

    /// The table to write to, after it grew if one more than `entries` need it. One writer at a time. `side` makes what is beside
    /// the new table from what was beside the old, and the most entries it takes.
    ///
    /// Growing takes as long as reading and writing all of both tables once, in order, for their order is the same; some 5 ns an
    /// entry. Readers go on in the old table meanwhile.
    pub(crate) fn with_room(&self, entries: usize, side: impl FnOnce(&S, usize) -> S) -> &Table<S> {
        let table = self.newest();
        if entries < most(table.capacity()) {
            return table;
        }
        let cells = table.capacity() * 2;
        let larger = Table::new(cells, side(&table.side, most(cells)));
        for at in 0..table.capacity() {
            // Relaxed: as in `put`.
            match table.cell(at).load(Ordering::Relaxed) {
                0 => {}
                cell => larger.put(cell),
            }
        }
        let next = (cells / FIRST).trailing_zeros() as usize;
        let larger = self.kept[next].get_or_init(|| Arc::new(larger));
        // Release: to `newest`, the entries put into it.
        self.newest.store(
            Arc::as_ptr(larger).cast_mut(),
            order(Step::Grow, Ordering::Release),
        );
        larger
    }

    /// Memory of all tables, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.kept
            .iter()
            .filter_map(OnceLock::get)
            .map(|table| size_of_val(&*table.groups))
            .sum()
    }
}
