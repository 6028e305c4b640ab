//! The members, as shown by etcd's list and watch.
//!
//! A view may lag behind etcd by any time, so nothing depends on its being current: handover and claim are guarded at etcd, and
//! authority ends by the node's own clock.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::names::{Member, NodeId};
use crate::placement::Candidate;

/// The members, as they were at a revision.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) revision: u64,
    members: BTreeMap<Member, Registered>,
    /// When a member was last seen to come, change or go.
    pub(crate) changed: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Registered {
    weight: u32,
    up: bool,
    /// Revision at which it was seen: of two registrations of a node, the later counts.
    revision: u64,
}

impl View {
    /// Adds or changes a member.
    pub(crate) fn up(&mut self, member: Member, weight: u32, up: bool, now: Duration) {
        let registered = Registered {
            weight,
            up,
            revision: self.revision,
        };
        let old = self.members.insert(member, registered);
        if old.is_none_or(|old| (old.weight, old.up) != (weight, up)) {
            self.changed = now;
        }
    }

    /// Removes a member. Returns whether it was there.
    pub(crate) fn down(&mut self, member: Member, now: Duration) -> bool {
        let gone = self.members.remove(&member).is_some();
        if gone {
            self.changed = now;
        }
        gone
    }

    /// Replaces all members.
    pub(crate) fn list(&mut self, members: &[(Member, u32, bool)], now: Duration) {
        let listed: Vec<Member> = members.iter().map(|(member, ..)| *member).collect();
        let gone: Vec<Member> = self
            .members
            .keys()
            .copied()
            .filter(|member| !listed.contains(member))
            .collect();
        for member in gone {
            self.down(member, now);
        }
        for &(member, weight, up) in members {
            self.up(member, weight, up, now);
        }
    }

    pub(crate) fn contains(&self, member: Member) -> bool {
        self.members.contains_key(&member)
    }

    /// Registrations of `node`.
    pub(crate) fn registrations(&self, node: NodeId) -> impl Iterator<Item = Member> {
        self.members
            .keys()
            .copied()
            .filter(move |member| member.node == node)
    }

    /// Newest registration of `node` that is up.
    pub(crate) fn newest(&self, node: NodeId) -> Option<Member> {
        let own = self
            .members
            .iter()
            .filter(|(member, registered)| member.node == node && registered.up);
        own.max_by_key(|(_, registered)| registered.revision)
            .map(|(member, _)| *member)
    }

    /// Nodes that take shards and stripes.
    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        let mut candidates: Vec<Candidate> = Vec::new();
        for (member, registered) in self.members.iter().filter(|(_, of)| of.up) {
            // Registrations of a node are neighbours.
            if candidates
                .last()
                .is_none_or(|last| last.node != member.node)
            {
                candidates.push(Candidate {
                    node: member.node,
                    weight: registered.weight,
                });
            }
        }
        candidates
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }
}
