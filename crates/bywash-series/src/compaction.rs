//! Compaction: merges small files of a partition, and finally the files of a day.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use bywash_mem::{Reservation, Share};

use crate::calendar::Calendar;
use crate::flush::blocking;
use crate::manifest::FileEntry;
use crate::manifest::{DataFile, DataFiles, Version, epoch_of};
use crate::memtable::{PartitionKey, SeriesColumns};
use crate::parquet::FileWriter;
use crate::parquet::ROW_GROUP_ROWS;
use crate::query::{FileReaders, MergeIterator, Selector, SeriesNames, SortedRun, list_series};
use crate::{Point, SeriesError};

/// How long after its end a day is compacted, in nanoseconds: until then late rows are likely.
const DAY_SETTLE_NANOS: i64 = 3_600_000_000_000;

/// Approximate max bytes of a compacted file: it is built in memory, which is charged to the budget.
const MAX_COMPACTED_BYTES: u64 = 128 << 20;

/// Bytes held for each input file: the last decoded pages, encoded and decoded.
const COMPACTION_READ_BYTES: u64 = 1 << 20;

/// Bytes held for each series of an input file in addition to its name: its decoded entry, its
/// places in the list of names, and its parts of the new file's index and dictionaries while they
/// are built.
const COMPACTION_SERIES_BYTES: u64 = 384;

/// Copies of a name that are held during a compaction: in the index of its file, and encoded.
const COMPACTION_NAMES: u64 = 2;

/// Files that the free budget does not suffice for are compacted in parts of at most this fraction of the budget.
const PART_OF_BUDGET: u64 = 4;

/// Number of files that are compacted regardless of their sizes.
const MANY_FILES: usize = 8;

/// Files are compacted if all except the largest together have at least this fraction of its size.
/// This bounds how often a row is rewritten.
const MIN_GAIN_RATIO: u64 = 4;

/// Rows handed to the writer at a time.
const BATCH_ROWS: usize = 64 << 10;

impl DataFiles {
    /// Compacts the files of a partition, and of days that ended at least an hour before `now` (nanoseconds since the
    /// Unix epoch). Returns by how many the files decreased.
    ///
    /// Readers see the same rows before and after. Skips groups that are too large to merge in
    /// memory. Groups that exceed the free budget are merged in parts, or left for now. `unflushed`
    /// was collected before: rows flushed since are in files by now.
    pub(crate) async fn compact(
        &self,
        now: i64,
        unflushed: &Unflushed,
    ) -> Result<usize, SeriesError> {
        let mut fewer = 0;
        // Hold no version during the compaction: its files could not be deleted.
        let groups = compaction_groups(&self.version(), self.0.width.nanos(), now, unflushed);
        let max = self.0.budget.limit() / PART_OF_BUDGET;
        for group in groups {
            let parts = match self.reserve(&group) {
                Some(charge) => {
                    fewer += group.len() - 1;
                    self.compact_group(group, charge).await?;
                    continue;
                }
                None => fitting(group, max),
            };
            for part in parts {
                if let Some(charge) = self.reserve(&part) {
                    fewer += part.len() - 1;
                    self.compact_group(part, charge).await?;
                }
            }
        }
        Ok(fewer)
    }

    /// Charges the memory to merge these files, if the budget has it.
    fn reserve(&self, files: &[Arc<DataFile>]) -> Option<Reservation> {
        // Charged to the upload share: resident blocks leave it part of the budget.
        let bytes = memory(files);
        let charge = self.0.budget.try_reserve(Share::Upload, bytes);
        if charge.is_none() {
            let files = files.len();
            tracing::debug!(bytes, files, "no memory to compact files of series");
        }
        charge
    }

    async fn compact_group(
        &self,
        files: Vec<Arc<DataFile>>,
        _charge: Reservation,
    ) -> Result<(), SeriesError> {
        let entries = || files.iter().map(|file| file.entry());
        let partitions = (
            entries().map(|file| file.partitions.0).min().unwrap_or(0),
            entries().map(|file| file.partitions.1).max().unwrap_or(0),
        );
        let generations = (
            entries().map(|file| file.generations.0).min().unwrap_or(0),
            entries().map(|file| file.generations.1).max().unwrap_or(0),
        );
        let writer = self.merge_rows(&files).await?;
        let Some(written) = blocking(|| writer.finish()).await? else {
            return Ok(());
        };
        let merge_rows = self.upload(partitions, generations, written).await?;
        let names: BTreeSet<&str> = entries().map(|file| &*file.name).collect();
        let edited = self.edit(|version| {
            let mut new = version.manifest().clone();
            new.files.retain(|file| !names.contains(&*file.name));
            // Retention may have dropped some of the inputs since. Then nothing changes.
            let all = new.files.len() + names.len() == version.files().len();
            new.files.push(merge_rows.clone());
            all.then_some(new)
        });
        edited.await?;
        drop(files);
        self.delete_obsolete().await;
        Ok(())
    }

