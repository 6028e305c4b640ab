//! State of a node of a cluster, for its operator.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// State of this node, and of the others as it sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// Name of the cluster.
    pub name: String,
    /// This node: 16 hexadecimal digits, kept in its data folder.
    pub node: String,
    /// `joining`, `up` or `leaving`.
    pub state: String,
    /// Whether etcd responded to the last request. Without it no member joins or leaves, reads ask the origin, and writes wait.
    pub etcd_answers: bool,
    /// The last failure of a request to etcd, if none has succeeded since.
    pub etcd_failure: Option<String>,
    /// Address of another process with this node's identity: its data folder is a copy.
    pub double: Option<String>,
    /// Shards of versions that this node holds.
    pub shards: u64,
    /// Shards of the cluster.
    pub shards_total: u64,
    /// Milliseconds until the authority of this node ends, if etcd does not respond until then.
    pub authority_left_ms: u64,
    /// Objects that this node keeps state of as their holder.
    pub objects: u64,
    /// All members, this node first, then by name.
    pub members: Vec<ClusterMember>,
    /// Versions by where they came from: `lease`, `own`, `peer` (the holder) or `origin`.
    pub versions: BTreeMap<String, u64>,
    /// Requests for blocks to other nodes that returned them.
    pub peer_hits: u64,
    /// Bytes of these blocks.
    pub peer_bytes: u64,
    /// Requests for blocks that only memory was to serve, after a change of members; and how many memory served.
    pub peeks: u64,
    /// Peeks that returned blocks.
    pub peek_hits: u64,
    /// Blocks of other nodes' stripes that became hot: read again while they were here, or often asked for at their owner.
    pub heated: u64,
    /// Requests to other nodes that ended at the origin, by reason.
    pub fallbacks: BTreeMap<String, u64>,
    /// Bytes of blocks that this node served to other nodes.
    pub served_bytes: u64,
    /// Writes acknowledged after the bucket's window, because no node confirmed them.
    pub writes_waited: u64,
    /// Writes refused with 503, because the window is too long to wait for.
    pub writes_refused: u64,
}

/// A member as this node sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMember {
    /// 16 hexadecimal digits.
    pub node: String,
    /// Address for other nodes.
    pub address: String,
    /// `joining`, `up` or `leaving`.
    pub state: String,
    /// MiB of cache, by which stripes are divided.
    pub weight_mib: u32,
    /// Buckets with other settings than here: for these it is no member.
    pub other_settings: Vec<String>,
    /// Settings of the node itself that keep it from being reached or understood.
    #[serde(default)]
    pub faults: Vec<MemberFault>,
}

/// A setting of a member that its cluster cannot work with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberFault {
    /// Neither node accepts the cluster key of the other: each request between them fails, and writes wait.
    OtherKey,
    /// Another member advertises the same address.
    SameAddress,
}

impl MemberFault {
    /// Returns the fault and its remedy, as the end of a sentence that begins with the member.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            Self::OtherKey => {
                "has another cluster key than this node, so that no request between them succeeds and writes wait: give both the same \
                 --cluster-key-file, and restart the one that was wrong"
            }
            Self::SameAddress => {
                "advertises an address that another member advertises too, so that requests reach the wrong one: give each node an \
                 --advertise of its own, and restart it"
            }
        }
    }
}
