//! The start of a node while etcd does not respond, and what a node does not know before it has read the list of members.
//!
//! Reads need no list: without authority each asks the origin. Writes do: a node that has not read the records of the members does not
//! know for how long another one believes what a write replaces
//! ([decision 36](../../../../docs/decisions/0036-a-node-starts-without-etcd.md)).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::ClusterNode;
use super::core::Core;
use super::view::jittered;
use crate::etcd::EtcdError;

/// Pause between two questions for etcd's version.
const PAUSE: Duration = Duration::from_millis(500);
/// Time between two lines in the log while etcd does not respond.
const REMIND: Duration = Duration::from_secs(10);
/// Time for which a write waits for the first list of members. One takes some milliseconds where etcd responds.
const FIRST_LIST: Duration = Duration::from_secs(1);

/// What is known of etcd's version.
#[derive(Debug, Clone)]
enum Version {
    Unknown,
    Accepted,
    Refused(Arc<EtcdError>),
}

/// What a node has learned since its start.
#[derive(Debug)]
pub(super) struct Start {
    version: watch::Sender<Version>,
    /// When the list of members was first read, of the current etcd.
    listed: watch::Sender<Option<Duration>>,
}

impl Start {
    pub(super) fn new() -> Self {
        Self {
            version: watch::Sender::new(Version::Unknown),
            listed: watch::Sender::new(None),
        }
    }

    /// Notes when the list of members was read, or that etcd is another and its list was not.
    pub(super) fn set_listed(&self, listed: Option<Duration>) {
        self.listed.send_if_modified(|old| {
            let first = listed.map(|now| old.unwrap_or(now));
            std::mem::replace(old, first) != first
        });
    }

    /// Returns when the list of members was first read, of the current etcd.
    pub(super) fn listed(&self) -> Option<Duration> {
        *self.listed.borrow()
    }

    pub(super) fn is_accepted(&self) -> bool {
        matches!(*self.version.borrow(), Version::Accepted)
    }

    /// Waits until etcd's version is accepted. Nothing else is requested of etcd before.
    pub(super) async fn accepted(&self) {
        let accepted = |version: &Version| matches!(version, Version::Accepted);
        // An error would mean that this has been dropped.
        let _ = self.version.subscribe().wait_for(accepted).await;
    }

    /// Waits for the list of members, but not for long.
    pub(super) async fn listed_soon(&self) {
        if self.listed().is_some() {
            return;
        }
        let mut listed = self.listed.subscribe();
        let listed = listed.wait_for(Option::is_some);
        let _ = tokio::time::timeout(FIRST_LIST, listed).await;
    }
}

impl Core {
    /// Asks etcd for its version until it responds.
    pub(super) async fn run_version_check(self: Arc<Self>) {
        let mut reminded = Instant::now();
        loop {
            let error = match self.etcd.check_versions().await {
                Ok(()) => {
                    self.note_etcd(Ok(()));
                    self.start.version.send_replace(Version::Accepted);
                    return;
                }
                Err(error) => error,
            };
            self.note_etcd(Err(&error));
            if !error.may_pass() {
                let refused = Version::Refused(Arc::new(error));
                self.start.version.send_replace(refused);
                return;
            }
            if reminded.elapsed() >= REMIND {
                reminded = Instant::now();
                tracing::warn!(
                    "{error}; this node is not ready, and joins when etcd responds: start etcd, or correct --cluster"
                );
            }
            tokio::time::sleep(jittered(PAUSE)).await;
        }
    }
}

impl ClusterNode {
    /// Waits until etcd, which did not respond at the start, is found to be none that may be used. Otherwise never returns.
    pub async fn refused(&self) -> Arc<EtcdError> {
        let mut version = self.core.start.version.subscribe();
        let refused = |version: &Version| matches!(version, Version::Refused(_));
        let refused = version
            .wait_for(refused)
            .await
            .map(|version| version.clone());
        match refused {
            Ok(Version::Refused(error)) => error,
            _ => std::future::pending().await,
        }
    }
}
