//! Small files made large: those of a partition one, and in the end those of a day.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bywash_mem::Share;

use super::manifest::FileEntry;
use super::seal::blocking;
use super::write::ROW_GROUP_ROWS;
use super::{FileWriter, SealedFile, SealedFiles, Version};
use crate::frozen::FrozenSeries;
use crate::listing::SeriesNames;
use crate::runs::{Merge, Readers, Run};
use crate::selector::Selector;
use crate::snapshot::with_sealed;
use crate::{Point, SeriesError};

/// What partitions are merged to in the end, in nanoseconds.
const DAY: i64 = 86_400_000_000_000;

/// A day is merged when it has been over for so long, in nanoseconds: until then rows come late.
const SETTLED: i64 = 3_600_000_000_000;

/// The largest file a merge makes, about, in bytes: it is made in memory, which is charged to the budget.
const MOST_BYTES: u64 = 128 << 20;

/// What a merge holds of each file it reads, in bytes: the pages decoded last, as they came and as rows.
const READING: u64 = 1 << 20;

/// So many files are merged whatever their sizes are.
const MANY: usize = 8;

/// Files are merged when those beside the largest are at least one part in this many of it: so no row is written often.
const PART: u64 = 4;

/// Rows handed to the writer at once.
const BATCH_ROWS: usize = 64 << 10;

impl SealedFiles {
    /// Merges files of one partition, and of days that have been over for an hour at `now` (nanoseconds since the Unix epoch).
    /// Answers how many files are fewer.
    ///
    /// Readers see the same rows before and after. Files too large to be merged in memory are left alone, and so are, for now,
    /// those that the budget has no room to merge.
    pub(crate) async fn merge(&self, now: i64) -> Result<usize, SeriesError> {
        let mut fewer = 0;
        // No version is held meanwhile: its files could not be deleted.
        let groups = groups(&self.version(), self.0.span.nanos(), now);
        for group in groups {
            // Charged as a write: resident blocks leave those a part of the budget.
            let bytes = memory(&group);
            let Some(_charge) = self.0.budget.try_reserve(Share::Upload, bytes) else {
                tracing::debug!(
                    bytes,
                    files = group.len(),
                    "no memory to merge files of series"
                );
                continue;
            };
            fewer += group.len() - 1;
            self.merge_group(group).await?;
        }
        Ok(fewer)
    }

    async fn merge_group(&self, files: Vec<Arc<SealedFile>>) -> Result<(), SeriesError> {
        let entries = || files.iter().map(|file| file.entry());
        let partitions = (
            entries().map(|file| file.partitions.0).min().unwrap_or(0),
            entries().map(|file| file.partitions.1).max().unwrap_or(0),
        );
        let generations = (
            entries().map(|file| file.generations.0).min().unwrap_or(0),
            entries().map(|file| file.generations.1).max().unwrap_or(0),
        );
        let writer = self.merged(&files).await?;
        let Some(written) = blocking(|| writer.finish()).await? else {
            return Ok(());
        };
        let merged = self.upload(partitions, generations, written).await?;
        let names: BTreeSet<&str> = entries().map(|file| &*file.name).collect();
        let edited = self.edit(|version| {
            let mut new = version.manifest().clone();
            new.files.retain(|file| !names.contains(&*file.name));
            // Retention may have dropped some of them meanwhile: then the rest stays as it is.
            let all = new.files.len() + names.len() == version.files().len();
            new.files.push(merged.clone());
            all.then_some(new)
        });
        edited.await?;
        drop(files);
        self.delete_doomed().await;
        Ok(())
    }

    /// A writer that has the rows of all these files.
    async fn merged(&self, files: &[Arc<SealedFile>]) -> Result<FileWriter, SeriesError> {
        let readers = Arc::new(Readers::default());
        let all = i64::MIN..=i64::MAX;
        let none = SeriesNames::default();
        let series = with_sealed(none, files, &readers, &Selector::all(), &all).await?;
        let runs: Vec<Run> = files.iter().map(Run::in_file).collect();
        let bytes = files.iter().map(|file| file.entry().bytes).sum();
        let mut batch = Batch::new(FileWriter::with_room(self.0.profile, bytes)?);
        let mut room = Vec::new();
        for (source, metric) in series.shared() {
            let mut rows = Merge::new((source, metric), &runs, all.clone(), &readers);
            loop {
                let points = rows.next(&mut room).await?;
                if points.is_empty() {
                    break;
                }
                batch = batch.push(source, metric, points).await?;
            }
        }
        batch.written().await
    }
}

/// What merging these holds at once, in bytes: the new file, which is hardly larger than the old ones together; rows of a row group,
/// as they are and encoded; what is read.
fn memory(files: &[Arc<SealedFile>]) -> u64 {
    let (mut bytes, mut rows) = (0, 0);
    for file in files {
        bytes += file.entry().bytes;
        rows += file.entry().rows;
    }
    let group = rows.min(ROW_GROUP_ROWS as u64) * size_of::<Point>() as u64;
    bytes + 2 * group + files.len() as u64 * READING.min(group)
}

/// Rows on their way to a writer that works on another thread.
struct Batch {
    writer: FileWriter,
    series: Vec<FrozenSeries>,
    rows: usize,
}

impl Batch {
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
        self.series.push(FrozenSeries {
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

/// The files to be merged, group by group. All files of the days or partitions concerned are in a group, so no generation that
/// stays apart lies between those that are merged.
fn groups(version: &Version, span: i64, now: i64) -> Vec<Vec<Arc<SealedFile>>> {
    let partitions_a_day = (DAY / span).max(1);
    let mut days: BTreeMap<i64, Vec<Arc<SealedFile>>> = BTreeMap::new();
    for file in version.files() {
        let day = file.entry().partitions.0.div_euclid(partitions_a_day);
        days.entry(day).or_default().push(Arc::clone(file));
    }
    let mut groups = Vec::new();
    for (day, files) in days {
        let end = i128::from(day + 1) * i128::from(partitions_a_day) * i128::from(span);
        let over = end + i128::from(SETTLED) <= i128::from(now);
        if over && is_worth(&files) {
            groups.push(files);
            continue;
        }
        let mut partitions: BTreeMap<i64, Vec<Arc<SealedFile>>> = BTreeMap::new();
        for file in files {
            let (first, last) = file.entry().partitions;
            if first == last {
                partitions.entry(first).or_default().push(file);
            }
        }
        groups.extend(partitions.into_values().filter(|files| is_worth(files)));
    }
    groups
}

fn is_worth(files: &[Arc<SealedFile>]) -> bool {
    let bytes = |file: &FileEntry| file.bytes;
    let all: u64 = files.iter().map(|file| bytes(file.entry())).sum();
    let largest = files
        .iter()
        .map(|file| bytes(file.entry()))
        .max()
        .unwrap_or(0);
    let few = files.len() < MANY && (all - largest) * PART < largest;
    files.len() > 1 && all <= MOST_BYTES && !few
}
