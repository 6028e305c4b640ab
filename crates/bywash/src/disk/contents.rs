//! Versions on the disk that may be unknown in memory: versions of earlier runs.

use std::collections::HashSet;

use bywash_disk::{VersionKey, VersionRecord};

use super::DiskTier;

impl DiskTier {
    /// Calls `visit` with each version on the disk, maybe several times, and the number of its blocks there. Blocks the thread: see
    /// [`bywash_disk::Tier::for_each_version`].
    pub(crate) fn for_each_version(&self, visit: impl FnMut(&VersionRecord, u32)) -> bool {
        self.tier.for_each_version(visit)
    }

    /// Removes all versions of the objects of a store with keys that begin with `prefix`. Returns how many had blocks on the disk.
    /// Blocks the thread, as [`Self::for_each_version`].
    pub(crate) fn erase_objects(&self, identity: &str, prefix: &str) -> u64 {
        let is_selected =
            |record: &VersionRecord| record.url == identity && record.object.starts_with(prefix);
        // Versions of a batch that is being written are not in a segment yet.
        let queued = self.queue.forget(|queued| is_selected(&queued.record));
        let mut found: HashSet<VersionKey> = queued.into_iter().collect();
        let complete = self.tier.for_each_version(|record, blocks| {
            if blocks > 0 && is_selected(record) {
                found.insert(VersionKey::of(record));
            }
        });
        if !complete {
            tracing::warn!(
                prefix,
                "not all of the disk tier could be read: objects that only it knows may not be dropped; drop them again when its state is on"
            );
        }
        for version in &found {
            self.tier.erase(*version);
        }
        self.queue.record_erasures();
        found.len() as u64
    }
}
