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
    /// The bucket's window; `None` if objects never change.
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
    /// [Check values](crate::ClusterKeys::check_values) of the cluster keys that it accepts,
    /// beginning with the presented key's. A node of an earlier version states none.
    #[serde(default)]
    pub keys: Vec<String>,
}

impl Record {
    /// Whether this node and one with `keys` accept each other: each presents a key that the other
    /// accepts. Keys that are not stated are taken for the same.
    #[must_use]
    pub fn accepts(&self, keys: &[String]) -> bool {
        match (self.keys.first(), keys.first()) {
            (Some(own), Some(other)) => self.keys.contains(other) && keys.contains(own),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(one: &[&str], other: &[&str]) -> bool {
        let keys = |of: &[&str]| of.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        let record = Record {
            address: "10.0.0.1:8423".to_owned(),
            weight: 1,
            state: MemberState::Up,
            protocol: PROTOCOL,
            process: 1,
            buckets: BTreeMap::new(),
            keys: keys(one),
        };
        record.accepts(&keys(other))
    }

    #[test]
    fn nodes_accept_each_other_at_each_step_of_a_change_of_keys() {
        let steps: [&[&str]; 4] = [&["old"], &["old", "new"], &["new", "old"], &["new"]];
        for (at, step) in steps.iter().enumerate() {
            for (other, keys) in steps.iter().enumerate() {
                assert_eq!(
                    accepts(step, keys),
                    at.abs_diff(other) < 2,
                    "{step:?} {keys:?}"
                );
            }
        }
        assert!(accepts(&[], &["new"]) && accepts(&["old"], &[]));
    }

    #[test]
    fn record_of_an_earlier_version_states_no_keys() {
        let text = r#"{"address":"10.0.0.1:8423","weight":1,"state":"up","protocol":2}"#;
        let record: Record = serde_json::from_str(text).unwrap();
        assert_eq!(record.keys, Vec::<String>::new());
    }
}
