//! The list and the watch of etcd's keys.
//!
//! All is listed again from time to time, and watched from there: a connection that died is silent.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::buckets::BucketView;
use super::clock::boottime;
use super::core::Core;
use crate::etcd::{EtcdError, Listed, MemberState, SeenRecord, Watched};
use crate::message::{Believed, Event, ViewChange};

/// Shortest time between two lists, when watches end at once.
const LIST_AGAIN: Duration = Duration::from_millis(50);
/// First pause after a failure; doubled up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Returns between half of `time` and all of it, so that nodes do not come all at once.
pub(super) fn jittered(time: Duration) -> Duration {
    let part: f64 = rand::random();
    time.mul_f64(0.5 + part / 2.0)
}

impl Core {
    /// Lists and watches. Never returns.
    pub(super) async fn run_view(self: Arc<Self>) {
        self.start.accepted().await;
        let mut pause = FIRST_PAUSE;
        let mut revision = 0;
        loop {
            let began = Instant::now();
            let result = tokio::select! {
                result = self.list_and_watch(&mut revision) => result,
                () = self.relist.notified() => {
                    // Of another etcd, whose revisions are others.
                    revision = 0;
                    Ok(())
                }
            };
            match result {
                Ok(()) => {
                    pause = FIRST_PAUSE;
                    tokio::time::sleep_until(began + LIST_AGAIN).await;
                }
                Err(error) => {
                    if matches!(error, EtcdError::ClusterChanged { .. }) {
                        self.cluster_changed(&error);
                    } else {
                        self.note_etcd(Err(&error));
                    }
                    tokio::time::sleep(jittered(pause)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Lists all keys, and watches them until it is time to list them again, or the watch ends.
    async fn list_and_watch(self: &Arc<Self>, revision: &mut u64) -> Result<(), EtcdError> {
        let generation = *self.generation.lock();
        let listed = self.etcd.list().await?;
        if listed.revision < *revision {
            return Err(self.etcd.went_back());
        }
        *revision = listed.revision;
        self.note_etcd(Ok(()));
        let until = Instant::now() + jittered(self.timing.list);
        if !self.listed(generation, &listed) {
            return Ok(());
        }
        let mut watch = self.etcd.watch(listed.revision + 1).await?;
        loop {
            let change = tokio::select! {
                change = watch.next() => change?,
                () = tokio::time::sleep_until(until) => return Ok(()),
            };
            let Some(change) = change else {
                // Its revision was compacted, or the connection ended.
                return Ok(());
            };
            *revision = change.revision.max(*revision);
            self.watched(generation, change);
        }
    }

    /// Takes a list in. Returns whether it is of the current etcd.
    fn listed(self: &Arc<Self>, generation: u64, listed: &Listed) -> bool {
        let current = self.generation.lock();
        if *current != generation {
            return false;
        }
        self.directory
            .lock()
            .list(&listed.members, self.process, boottime());
        for seen in &listed.members {
            self.note_own(seen);
        }
        self.review();
        self.handle(Event::View(listed.revision, listed.change.clone()));
        self.start.set_listed(Some(boottime()));
        self.set_state(MemberState::Up);
        true
    }

    fn watched(self: &Arc<Self>, generation: u64, watched: Watched) {
        let Watched {
            revision,
            change,
            record,
        } = watched;
        let current = self.generation.lock();
        if *current != generation {
            return;
        }
        if !matches!(change, ViewChange::Shard(..)) {
            self.directory
                .lock()
                .change(&change, record.as_ref(), self.process, boottime());
            if let Some(seen) = &record {
                self.note_own(seen);
            }
            self.review();
        }
        self.handle(Event::View(revision, change));
    }

    fn note_own(&self, seen: &SeenRecord) {
        if seen.member.node == self.node
            && let Some(record) = &seen.record
        {
            self.note_seen(seen.member.boot, record);
        }
    }

    /// Returns a bucket, and the time for which nodes believe a version that a write to it
    /// replaces; `None` if its objects never change at any.
    pub(super) fn believed(&self, bucket: &str) -> Option<(Arc<BucketView>, Option<Believed>)> {
        // With this lock, the view belongs to the list whose time `listed` returns.
        let _current = self.generation.lock();
        let view = self.buckets.read().get(bucket).cloned()?;
        let Some(listed) = self.start.listed() else {
            // A member that is not known may have any window.
            let window = Duration::MAX;
            let until = Duration::ZERO;
            return Some((view, Some(Believed { window, until })));
        };
        // A registration that was gone before the first list was never seen.
        let until = view.believed_until.max(listed + self.timing.claim_delay);
        let window = match view.write_window {
            None if until <= boottime() => return Some((view, None)),
            window => window.unwrap_or_default(),
        };
        Some((view, Some(Believed { window, until })))
    }

    /// Recomputes the effect of the members' records on each bucket, and logs their faults.
    pub(super) fn review(&self) {
        {
            let mut buckets = self.buckets.write();
            let directory = self.directory.lock();
            buckets.review((self.node, self.process), &directory, boottime());
        }
        self.log_faults();
    }
}
