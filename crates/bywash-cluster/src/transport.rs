//! The joint between the driver of a node and the port by which nodes speak to each other.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use bywash::cluster::{CurrentVersion, PeerBody, PeerRead};

use crate::message::{PeerRequest, PeerResponse};
use crate::names::{Boot, NodeId};

/// Address and registration of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerAddress {
    /// The node.
    pub node: NodeId,
    /// Its registration: a request to an earlier one is refused.
    pub boot: Boot,
    /// Host and port that it advertises.
    pub address: String,
}

/// Error of a request to another node. Each leads to the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// No connection, a broken one, or a response that is not of the protocol.
    #[error("the node did not respond")]
    Unreachable,
    /// The node speaks another version of the protocol, has another cluster key, or is of another cluster.
    #[error("the node belongs to another cluster or speaks another protocol")]
    Foreign,
    /// The node's settings of the bucket differ.
    #[error("the node has other settings of the bucket")]
    OtherSettings,
    /// The node has too much to do.
    #[error("the node is busy")]
    Busy,
    /// The node does not have the bytes, or not this version.
    #[error("the node does not have the bytes")]
    Absent,
}

/// Sends requests to other nodes.
#[async_trait]
pub trait PeerTransport: Debug + Send + Sync {
    /// Names the registration of this node and the `cluster_id` of etcd from now on, as far as they are known.
    fn registered(&self, boot: Option<Boot>, etcd: Option<u64>) {
        let _ = (boot, etcd);
    }

    /// Sends one request, or several in one message, and returns the response to each. Calls `alive` for each frame that arrives before
    /// them. The caller drops the future at its limit.
    async fn call(
        &self,
        to: &PeerAddress,
        requests: Vec<PeerRequest>,
        alive: &(dyn Fn() + Send + Sync),
    ) -> Result<Vec<PeerResponse<CurrentVersion>>, PeerError>;

    /// Requests bytes, which are compared with their CRC32C. `peek`: only bytes in memory.
    /// `patience`: maximum time between two frames, before the first byte.
    async fn read(
        &self,
        to: &PeerAddress,
        wanted: &PeerRead,
        peek: bool,
        patience: Duration,
    ) -> Result<PeerBody, PeerError>;
}

/// Serves requests of other nodes.
#[async_trait]
pub trait PeerService: Debug + Send + Sync {
    /// Responds to each request of a message of a node. While it waits, the port sends frames that this node is alive.
    async fn respond(
        &self,
        from: NodeId,
        requests: Vec<PeerRequest>,
    ) -> Vec<PeerResponse<CurrentVersion>>;

    /// Returns bytes for another node: from memory, the disk tier or the origin, never from a third node. `peek`: only those in
    /// memory.
    async fn read(&self, from: NodeId, wanted: PeerRead, peek: bool)
    -> Result<PeerBody, PeerError>;

    /// Whether a request for this registration may be served: it is the current one of this
    /// process.
    fn is_current(&self, boot: Boot) -> bool;
}
