//! Erased versions: versions that a batch on its way to the disk must not bring back, and versions
//! whose erasure is not recorded on the disk yet.
//!
//! A batch is opened before its blocks are looked up, and each erasure is noted from then on.
//! Blocks of a version that was erased since are not entered into the index when they are on the
//! disk, and the next batch has the erasure once more.

use std::collections::{HashMap, HashSet};

use crate::format::VersionKey;
use crate::sync::{Mutex, Step, skipped};

#[derive(Debug, Default)]
pub(crate) struct Erasures(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    /// Erased versions that no batch on the disk names yet.
    pending: HashSet<VersionKey>,
    /// Erasures so far.
    count: u64,
    /// The last erasure of each version since the oldest open batch was opened, by its number.
    recent: HashMap<VersionKey, u64>,
    /// Open batches.
    open: usize,
}

impl Erasures {
    /// Notes an erasure. `unlink` makes the blocks of the version unfindable; no batch enters
    /// blocks during that.
    pub(crate) fn erase(&self, version: VersionKey, unlink: impl FnOnce()) {
        let mut noted = self.0.lock();
        noted.count += 1;
        if noted.open > 0 && !skipped(Step::Note) {
            let number = noted.count;
            noted.recent.insert(version, number);
        }
        noted.pending.insert(version);
        unlink();
    }

    /// Opens a batch. Its blocks must be looked up afterwards.
    pub(crate) fn open(&self) -> OpenBatch<'_> {
        let mut noted = self.0.lock();
        noted.open += 1;
        OpenBatch {
            erasures: self,
            since: noted.count,
        }
    }

    /// Whether no batch on the disk names the last erasure of a version.
    pub(crate) fn is_pending(&self, version: &VersionKey) -> bool {
        self.0.lock().pending.contains(version)
    }

    /// Versions whose erasure is not recorded on the disk yet.
    pub(crate) fn pending(&self) -> Vec<VersionKey> {
        self.0.lock().pending.iter().copied().collect()
    }

    /// Number of versions whose erasure is not recorded on the disk yet.
    pub(crate) fn pending_count(&self) -> usize {
        self.0.lock().pending.len()
    }
}

/// A batch on its way to the disk.
#[derive(Debug)]
pub(crate) struct OpenBatch<'a> {
    erasures: &'a Erasures,
    /// Erasures when it was opened.
    since: u64,
}

impl OpenBatch<'_> {
    /// Takes at most `max` pending erasures, to be written before the blocks of the batch.
    pub(crate) fn take_pending(&self, max: usize) -> Vec<VersionKey> {
        let pending = &mut self.erasures.0.lock().pending;
        let taken: Vec<_> = pending.iter().copied().take(max).collect();
        for version in &taken {
            pending.remove(version);
        }
        taken
    }

    /// Has erasures written that were taken and did not reach the disk.
    pub(crate) fn put_back(&self, erased: Vec<VersionKey>) {
        if planted!("disk-erasure-of-a-failed-write-lost") {
            return;
        }
        self.erasures.0.lock().pending.extend(erased);
    }

    /// Calls `enter` with the position of each block that was written, unless its version was erased since the batch was opened.
    pub(crate) fn enter(
        &self,
        versions: impl Iterator<Item = VersionKey>,
        mut enter: impl FnMut(usize),
    ) {
        let mut noted = self.erasures.0.lock();
        for (position, version) in versions.enumerate() {
            let erased = noted.recent.get(&version).copied();
            if erased.is_none_or(|number| number <= self.since) {
                enter(position);
            } else if !skipped(Step::Again) {
                // The erasure may have been taken into this batch, in which it precedes the blocks.
                noted.pending.insert(version);
            }
        }
    }
}

impl Drop for OpenBatch<'_> {
    fn drop(&mut self) {
        let mut noted = self.erasures.0.lock();
        noted.open -= 1;
        if noted.open == 0 {
            noted.recent = HashMap::new();
        }
    }
}
