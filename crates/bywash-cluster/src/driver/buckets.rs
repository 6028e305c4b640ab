//! The buckets of this node, and the effect of the members' records on each.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bywash::EngineError;
use bywash::cluster::VersionSource;
use object_store::{Error, Result};
use sha2::{Digest, Sha256};

use super::clock::boottime;
use super::directory::Directory;
use crate::etcd::{BucketRecord, Record};
use crate::names::{Boot, NodeId};
use crate::placement::Candidate;
use crate::timing::Timing;

/// Settings of a bucket that must be the same at all nodes. A node that has others is not a member for the bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketSettings {
    /// URL of its origin.
    pub url: String,
    /// Endpoint of the store, if it is not the usual one.
    pub endpoint: Option<String>,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Its consistency, in the words of the setting.
    pub consistency: String,
}

impl BucketSettings {
    /// Digest of the settings, equal for equal settings. It reveals none.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut digest = Sha256::new();
        let endpoint = self.endpoint.as_deref().unwrap_or_default();
        let block_bytes = self.block_bytes.to_string();
        for part in [&self.url, endpoint, &block_bytes, &self.consistency] {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part.as_bytes());
        }
        digest
            .finalize()
            .iter()
            .take(16)
            .fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            })
    }
}

/// A bucket of this node.
#[derive(Debug)]
pub(super) struct BucketView {
    pub(super) name: Arc<str>,
    /// `None`: its objects never change.
    pub(super) window: Option<Duration>,
    source: Arc<dyn VersionSource>,
    record: BucketRecord,
    /// Nodes that are up and have the same settings of it.
    pub(super) candidates: Vec<Candidate>,
    /// Longest window that a member has for it; `None` if none has one.
    pub(super) write_window: Option<Duration>,
    /// When windows longer than that count no more, of members that are gone.
    pub(super) believed_until: Duration,
    /// Other nodes for which its objects never change: they are to drop the version that a write
    /// replaces.
    pub(super) drops: Vec<NodeId>,
    /// Other nodes with other settings of it.
    pub(super) differing: Vec<NodeId>,
    /// This node's registration with the bucket in its record at etcd as it is here, and when that was first seen.
    pub(super) published: Option<(Boot, Duration)>,
    /// Shortest window that another member has for it: zero if one does not have the bucket, and may come to have it with any window.
    shortest: Duration,
}

/// The buckets of this node by name.
#[derive(Debug, Default)]
pub(super) struct Buckets {
    views: HashMap<String, Arc<BucketView>>,
    digests: HashMap<String, String>,
}

impl Buckets {
    pub(super) fn get(&self, bucket: &str) -> Option<&Arc<BucketView>> {
        self.views.get(bucket)
    }

    /// Returns the bucket, or the error of a caller that has not attached it.
    pub(super) fn attached(&self, bucket: &str) -> Result<Arc<BucketView>> {
        let missing = || Error::from(EngineError::NoSuchBucket(bucket.to_owned()));
        self.views.get(bucket).cloned().ok_or_else(missing)
    }

    pub(super) fn source(&self, bucket: &str) -> Result<Arc<dyn VersionSource>> {
        Ok(Arc::clone(&self.attached(bucket)?.source))
    }

    /// States the settings of a bucket, before it is attached.
    pub(super) fn describe(&mut self, bucket: &str, digest: String) {
        self.digests.insert(bucket.to_owned(), digest);
    }

    /// Attaches a bucket. Returns whether it replaces one of the same name.
    pub(super) fn attach(
        &mut self,
        bucket: &str,
        window: Option<Duration>,
        source: Arc<dyn VersionSource>,
    ) -> bool {
        let millis = |window: Duration| u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
        let record = BucketRecord {
            digest: self.digests.get(bucket).cloned().unwrap_or_default(),
            window_ms: window.map(millis),
        };
        let view = BucketView {
            name: bucket.into(),
            window,
            source,
            record,
            candidates: Vec::new(),
            write_window: window,
            believed_until: Duration::ZERO,
            drops: Vec::new(),
            differing: Vec::new(),
            published: None,
            shortest: Duration::ZERO,
        };
        let replaced = self.views.insert(bucket.to_owned(), Arc::new(view));
        replaced.is_some()
    }

    pub(super) fn detach(&mut self, bucket: &str) {
        self.views.remove(bucket);
        self.digests.remove(bucket);
    }

    /// Bucket records for the record of this node.
    pub(super) fn records(&self) -> BTreeMap<String, BucketRecord> {
        let views = self.views.iter();
        views
            .map(|(name, view)| (name.clone(), view.record.clone()))
            .collect()
    }

    /// Recomputes the effect of the members' records on each bucket. Done when a record changes, so
    /// that no request does it. `own`: this node and the number of its process.
    pub(super) fn review(&mut self, own: (NodeId, u64), directory: &Directory, now: Duration) {
        for view in self.views.values_mut() {
            let mut reviewed = view.reviewed(own.0, directory);
            reviewed.published = view.seen_published(own, directory, now);
            reviewed.shortest = view.shortest_of_others(own.0, directory, now);
            *view = Arc::new(reviewed);
        }
    }

    pub(super) fn views(&self) -> impl Iterator<Item = &Arc<BucketView>> {
        self.views.values()
    }
}

