//! What an operator sees of a node's part in the cluster.

use std::time::Duration;

use super::ClusterNode;
use super::clock::boottime;
use super::core::Core;
use crate::etcd::MemberState;
use crate::names::{Member, NodeId};

/// State of a node in its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterStatus {
    /// The node.
    pub node: NodeId,
    /// Its registration, if there is one.
    pub member: Option<Member>,
    /// All registrations in its view.
    pub members: Vec<MemberStatus>,
    /// Shards that the node has authority over.
    pub shards: usize,
    /// Time until its authority ends without another keepalive.
    pub authority_left: Duration,
    /// Objects that it keeps state of as their holder.
    pub objects: usize,
    /// Time since etcd responded last.
    pub etcd_silent: Option<Duration>,
    /// The last failure of a request to etcd, if none has succeeded since.
    pub etcd_failure: Option<String>,
    /// Buckets of which other nodes have other settings, with these nodes.
    pub differing: Vec<(String, Vec<NodeId>)>,
    /// Address of another process that has this node's identity.
    pub double: Option<String>,
    /// Counts since the start, by name.
    pub counts: Vec<(&'static str, u64)>,
}

/// A registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberStatus {
    /// The registration.
    pub member: Member,
    /// Its address for other nodes; empty if this version of the program does not understand its record.
    pub address: String,
    /// What it does, as its record states.
    pub state: Option<MemberState>,
    /// Mebibytes of cache.
    pub weight: u32,
}

/// Whether etcd responds.
#[derive(Debug, Default)]
pub(super) struct EtcdHealth {
    pub(super) responded: Option<Duration>,
    pub(super) failure: Option<String>,
}

impl ClusterNode {
    /// Returns the state of this node, and the cluster as it sees it.
    #[must_use]
    pub fn status(&self) -> ClusterStatus {
        let core = &self.core;
        let machine = core.status();
        let (members, double) = {
            let directory = core.directory.lock();
            let members = directory.members().map(|(member, registered)| {
                let record = registered.record.as_ref();
                MemberStatus {
                    member: *member,
                    address: record.map_or_else(String::new, |of| of.address.clone()),
                    state: record.map(|of| of.state),
                    weight: record.map_or(0, |of| of.weight),
                }
            });
            (members.collect(), directory.double(core.process))
        };
        let mut differing: Vec<(String, Vec<NodeId>)> = core
            .buckets
            .read()
            .views()
            .filter(|view| !view.differing.is_empty())
            .map(|view| (view.name.to_string(), view.differing.clone()))
            .collect();
        differing.sort();
        let health = core.health.lock();
        let now = boottime();
        ClusterStatus {
            node: core.node,
            member: machine.member,
            members,
            shards: machine.shards,
            authority_left: machine.authority_left,
            objects: machine.objects,
            etcd_silent: health.responded.map(|at| now.saturating_sub(at)),
            etcd_failure: health.failure.clone(),
            differing,
            double,
            counts: counts(core),
        }
    }
}

fn counts(core: &Core) -> Vec<(&'static str, u64)> {
    let counters = &core.counters;
    let counts = [
        ("versions_by_lease", &counters.by_lease),
        ("versions_as_holder", &counters.as_holder),
        ("versions_by_holder", &counters.by_holder),
        ("versions_by_origin", &counters.by_origin),
        ("reads_failed", &counters.failed_reads),
        ("writes", &counters.writes),
        ("writes_waited", &counters.writes_waited),
        ("writes_unconfirmed", &counters.writes_unconfirmed),
        ("peer_hits", &counters.peer_hits),
        ("peeks", &counters.peeks),
        ("peek_hits", &counters.peek_hits),
        ("own_misses", &counters.own),
        ("fallback_suspect", &counters.suspect),
        ("fallback_unreachable", &counters.unreachable),
        ("fallback_foreign", &counters.foreign),
        ("fallback_other_settings", &counters.other_settings),
        ("fallback_busy", &counters.busy),
        ("fallback_absent", &counters.absent),
    ];
    counts.map(|(name, count)| (name, count.get())).to_vec()
}
