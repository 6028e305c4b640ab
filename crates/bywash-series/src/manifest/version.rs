//! Versions: the data files at one moment.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::format::{FileEntry, Manifest, first_generation};
use crate::SeriesError;
use crate::parquet::FileReader;
use crate::parquet::LayoutCache;

/// A data file. Its object is not deleted while a reference exists.
#[derive(Debug)]
pub(crate) struct DataFile {
    entry: FileEntry,
    layouts: Arc<LayoutCache>,
}

impl DataFile {
    pub(crate) fn entry(&self) -> &FileEntry {
        &self.entry
    }

    /// Opens a reader: one GET, or none if the tail is cached.
    pub(crate) async fn open(&self) -> Result<FileReader, SeriesError> {
        self.layouts.open(&self.entry).await
    }

    /// Whether a row may lie in the range.
    pub(crate) fn overlaps(&self, range: &RangeInclusive<i64>) -> bool {
        let (first, last) = self.entry.range;
        first <= *range.end() && last >= *range.start()
    }
}

/// One manifest and its files. Immutable.
#[derive(Debug)]
pub(crate) struct Version {
    manifest: Manifest,
    /// In the order of the manifest.
    files: Vec<Arc<DataFile>>,
}

impl Version {
    /// Shares the files that `before` has as well.
    pub(crate) fn new(
        manifest: Manifest,
        before: Option<&Self>,
        layouts: &Arc<LayoutCache>,
    ) -> Arc<Self> {
        let known = before.map_or(&[][..], |before| &before.files);
        let known: HashMap<&str, _> = known.iter().map(|file| (&*file.entry.name, file)).collect();
        let file = |entry: &FileEntry| match known.get(&*entry.name) {
            Some(file) => Arc::clone(file),
            None => Arc::new(DataFile {
                entry: entry.clone(),
                layouts: Arc::clone(layouts),
            }),
        };
        let files = manifest.files.iter().map(file).collect();
        Arc::new(Self { manifest, files })
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    pub(crate) fn files(&self) -> &[Arc<DataFile>] {
        &self.files
    }

    pub(crate) fn has(&self, file: &DataFile) -> bool {
        self.files
            .iter()
            .any(|known| known.entry.name == file.entry.name)
    }

    /// Whether these rows of the writer's log were flushed, even if retention has dropped them: replay skips them.
    pub(crate) fn is_flushed(&self, partition: i64, generation: u64) -> bool {
        generation < self.manifest.flushed_below
            || self.manifest.flushed.contains(&(partition, generation))
    }

    /// All rows of lower generations are flushed.
    pub(crate) fn flushed_below(&self) -> u64 {
        self.manifest.flushed_below
    }

    /// A generation above all flushed ones, of this log and of others.
    pub(crate) fn next_generation(&self) -> u64 {
        let listed = self
            .manifest
            .flushed
            .iter()
            .map(|(_, generation)| generation + 1);
        let next = listed.max().unwrap_or(0).max(self.manifest.flushed_below);
        next.max(first_generation(self.manifest.epoch))
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.manifest.files.iter().map(|file| file.bytes).sum()
    }
}
