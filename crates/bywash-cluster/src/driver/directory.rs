//! The members as their records describe them: addresses, buckets, and other processes with this node's identity.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use bywash::cluster::MemberFault;

use super::join::JoinError;
use crate::etcd::{BucketRecord, MemberState, Record, SeenRecord};
use crate::message::ViewChange;
use crate::names::{Boot, Member, NodeId};
use crate::placement::Candidate;
use crate::transport::PeerAddress;

/// Maximum number of departed nodes whose last address is kept: before their shards are claimed,
/// they are requested to confirm the end of their authority.
const GONE_KEPT: usize = 256;

/// Time for which a node that has left by itself may still have its blocks in memory for others. It ends after `--drain`, half of that
/// unless set.
const LEAVING: Duration = Duration::from_secs(60);

/// Records and addresses of the members.
#[derive(Debug)]
pub(super) struct Directory {
    own: NodeId,
    members: BTreeMap<Member, Registered>,
    gone: HashMap<NodeId, PeerAddress>,
    gone_order: VecDeque<NodeId>,
    /// Registrations that are gone, as long as their authority may last.
    fading: Vec<Fading>,
    /// Time for which it may.
    fades_in: Duration,
    /// Nodes that leave or have left by themselves, each with the time at which that was seen.
    left: Vec<(Candidate, Duration)>,
    /// Revision of this process's first registration that was seen.
    first_own: Option<u64>,
    /// When a node that takes stripes came or went.
    pub(super) changed: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Registered {
    /// None if this version of the program does not understand it.
    pub(super) record: Option<Record>,
    /// The buckets of the record, also if only these are understood.
    pub(super) buckets: Option<BTreeMap<String, BucketRecord>>,
    /// Revision of the registration.
    pub(super) revision: u64,
}

/// A registration that is gone. Its node may have authority still, and so believe a version for its own window.
#[derive(Debug)]
pub(super) struct Fading {
    pub(super) node: NodeId,
    pub(super) buckets: Option<BTreeMap<String, BucketRecord>>,
    /// When its authority and the read leases it gave have ended.
    pub(super) until: Duration,
}

impl Registered {
    pub(super) fn is_up(&self) -> bool {
        let up = |record: &Record| record.state == MemberState::Up;
        self.record.as_ref().is_some_and(up)
    }
}

impl Directory {
    /// `fades_in`: time after which a registration that is gone counts no more.
    pub(super) fn new(own: NodeId, fades_in: Duration) -> Self {
        Self {
            own,
            members: BTreeMap::new(),
            gone: HashMap::new(),
            gone_order: VecDeque::new(),
            fading: Vec::new(),
            fades_in,
            left: Vec::new(),
            first_own: None,
            changed: None,
        }
    }

    /// Replaces all members.
    pub(super) fn list(&mut self, listed: &[SeenRecord], process: u64, now: Duration) {
        let is_listed = |member: &Member| listed.iter().any(|of| of.member == *member);
        let gone: Vec<Member> = self
            .members
            .keys()
            .copied()
            .filter(|member| !is_listed(member))
            .collect();
        for member in gone {
            self.down(member, now);
        }
        for seen in listed {
            self.up(seen, process, now);
        }
    }

    /// Applies one change of a watch.
    pub(super) fn change(
        &mut self,
        change: &ViewChange,
        seen: Option<&SeenRecord>,
        process: u64,
        now: Duration,
    ) {
        match (change, seen) {
            (ViewChange::Down(member), _) => self.down(*member, now),
            (_, Some(seen)) => self.up(seen, process, now),
            _ => {}
        }
    }

    /// Forgets all members: etcd is another.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.own, self.fades_in);
    }

    fn up(&mut self, seen: &SeenRecord, process: u64, now: Duration) {
        let own = |record: &Record| seen.member.node == self.own && record.process == process;
        if seen.record.as_ref().is_some_and(own) {
            let first = self.first_own.unwrap_or(seen.registered);
            self.first_own = Some(first.min(seen.registered));
        }
        let registered = Registered {
            record: seen.record.clone(),
            buckets: seen.buckets.clone(),
            revision: seen.registered,
        };
        let is_up = registered.is_up();
        self.note_leaving(seen, now);
        let old = self.members.insert(seen.member, registered);
        if old.is_some_and(|old| old.is_up()) != is_up {
            self.changed = Some(now);
        }
    }

