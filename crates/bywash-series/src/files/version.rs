//! What is sealed at one moment.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::cache::LayoutCache;
use super::manifest::{FileEntry, Manifest};
use super::read::FileReader;
use crate::SeriesError;

/// A file and the way to it. Its object is not deleted while anybody has one of these.
#[derive(Debug)]
pub(crate) struct SealedFile {
    entry: FileEntry,
    layouts: Arc<LayoutCache>,
}

impl SealedFile {
    pub(crate) fn entry(&self) -> &FileEntry {
        &self.entry
    }

    /// A reader of the file: one GET, or none if its tail is known.
    pub(crate) async fn open(&self) -> Result<FileReader, SeriesError> {
        self.layouts.open(&self.entry).await
    }

    /// Whether a row may lie in the range.
    pub(crate) fn meets(&self, range: &RangeInclusive<i64>) -> bool {
        let (first, last) = self.entry.range;
        first <= *range.end() && last >= *range.start()
    }
}

/// One manifest and its files. Immutable.
#[derive(Debug)]
pub(crate) struct Version {
    manifest: Manifest,
    /// As in the manifest.
    files: Vec<Arc<SealedFile>>,
}

impl Version {
    /// Files that `before` has as well are the same ones.
    pub(super) fn new(
        manifest: Manifest,
        before: Option<&Self>,
        layouts: &Arc<LayoutCache>,
    ) -> Arc<Self> {
        let known = before.map_or(&[][..], |before| &before.files);
        let known: HashMap<&str, _> = known.iter().map(|file| (&*file.entry.name, file)).collect();
        let file = |entry: &FileEntry| match known.get(&*entry.name) {
            Some(file) => Arc::clone(file),
            None => Arc::new(SealedFile {
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

    pub(crate) fn files(&self) -> &[Arc<SealedFile>] {
        &self.files
    }

    pub(super) fn has(&self, file: &SealedFile) -> bool {
        self.files
            .iter()
            .any(|known| known.entry.name == file.entry.name)
    }

    /// Whether these rows were sealed, be they still there or gone by retention: a log that has them need not be replayed.
    pub(crate) fn is_sealed(&self, partition: i64, generation: u64) -> bool {
        generation < self.manifest.sealed_below
            || self.manifest.sealed.contains(&(partition, generation))
    }

    /// Of no generation below this one is there a row that is not sealed.
    pub(crate) fn sealed_below(&self) -> u64 {
        self.manifest.sealed_below
    }

    /// A generation above all that were ever sealed.
    pub(crate) fn next_generation(&self) -> u64 {
        let listed = self
            .manifest
            .sealed
            .iter()
            .map(|(_, generation)| generation + 1);
        listed.max().unwrap_or(0).max(self.manifest.sealed_below)
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.manifest.files.iter().map(|file| file.bytes).sum()
    }
}
