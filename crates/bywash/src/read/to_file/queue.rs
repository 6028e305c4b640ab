//! Downloads of one object to files, one after the other.

use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Weak};

use bywash_store::ContentDigest;
use object_store::ObjectMeta;
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Queues of downloads to files in a bucket, by object.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileDownloadQueues(Arc<Mutex<HashMap<Path, Weak<DownloadQueue>>>>);

/// Downloads of one object.
#[derive(Debug)]
struct DownloadQueue {
    /// One permit, of the download that runs.
    permits: Arc<Semaphore>,
    finished: Mutex<Option<FinishedFile>>,
}

/// File of a download that ended while others waited.
#[derive(Debug, Clone)]
pub(super) struct FinishedFile {
    pub(super) meta: ObjectMeta,
    /// Its owner may change it.
    pub(super) file: Arc<File>,
    /// Digest of the bytes that the download wrote.
    pub(super) written: ContentDigest,
}

/// A download in the queue of its object. The last one removes the queue.
#[derive(Debug)]
pub(super) struct QueuedDownload {
    queues: FileDownloadQueues,
    path: Path,
    /// `None` when dropped.
    queue: Option<Arc<DownloadQueue>>,
}

/// The download of its object that runs.
#[derive(Debug)]
pub(super) struct ActiveDownload {
    // Released before the download leaves the queue.
    _permit: Option<OwnedSemaphorePermit>,
    queued: QueuedDownload,
}

impl FileDownloadQueues {
    /// Adds a download of `path`.
    pub(super) fn join(&self, path: &Path) -> QueuedDownload {
        let mut queues = self.0.lock();
        let known = queues.get(path).and_then(Weak::upgrade);
        let queue = known.unwrap_or_else(|| {
            let new = Arc::new(DownloadQueue {
                permits: Arc::new(Semaphore::new(1)),
                finished: Mutex::default(),
            });
            queues.insert(path.clone(), Arc::downgrade(&new));
            new
        });
        QueuedDownload {
            queues: self.clone(),
            path: path.clone(),
            queue: Some(queue),
        }
    }
}

impl QueuedDownload {
    fn queue(&self) -> &DownloadQueue {
        self.queue.as_ref().expect("kept until the drop")
    }

    /// Waits for the downloads before this one.
    pub(super) async fn wait(self) -> ActiveDownload {
        // Never closed, so there always is a permit.
        let permit = Arc::clone(&self.queue().permits).acquire_owned().await.ok();
        ActiveDownload {
            _permit: permit,
            queued: self,
        }
    }
}

impl Drop for QueuedDownload {
    fn drop(&mut self) {
        let mut queues = self.queues.0.lock();
        self.queue = None;
        if queues
            .get(&self.path)
            .is_some_and(|queue| queue.strong_count() == 0)
        {
            queues.remove(&self.path);
        }
    }
}

impl ActiveDownload {
    /// The file of the download before, if there was one.
    pub(super) fn finished(&self) -> Option<FinishedFile> {
        self.queued.queue().finished.lock().clone()
    }

    /// Leaves the file of this download to the next one.
    pub(super) fn finish(&self, finished: FinishedFile) {
        *self.queued.queue().finished.lock() = Some(finished);
    }

    /// Discards the file of the download before.
    pub(super) fn discard(&self) {
        *self.queued.queue().finished.lock() = None;
    }
}