    /// Merges all rows of these files into a writer.
    async fn merge_rows(&self, files: &[Arc<DataFile>]) -> Result<FileWriter, SeriesError> {
        let readers = Arc::new(FileReaders::charged_by_caller());
        let all = i64::MIN..=i64::MAX;
        let none = SeriesNames::default();
        let series = list_series(none, files, &Selector::all(), &all).await?;
        let runs: Vec<SortedRun> = files.iter().map(SortedRun::in_file).collect();
        let bytes = files.iter().map(|file| file.entry().bytes).sum();
        let mut batch = WriterBatch::new(FileWriter::with_capacity(self.0.profile, bytes)?);
        let mut buffer = Vec::new();
        for (source, metric) in series.as_slice() {
            let mut rows = MergeIterator::new((source, metric), &runs, all.clone(), &readers);
            loop {
                let points = rows.next(&mut buffer).await?;
                if points.is_empty() {
                    break;
                }
                batch = batch.push(source, metric, points).await?;
            }
        }
        batch.written().await
    }
}

/// Bytes that merging these files needs: the new file, hardly larger than its inputs together; a row group, plain and
/// encoded; the pages being read; all names, which are in the tails.
fn memory(files: &[Arc<DataFile>]) -> u64 {
    let (mut bytes, mut rows, mut names) = (0, 0, 0);
    for file in files {
        let entry = file.entry();
        bytes += entry.bytes;
        rows += entry.rows;
        names += entry.series * COMPACTION_SERIES_BYTES + entry.tail * COMPACTION_NAMES;
    }
    let group = rows.min(ROW_GROUP_ROWS as u64) * size_of::<Point>() as u64;
    bytes + 2 * group + files.len() as u64 * COMPACTION_READ_BYTES.min(group) + names
}

/// Splits a group of neighbouring files, in their order, into groups that need at most `max` bytes
/// each.
fn fitting(files: Vec<Arc<DataFile>>, max: u64) -> Vec<Vec<Arc<DataFile>>> {
    if memory(&files) <= max {
        return vec![files];
    }
    let mut parts: Vec<Vec<Arc<DataFile>>> = Vec::new();
    for file in files {
        if let Some(part) = parts.last_mut() {
            part.push(Arc::clone(&file));
            if memory(part) <= max {
                continue;
            }
            part.pop();
        }
        parts.push(vec![file]);
    }
    parts.retain(|files| is_worth_compacting(files));
    parts
}

/// Rows on their way to a writer that runs on another thread.
struct WriterBatch {
    writer: FileWriter,
    series: Vec<SeriesColumns>,
    rows: usize,
}

impl WriterBatch {
    fn new(writer: FileWriter) -> Self {
        Self {
            writer,
            series: Vec::new(),
            rows: 0,
        }
    }

    async fn push(
        mut self,
        source: &Arc<str>,
        metric: &Arc<str>,
        points: &[Point],
    ) -> Result<Self, SeriesError> {
        self.series.push(SeriesColumns {
            source: Arc::clone(source),
            metric: Arc::clone(metric),
            timestamps: points.iter().map(|point| point.timestamp).collect(),
            values: points.iter().map(|point| point.value).collect(),
        });
        self.rows += points.len();
        if self.rows < BATCH_ROWS {
            return Ok(self);
        }
        Ok(Self::new(self.written().await?))
    }

    async fn written(self) -> Result<FileWriter, SeriesError> {
        let Self {
            mut writer, series, ..
        } = self;
        blocking(move || {
            for of in &series {
                writer.append(&of.source, &of.metric, &of.timestamps, &of.values)?;
            }
            Ok(writer)
        })
        .await
    }
}

/// Rows of this process that are in no file.
#[derive(Debug)]
pub(crate) struct Unflushed {
    pub(crate) keys: BTreeSet<PartitionKey>,
    /// Rows of any partition may have been written in this generation, or in later ones, since the keys were collected.
    pub(crate) from: u64,
}

/// Groups of files to compact. A group has all files of its day or partition, or the files of
/// neighbouring generations, so no generation of another file is between two of a group.
fn compaction_groups(
    version: &Version,
    span: i64,
    now: i64,
    unflushed: &Unflushed,
) -> Vec<Vec<Arc<DataFile>>> {
    let calendar = Calendar::new(span);
    let mut days: BTreeMap<i64, Vec<Arc<DataFile>>> = BTreeMap::new();
    let mut windows: BTreeMap<i64, Vec<Arc<DataFile>>> = BTreeMap::new();
    for file in version.files() {
        let first = file.entry().partitions.0;
        let units = if calendar.is_of_window(file.entry()) {
            windows.entry(calendar.window(first))
        } else {
            days.entry(calendar.day(first))
        };
        units.or_default().push(Arc::clone(file));
    }
    let is_over = |unit: i64, partitions: i64| {
        let end = i128::from(unit + 1) * i128::from(partitions) * i128::from(span);
        end + i128::from(DAY_SETTLE_NANOS) <= i128::from(now)
    };
    let mut groups = Vec::new();
    for (window, files) in windows {
        if is_over(window, calendar.partitions_a_window()) {
            groups.extend(groups_of_day(version, files, unflushed));
        }
    }
    for (day, files) in days {
        let over = is_over(day, calendar.partitions_a_day());
        if over && is_worth_compacting(&files) {
            let whole = groups_of_day(version, files.clone(), unflushed);
            if !whole.is_empty() {
                groups.extend(whole);
                continue;
            }
        }
        let mut partitions: BTreeMap<i64, Vec<Arc<DataFile>>> = BTreeMap::new();
        for file in files {
            let (first, last) = file.entry().partitions;
            if first == last {
                partitions.entry(first).or_default().push(file);
            }
        }
        let worth = partitions
            .into_values()
            .filter(|files| is_worth_compacting(files));
        groups.extend(worth.flat_map(|files| groups_of_partition(version, files)));
    }
    groups
}

