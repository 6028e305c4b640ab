//! Downloads of whole objects in progress, which concurrent callers share.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use bywash_mem::WriteAtBuffer;
use bywash_store::ContentDigest;
use object_store::Error;
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::versions::Version;

/// The newest download of each object of a bucket. Entries of ended ones are removed.
#[derive(Debug, Clone, Default)]
pub(crate) struct DownloadFlights(Arc<Mutex<HashMap<Path, Weak<DownloadFlight>>>>);

/// A download that has begun. Dropping it cancels it.
#[derive(Debug)]
pub(super) struct RunningDownload {
    pub(super) version: Arc<Version>,
    pub(super) range: Range<u64>,
    pub(super) buffer: WriteAtBuffer,
    /// Cancelled at a failure.
    pub(super) failed: CancellationToken,
    /// The task that runs it, aborted when this is dropped.
    pub(super) _task: JoinSet<()>,
}

/// A download that has begun, or why it did not: all callers that waited for it get the error.
type BeginResult = Result<Arc<RunningDownload>, Arc<Error>>;

/// One download, and its callers. It ends with the last caller.
#[derive(Debug)]
pub(super) struct DownloadFlight {
    flights: DownloadFlights,
    path: Path,
    /// Digest that its callers gave.
    digest: Option<ContentDigest>,
    running: OnceCell<BeginResult>,
}

impl DownloadFlights {
    /// Joins the download of an object that its callers expect to have this digest. Without one that can succeed, makes a
    /// new one, which the first caller begins.
    pub(super) fn join(&self, path: &Path, digest: Option<ContentDigest>) -> Arc<DownloadFlight> {
        let mut flights = self.0.lock();
        let found = flights.get(path).and_then(Weak::upgrade);
        let usable = found.clone().filter(|flight| {
            let may_succeed = match flight.running.get() {
                None => true,
                Some(Ok(running)) => !running.failed.is_cancelled(),
                Some(Err(_)) => false,
            };
            flight.digest == digest && may_succeed
        });
        let joined = usable.unwrap_or_else(|| {
            let new = Arc::new(DownloadFlight {
                flights: self.clone(),
                path: path.clone(),
                digest,
                running: OnceCell::new(),
            });
            flights.insert(path.clone(), Arc::downgrade(&new));
            new
        });
        drop(flights);
        // After the lock, which the last reference takes.
        drop(found);
        joined
    }

    /// Lets no more callers join `flight`.
    pub(super) fn forget(&self, flight: &Arc<DownloadFlight>) {
        let mut flights = self.0.lock();
        let found = flights.get(&flight.path);
        if found.is_some_and(|found| found.as_ptr() == Arc::as_ptr(flight)) {
            flights.remove(&flight.path);
        }
    }
}

impl DownloadFlight {
    /// Returns the download, after `begin` has begun it. If the caller that does so is dropped, the next one begins it.
    pub(super) async fn running(
        &self,
        begin: impl Future<Output = object_store::Result<Arc<RunningDownload>>>,
    ) -> BeginResult {
        let begun = || async { begin.await.map_err(Arc::new) };
        self.running.get_or_init(begun).await.clone()
    }
}

impl Drop for DownloadFlight {
    fn drop(&mut self) {
        let mut flights = self.flights.0.lock();
        let found = flights.get(&self.path);
        if found.is_some_and(|found| found.strong_count() == 0) {
            flights.remove(&self.path);
        }
    }
}
