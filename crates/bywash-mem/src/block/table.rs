//! Open-addressed tables of numbers, read without a lock while one writer at a time inserts and removes.
//!
//! A cell has 64 bits: the upper half of a key's hash (the tag), and a number + 1. Zero is an empty cell. The table does not store
//! the key: the number leads to it, and the reader compares. Cells form groups, and a reader compares all tags of a group before it
//! branches. Probing is linear, group by group, from the one that the tag's top bits select. So the tag suffices to move an entry or
//! to grow.

use std::sync::{Arc, OnceLock};

use crate::sync::{AtomicPtr, AtomicU64, Ordering, Step, order, skipped};

/// Cells compared together. Half a cache line: a second group is often in the same line.
#[cfg(not(any(loom, shuttle)))]
const GROUP: usize = 4;
/// Two groups make a table that models overfill.
#[cfg(any(loom, shuttle))]
const GROUP: usize = 2;

/// Cells of the first table: eight cache lines, because the tables of most tests and of many programs stay small.
#[cfg(not(any(loom, shuttle)))]
pub(crate) const FIRST: usize = 64;
/// Loom constructs every cell, and models and stress tests grow the table.
#[cfg(any(loom, shuttle))]
pub(crate) const FIRST: usize = 4;

/// More than one group, so that shifts are by less than 64.
const _: () = assert!(FIRST / GROUP > 1);

/// Each table is twice the one before. The last has 2^32 cells, one for each number.
const TABLES: usize = 33 - FIRST.trailing_zeros() as usize;

/// Fraction of cells in use at which the table doubles: 3/4. So there is always an empty cell.
const FULL: (usize, usize) = (3, 4);

/// The part of a hash that a cell stores: its upper half, never 0, so that no empty cell matches.
#[inline]
fn tag_of(hash: u64) -> u64 {
    (hash >> 32 | 1) << 32
}

/// The value of a used cell.
#[inline]
fn cell_of(tag: u64, number: u32) -> u64 {
    let stored = number.checked_add(1).expect("numbers are below u32::MAX");
    tag | u64::from(stored)
}

/// Returns the number in a cell after its exclusive or with a reader's tag; `None` if the tags differ.
#[inline]
fn number_in(rest: u64) -> Option<u32> {
    // The lower half of a used cell is not 0.
    (rest >> 32 == 0).then_some((rest as u32).wrapping_sub(1))
}

/// Cells that one comparison covers. Written by one writer at a time, under the lock of the table's owner; read by lookups.
#[derive(Debug)]
#[repr(align(32))]
struct Group([AtomicU64; GROUP]);

/// One table, and the data that its owner keeps with each of its tables.
#[derive(Debug)]
pub(crate) struct Table<S = ()> {
    /// Their number is a power of two.
    groups: Box<[Group]>,
    /// Right shift from a hash or a cell to the number of its home group.
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

