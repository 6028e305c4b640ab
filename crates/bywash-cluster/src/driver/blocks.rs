//! Other nodes as sources of blocks.
//!
//! Stripe 0 of an object is placed at the holder of its version, so that a cold read is one
//! request; the others are spread by rendezvous over the nodes that are up and have the same
//! settings of the bucket. Two nodes may see different members: a wrong owner costs a request,
//! never a wrong byte.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bywash::cluster::{PeerBody, PeerRead, Peers};
use futures::StreamExt as _;
use object_store::path::Path;
use tokio::sync::OwnedSemaphorePermit;

use super::ClusterNode;
use super::clock::boottime;
use crate::names::{Key, NodeId};
use crate::placement::{Candidate, STRIPE_BYTES, first, first_two, shard_hash, stripe_hash};
use crate::transport::{PeerAddress, PeerError};

/// Time after a change of members for which an owner looks in the memory of the node that had the stripe before.
const WARM: Duration = Duration::from_secs(600);
/// Limit of such a look, to the first byte.
const PEEK: Duration = Duration::from_millis(20);

impl ClusterNode {
    /// Owner of a stripe, and the node that stands in for it.
    fn owners(&self, key: &Key, stripe: u64, candidates: &[Candidate]) -> [Option<NodeId>; 2] {
        if stripe > 0 {
            return first_two(stripe_hash(key, stripe), candidates);
        }
        let (shard, holder) = self
            .core
            .look(|node| (node.shard(key), node.holder_of(key)));
        let ranked = first_two(shard_hash(shard), candidates);
        let takes = |node: &NodeId| candidates.iter().any(|of| of.node == *node);
        match holder.map(|holder| holder.node).filter(takes) {
            None => ranked,
            Some(holder) => {
                let other = ranked.into_iter().flatten().find(|node| *node != holder);
                [Some(holder), other]
            }
        }
    }

    /// Whether this node owns a stripe, or stands in for its owner.
    pub(super) fn serves(&self, key: &Key, stripe: u64) -> bool {
        let view = self.core.buckets.read().get(&key.bucket).cloned();
        let owners = view.map(|view| self.owners(key, stripe, &view.candidates));
        owners.is_some_and(|owners| owners.contains(&Some(self.core.node)))
    }

    /// Node that owned a stripe before it left, if one has left recently.
    fn left_owner(&self, key: &Key, stripe: u64, candidates: &[Candidate]) -> Option<NodeId> {
        let left: Vec<Candidate> = self.core.directory.lock().left(boottime()).collect();
        if left.is_empty() {
            return None;
        }
        let hash = match stripe {
            0 => shard_hash(self.core.look(|node| node.shard(key))),
            _ => stripe_hash(key, stripe),
        };
        let before: Vec<Candidate> = candidates.iter().chain(&left).copied().collect();
        first(hash, &before).filter(|owner| left.iter().any(|of| of.node == *owner))
    }

    /// Address of a node, unless it is suspected.
    fn trusted(&self, node: NodeId) -> Option<PeerAddress> {
        if self.core.suspects.lock().has(node, boottime()) {
            self.core.counters.suspect.add();
            return None;
        }
        self.core.directory.lock().address(node)
    }

    /// Returns a place for a read of another node's blocks, if one is free.
    fn place(&self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.core.peer_reads).try_acquire_owned();
        if place.is_err() {
            self.core.counters.full.add();
        }
        place.ok()
    }

    /// Looks in the memory of the node that owned a stripe before this one.
    async fn peek(&self, node: NodeId, wanted: &PeerRead) -> Option<PeerBody> {
        let changed = self.core.directory.lock().changed?;
        if boottime().saturating_sub(changed) > WARM {
            return None;
        }
        let to = self.trusted(node)?;
        let place = self.place()?;
        self.core.counters.peeks.add();
        let read = self.core.transport.read(&to, wanted, true, PEEK);
        let found = tokio::time::timeout(PEEK, read).await.ok()?.ok()?;
        self.core.counters.peek_hits.add();
        Some(held(found, place))
    }
}

/// The bytes, which keep their place until they are dropped.
fn held(found: PeerBody, place: OwnedSemaphorePermit) -> PeerBody {
    let bytes = found.bytes.inspect(move |_| {
        let _ = &place;
    });
    PeerBody {
        bytes: bytes.boxed(),
        ..found
    }
}

#[async_trait]
impl Peers for ClusterNode {
    fn stripe_end(&self, at: u64) -> u64 {
        (at / STRIPE_BYTES)
            .saturating_add(1)
            .saturating_mul(STRIPE_BYTES)
    }

    async fn read(&self, wanted: PeerRead) -> Option<PeerBody> {
        let view = self.core.buckets.read().get(&wanted.bucket).cloned()?;
        let key = Key::new(Arc::clone(&view.name), wanted.path.as_ref());
        let stripe = wanted.range.start / STRIPE_BYTES;
        let owners = self.owners(&key, stripe, &view.candidates);
        let own = self.core.node;
        if owners[0] == Some(own) {
            self.core.counters.own.add();
            let left = self.left_owner(&key, stripe, &view.candidates);
            return self.peek(left.or(owners[1])?, &wanted).await;
        }
        let mut owner = None;
        for node in owners.into_iter().flatten() {
            if node == own {
                return None;
            }
            owner = self.trusted(node).map(|to| (node, to));
            if owner.is_some() {
                break;
            }
        }
        let (node, to) = owner?;
        let place = self.place()?;
        let timing = &self.core.timing;
        let found = self
            .core
            .transport
            .read(&to, &wanted, false, timing.patience)
            .await;
        // It may be this node that has no memory for the read: neither a response of the other one nor its silence.
        if !matches!(found, Err(PeerError::Busy)) {
            let responded = !matches!(found, Err(PeerError::Unreachable | PeerError::Foreign));
            let mut suspects = self.core.suspects.lock();
            suspects.note(node, responded, boottime(), timing);
        }
        match found {
            Ok(found) => {
                self.core.counters.peer_hits.add();
                Some(held(found, place))
            }
            Err(error) => {
                self.core.counters.failed(error);
                None
            }
        }
    }

    fn is_own(&self, bucket: &str, path: &Path, at: u64) -> bool {
        let view = self.core.buckets.read().get(bucket).cloned();
        let Some(view) = view.filter(|view| !view.candidates.is_empty()) else {
            return true;
        };
        let key = Key::new(Arc::clone(&view.name), path.as_ref());
        let [owner, _] = self.owners(&key, at / STRIPE_BYTES, &view.candidates);
        owner.is_none_or(|owner| owner == self.core.node)
    }
}
