//! Snapshots: rows in memory and in files as of one moment.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};

use super::{FileReaders, MergeIterator, Selector, SeriesNames, SortedRun};
use crate::SeriesError;
use crate::manifest::{DataFile, DataFiles, Version};
use crate::memtable::Memtable;

/// File tails read concurrently.
const CONCURRENT_TAIL_READS: usize = 16;

/// Names of source and metric.
pub(crate) type Names = (Arc<str>, Arc<str>);

/// Rows of the selected series in a time range. Its files are not deleted while it is held.
#[derive(Debug)]
pub(crate) struct Snapshot {
    range: RangeInclusive<i64>,
    /// Series with rows in memory, and their rows.
    in_memory: SeriesNames,
    memory: HashMap<Names, Vec<SortedRun>>,
    version: Arc<Version>,
    readers: Arc<FileReaders>,
}

impl Snapshot {
    /// Memory first, then files: rows flushed in between are in both, and identical; none are missed.
    pub(crate) fn take(
        memtable: &Arc<Memtable>,
        files: &DataFiles,
        selector: &Selector,
        range: RangeInclusive<i64>,
    ) -> Self {
        let (in_memory, memory) = memtable.directory.read(|catalogs| {
            let in_memory = SeriesNames::in_catalogs(catalogs, selector, &range);
            let runs = |names: Names| {
                let runs = memtable.runs_in(catalogs, (&names.0, &names.1), &range);
                let runs = runs.into_iter().filter_map(SortedRun::in_memory);
                (names, runs.collect())
            };
            let memory: HashMap<Names, Vec<SortedRun>> = in_memory.owned().map(runs).collect();
            (in_memory, memory)
        });
        let memory = memory.into_iter().filter(|(_, runs)| !runs.is_empty());
        Self {
            memory: memory.collect(),
            in_memory,
            version: files.version(),
            range,
            readers: Arc::default(),
        }
    }

    fn files(&self) -> impl Iterator<Item = &Arc<DataFile>> {
        let files = self.version.files().iter();
        files.filter(|file| file.overlaps(&self.range))
    }

    /// Returns the runs of one series.
    pub(crate) fn runs(&self, names: &Names) -> Vec<SortedRun> {
        let memory = self.memory.get(names).into_iter().flatten().cloned();
        memory.chain(self.files().map(SortedRun::in_file)).collect()
    }

    /// Merges the rows of one series. Sharing `readers` between series shares decoded pages.
    pub(crate) fn rows(&self, names: &Names, readers: &Arc<FileReaders>) -> MergeIterator {
        let runs = self.runs(names);
        MergeIterator::new((&names.0, &names.1), &runs, self.range.clone(), readers)
    }

    /// Lists the selected series in order. Series of files with rows around the range but none in it may be included.
    pub(crate) async fn series(&self, selector: &Selector) -> Result<SeriesNames, SeriesError> {
        let (memory, files) = (self.in_memory.clone(), self.version.files());
        list_series(memory, files, &self.readers, selector, &self.range).await
    }

    pub(crate) fn into_parts(self, names: &Names) -> (Vec<SortedRun>, Arc<FileReaders>) {
        (self.runs(names), self.readers)
    }
}

/// Merges the names of series in memory with those in files, in order.
pub(crate) async fn list_series(
    memory: SeriesNames,
    files: &[Arc<DataFile>],
    readers: &Arc<FileReaders>,
    selector: &Selector,
    range: &RangeInclusive<i64>,
) -> Result<SeriesNames, SeriesError> {
    let of_file = |file: &Arc<DataFile>| {
        let (file, readers) = (Arc::clone(file), Arc::clone(readers));
        async move { readers.open(&file).await }
    };
    let files = files.iter().filter(|file| file.overlaps(range));
    let mut opened = futures::stream::iter(files.map(of_file).collect::<Vec<_>>())
        .buffered(CONCURRENT_TAIL_READS);
    let mut names = memory;
    while let Some(reader) = opened.try_next().await? {
        names.add_file(&reader.layout, selector, range);
    }
    names.sort();
    Ok(names)
}
