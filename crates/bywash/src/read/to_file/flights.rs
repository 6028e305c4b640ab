//! Downloads of one object to files, one after the other.

use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Weak};

use object_store::ObjectMeta;
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::content_digest::ContentDigest;

/// Downloads to files in progress in a bucket, by object.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileFlights(Arc<Mutex<HashMap<Path, Weak<Flight>>>>);

/// Downloads of one object.
#[derive(Debug)]
struct Flight {
    /// One permit, of the download that runs.
    turn: Arc<Semaphore>,
    finished: Mutex<Option<Finished>>,
}

/// File of a download that ended while others waited.
#[derive(Debug, Clone)]
pub(super) struct Finished {
    pub(super) meta: ObjectMeta,
    /// Its owner may change it.
    pub(super) file: Arc<File>,
    /// Digest of what the download wrote.
    pub(super) written: ContentDigest,
}

/// Membership of one download. The last one removes the entry.
#[derive(Debug)]
pub(super) struct Joined {
    flights: FileFlights,
    path: Path,
    /// `None` when dropped.
    flight: Option<Arc<Flight>>,
}

/// A download that runs.
#[derive(Debug)]
pub(super) struct Turn {
    // Released before the membership ends.
    _permit: Option<OwnedSemaphorePermit>,
    joined: Joined,
}

impl FileFlights {
    pub(super) fn join(&self, path: &Path) -> Joined {
        let mut flights = self.0.lock();
        let known = flights.get(path).and_then(Weak::upgrade);
        let flight = known.unwrap_or_else(|| {
            let new = Arc::new(Flight {
                turn: Arc::new(Semaphore::new(1)),
                finished: Mutex::default(),
            });
            flights.insert(path.clone(), Arc::downgrade(&new));
            new
        });
        Joined {
            flights: self.clone(),
            path: path.clone(),
            flight: Some(flight),
        }
    }
}

impl Joined {
    fn flight(&self) -> &Flight {
        self.flight.as_ref().expect("kept until the drop")
    }

    /// Waits for the downloads before this one.
    pub(super) async fn turn(self) -> Turn {
        // Never closed, so there always is a permit.
        let permit = Arc::clone(&self.flight().turn).acquire_owned().await.ok();
        Turn {
            _permit: permit,
            joined: self,
        }
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        let mut flights = self.flights.0.lock();
        self.flight = None;
        if flights
            .get(&self.path)
            .is_some_and(|flight| flight.strong_count() == 0)
        {
            flights.remove(&self.path);
        }
    }
}

impl Turn {
    /// Returns the file of the download before, if there was one.
    pub(super) fn finished(&self) -> Option<Finished> {
        self.joined.flight().finished.lock().clone()
    }

    /// Leaves the file of this download to the next one.
    pub(super) fn finish(&self, finished: Finished) {
        *self.joined.flight().finished.lock() = Some(finished);
    }

    pub(super) fn discard(&self) {
        *self.joined.flight().finished.lock() = None;
    }
}
