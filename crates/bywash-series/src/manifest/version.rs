//! Versions: the data files at one moment.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::format::{FileEntry, Manifest, first_generation};
use crate::SeriesError;
use crate::parquet::{FileReader, Layout, LayoutCache};

/// A data file. Its object is not deleted while a reference exists.
#[derive(Debug)]
pub(crate) struct DataFile {
    entry: FileEntry,
    layouts: Arc<LayoutCache>,
    /// The tail, while a reader has it, cached or not.
    tail: Mutex<Weak<Layout>>,
    /// One permit: of several readers one decodes the tail, and the others share it. They hold memory while they wait, but the one
    /// that decodes waits for the store alone.
    decoding: Semaphore,
}

impl DataFile {
    pub(crate) fn entry(&self) -> &FileEntry {
        &self.entry
    }

    fn new(entry: FileEntry, layouts: &Arc<LayoutCache>) -> Self {
        Self {
            entry,
            layouts: Arc::clone(layouts),
            tail: Mutex::default(),
            decoding: Semaphore::new(1),
        }
    }

    /// Opens a reader: one GET, or none if the tail is in memory. Its memory is charged first, unless the caller has done so.
    pub(crate) async fn open(&self, charged_by_caller: bool) -> Result<FileReader, SeriesError> {
        let layout = match self.known_tail() {
            Some(layout) => layout,
            None if charged_by_caller => self.layouts.load(&self.entry, true).await?,
            None => self.load_tail().await?,
        };
        Ok(FileReader::new(
            Arc::clone(&self.layouts.store),
            self.entry.clone(),
            layout,
            self.layouts.charge(charged_by_caller),
        ))
    }

    fn known_tail(&self) -> Option<Arc<Layout>> {
        let cached = self.layouts.get(&self.entry.name);
        cached.or_else(|| self.tail.lock().upgrade())
    }

    async fn load_tail(&self) -> Result<Arc<Layout>, SeriesError> {
        let permit = self.decoding.acquire().await;
        let _permit = permit.expect("the semaphore is never closed");
        if let Some(layout) = self.known_tail() {
            return Ok(layout);
        }
        let layout = self.layouts.load(&self.entry, false).await?;
        *self.tail.lock() = Arc::downgrade(&layout);
        Ok(layout)
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
            None => Arc::new(DataFile::new(entry.clone(), layouts)),
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
