//! Metrics of a node of a cluster.

use std::collections::BTreeMap;

use bywash::cluster::ClusterStatus;

use super::{Family, counters, gauges, head, sample, seconds};

const COUNTERS: [Family<ClusterStatus>; 6] = [
    (
        "bywash_cluster_peer_hits_total",
        "Requests for blocks to other nodes that returned them.",
        |s| s.peer_hits,
    ),
    (
        "bywash_cluster_heated_blocks_total",
        "Blocks of other nodes that became hot: read again while they were here, or often asked for at their owner.",
        |s| s.heated,
    ),
    (
        "bywash_cluster_peeks_total",
        "Requests for blocks in the memory of other nodes, after a change of members.",
        |s| s.peeks,
    ),
    (
        "bywash_cluster_peek_hits_total",
        "Such requests that returned blocks.",
        |s| s.peek_hits,
    ),
    (
        "bywash_cluster_writes_waited_total",
        "Writes acknowledged after the window of their bucket, because no node confirmed them.",
        |s| s.writes_waited,
    ),
    (
        "bywash_cluster_writes_refused_total",
        "Writes refused with 503, because no node confirmed them and the window of their bucket is too long to wait for.",
        |s| s.writes_refused,
    ),
];

const GAUGES: [Family<ClusterStatus>; 6] = [
    (
        "bywash_cluster_members",
        "Members that this node sees, itself included.",
        |s| s.members.len() as u64,
    ),
    (
        "bywash_cluster_shards",
        "Shards of versions that this node holds.",
        |s| s.shards,
    ),
    (
        "bywash_cluster_objects",
        "Objects that this node keeps state of as their holder.",
        |s| s.objects,
    ),
    (
        "bywash_cluster_etcd_answers",
        "1 if etcd answered the last request, else 0.",
        |s| u64::from(s.etcd_answers),
    ),
    (
        "bywash_cluster_other_settings",
        "Buckets that another member has other settings for.",
        |s| {
            let others = s.members.iter().map(|member| member.other_settings.len());
            others.sum::<usize>() as u64
        },
    ),
    (
        "bywash_cluster_faulty_members",
        "Members with another cluster key than this node, or with the address of another member.",
        |s| s.members.iter().filter(|of| !of.faults.is_empty()).count() as u64,
    ),
];

/// Writes the metrics of a node.
pub(super) fn write(text: &mut String, status: &ClusterStatus) {
    const STATE: &str = "bywash_cluster_state";
    head(
        text,
        STATE,
        "gauge",
        "1 for the state of this node, 0 for the others.",
    );
    for state in ["joining", "up", "leaving"] {
        let current = u64::from(status.state == state);
        sample(text, STATE, &[("state", state)], current);
    }
    counters(text, &COUNTERS, status);
    labelled(
        text,
        "bywash_cluster_versions_total",
        "Versions of objects by where they came from.",
        "source",
        &status.versions,
    );
    labelled(
        text,
        "bywash_cluster_fallbacks_total",
        "Requests to other nodes that ended at the origin, by reason.",
        "reason",
        &status.fallbacks,
    );
    gauges(text, &GAUGES, status);
    seconds(
        text,
        "bywash_cluster_authority_seconds",
        "gauge",
        "Time until this node decides nothing any more, if etcd does not answer until then.",
        status.authority_left_ms,
    );
}

fn labelled(
    text: &mut String,
    name: &str,
    help: &str,
    label: &str,
    values: &BTreeMap<String, u64>,
) {
    head(text, name, "counter", help);
    for (content, value) in values {
        sample(text, name, &[(label, content)], value);
    }
}
