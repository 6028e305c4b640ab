//! Several changes of shards in one transaction: thousands of shards are taken within a second.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::client::Etcd;
use super::error::EtcdError;
use super::keys::{member_text, parse_member};
use super::wire::{self, TxnResponse};
use crate::message::{ClaimGuard, EtcdReply, EtcdRequest};
use crate::names::{Epoch, Member, Shard};

/// Shards in one transaction. etcd allows 128 conditions and as many puts; each shard has one of each, and some conditions are of
/// nodes.
pub const BATCH: usize = 112;
/// Conditions in one transaction at etcd's default settings.
const CONDITIONS: usize = 128;

/// A change of a shard's holder.
#[derive(Debug, Clone, Copy)]
struct Change {
    shard: Shard,
    to: Member,
    /// Revision that the shard's key has; `None`: it has no key.
    epoch: Option<Epoch>,
    /// A node whose key must be gone.
    gone: Option<Member>,
}

impl Change {
    fn of(request: EtcdRequest) -> Option<Self> {
        match request {
            EtcdRequest::Hand { shard, epoch, to } => Some(Self {
                shard,
                to,
                epoch: Some(epoch),
                gone: None,
            }),
            EtcdRequest::Claim { shard, guard, to } => {
                let (epoch, gone) = match guard {
                    ClaimGuard::NoKey => (None, None),
                    ClaimGuard::Gone(holder, epoch) => (Some(epoch), Some(holder)),
                };
                Some(Self {
                    shard,
                    to,
                    epoch,
                    gone,
                })
            }
            _ => None,
        }
    }
}

/// Whether a request may be one of several in a transaction.
#[must_use]
pub fn is_batched(request: EtcdRequest) -> bool {
    Change::of(request).is_some()
}

impl Etcd {
    /// Does several changes of shards at once, all or none, each under its own conditions. Returns the reply to each, `None` where
    /// the transaction was refused for another's condition, or perhaps for this one's: that one is to be sent alone.
    ///
    /// # Errors
    /// As [`Etcd::perform`].
    pub async fn perform_batch(
        &self,
        requests: &[EtcdRequest],
    ) -> Result<Vec<Option<EtcdReply>>, EtcdError> {
        let changes: Vec<Change> = requests.iter().copied().filter_map(Change::of).collect();
        let Some(txn) = self
            .batch(&changes)
            .filter(|_| changes.len() == requests.len())
        else {
            return Ok(vec![None; requests.len()]);
        };
        let response: TxnResponse = match self.post("v3/kv/txn", &txn).await {
            Ok(response) => response,
            Err(error @ EtcdError::ClusterChanged { .. }) => return Err(error),
            Err(_) => return Ok(vec![Some(EtcdReply::Unknown); requests.len()]),
        };
        if response.succeeded {
            let epoch = Epoch(response.header.revision);
            return Ok(vec![Some(EtcdReply::Done(epoch)); requests.len()]);
        }
        let found: BTreeMap<&str, (Member, Epoch)> = response
            .responses
            .iter()
            .flat_map(|of| &of.response_range.kvs)
            .filter_map(|kv| {
                let holder = parse_member(&kv.value)?;
                Some((kv.key.as_str(), (holder, Epoch(kv.mod_revision))))
            })
            .collect();
        let reply = |change: &Change| {
            let current = found.get(self.name.shard(change.shard).as_str()).copied();
            let as_expected = current.map(|(_, epoch)| epoch) == change.epoch;
            (!as_expected).then_some(EtcdReply::Refused(current))
        };
        Ok(changes.iter().map(reply).collect())
    }

    /// Transaction of these changes; `None` if it has more conditions than etcd allows.
    fn batch(&self, changes: &[Change]) -> Option<Value> {
        let mut nodes: BTreeMap<Member, bool> = BTreeMap::new();
        let mut conditions = Vec::new();
        let mut puts = Vec::new();
        let mut gets = Vec::new();
        for change in changes {
            let key = self.name.shard(change.shard);
            conditions.push(match change.epoch {
                Some(epoch) => wire::has_revision(&key, epoch.0),
                None => wire::exists(&key, false),
            });
            puts.push(wire::put(&key, &member_text(change.to), 0));
            gets.push(wire::get(&key));
            nodes.insert(change.to, true);
            if let Some(gone) = change.gone
                && nodes.insert(gone, false) == Some(true)
            {
                return None;
            }
        }
        conditions.extend(
            nodes
                .into_iter()
                .map(|(node, exists)| wire::exists(&self.name.node(node), exists)),
        );
        (conditions.len() <= CONDITIONS)
            .then(|| json!({"compare": conditions, "success": puts, "failure": gets}))
    }
}
