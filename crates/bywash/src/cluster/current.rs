//! The current version of an object in a cluster: the version of the authority, and the entry of this node's table.
//!
//! **Why a read is never older than a write acknowledged before it began.** A read gets its version in one of two ways.
//! - [`VersionAuthority::current`], called during the read: its result is current at that moment. The table is only where the
//!   version's blocks are found; how long ago an entry was confirmed decides nothing.
//! - [`VersionAuthority::read`], called by a flight. In a cluster a read joins only a flight that was sent after the read began
//!   (`read/resolve.rs`), so the authority's response is to a question that was sent during the read.
//!
//! Both return the write or a later one by the rules of the authority. A response that a write overtakes is not recorded, and one
//! that is recorded late is found to differ from the current version by the next read. Bytes are bound to their version by its
//! validator, wherever they come from. Downloads that share one buffer each confirm its version by a question of their own.
//!
//! In a bucket of objects that never change, a known version is used without a question.
//!
//! [`VersionAuthority::current`]: super::VersionAuthority::current
//! [`VersionAuthority::read`]: super::VersionAuthority::read

use std::sync::Arc;
use std::time::Duration;

use bywash_store::TagCount;
use object_store::path::Path;
use object_store::{Error, ObjectMeta, Result};

use super::{CurrentVersion, ObjectVersion, WriteEnd};
use crate::shared::BucketShared;
use crate::versions::{RequestStamp, Version};

/// Maximum time that a read waits until the other nodes know of a change that no node made. They see it a window later at the latest.
const CHANGE_WAIT: Duration = Duration::from_secs(1);

impl BucketShared {
    /// Returns the version last known, and whether a read that begins now may use it without a question. A current version that
    /// the table does not have is recorded.
    pub(crate) fn known(&self, path: &Path) -> Option<(Arc<Version>, bool)> {
        let window = self.consistency.max_age();
        let known = self.versions.get(path, window);
        let Some(cluster) = &self.cluster else {
            return known;
        };
        if window.is_none() {
            return known.map(|(version, fresh)| {
                let usable = fresh && !version.is_partial();
                (version, usable)
            });
        }
        let current = || cluster.versions.current(&self.name, path.as_ref());
        let now = match current() {
            None => return known.map(|(version, _)| (version, false)),
            Some(now) => now?,
        };
        match known {
            Some((version, _)) if version.is_as(&now) => Some((version, true)),
            // Asked again: a write may have ended before the stamp was taken.
            known => {
                let stamp = self.versions.stamp(path);
                match current() {
                    None => known.map(|(version, _)| (version, false)),
                    Some(now) => Some((self.record_current(stamp, path, now?.as_ref()), true)),
                }
            }
        }
    }

    /// As [`Self::known`], if a read may use the version: for reads that cannot wait, and record nothing.
    pub(crate) fn fresh(&self, path: &str) -> Option<Arc<Version>> {
        let window = self.consistency.max_age();
        let (version, fresh) = self.versions.get(path, window)?;
        let Some(cluster) = &self.cluster else {
            return fresh.then_some(version);
        };
        let usable = match window {
            None => !version.is_partial(),
            Some(_) => {
                let current = cluster.versions.current(&self.name, path).flatten();
                current.is_some_and(|now| version.is_as(&now))
            }
        };
        usable.then_some(version)
    }

    /// Returns how long ago this node knew `version` as the current one, at most; `None` if it knows another one by now.
    ///
    /// That is the time since the request that confirmed it. Under a read lease no request confirms it, and it is a window at most.
    /// Of objects that never change no question is sent: a node that a drop did not reach names the old version as long as it knows
    /// it, with the age of that.
    pub(crate) fn age_of(&self, version: &Version) -> Option<Duration> {
        let Some(window) = self.consistency.max_age() else {
            return self.versions.age(version);
        };
        match self.known(&version.meta.location) {
            Some((now, true)) if now.id() != version.id() => None,
            Some((_, true)) => self.versions.age(version).map(|age| age.min(window)),
            _ => self.versions.age(version),
        }
    }

    /// Returns whether a read that begins now may take an object for absent without a question.
    pub(crate) fn is_absent(&self, path: &Path) -> bool {
        match (&self.cluster, self.consistency.max_age()) {
            (Some(cluster), Some(_)) => {
                let current = cluster.versions.current(&self.name, path.as_ref());
                matches!(current, Some(None))
            }
            _ => self.versions.is_absent(path),
        }
    }

    fn record_current(
        &self,
        stamp: RequestStamp,
        path: &Path,
        now: &ObjectVersion,
    ) -> Arc<Version> {
        let meta = ObjectMeta {
            location: path.clone(),
            ..now.meta.clone()
        };
        let tags = TagCount(now.tag_count);
        let attributes = now.attributes.clone();
        let version = self.versions.record_version(stamp, meta, attributes, tags);
        if let Some(digest) = now.digest {
            version.learn(digest);
        }
        version
    }

    /// Records the authority's response to a question that was sent at `stamp`.
    pub(crate) fn record_answer(
        &self,
        stamp: RequestStamp,
        path: &Path,
        answer: Result<CurrentVersion>,
    ) -> Result<Arc<Version>> {
        let absent = match answer {
            Ok(Some(now)) => return Ok(self.record_current(stamp, path, &now)),
            Ok(None) => Error::NotFound {
                path: path.to_string(),
                source: "there is no such object at the origin".into(),
            },
            Err(error) => error,
        };
        if matches!(absent, Error::NotFound { .. }) {
            self.versions.record_absent(stamp, path);
        }
        Err(absent)
    }

    /// Lets the other nodes know of a change that this one has met at the origin, as of a write of its own. Otherwise the authority
    /// would name the replaced version until its window has passed.
    pub(crate) async fn share_change(self: &Arc<Self>, path: &Path) {
        if self.cluster.is_none() {
            return;
        }
        let (bucket, path) = (Arc::clone(self), path.clone());
        let shared = tokio::spawn(async move {
            let turn = bucket.turn(vec![path.clone()]).await;
            bucket.invalidate(&path);
            turn.end_as(WriteEnd::Written).await
        });
        // Whether it succeeded or not, the read continues: it only may find the replaced version once more.
        let _ = tokio::time::timeout(CHANGE_WAIT, shared).await;
    }
}
