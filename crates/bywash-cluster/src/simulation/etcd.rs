//! A model of etcd: linearizable transactions, leases that may end early, keepalives that are wrong, and a watch.

use std::collections::BTreeMap;

use crate::message::{ClaimGuard, EtcdReply, EtcdRequest, ViewChange};
use crate::names::{Boot, Epoch, Member, NodeId, Shard};

/// Time for which keepalives of a revoked lease may still be confirmed, by a leader that was cut off.
const LIES: u64 = 2_000_000;

/// Keys and leases. Times are microseconds of the world, which the leader's clock keeps.
#[derive(Debug, Default)]
pub(super) struct Etcd {
    pub(super) revision: u64,
    /// Members with the end of their lease.
    members: BTreeMap<Member, u64>,
    revoked: BTreeMap<Member, u64>,
    shards: BTreeMap<Shard, (Member, Epoch)>,
    boots: u64,
    lease: u64,
    /// A claim is guarded by the shard's revision; a negative control leaves it out.
    pub(super) claims_are_guarded: bool,
    /// Changes that the watches have not been sent.
    pub(super) changes: Vec<(u64, ViewChange)>,
}

const WEIGHT: u32 = 1024;

impl Etcd {
    pub(super) fn new(lease: u64) -> Self {
        Self {
            lease,
            claims_are_guarded: true,
            ..Self::default()
        }
    }

    fn change(&mut self, change: ViewChange) -> Epoch {
        self.revision += 1;
        self.changes.push((self.revision, change));
        Epoch(self.revision)
    }

    pub(super) fn revoke(&mut self, member: Member, now: u64) {
        if self.members.remove(&member).is_some() {
            self.revoked.insert(member, now);
            self.change(ViewChange::Down(member));
        }
    }

    pub(super) fn expire(&mut self, now: u64) {
        let over = self.members.iter().filter(|(_, end)| **end <= now);
        let over: Vec<Member> = over.map(|(member, _)| *member).collect();
        for member in over {
            self.revoke(member, now);
        }
    }

    /// A leader that is elected lengthens all leases.
    pub(super) fn extend_all(&mut self, end: u64) {
        for lease in self.members.values_mut() {
            *lease = (*lease).max(end);
        }
    }

    pub(super) fn members(&self) -> impl Iterator<Item = Member> {
        self.members.keys().copied()
    }

    pub(super) fn holder(&self, shard: Shard) -> Option<Member> {
        self.shards.get(&shard).map(|(holder, _)| *holder)
    }

    pub(super) fn list(&self) -> ViewChange {
        let members = self.members.keys().map(|member| (*member, WEIGHT, true));
        let shards = self.shards.iter();
        ViewChange::Listed {
            members: members.collect(),
            shards: shards
                .map(|(shard, (holder, epoch))| (*shard, *holder, *epoch))
                .collect(),
        }
    }

    /// Does a request. `lie` makes a keepalive wrong: it extends nothing, or confirms a lease that was revoked.
    pub(super) fn request(
        &mut self,
        from: NodeId,
        request: EtcdRequest,
        now: u64,
        lie: bool,
    ) -> EtcdReply {
        match request {
            EtcdRequest::Register => {
                self.boots += 1;
                let boot = Boot(self.boots);
                let member = Member { node: from, boot };
                self.members.insert(member, now + self.lease);
                self.change(ViewChange::Up(member, WEIGHT, true));
                EtcdReply::Registered(boot)
            }
            EtcdRequest::Keepalive(boot) => {
                let member = Member { node: from, boot };
                match self.members.get_mut(&member) {
                    Some(_) if lie => EtcdReply::Alive,
                    Some(end) => {
                        *end = now + self.lease;
                        EtcdReply::Alive
                    }
                    None => {
                        let recent = |at: &u64| now < at + LIES;
                        let lies = lie && self.revoked.get(&member).is_some_and(recent);
                        if lies {
                            EtcdReply::Alive
                        } else {
                            EtcdReply::Gone
                        }
                    }
                }
            }
            EtcdRequest::Revoke(member) => {
                self.revoke(member, now);
                EtcdReply::Alive
            }
            EtcdRequest::Hand { shard, epoch, to } => {
                let current = self.shards.get(&shard).copied();
                let holds = current.is_some_and(|(_, known)| known == epoch);
                self.put(shard, to, holds, current)
            }
            EtcdRequest::Claim { shard, guard, to } => {
                let current = self.shards.get(&shard).copied();
                let holds = match guard {
                    ClaimGuard::NoKey => current.is_none(),
                    ClaimGuard::Gone(old, epoch) => {
                        let same = current == Some((old, epoch)) || !self.claims_are_guarded;
                        same && !self.members.contains_key(&old)
                    }
                };
                self.put(shard, to, holds, current)
            }
        }
    }

    fn put(
        &mut self,
        shard: Shard,
        to: Member,
        holds: bool,
        current: Option<(Member, Epoch)>,
    ) -> EtcdReply {
        if !holds || !self.members.contains_key(&to) {
            return EtcdReply::Refused(current);
        }
        let epoch = Epoch(self.revision + 1);
        self.shards.insert(shard, (to, epoch));
        self.change(ViewChange::Shard(shard, to, epoch));
        EtcdReply::Done(epoch)
    }
}