    fn note_leaving(&mut self, seen: &SeenRecord, now: Duration) {
        let node = seen.member.node;
        let Some(record) = &seen.record else {
            return;
        };
        let leaving = record.state == MemberState::Leaving;
        let known = self.left.iter().any(|(of, _)| of.node == node);
        self.left
            .retain(|(of, at)| now < *at + LEAVING && (leaving || of.node != node));
        if leaving && !known {
            let weight = record.weight;
            self.left.push((Candidate { node, weight }, now));
        }
    }

    /// Nodes that have left by themselves, and may still serve the blocks in their memory.
    pub(super) fn left(&self, now: Duration) -> impl Iterator<Item = Candidate> {
        let left = self.left.iter();
        left.filter(move |(_, at)| now < *at + LEAVING)
            .map(|(of, _)| *of)
    }

    fn down(&mut self, member: Member, now: Duration) {
        let Some(old) = self.members.remove(&member) else {
            return;
        };
        if old.is_up() {
            self.changed = Some(now);
        }
        self.fading.retain(|of| now < of.until);
        self.fading.push(Fading {
            node: member.node,
            buckets: old.buckets,
            until: now + self.fades_in,
        });
        let Some(record) = old.record else {
            return;
        };
        let (node, boot) = (member.node, member.boot);
        let address = PeerAddress {
            node,
            boot,
            address: record.address,
        };
        if self.gone.insert(node, address).is_none() {
            self.gone_order.push_back(node);
            if self.gone_order.len() > GONE_KEPT
                && let Some(oldest) = self.gone_order.pop_front()
            {
                self.gone.remove(&oldest);
            }
        }
    }

    /// Registrations that are gone, and may count still.
    pub(super) fn fading(&self) -> impl Iterator<Item = &Fading> {
        self.fading.iter()
    }

    /// Whether another node is up, or joins.
    pub(super) fn has_others(&self) -> bool {
        let stays = |record: &Record| record.state != MemberState::Leaving;
        let mut others = self.members.iter().filter(|(of, _)| of.node != self.own);
        others.any(|(_, registered)| registered.record.as_ref().is_some_and(stays))
    }

    pub(super) fn members(&self) -> impl Iterator<Item = (&Member, &Registered)> {
        self.members.iter()
    }

    /// Newest registration of a node.
    pub(super) fn newest(&self, node: NodeId) -> Option<(Member, &Registered)> {
        let first = Boot(0);
        let last = Boot(u64::MAX);
        let range = Member { node, boot: first }..=Member { node, boot: last };
        let newest = self.members.range(range);
        newest
            .max_by_key(|(_, registered)| registered.revision)
            .map(|(member, registered)| (*member, registered))
    }

    /// Newest record of each node whose newest record is understood.
    fn newest_records(&self) -> impl Iterator<Item = (NodeId, &Record)> {
        let mut newest: BTreeMap<NodeId, &Registered> = BTreeMap::new();
        for (member, registered) in &self.members {
            let of = newest.entry(member.node).or_insert(registered);
            if registered.revision > of.revision {
                *of = registered;
            }
        }
        let newest = newest.into_iter();
        newest.filter_map(|(node, of)| Some((node, of.record.as_ref()?)))
    }

    /// Returns why a node with this address and these check values of keys may not join the members. A node with another key is refused if
    /// it is in the minority: one member with a wrong key must keep no other node away.
    pub(super) fn conflict(&self, address: &str, keys: &[String]) -> Option<JoinError> {
        let others = || self.newest_records().filter(|(node, _)| *node != self.own);
        if let Some((node, record)) = others().find(|(_, of)| of.address == address) {
            let address = record.address.clone();
            return Some(JoinError::SameAddress { node, address });
        }
        let stated = others().filter(|(_, of)| !of.keys.is_empty());
        let (same, other): (Vec<_>, Vec<_>) = stated.partition(|(_, of)| of.accepts(keys));
        let (node, record) = *other.first().filter(|_| other.len() > same.len())?;
        let address = record.address.clone();
        Some(JoinError::OtherKey { node, address })
    }

