//! What a reader sees: rows in memory and in files, as they were at one moment.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};

use crate::SeriesError;
use crate::files::{SealedFile, SealedFiles, Version};
use crate::head::Head;
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
    memory: HashMap<Names, Vec<Run>>,
    version: Arc<Version>,
    readers: Arc<Readers>,
}

impl Snapshot {
    /// Memory first, then files: what is sealed in between is in both, and the same; nothing is in neither.
    pub(crate) fn take(
        head: &Head,
        files: &SealedFiles,
        selector: &Selector,
        range: RangeInclusive<i64>,
    ) -> Self {
        let names: Vec<Names> = match selector.exact() {
            Some((source, metric)) => vec![(source.into(), metric.into())],
            None => head.names(selector, &range),
        };
        let runs = |names: Names| {
            let runs = head.runs(&names.0, &names.1, &range).into_iter();
            let runs: Vec<_> = runs.filter_map(Run::in_memory).collect();
            (names, runs)
        };
        let memory = names
            .into_iter()
            .map(runs)
            .filter(|(_, runs)| !runs.is_empty());
        Self {
            memory: memory.collect(),
            version: files.version(),
            range,
            readers: Arc::default(),
        }
    }

    fn files(&self) -> impl Iterator<Item = &Arc<SealedFile>> {
        files(&self.version, &self.range)
    }

    /// The runs of one series.
    pub(crate) fn runs(&self, names: &Names) -> Vec<Run> {
        let memory = self.memory.get(names).into_iter().flatten().cloned();
        memory.chain(self.files().map(Run::in_file)).collect()
    }

    /// The rows of one series.
    pub(crate) fn rows(&self, names: &Names) -> Merge {
        let runs = self.runs(names);
        Merge::new(
            (&names.0, &names.1),
            &runs,
            self.range.clone(),
            &self.readers,
        )
    }

    /// The selected series, in order. In files, one whose rows lie around the range and not in it may be among them.
    pub(crate) async fn series(&self, selector: &Selector) -> Result<Vec<Names>, SeriesError> {
        let mut memory: Vec<Names> = self.memory.keys().cloned().collect();
        memory.sort_unstable();
        with_sealed(memory, &self.version, &self.readers, selector, &self.range).await
    }

    pub(crate) fn into_parts(self, names: &Names) -> (Vec<Run>, Arc<Readers>) {
        (self.runs(names), self.readers)
    }
}

fn files<'a>(
    version: &'a Version,
    range: &'a RangeInclusive<i64>,
) -> impl Iterator<Item = &'a Arc<SealedFile>> {
    let files = version.files().iter();
    files.filter(|file| file.meets(range))
}

/// The names in order, those in memory, which are, and those in files.
pub(crate) async fn with_sealed(
    memory: Vec<Names>,
    version: &Version,
    readers: &Arc<Readers>,
    selector: &Selector,
    range: &RangeInclusive<i64>,
) -> Result<Vec<Names>, SeriesError> {
    let of_file = |file: &Arc<SealedFile>| {
        let (file, readers) = (Arc::clone(file), Arc::clone(readers));
        async move { readers.open(&file).await }
    };
    let opened = futures::stream::iter(files(version, range).map(of_file).collect::<Vec<_>>());
    let mut opened = opened.buffered(TAILS);
    let mut names = memory;
    let mut in_order = true;
    while let Some(reader) = opened.try_next().await? {
        in_order &= names.is_empty();
        let series = reader.layout.index.select(selector);
        let series = series.filter(|(_, _, rows)| rows.meets(range));
        names.extend(series.map(|(source, metric, _)| (Arc::clone(source), Arc::clone(metric))));
    }
    if !in_order {
        // Made of runs that are sorted already, which this sort finds and merges.
        names.sort();
        names.dedup();
    }
    Ok(names)
}
