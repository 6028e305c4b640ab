//! The memtable: rows in memory, by series, and the memory charged for them.

mod bounds;
mod chunk;
mod immutable;
mod reservation;
mod series;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

pub(crate) use self::chunk::Block;
pub(crate) use self::immutable::{ImmutableMemtable, SeriesColumns};
pub(crate) use self::reservation::{MemoryReservation, RowMemory};
pub(crate) use self::series::{ChunkSnapshot, Series, SeriesGuard};
use crate::catalog::{Catalog, SeriesHandle};
use crate::directory::{Catalogs, Directory};
use crate::partition::PartitionWidth;

/// All rows in memory of one database.
#[derive(Debug)]
pub(crate) struct Memtable {
    pub(crate) width: PartitionWidth,
    pub(crate) directory: Directory,
    pub(crate) memory: MemoryReservation,
}

/// Series with rows in a partition of a generation, and the number of rows, duplicates included.
#[derive(Debug, Default)]
pub(crate) struct PartitionRows {
    pub(crate) series: Vec<SeriesHandle>,
    pub(crate) rows: usize,
}

/// Partition and generation of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartitionKey {
    pub(crate) partition: i64,
    pub(crate) generation: u64,
}

impl Memtable {
    pub(crate) fn new(width: PartitionWidth, memory: MemoryReservation) -> Self {
        Self {
            width,
            directory: Directory::default(),
            memory,
        }
    }

    /// Bytes charged for rows.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.memory.used().saturating_sub(self.directory.bytes())
    }

    /// Max bytes that new names take: names leave their parts of the catalog only all together, and
    /// rows need memory too.
    pub(crate) fn max_name_bytes(&self) -> u64 {
        self.memory.limit() / 4 * 3
    }

    /// Notes that rows found no memory: names that use most of it are to leave.
    #[cold]
    pub(crate) fn rows_refused(&self) {
        if self.directory.bytes() > self.memory.used() / 2 {
            self.directory.mark_refused();
        }
    }

    /// Copies the rows of a series in the partitions that `range` touches, one sorted chunk a partition and
    /// generation. Chunks are in no order; on equal timestamps the newest generation wins.
    ///
    /// Call this before reading the version of the files: rows flushed in between are then in both, and identical.
    #[cfg(test)]
    pub(crate) fn runs(
        &self,
        source: &str,
        metric: &str,
        range: &RangeInclusive<i64>,
    ) -> Vec<ChunkSnapshot> {
        self.directory
            .read(|catalogs| self.runs_in(catalogs, (source, metric), range))
    }

    /// As [`Self::runs`], inside [`Directory::read`].
    pub(crate) fn runs_in(
        &self,
        catalogs: &Catalogs,
        (source, metric): (&str, &str),
        range: &RangeInclusive<i64>,
    ) -> Vec<ChunkSnapshot> {
        let partitions = self.width.partition(*range.start())..=self.width.partition(*range.end());
        let series = catalogs
            .iter()
            .filter_map(|catalog| catalog.find(source, metric));
        series
            .flat_map(|series| series.runs(self.width, partitions.clone()))
            .collect()
    }

    /// Series with rows in each partition, for all generations up to `up_to`.
    pub(crate) fn partitions(&self, up_to: u64) -> BTreeMap<PartitionKey, PartitionRows> {
        let mut partitions: BTreeMap<PartitionKey, PartitionRows> = BTreeMap::new();
        for series in self.directory.current().iter() {
            series.partitions(self.width, |key, rows| {
                if key.generation <= up_to {
                    let partition = partitions.entry(key).or_default();
                    partition.series.push(series.handle);
                    partition.rows += rows;
                }
            });
        }
        partitions
    }

    /// Partitions and generations of all rows in memory, also while series leave.
    pub(crate) fn unflushed(&self) -> BTreeSet<PartitionKey> {
        self.directory.read(|catalogs| {
            let mut keys = BTreeSet::new();
            for series in catalogs.iter().flat_map(Catalog::iter) {
                series.partitions(self.width, |key, _| {
                    keys.insert(key);
                });
            }
            keys
        })
    }

    /// Copies all rows of some partitions, in ascending order, of a closed generation.
    pub(crate) fn freeze(
        &self,
        generation: u64,
        partitions: Vec<i64>,
        series: &[SeriesHandle],
    ) -> ImmutableMemtable {
        let catalog = self.directory.current();
        let mut frozen: Vec<SeriesColumns> = Vec::with_capacity(series.len());
        for series in series.iter().filter_map(|&handle| catalog.series(handle)) {
            let (source, metric) = catalog.names(series);
            let runs = series.runs_of(self.width, generation, &partitions);
            frozen.extend(runs.into_iter().map(|run| {
                let points = || run.blocks.iter().flat_map(|block| block.iter());
                SeriesColumns {
                    source: Arc::clone(source),
                    metric: Arc::clone(metric),
                    timestamps: points().map(|point| point.timestamp).collect(),
                    values: points().map(|point| point.value).collect(),
                }
            }));
        }
        // Stable: the columns of a series stay in the order of its partitions.
        frozen.sort_by(|a, b| (&a.source, &a.metric).cmp(&(&b.source, &b.metric)));
        ImmutableMemtable {
            partitions,
            generation,
            series: frozen,
        }
    }

    /// Drops the rows of some partitions, in ascending order, after they were flushed.
    pub(crate) fn drop_partitions(
        &self,
        generation: u64,
        partitions: &[i64],
        series: &[SeriesHandle],
    ) {
        let catalog = self.directory.current();
        let series = series.iter().filter_map(|&handle| catalog.series(handle));
        let memory = series
            .map(|series| series.drop_partitions(self.width, generation, partitions))
            .fold(RowMemory::default(), RowMemory::plus);
        self.memory.release(memory);
    }
}
