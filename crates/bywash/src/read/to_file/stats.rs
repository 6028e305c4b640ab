//! Counters of downloads to files.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use object_store::path::Path;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::stats::FileDownloadStats;

/// Time before leftovers are looked for again in the folder of the last download: that reads all names of the folder.
const LEFTOVERS_EVERY: Duration = Duration::from_secs(60);

/// Counters behind [`FileDownloadStats`]; they order nothing, hence relaxed.
#[derive(Debug, Default)]
pub(crate) struct FileDownloads {
    in_progress: AtomicU64,
    waiting_bytes: AtomicU64,
    finished: AtomicU64,
    finished_bytes: AtomicU64,
    finished_ms: AtomicU64,
    retried: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
    refused: AtomicU64,
    /// Beginnings of downloads in progress, and how many began then.
    begun: Mutex<BTreeMap<Instant, u64>>,
    /// Device and inode of the folder where leftovers were last looked for.
    swept: Mutex<Option<((u64, u64), Instant)>>,
}

impl FileDownloads {
    pub(crate) fn snapshot(&self) -> FileDownloadStats {
        FileDownloadStats {
            in_progress: self.in_progress.load(Relaxed),
            waiting_bytes: self.waiting_bytes.load(Relaxed),
            finished: self.finished.load(Relaxed),
            finished_bytes: self.finished_bytes.load(Relaxed),
            finished_ms: self.finished_ms.load(Relaxed),
            retried: self.retried.load(Relaxed),
            failed: self.failed.load(Relaxed),
            cancelled: self.cancelled.load(Relaxed),
            refused: self.refused.load(Relaxed),
            oldest_ms: self.oldest_ms(),
        }
    }

    fn oldest_ms(&self) -> u64 {
        let begun = self.begun.lock();
        let oldest = begun.first_key_value();
        oldest.map_or(0, |(began, _)| millis_since(*began))
    }

    /// Counts a download whose target may not be written.
    pub(super) fn refuse(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// Returns whether leftovers of killed writers should be looked for in `folder` now.
    pub(super) fn are_leftovers_due(&self, folder: &OwnedFd) -> std::io::Result<bool> {
        let stat = rustix::fs::fstat(folder)?;
        let (node, now) = ((stat.st_dev, stat.st_ino), Instant::now());
        let mut swept = self.swept.lock();
        let recent =
            swept.is_some_and(|(folder, then)| folder == node && now - then < LEFTOVERS_EVERY);
        if !recent {
            *swept = Some((node, now));
        }
        Ok(!recent)
    }
}

/// One download in progress. Counts as cancelled if it is dropped before its end.
#[derive(Debug)]
pub(super) struct CountedDownload {
    downloads: Arc<FileDownloads>,
    object: Path,
    target: PathBuf,
    began: Instant,
    /// Bytes of the object, once known.
    size: u64,
    ended: bool,
}

impl CountedDownload {
    pub(super) fn new(
        downloads: &Arc<FileDownloads>,
        object: &Path,
        target: &std::path::Path,
    ) -> Self {
        downloads.in_progress.fetch_add(1, Relaxed);
        let began = Instant::now();
        *downloads.begun.lock().entry(began).or_default() += 1;
        Self {
            downloads: Arc::clone(downloads),
            object: object.clone(),
            target: target.to_owned(),
            began,
            size: 0,
            ended: false,
        }
    }

    /// Counts the bytes that are to be written.
    pub(super) fn sized(&mut self, size: u64) {
        let before = std::mem::replace(&mut self.size, size);
        self.downloads.waiting_bytes.fetch_add(size, Relaxed);
        self.downloads.waiting_bytes.fetch_sub(before, Relaxed);
    }

    pub(super) fn retry(&self) {
        self.downloads.retried.fetch_add(1, Relaxed);
    }

    /// Counts the end. `durable`: the file is on disk.
    pub(super) fn end(&mut self, durable: bool) {
        self.ended = true;
        let downloads = &self.downloads;
        if !durable {
            downloads.failed.fetch_add(1, Relaxed);
            return;
        }
        downloads.finished.fetch_add(1, Relaxed);
        downloads.finished_bytes.fetch_add(self.size, Relaxed);
        downloads
            .finished_ms
            .fetch_add(millis_since(self.began), Relaxed);
    }
}

fn millis_since(then: Instant) -> u64 {
    u64::try_from(then.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Drop for CountedDownload {
    fn drop(&mut self) {
        let downloads = &self.downloads;
        downloads.in_progress.fetch_sub(1, Relaxed);
        if let Entry::Occupied(mut begun) = downloads.begun.lock().entry(self.began) {
            *begun.get_mut() -= 1;
            if *begun.get() == 0 {
                begun.remove();
            }
        }
        downloads.waiting_bytes.fetch_sub(self.size, Relaxed);
        if !self.ended {
            downloads.cancelled.fetch_add(1, Relaxed);
            let (object, target) = (&self.object, self.target.display());
            tracing::warn!(%object, %target, bytes = self.size, "a download to a file was cancelled");
        }
    }
}