    /// Home group of a hash, and of any cell of it: it needs fewer bits than cell and hash share.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        (hash >> self.shift) as usize
    }

    fn group(&self, at: usize) -> &Group {
        &self.groups[at & (self.groups.len() - 1)]
    }

    /// Cell by its number, counted from the first of group 0.
    fn cell(&self, at: usize) -> &AtomicU64 {
        &self.group(at / GROUP).0[at % GROUP]
    }

    /// Returns a number under this hash's tag from the home group, which holds nearly all entries. `None` proves nothing.
    #[inline]
    pub(crate) fn first_match(&self, hash: u64) -> Option<u32> {
        let tag = tag_of(hash);
        let home = self.home(hash);
        debug_assert!(home < self.groups.len(), "a hash's top bits");
        // SAFETY: `home` has as many bits as it takes to number the groups, and their number is a power of two.
        let Group(group) = unsafe { self.groups.get_unchecked(home) };
        // Acquire: with `insert` and `remove`. The slot that the number names is initialised.
        let rest = |cell: &AtomicU64| cell.load(Ordering::Acquire) ^ tag;
        // All loads come before the first branch, which would be mispredicted for one cell in four. In pairs, so that the processor
        // makes two comparisons at once.
        let (front, back) = group.split_at(GROUP / 2);
        let pairs = front.iter().zip(back);
        let min = pairs
            .map(|(one, other)| rest(one).min(rest(other)))
            .fold(u64::MAX, u64::min);
        number_in(min)
    }

    /// Calls `check` with each number under this hash's tag until it returns a value. Visits the table at most once: while entries
    /// move, a reader may not meet an empty cell.
    pub(crate) fn probe<R>(&self, hash: u64, mut check: impl FnMut(u32) -> Option<R>) -> Option<R> {
        let tag = tag_of(hash);
        let home = self.home(hash);
        for at in home..home + self.groups.len() {
            let mut full = true;
            for cell in &self.group(at).0 {
                // Acquire: with `insert` and `remove`. The slot that the number names is initialised. A reader of one store of a move sees,
                // in `Registry::find_slow`, that there was a move.
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

    /// Inserts a number. One writer at a time; the table is not full.
    pub(crate) fn insert(&self, hash: u64, number: u32) {
        self.put(cell_of(tag_of(hash), number));
    }

    /// Stores a cell in the first empty place from its home group on. The groups between are full, as `probe` requires.
    fn put(&self, cell: u64) {
        let mut at = self.home(cell) * GROUP;
        // Relaxed: only writers write and read it here, under their lock.
        while self.cell(at).load(Ordering::Relaxed) != 0 {
            at += 1;
        }
        // Release: the slot that the number names, to `probe`.
        self.cell(at)
            .store(cell, order(Step::Insert, Ordering::Release));
    }

    /// Removes the entry of this number. If its group was full, an entry that was displaced from it moves here, another one moves to
    /// that place, and so on, so that no tombstone stays (Knuth's algorithm 6.4 R, for groups). `moving` is called before the
    /// first move. Returns whether there was a move, or `None` if there was no such entry. One writer at a time.
    pub(crate) fn remove(&self, hash: u64, number: u32, mut moving: impl FnMut()) -> Option<bool> {
        let mut hole = self.position(cell_of(tag_of(hash), number))?;
        let mut moved = false;
        let mut group = hole / GROUP;
        // Entries after a group with room have their home after it too.
        while self.is_full(group) {
            group += 1;
            let Some((at, cell)) = self.displaced_entry(hole / GROUP, group) else {
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

    /// Returns the place and cell of an entry in `group` that may move to the group `before`, because its home is not after that.
    fn displaced_entry(&self, before: usize, group: usize) -> Option<(usize, u64)> {
        let mask = self.groups.len() - 1;
        (group * GROUP..(group + 1) * GROUP).find_map(|at| {
            // Relaxed: as in `put`.
            let cell = self.cell(at).load(Ordering::Relaxed);
            let from_home = group.wrapping_sub(self.home(cell)) & mask;
            (cell != 0 && from_home >= group - before).then_some((at, cell))
        })
    }

    /// Whether a group has no empty cell. For writers.
    fn is_full(&self, group: usize) -> bool {
        let Group(cells) = self.group(group);
        // Relaxed: as in `put`.
        cells.iter().all(|cell| cell.load(Ordering::Relaxed) != 0)
    }

    /// Returns the index of the cell that equals `wanted`, which is used. Only the table's writer may call it.
    fn position(&self, wanted: u64) -> Option<usize> {
        let is_wanted =
            |cell: u64| cell == wanted || skipped(Step::RemoveSlot) && cell >> 32 == wanted >> 32;
        let mut group = self.home(wanted);
        loop {
            let mut cells = group * GROUP..(group + 1) * GROUP;
            // Relaxed: as in `put`.
            let found = cells.find(|&at| is_wanted(self.cell(at).load(Ordering::Relaxed)));
            if found.is_some() || !self.is_full(group) {
                return found;
            }
            group += 1;
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
impl<S> Table<S> {
    /// Number of groups that a lookup of this entry reads.
    pub(crate) fn distance(&self, hash: u64, number: u32) -> usize {
        let at = self.position(cell_of(tag_of(hash), number));
        1 + at.expect("it was inserted") / GROUP - self.home(hash)
    }
}

/// A table and the smaller ones before it, which are kept because readers may still use them. Together those are smaller than it.
#[derive(Debug)]
pub(crate) struct Tables<S = ()> {
    kept: [OnceLock<Arc<Table<S>>>; TABLES],
    /// The last of `kept`. Written by one writer at a time, under the lock of the owner; read by every lookup.
    newest: AtomicPtr<Table<S>>,
}

/// Maximum number of entries in a table of this many cells.
pub(crate) fn max_entries(cells: usize) -> usize {
    cells / FULL.1 * FULL.0
}

impl<S> Tables<S> {
    /// Creates the first table. `side` makes its side data from the maximum number of entries.
    pub(crate) fn new(side: impl FnOnce(usize) -> S) -> Self {
        let kept = [const { OnceLock::new() }; TABLES];
        let first = kept[0].get_or_init(|| Arc::new(Table::new(FIRST, side(max_entries(FIRST)))));
        let newest = AtomicPtr::new(Arc::as_ptr(first).cast_mut());
        Self { kept, newest }
    }

    /// Returns the newest table. It has every entry that the calling thread has synchronised with, however it learned of it.
    #[inline]
    pub(crate) fn newest(&self) -> &Table<S> {
        // Acquire: with `grow_if_full`.
        let newest = self.newest.load(Ordering::Acquire);
        // SAFETY: it points into one of `kept`, which live as long as `self` and are written only through cells.
        unsafe { &*newest }
    }

    /// The table to write to, larger than before if it had no room for one more than `entries`. One writer at a time. `side` makes
    /// the new table's side data from the old one's and the maximum number of entries.
    ///
    /// Growing reads and writes both tables once, in order, because their order is the same: some 5 ns an entry. Readers continue in
    /// the old table until it ends.
    pub(crate) fn grow_if_full(
        &self,
        entries: usize,
        side: impl FnOnce(&S, usize) -> S,
    ) -> &Table<S> {
        let table = self.newest();
        if entries < max_entries(table.capacity()) {
            return table;
        }
        let cells = table.capacity() * 2;
        let larger = Table::new(cells, side(&table.side, max_entries(cells)));
        for at in 0..table.capacity() {
            // Relaxed: as in `put`.
            match table.cell(at).load(Ordering::Relaxed) {
                0 => {}
                cell => larger.put(cell),
            }
        }
        let next = (cells / FIRST).trailing_zeros() as usize;
        let larger = self.kept[next].get_or_init(|| Arc::new(larger));
        // Release: the entries put into it, to `newest`.
        self.newest.store(
            Arc::as_ptr(larger).cast_mut(),
            order(Step::Grow, Ordering::Release),
        );
        larger
    }

    /// Bytes of all tables, without their side data.
    pub(crate) fn bytes(&self) -> usize {
        self.capacities().map(Self::table_bytes).sum()
    }

    /// Bytes of a table with this many cells, without its side data.
    pub(crate) fn table_bytes(cells: usize) -> usize {
        cells / GROUP * size_of::<Group>()
    }

    /// Numbers of cells of all tables.
    pub(crate) fn capacities(&self) -> impl Iterator<Item = usize> {
        let tables = self.kept.iter().filter_map(OnceLock::get);
        tables.map(|table| table.capacity())
    }
}
