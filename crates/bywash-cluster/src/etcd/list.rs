//! Lists of etcd's keys, and the change that a key shows.

use std::collections::BTreeMap;

use serde_json::json;

use super::client::Etcd;
use super::error::EtcdError;
use super::keys::{ClusterKey, parse_member, range_end};
use super::record::{BucketRecord, Buckets, MemberState, PROTOCOL, Record};
use super::wire::{self, KeyValue, TxnResponse};
use crate::message::ViewChange;
use crate::names::{Epoch, Member};

/// The members and shards at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The revision.
    pub revision: u64,
    /// Input of the state machine.
    pub change: ViewChange,
    /// Records of the members.
    pub members: Vec<SeenRecord>,
}

/// A member's record, as etcd showed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenRecord {
    /// The member.
    pub member: Member,
    /// Its record; `None` if this version of the program does not understand it.
    pub record: Option<Record>,
    /// Its buckets, also of another version of the protocol; `None` if they are not understood either.
    pub buckets: Option<BTreeMap<String, BucketRecord>>,
    /// Revision at which the member registered.
    pub registered: u64,
}

impl Etcd {
    /// Lists members and shards at one revision.
    ///
    /// # Errors
    /// If etcd does not respond, or not with a list.
    pub async fn list(&self) -> Result<Listed, EtcdError> {
        let (nodes, shards) = (self.name.nodes(), self.name.shards());
        let txn = json!({"success": [
            wire::get_range(&nodes, &range_end(&nodes)),
            wire::get_range(&shards, &range_end(&shards)),
        ]});
        let response: TxnResponse = self.post("v3/kv/txn", &txn).await?;
        let mut members = Vec::new();
        let mut held = Vec::new();
        let mut records = Vec::new();
        for kv in response
            .responses
            .iter()
            .flat_map(|of| &of.response_range.kvs)
        {
            let (change, record) = self.change(kv, false).unzip();
            match change {
                Some(ViewChange::Up(member, weight, up)) => members.push((member, weight, up)),
                Some(ViewChange::Shard(shard, holder, epoch)) => held.push((shard, holder, epoch)),
                _ => {}
            }
            records.extend(record.flatten());
        }
        let change = ViewChange::Listed {
            members,
            shards: held,
        };
        Ok(Listed {
            revision: response.header.revision,
            change,
            members: records,
        })
    }

    /// Change that a key with its value, or its deletion, shows.
    pub(super) fn change(
        &self,
        kv: &KeyValue,
        deleted: bool,
    ) -> Option<(ViewChange, Option<SeenRecord>)> {
        let change = match self.name.parse(&kv.key)? {
            ClusterKey::Node(member) if deleted => Some(ViewChange::Down(member)),
            ClusterKey::Node(member) => {
                // One that this version does not understand is a member all the same, and takes nothing.
                let record: Option<Record> = serde_json::from_str(&kv.value).ok();
                // Its windows count for writes all the same.
                let buckets: Option<Buckets> = serde_json::from_str(&kv.value).ok();
                let record = record.filter(|record| record.protocol == PROTOCOL);
                let is_up = |record: &Record| record.state == MemberState::Up;
                let (weight, up) = record
                    .as_ref()
                    .map_or((0, false), |record| (record.weight, is_up(record)));
                let seen = SeenRecord {
                    member,
                    record,
                    buckets: buckets.map(|of| of.buckets),
                    registered: kv.create_revision,
                };
                return Some((ViewChange::Up(member, weight, up), Some(seen)));
            }
            // Keys of shards are never deleted.
            ClusterKey::Shard(_) if deleted => None,
            ClusterKey::Shard(shard) => {
                let holder = parse_member(&kv.value)?;
                Some(ViewChange::Shard(shard, holder, Epoch(kv.mod_revision)))
            }
        };
        change.map(|change| (change, None))
    }
}