    /// Faults of members that have any. `keys`: the check values of this node's cluster keys.
    pub(super) fn faults(&self, keys: &[String]) -> BTreeMap<NodeId, Vec<MemberFault>> {
        let mut advertised: HashMap<&str, u32> = HashMap::new();
        for (_, record) in self.newest_records() {
            *advertised.entry(&record.address).or_default() += 1;
        }
        let faults = self.newest_records().map(|(node, record)| {
            let other_key = node != self.own && !record.accepts(keys);
            let same_address = advertised.get(record.address.as_str()) > Some(&1);
            let faults = [
                other_key.then_some(MemberFault::OtherKey),
                same_address.then_some(MemberFault::SameAddress),
            ];
            (node, faults.into_iter().flatten().collect::<Vec<_>>())
        });
        faults.filter(|(_, faults)| !faults.is_empty()).collect()
    }

    /// Address of a node; if it is gone, its last address.
    pub(super) fn address(&self, node: NodeId) -> Option<PeerAddress> {
        let found = self.newest(node).and_then(|(member, registered)| {
            Some(PeerAddress {
                node,
                boot: member.boot,
                address: registered.record.as_ref()?.address.clone(),
            })
        });
        found.or_else(|| self.gone.get(&node).cloned())
    }

    /// Whether `member`, a registration of this node, is of another process that registered after
    /// this one. A process that registered before this one is its predecessor. A later one has a
    /// copy of the data folder: in the same folder it would not have got the lock.
    pub(super) fn is_double(&self, member: Member, process: u64) -> bool {
        let (Some(first), Some(registered)) = (self.first_own, self.members.get(&member)) else {
            return false;
        };
        let other = |record: &Record| record.process != process;
        member.node == self.own
            && registered.revision > first
            && registered.record.as_ref().is_none_or(other)
    }

    /// Address of another living process with this node's identity.
    pub(super) fn double(&self, process: u64) -> Option<String> {
        let mut double = self
            .members
            .iter()
            .filter(|(member, _)| self.is_double(**member, process));
        double.next().map(|(_, registered)| {
            let record = registered.record.as_ref();
            record.map_or_else(String::new, |record| record.address.clone())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::PROTOCOL;

    const OWN: NodeId = NodeId(1);

    fn seen(node: u64, boot: u64, process: u64, registered: u64) -> SeenRecord {
        let record = Record {
            address: format!("10.0.0.{node}:{boot}"),
            weight: 1,
            state: MemberState::Up,
            protocol: PROTOCOL,
            process,
            buckets: BTreeMap::new(),
            keys: Vec::new(),
        };
        SeenRecord {
            member: Member {
                node: NodeId(node),
                boot: Boot(boot),
            },
            buckets: Some(record.buckets.clone()),
            record: Some(record),
            registered,
        }
    }

    fn now(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn predecessor_is_no_double_and_a_later_process_is() {
        let mut directory = Directory::new(OWN, now(7));
        let (before, own, after) = (seen(1, 10, 5, 3), seen(1, 20, 6, 7), seen(1, 30, 9, 8));
        directory.list(std::slice::from_ref(&before), 6, now(1));
        assert!(!directory.is_double(before.member, 6));
        directory.list(&[before.clone(), own.clone()], 6, now(2));
        assert_eq!(directory.double(6), None);
        directory.list(&[before, own, after.clone()], 6, now(3));
        assert_eq!(directory.double(6), Some("10.0.0.1:30".to_owned()));
        // The later one holds the others for predecessors.
        let mut later = Directory::new(OWN, now(7));
        later.list(&[seen(1, 20, 6, 7), after.clone()], 9, now(3));
        assert_eq!(later.double(9), None);
        directory.change(&ViewChange::Down(after.member), None, 6, now(4));
        assert_eq!(directory.double(6), None);
    }

    #[test]
    fn address_is_that_of_the_newest_registration_or_the_last_known() {
        let mut directory = Directory::new(OWN, now(7));
        directory.list(&[seen(2, 9, 1, 3), seen(2, 4, 2, 8)], 6, now(1));
        let address = |directory: &Directory| directory.address(NodeId(2)).unwrap().address;
        assert_eq!(address(&directory), "10.0.0.2:4");
        assert_eq!(directory.changed, Some(now(1)));
        directory.list(&[], 6, now(2));
        assert!(address(&directory).starts_with("10.0.0.2"));
        assert_eq!(directory.changed, Some(now(2)));
        for node in 10..10 + 2 * GONE_KEPT as u64 {
            directory.list(&[seen(node, 1, 1, 1)], 6, now(3));
        }
        assert!(directory.gone.len() <= GONE_KEPT);
        assert_eq!(directory.address(NodeId(2)), None);
    }
}
