//! Requests of other nodes.

use std::fmt::Debug;

use async_trait::async_trait;
use bywash::cluster::{CurrentVersion, PeerBody, PeerRead};

use super::ClusterNode;
use crate::message::{PeerRequest, PeerResponse};
use crate::names::{Boot, Key, NodeId};
use crate::placement::STRIPE_BYTES;
use crate::transport::{PeerError, PeerService};

/// Blocks of this node for others: the engine.
#[async_trait]
pub trait BlockSource: Debug + Send + Sync {
    /// Returns bytes from memory, the disk tier or the origin, never from another node. `peek`: only those in memory.
    ///
    /// # Errors
    /// [`PeerError::Absent`] if the node does not have them, or has another version; [`PeerError::Busy`] if it has no memory.
    async fn read(&self, wanted: PeerRead, peek: bool) -> Result<PeerBody, PeerError>;
}

impl ClusterNode {
    /// Whether a node has the same settings of a bucket as this one. One that is not in the view
    /// yet has none.
    fn has_same_settings(&self, node: NodeId, bucket: &str) -> bool {
        let buckets = self.core.buckets.read();
        let Some(view) = buckets.get(bucket) else {
            return false;
        };
        let directory = self.core.directory.lock();
        let record = directory.newest(node).map(|(_, of)| of.record.as_ref());
        view.is_same(record.flatten())
    }

    /// Drops this node's cached data of an object, if its bucket's objects never change: no machine
    /// knows of it.
    fn forget_unchanging(&self, key: &Key) {
        let view = self.core.buckets.read().get(&key.bucket).cloned();
        if let Some(view) = view.filter(|view| view.window.is_none())
            && let Ok(path) = object_store::path::Path::parse(&key.path)
        {
            view.source().forget(&path);
        }
    }
}

#[async_trait]
impl PeerService for ClusterNode {
    async fn respond(
        &self,
        from: NodeId,
        requests: Vec<PeerRequest>,
    ) -> Vec<PeerResponse<CurrentVersion>> {
        // A begin and an end are accepted with any settings: they only make nodes forget.
        let refused = |request: &PeerRequest| match request {
            PeerRequest::Open { key, .. } => !self.has_same_settings(from, &key.bucket),
            _ => false,
        };
        for request in &requests {
            if let PeerRequest::Drop { key } = request {
                self.forget_unchanging(key);
            }
        }
        if requests.iter().any(refused) {
            return vec![PeerResponse::AskOrigin; requests.len()];
        }
        self.core.requests(from, requests).await
    }

    async fn read(
        &self,
        from: NodeId,
        wanted: PeerRead,
        peek: bool,
    ) -> Result<PeerBody, PeerError> {
        if !self.has_same_settings(from, &wanted.bucket) {
            return Err(PeerError::OtherSettings);
        }
        let stripe = wanted.range.start / STRIPE_BYTES;
        let key = Key::new(wanted.bucket.as_str(), wanted.path.as_ref());
        if !peek && !self.serves(&key, stripe) {
            return Err(PeerError::Absent);
        }
        let blocks = self.blocks.get().ok_or(PeerError::Absent)?;
        blocks.read(wanted, peek).await
    }

    fn is_current(&self, boot: Boot) -> bool {
        // An earlier registration of this process can confirm that its authority has ended.
        self.core.look(|node| node.is_own(boot))
    }
}