/// Groups among the files of one partition.
///
/// A process flushes the generations of a partition in order, so rows that are only in its log are newer than its files of this
/// partition. Rows may come between two files only if these are of different epochs.
fn groups_of_partition(version: &Version, files: Vec<Arc<DataFile>>) -> Vec<Vec<Arc<DataFile>>> {
    let outstanding: Vec<_> = version.manifest().outstanding().collect();
    let others = others_of_same_time(version, &files);
    split(files, |one, next| {
        epoch_of(one) != epoch_of(next) && any_between(&outstanding, one, next)
            || any_between(&others, one, next)
    })
}

/// Groups among the files of several partitions.
///
/// Between partitions generations have no order: a flush takes one partition after the other, and
/// may end in the middle. Its log then has rows of a partition that are older than files of another
/// one, and newer than files of their own, also in one epoch.
fn groups_of_day(
    version: &Version,
    files: Vec<Arc<DataFile>>,
    unflushed: &Unflushed,
) -> Vec<Vec<Arc<DataFile>>> {
    let partitions = || files.iter().map(|file| file.entry().partitions);
    let first = partitions().map(|(first, _)| first).min();
    let last = partitions().map(|(_, last)| last).max();
    let of_day = unflushed
        .keys
        .iter()
        .filter(|key| first <= Some(key.partition) && Some(key.partition) <= last)
        .map(|key| key.generation..key.generation + 1);
    let written_since = std::iter::once(unflushed.from..u64::MAX);
    let others = others_of_same_time(version, &files);
    let outstanding = version.manifest().outstanding().chain(of_day);
    let outstanding = outstanding.chain(others);
    let outstanding: Vec<_> = outstanding.chain(written_since).collect();
    split(files, |one, next| any_between(&outstanding, one, next))
}

/// Generations strictly inside the ranges of files with several partitions that overlap a group's
/// and are not part of it: small partitions of a flush share such files.
fn others_of_same_time(version: &Version, group: &[Arc<DataFile>]) -> Vec<Range<u64>> {
    let partitions = || group.iter().map(|file| file.entry().partitions);
    let first = partitions().map(|(first, _)| first).min();
    let last = partitions().map(|(_, last)| last).max();
    let others = version.files().iter().filter(|file| {
        let (from, to) = file.entry().partitions;
        let overlaps = first <= Some(to) && Some(from) <= last;
        from != to && overlaps && !group.iter().any(|known| Arc::ptr_eq(known, file))
    });
    // One of the same generation has other partitions than a file of the group.
    let inside = others.map(|file| {
        let (oldest, newest) = file.entry().generations;
        oldest + 1..newest
    });
    inside.collect()
}

/// Whether rows of one of these generations may come in between or next to two files.
fn any_between(outstanding: &[Range<u64>], one: u64, next: u64) -> bool {
    outstanding
        .iter()
        .any(|unflushed| unflushed.start <= next && unflushed.end > one)
}

/// Splits files where `comes_between` finds that rows may still come between the generations of two
/// files: a merged file counts by its newest generation, so it would win over these rows.
fn split(
    mut files: Vec<Arc<DataFile>>,
    comes_between: impl Fn(u64, u64) -> bool,
) -> Vec<Vec<Arc<DataFile>>> {
    let newest = |file: &DataFile| file.entry().generations.1;
    files.sort_by_key(|file| newest(file));
    let together =
        |one: &Arc<DataFile>, next: &Arc<DataFile>| !comes_between(newest(one), newest(next));
    let groups = files.chunk_by(together).map(<[_]>::to_vec);
    groups.filter(|files| is_worth_compacting(files)).collect()
}

fn is_worth_compacting(files: &[Arc<DataFile>]) -> bool {
    let bytes = |file: &FileEntry| file.bytes;
    let all: u64 = files.iter().map(|file| bytes(file.entry())).sum();
    let largest = files
        .iter()
        .map(|file| bytes(file.entry()))
        .max()
        .unwrap_or(0);
    let few = files.len() < MANY_FILES && (all - largest) * MIN_GAIN_RATIO < largest;
    files.len() > 1 && all <= MAX_COMPACTED_BYTES && !few
}
