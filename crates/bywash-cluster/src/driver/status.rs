//! A node's part in the cluster, as shown to an operator.

use std::collections::BTreeMap;
use std::time::Duration;

use bywash::cluster::{ClusterMember, ClusterStatus, MemberFault};

use super::ClusterNode;
use super::clock::boottime;
use super::core::Core;
use crate::etcd::MemberState;
use crate::names::{Member, NodeId};

/// Time without a response of etcd after which it counts as silent: three keepalives.
const SILENT: Duration = Duration::from_secs(3);

/// State of a node in its cluster, as this crate names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeStatus {
    /// The node.
    pub(crate) node: NodeId,
    /// Its registration, if there is one.
    pub(crate) member: Option<Member>,
    /// All registrations in its view.
    pub(crate) members: Vec<MemberStatus>,
    /// Shards that the node has authority over.
    pub(crate) shards: usize,
    /// Time until its authority ends without another keepalive.
    pub(crate) authority_left: Duration,
    /// Objects that it keeps state of as their holder.
    pub(crate) objects: usize,
    /// Time since etcd responded last.
    pub(crate) etcd_silent: Option<Duration>,
    /// The last failure of a request to etcd, if none has succeeded since.
    pub(crate) etcd_failure: Option<String>,
    /// Buckets that have other settings at other nodes, with these nodes.
    pub(crate) differing: Vec<(String, Vec<NodeId>)>,
    /// Members with a setting that the cluster cannot work with.
    pub(crate) faults: BTreeMap<NodeId, Vec<MemberFault>>,
    /// Address of another process that has this node's identity.
    pub(crate) double: Option<String>,
    /// Counts since the start, by name.
    pub(crate) counts: Vec<(&'static str, u64)>,
}

/// A registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemberStatus {
    /// The registration.
    pub(crate) member: Member,
    /// Its address for other nodes; empty if this version of the program does not understand its record.
    pub(crate) address: String,
    /// Its state, from its record.
    pub(crate) state: Option<MemberState>,
    /// Mebibytes of cache.
    pub(crate) weight: u32,
}

/// Whether etcd responds.
#[derive(Debug, Default)]
pub(super) struct EtcdHealth {
    pub(super) responded: Option<Duration>,
    pub(super) failure: Option<String>,
}

impl ClusterNode {
    /// State of this node, and the cluster as it sees it.
    pub(super) fn status(&self) -> NodeStatus {
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
        let faults = core.faults();
        let health = core.health.lock();
        let now = boottime();
        NodeStatus {
            node: core.node,
            member: machine.member,
            members,
            shards: machine.shards,
            authority_left: machine.authority_left,
            objects: machine.objects,
            etcd_silent: health.responded.map(|at| now.saturating_sub(at)),
            etcd_failure: health.failure.clone(),
            differing,
            faults,
            double,
            counts: counts(core),
        }
    }
}

/// Status for an operator.
pub(super) fn shown(node: &ClusterNode) -> ClusterStatus {
    let status = node.status();
    let core = &node.core;
    let hex = |node: NodeId| format!("{:016x}", node.0);
    let state = |state: MemberState| match state {
        MemberState::Joining => "joining",
        MemberState::Up => "up",
        MemberState::Leaving => "leaving",
    };
    let others = |node: NodeId| {
        let differing = status.differing.iter();
        let of = differing.filter(|(_, nodes)| nodes.contains(&node));
        of.map(|(bucket, _)| bucket.clone()).collect()
    };
    let mut members: Vec<ClusterMember> = status
        .members
        .iter()
        .map(|of| ClusterMember {
            node: hex(of.member.node),
            address: of.address.clone(),
            state: of.state.map_or("unknown", state).to_owned(),
            weight_mib: of.weight,
            other_settings: others(of.member.node),
            faults: status
                .faults
                .get(&of.member.node)
                .cloned()
                .unwrap_or_default(),
        })
        .collect();
    let own = hex(status.node);
    members
        .sort_by(|one, other| (one.node != own, &one.node).cmp(&(other.node != own, &other.node)));
    let mut shown = ClusterStatus {
        name: core.etcd.name().as_str().to_owned(),
        node: own,
        state: state(core.published.lock().state).to_owned(),
        etcd_answers: status.etcd_failure.is_none()
            && status.etcd_silent.is_some_and(|time| time < SILENT),
        etcd_failure: status.etcd_failure,
        double: status.double,
        shards: status.shards as u64,
        shards_total: core.shards,
        authority_left_ms: u64::try_from(status.authority_left.as_millis()).unwrap_or(u64::MAX),
        objects: status.objects as u64,
        members,
        ..ClusterStatus::default()
    };
    for (name, count) in status.counts {
        match name {
            "peer_hits" => shown.peer_hits = count,
            "peeks" => shown.peeks = count,
            "peek_hits" => shown.peek_hits = count,
            "writes_waited" => shown.writes_waited = count,
            "writes_unconfirmed" => shown.writes_refused = count,
            "versions_by_lease" => drop(shown.versions.insert("lease".to_owned(), count)),
            "versions_as_holder" => drop(shown.versions.insert("own".to_owned(), count)),
            "versions_by_holder" => drop(shown.versions.insert("peer".to_owned(), count)),
            "versions_by_origin" => drop(shown.versions.insert("origin".to_owned(), count)),
            name => {
                if let Some(reason) = name.strip_prefix("fallback_") {
                    shown.fallbacks.insert(reason.to_owned(), count);
                }
            }
        }
    }
    shown
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
        ("fallback_full", &counters.full),
        ("fallback_unreachable", &counters.unreachable),
        ("fallback_foreign", &counters.foreign),
        ("fallback_other_settings", &counters.other_settings),
        ("fallback_busy", &counters.busy),
        ("fallback_absent", &counters.absent),
    ];
    counts.map(|(name, count)| (name, count.get())).to_vec()
}