impl BucketView {
    fn reviewed(&self, own: NodeId, directory: &Directory) -> Self {
        let mut candidates: Vec<Candidate> = Vec::new();
        let mut write_window = self.window;
        let mut drops = Vec::new();
        let mut differing = Vec::new();
        for (member, registered) in directory.members() {
            let node = member.node;
            // Every registration counts for writes, also one that is leaving, has been replaced, or is of another version of the program.
            write_window = write_window.max(self.believed_by(registered.buckets.as_ref()));
            let theirs = self.of(registered.buckets.as_ref());
            if theirs.is_some_and(|of| of.window_ms.is_none())
                && node != own
                && !drops.contains(&node)
            {
                drops.push(node);
            }
            let is_newest = directory.newest(node).is_some_and(|(of, _)| of == *member);
            if !is_newest {
                continue;
            }
            if theirs != Some(&self.record) {
                if node != own && theirs.is_some() {
                    differing.push(node);
                }
            } else if let Some(record) = &registered.record
                && registered.is_up()
            {
                let weight = record.weight;
                candidates.push(Candidate { node, weight });
            }
        }
        let mut believed_until = Duration::ZERO;
        for gone in directory.fading() {
            let window = self.believed_by(gone.buckets.as_ref());
            if window > write_window {
                believed_until = believed_until.max(gone.until);
            }
            let theirs = self.of(gone.buckets.as_ref());
            if theirs.is_some_and(|of| of.window_ms.is_none())
                && gone.node != own
                && !drops.contains(&gone.node)
            {
                drops.push(gone.node);
            }
        }
        Self {
            name: Arc::clone(&self.name),
            window: self.window,
            source: Arc::clone(&self.source),
            record: self.record.clone(),
            candidates,
            write_window,
            believed_until,
            drops,
            differing,
            published: self.published,
            shortest: self.shortest,
        }
    }

    /// Returns since when the directory shows this node's record with the bucket as it is here, under one registration.
    fn seen_published(
        &self,
        (own, process): (NodeId, u64),
        directory: &Directory,
        now: Duration,
    ) -> Option<(Boot, Duration)> {
        let (member, registered) = directory.newest(own)?;
        let record = registered.record.as_ref()?;
        let before = self.published.filter(|(boot, _)| *boot == member.boot);
        let is_shown = record.process == process && self.is_same(Some(record));
        is_shown.then(|| before.unwrap_or((member.boot, now)))
    }

    fn shortest_of_others(&self, own: NodeId, directory: &Directory, now: Duration) -> Duration {
        let members = directory.members();
        let members = members.map(|(member, of)| (member.node, of.buckets.as_ref()));
        let fading = directory.fading().filter(|of| now < of.until);
        let fading = fading.map(|of| (of.node, of.buckets.as_ref()));
        let others = members.chain(fading).filter(|(node, _)| *node != own);
        let window = |buckets| self.of(buckets).and_then(BucketRecord::window);
        let windows = others.map(|(_, buckets)| window(buckets).unwrap_or_default());
        windows.min().unwrap_or(Duration::MAX)
    }

    /// Time for which a read that begins now may believe a version; `None` if objects never change.
    ///
    /// A write without a holder is acknowledged when the longest window in the members' records has passed. So a window that is longer
    /// than each other's is not used before all others have had the time to list it, and then for no version that was asked for before.
    pub(super) fn usable_window(&self, timing: &Timing) -> Option<Duration> {
        let window = self.window?;
        let Some((_, since)) = self.published else {
            return Some(Duration::ZERO);
        };
        if self.shortest >= window {
            return Some(window);
        }
        let seen = since + timing.seen_by_all();
        let later = timing.shorter(boottime().saturating_sub(seen));
        Some(window.min(later.max(self.shortest)))
    }

    /// Finds the bucket among the buckets of a registration.
    fn of<'a>(
        &self,
        buckets: Option<&'a BTreeMap<String, BucketRecord>>,
    ) -> Option<&'a BucketRecord> {
        buckets?.get(&*self.name)
    }

    /// Time for which a registration with these buckets believes a version; without end if they are
    /// not understood.
    fn believed_by(&self, buckets: Option<&BTreeMap<String, BucketRecord>>) -> Option<Duration> {
        match buckets {
            None => Some(Duration::MAX),
            buckets => self.of(buckets)?.window(),
        }
    }

    /// Whether a registration has the same settings of the bucket.
    pub(super) fn is_same(&self, record: Option<&Record>) -> bool {
        let theirs = record.and_then(|record| record.buckets.get(&*self.name));
        theirs == Some(&self.record)
    }

    pub(super) fn source(&self) -> &dyn VersionSource {
        &*self.source
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_differ_with_each_setting() {
        let settings = BucketSettings {
            url: "s3://data".to_owned(),
            endpoint: None,
            block_bytes: 1 << 20,
            consistency: "1s".to_owned(),
        };
        let mut others = vec![settings.clone(); 4];
        others[0].url = "s3://data2".to_owned();
        others[1].endpoint = Some("http://localhost".to_owned());
        others[2].block_bytes = 2 << 20;
        others[3].consistency = "2s".to_owned();
        for other in others {
            assert_ne!(other.digest(), settings.digest(), "{other:?}");
        }
        assert_eq!(settings.digest().len(), 32);
        assert_eq!(settings.clone().digest(), settings.digest());
    }
}
