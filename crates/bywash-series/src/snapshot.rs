//! What a reader sees: rows in memory and in files, as they were at one moment.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};

use crate::SeriesError;
use crate::files::{SealedFile, SealedFiles, Version};
use crate::head::Head;
use crate::listing::SeriesNames;
use crate::runs::{Merge, Readers, Run};
use crate::selector::Selector;

/// Tails of files that are read side by side.
const TAILS: usize = 16;

/// Names of source and metric.
pub(crate) type Names = (Arc<str>, Arc<str>);

/// Rows of the selected series in a range of time. Files stay as long as it is held.
#[derive(Debug)]
pub(crate) struct Snapshot {
    range: RangeInclusive<i64>,
    /// Series with rows in memory, and these.
    in_memory: SeriesNames,
    memory: HashMap<Names, Vec<Run>>,
    version: Arc<Version>,
    readers: Arc<Readers>,
}

impl Snapshot {
    /// Memory first, then files: what is sealed in between is in both, and the same; nothing is in neither.
    pub(crate) fn take(
        head: &Arc<Head>,
        files: &SealedFiles,
        selector: &Selector,
        range: RangeInclusive<i64>,
    ) -> Self {
        let in_memory = SeriesNames::in_memory(head, selector, &range);
        let runs = |names: Names| {
            let runs = head.runs(&names.0, &names.1, &range).into_iter();
            let runs: Vec<_> = runs.filter_map(Run::in_memory).collect();
            (names, runs)
        };
        let memory = in_memory
            .owned()
            .map(runs)
            .filter(|(_, runs)| !runs.is_empty());
        Self {
            memory: memory.collect(),
            in_memory,
            version: files.version(),
            range,
            readers: Arc::default(),
        }
    }

    fn files(&self) -> impl Iterator<Item = &Arc<SealedFile>> {
        let files = self.version.files().iter();
        files.filter(|file| file.meets(&self.range))
    }

    /// The runs of one series.
    pub(crate) fn runs(&self, names: &Names) -> Vec<Run> {
        let memory = self.memory.get(names).into_iter().flatten().cloned();
        memory.chain(self.files().map(Run::in_file)).collect()
    }

    /// The rows of one series. Who reads several, one after the other, has the readers in common.
    pub(crate) fn rows(&self, names: &Names, readers: &Arc<Readers>) -> Merge {
        let runs = self.runs(names);
        Merge::new((&names.0, &names.1), &runs, self.range.clone(), readers)
    }

    /// The selected series, in order. In files, one whose rows lie around the range and not in it may be among them.
    pub(crate) async fn series(&self, selector: &Selector) -> Result<SeriesNames, SeriesError> {
        let (memory, files) = (self.in_memory.clone(), self.version.files());
        with_sealed(memory, files, &self.readers, selector, &self.range).await
    }

    pub(crate) fn into_parts(self, names: &Names) -> (Vec<Run>, Arc<Readers>) {
        (self.runs(names), self.readers)
    }
}

/// The names in order, those in memory, which are, and those in files.
pub(crate) async fn with_sealed(
    memory: SeriesNames,
    files: &[Arc<SealedFile>],
    readers: &Arc<Readers>,
    selector: &Selector,
    range: &RangeInclusive<i64>,
) -> Result<SeriesNames, SeriesError> {
    let of_file = |file: &Arc<SealedFile>| {
        let (file, readers) = (Arc::clone(file), Arc::clone(readers));
        async move { readers.open(&file).await }
    };
    let files = files.iter().filter(|file| file.meets(range));
    let mut opened = futures::stream::iter(files.map(of_file).collect::<Vec<_>>()).buffered(TAILS);
    let mut names = memory;
    while let Some(reader) = opened.try_next().await? {
        names.add_file(&reader.layout, selector, range);
    }
    names.sort();
    Ok(names)
}
