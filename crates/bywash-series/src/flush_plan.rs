//! Which partitions a flush writes to one file.
//!
//! A partition has a file of its own, unless many are flushed at once: one client may write a row
//! in each two hours of decades. Small partitions of a day, or of a longer window without many rows
//! in other files, then share a file. So the file of a row from another century keeps no file of
//! these days from its retention and compaction.

use std::collections::{BTreeMap, BTreeSet};

use crate::calendar::Calendar;
use crate::manifest::Version;
use crate::memtable::{PartitionKey, PartitionRows};
use crate::partition::PartitionWidth;

/// Number of partitions of a flush from which small ones share files.
pub(crate) const MANY_PARTITIONS: usize = 16;
/// Rows below which a partition is small.
const SMALL_ROWS: usize = 4096;
/// Max rows of small partitions in a file.
const SHARED_ROWS: usize = 64 << 10;
/// Rows and files after which written files are named and their rows freed.
const ROUND_ROWS: usize = 256 << 10;
const ROUND_FILES: usize = 64;

/// Partitions of one generation for one file.
#[derive(Debug, Clone)]
pub(crate) struct PlannedMemtable {
    pub(crate) generation: u64,
    /// Ascending.
    pub(crate) partitions: Vec<i64>,
}

impl PlannedMemtable {
    pub(crate) fn keys(&self) -> impl Iterator<Item = PartitionKey> {
        let generation = self.generation;
        let partitions = self.partitions.clone().into_iter();
        partitions.map(move |partition| PartitionKey {
            partition,
            generation,
        })
    }
}

/// Plan of a flush.
#[derive(Debug)]
pub(crate) struct FlushPlan {
    calendar: Calendar,
    /// Windows with many rows in files of days, or with the present.
    used: BTreeSet<i64>,
}

/// Partitions that may share a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    Partition(i64),
    Day(i64),
    Window(i64),
}

impl FlushPlan {
    pub(crate) fn new(version: &Version, width: PartitionWidth, present: i64) -> Self {
        let calendar = Calendar::new(width.nanos());
        let files = version.files().iter().map(|file| file.entry());
        let of_days = files.filter(|file| !calendar.is_of_window(file));
        let mut rows: BTreeMap<i64, u64> = BTreeMap::new();
        for file in of_days {
            *rows.entry(calendar.window(file.partitions.0)).or_default() += file.rows;
        }
        rows.retain(|_, rows| *rows > SHARED_ROWS as u64);
        let used = rows.into_keys().chain([calendar.window(present)]);
        Self {
            used: used.collect(),
            calendar,
        }
    }

    /// Memtables of some keys, in rounds: the files of a round are named together.
    pub(crate) fn rounds(
        mut self,
        mut keys: Vec<PartitionKey>,
        rows: &BTreeMap<PartitionKey, PartitionRows>,
    ) -> Vec<Vec<PlannedMemtable>> {
        let rows_of = |key: &PartitionKey| rows.get(key).map_or(0, |rows| rows.rows);
        let is_many = keys.len() > MANY_PARTITIONS;
        let large = keys.iter().filter(|key| rows_of(key) >= SMALL_ROWS);
        let large: Vec<i64> = large
            .map(|key| self.calendar.window(key.partition))
            .collect();
        self.used.extend(large);
        // For each partition, the older generation is first.
        keys.sort_unstable();
        let mut rounds = Rounds::default();
        for key in keys {
            let count = rows_of(&key);
            let group = self.group(key.partition, is_many && count < SMALL_ROWS);
            rounds.add(key, group, count);
        }
        rounds.done
    }

    fn group(&self, partition: i64, shares: bool) -> Group {
        let window = self.calendar.window(partition);
        if !shares {
            Group::Partition(partition)
        } else if self.used.contains(&window) {
            Group::Day(self.calendar.day(partition))
        } else {
            Group::Window(window)
        }
    }
}

/// Rounds of a plan while it is made.
#[derive(Debug, Default)]
struct Rounds {
    done: Vec<Vec<PlannedMemtable>>,
    /// Rows of the last round.
    rows: usize,
    /// Files of the last round that take further partitions, by generation.
    open: BTreeMap<u64, OpenFile>,
}

/// A file that takes further partitions of its group.
#[derive(Debug)]
struct OpenFile {
    /// Index in the round.
    at: usize,
    group: Group,
    rows: usize,
}

impl Rounds {
    fn add(&mut self, key: PartitionKey, group: Group, count: usize) {
        self.rows += count;
        let open = self.open.get_mut(&key.generation);
        if let (Some(file), Some(round)) = (open, self.done.last_mut()) {
            if file.group == group && file.rows + count <= SHARED_ROWS {
                file.rows += count;
                round[file.at].partitions.push(key.partition);
                return;
            }
            // All open files: for each partition, the file of an older generation stays before the
            // file of a newer one.
            self.open.clear();
        }
        let memtable = PlannedMemtable {
            generation: key.generation,
            partitions: vec![key.partition],
        };
        match self.done.last_mut() {
            Some(round) if self.rows <= ROUND_ROWS && round.len() < ROUND_FILES => {
                round.push(memtable);
            }
            _ => {
                self.rows = count;
                self.open.clear();
                self.done.push(vec![memtable]);
            }
        }
        let at = self.done.last().map_or(0, |round| round.len() - 1);
        let rows = count;
        self.open
            .insert(key.generation, OpenFile { at, group, rows });
    }
}
