//! The start of a node: whether etcd and the members that it lists accept it, also if etcd responds later.
//!
//! Reads need no list: without authority each asks the origin. Writes do: a node that has not read
//! the records of the members does not know for how long another one believes a replaced version
//! ([decision 36](../../../../docs/decisions/0036-a-node-starts-without-etcd.md)).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::ClusterNode;
use super::clock::boottime;
use super::core::Core;
use super::directory::Directory;
use super::view::jittered;
use crate::etcd::{EtcdError, Listed};
use crate::names::NodeId;

/// Pause between two requests for the version and the members of etcd.
const PAUSE: Duration = Duration::from_millis(500);
/// Time between two lines in the log while etcd does not respond.
const REMIND: Duration = Duration::from_secs(10);
/// Time for which a write waits for the first list of members. One takes some milliseconds where etcd responds.
const FIRST_LIST: Duration = Duration::from_secs(1);

/// Why a node does not join its cluster before a setting is changed.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// etcd may not be used.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// More members have another cluster key than the same one.
    #[error(
        "node {:016x} at {address}, as most members of the cluster, has another cluster key: give this node their key file, and restart it",
        node.0
    )]
    OtherKey {
        /// One such node.
        node: NodeId,
        /// Its address.
        address: String,
    },
    /// A member advertises the same address.
    #[error(
        "node {:016x} is a member of the cluster and advertises {address} too: give this node an address of its own, and restart it; if it \
         replaces that node, stop that one",
        node.0
    )]
    SameAddress {
        /// The member.
        node: NodeId,
        /// The address.
        address: String,
    },
}

/// Whether the node may join.
#[derive(Debug, Clone)]
enum Admission {
    Unknown,
    Accepted,
    Refused(Arc<JoinError>),
}

/// Knowledge that a node has gained since its start.
#[derive(Debug)]
pub(super) struct Start {
    admission: watch::Sender<Admission>,
    /// When the list of members was first read, of the current etcd.
    listed: watch::Sender<Option<Duration>>,
}

impl Start {
    pub(super) fn new() -> Self {
        Self {
            admission: watch::Sender::new(Admission::Unknown),
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
        matches!(*self.admission.borrow(), Admission::Accepted)
    }

    /// Waits until the node may join. Before, only the version of etcd and its list of members are requested.
    pub(super) async fn accepted(&self) {
        let accepted = |admission: &Admission| matches!(admission, Admission::Accepted);
        // An error would mean that this has been dropped.
        let _ = self.admission.subscribe().wait_for(accepted).await;
    }

    /// Lets the node join.
    pub(super) fn admit(&self) {
        self.admission.send_replace(Admission::Accepted);
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
    /// Compares etcd's version and its members with this node, until it may join or is refused.
    ///
    /// The registration of a process that was killed lasts as long as its lease. A node that replaces it at its address, or with another
    /// key, waits until the registration is gone.
    pub(super) async fn run_admission(self: Arc<Self>) {
        let mut reminded = Instant::now();
        let mut conflicts_since = None;
        let refusal = loop {
            let listed = match self.etcd.check_versions().await {
                Ok(()) => self.etcd.list().await,
                Err(error) if error.may_pass() => Err(error),
                Err(error) => {
                    self.note_etcd(Err(&error));
                    break error.into();
                }
            };
            match listed.map(|listed| self.conflict(&listed)) {
                Ok(None) => {
                    self.note_etcd(Ok(()));
                    return self.start.admit();
                }
                Ok(Some(conflict)) => {
                    self.note_etcd(Ok(()));
                    let since = *conflicts_since.get_or_insert_with(|| self.warn_of(&conflict));
                    if since.elapsed() >= self.timing.claim_delay {
                        break conflict;
                    }
                }
                Err(error) => {
                    self.note_etcd(Err(&error));
                    // Members that were seen before etcd fell silent are not the ones that it has now.
                    conflicts_since = None;
                    if reminded.elapsed() >= REMIND {
                        reminded = Instant::now();
                        tracing::warn!(
                            "{error}; this node is not ready, and joins when etcd responds: start etcd, or correct --cluster"
                        );
                    }
                }
            }
            tokio::time::sleep(jittered(PAUSE)).await;
        };
        let refused = Admission::Refused(Arc::new(refusal));
        self.start.admission.send_replace(refused);
    }

    /// Returns why the node may not join these members.
    fn conflict(&self, listed: &Listed) -> Option<JoinError> {
        let mut members = Directory::new(self.node, self.timing.claim_delay);
        members.list(&listed.members, self.process, boottime());
        let published = self.published.lock();
        members.conflict(&published.address, &published.keys)
    }

    /// Logs that the node waits for the end of a registration, and returns the time.
    fn warn_of(&self, conflict: &JoinError) -> Instant {
        let seconds = self.timing.claim_delay.as_secs();
        tracing::warn!("{conflict}; this node waits {seconds} s for that registration to end");
        Instant::now()
    }
}

impl ClusterNode {
    /// Waits until the node is found to be one that may not join with its settings. Otherwise never returns.
    pub async fn refused(&self) -> Arc<JoinError> {
        let mut admission = self.core.start.admission.subscribe();
        let refused = |admission: &Admission| matches!(admission, Admission::Refused(_));
        let refused = admission
            .wait_for(refused)
            .await
            .map(|admission| admission.clone());
        match refused {
            Ok(Admission::Refused(error)) => error,
            _ => std::future::pending().await,
        }
    }
}
