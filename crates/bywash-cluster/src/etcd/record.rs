//! Record of a node in etcd, written by itself.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Version of the protocol between nodes.
pub const PROTOCOL: u32 = 2;

/// State of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// It has not read the list of members yet.
    Joining,
    /// It takes shards and stripes.
    Up,
    /// It gives its shards on, and ends.
    Leaving,
}

/// A bucket of a node, for comparison with the same one of other nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketRecord {
    /// Digest of the settings that must be the same at all nodes.
    pub digest: String,
    /// Time for which a node trusts a version, in milliseconds; none if objects never change.
    pub window_ms: Option<u64>,
}

impl BucketRecord {
    /// Returns the bucket's window; `None` if objects never change.
    #[must_use]
    pub fn window(&self) -> Option<Duration> {
        self.window_ms.map(Duration::from_millis)
    }
}

/// The part of a record that every version of the protocol has and understands: during an upgrade nodes of two versions write.
#[derive(Debug, Deserialize)]
pub(super) struct Buckets {
    pub(super) buckets: BTreeMap<String, BucketRecord>,
}

/// Record of a node in etcd, written by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Address of its port for other nodes.
    pub address: String,
    /// Mebibytes of cache.
    pub weight: u32,
    /// Its state.
    pub state: MemberState,
    /// Version of the protocol between nodes.
    pub protocol: u32,
    /// Random number of the process. It distinguishes two processes with one node's identity.
    #[serde(default)]
    pub process: u64,
    /// Its buckets by name.
    #[serde(default)]
    pub buckets: BTreeMap<String, BucketRecord>,
}
