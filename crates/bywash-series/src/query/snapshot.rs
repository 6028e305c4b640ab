//! Snapshots: rows in memory and in files as of one moment.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};

use super::{FileReaders, LeftOut, MergeIterator, Selector, SeriesNames, SortedRun};
use crate::SeriesError;
use crate::manifest::{DataFile, DataFiles, Version};
use crate::memtable::Memtable;
use crate::parquet::{Charge, Layout};

/// Bytes of a series with rows in memory in addition to its name and rows: its entry in the map of
/// runs, and the run.
const SNAPSHOT_SERIES_BYTES: u64 = 256;

/// Names of source and metric.
pub(crate) type Names = (Arc<str>, Arc<str>);

/// Rows of the selected series in a time range. Its files are not deleted while it is held.
#[derive(Debug)]
pub(crate) struct Snapshot {
    range: RangeInclusive<i64>,
    /// Series with rows in memory, until they are listed, and their rows.
    in_memory: Option<SeriesNames>,
    memory: HashMap<Names, Vec<SortedRun>>,
    files: Vec<Arc<DataFile>>,
    /// Of the rows in memory.
    _charge: Charge,
}

impl Snapshot {
    /// Memory first, then files: rows flushed in between are in both, and identical; none are missed.
    pub(crate) fn take(
        memtable: &Arc<Memtable>,
        files: &DataFiles,
        selector: &Selector,
        range: RangeInclusive<i64>,
        charge: &Charge,
    ) -> Result<Self, SeriesError> {
        let (in_memory, memory, charge) = memtable.directory.read(|catalogs| {
            let in_memory = SeriesNames::in_catalogs(catalogs, selector, &range, charge)?;
            let mut charge = charge.again();
            charge.grow(in_memory.len() as u64 * SNAPSHOT_SERIES_BYTES)?;
            let mut memory: HashMap<Names, Vec<SortedRun>> =
                HashMap::with_capacity(in_memory.len());
            for names in in_memory.owned() {
                let runs = memtable.runs_in(catalogs, (&names.0, &names.1), &range);
                let runs: Vec<_> = runs.into_iter().filter_map(SortedRun::in_memory).collect();
                if !runs.is_empty() {
                    charge.grow(runs.iter().map(SortedRun::bytes_in_memory).sum())?;
                    memory.insert(names, runs);
                }
            }
            Ok::<_, SeriesError>((in_memory, memory, charge))
        })?;
        Ok(Self {
            memory,
            in_memory: Some(in_memory),
            files: overlapping(&files.version(), &range),
            range,
            _charge: charge,
        })
    }

    /// Reads none of these files.
    pub(crate) fn leave_out(&mut self, left_out: &LeftOut) {
        self.files.retain(|file| !left_out.has(file));
    }

    /// Runs of one series.
    pub(crate) fn runs(&self, names: &Names) -> Vec<SortedRun> {
        let memory = self.memory.get(names).into_iter().flatten().cloned();
        memory
            .chain(self.files.iter().map(SortedRun::in_file))
            .collect()
    }

    /// Merges the rows of one series. Sharing `readers` between series shares decoded pages.
    pub(crate) fn rows(&self, names: &Names, readers: &Arc<FileReaders>) -> MergeIterator {
        let runs = self.runs(names);
        MergeIterator::new((&names.0, &names.1), &runs, self.range.clone(), readers)
    }

    /// Lists the selected series in order. Series of files with rows around the range but none in it may be included.
    pub(crate) async fn series(&mut self, selector: &Selector) -> Result<SeriesNames, SeriesError> {
        let memory = self.in_memory.take().expect("series are listed once");
        list_series(memory, &self.files, selector, &self.range).await
    }
}

/// Files that may have a row in this range.
pub(crate) fn overlapping(version: &Version, range: &RangeInclusive<i64>) -> Vec<Arc<DataFile>> {
    let files = version.files().iter();
    files.filter(|file| file.overlaps(range)).cloned().collect()
}

/// Merges the names of series in memory with those in files, in order. Holds the tails of a few files at a time.
pub(crate) async fn list_series(
    memory: SeriesNames,
    files: &[Arc<DataFile>],
    selector: &Selector,
    range: &RangeInclusive<i64>,
) -> Result<SeriesNames, SeriesError> {
    let charged_by_caller = memory.is_charged_by_caller();
    let of_file = |file: &Arc<DataFile>| {
        let file = Arc::clone(file);
        async move { file.open(charged_by_caller).await }
    };
    let largest = files
        .iter()
        .map(|file| Layout::decoding_bytes(file.entry()));
    let at_once = memory.tails_at_once(largest.max().unwrap_or(0));
    let mut opened =
        futures::stream::iter(files.iter().map(of_file).collect::<Vec<_>>()).buffered(at_once);
    let mut names = memory;
    while let Some(reader) = opened.try_next().await? {
        names.add_file(&reader.layout, selector, range)?;
    }
    Ok(names)
}
