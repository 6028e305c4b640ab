//! The cluster on the page.

use std::time::Duration;

use bywash::cluster::ClusterStatus;
use maud::{Markup, html};

use super::format::{bytes, count, lasted};
use super::view::View;

/// Renders the members and this node's part, if there is a cluster.
pub(super) fn section(view: &View) -> Markup {
    let Some(cluster) = &view.stats.cluster else {
        return html! {};
    };
    let authority = lasted(Duration::from_millis(cluster.authority_left_ms));
    let fallbacks: u64 = cluster.fallbacks.values().sum();
    let rows = [
        ("State of this node", cluster.state.clone()),
        (
            "Shards of versions",
            format!(
                "{} of {}, for {authority} without etcd",
                count(cluster.shards as f64),
                count(cluster.shards_total as f64)
            ),
        ),
        (
            "Blocks from other nodes",
            format!(
                "{} requests, {}",
                count(cluster.peer_hits as f64),
                bytes(cluster.peer_bytes as f64)
            ),
        ),
        ("Blocks for other nodes", bytes(cluster.served_bytes as f64)),
        (
            "Requests to nodes left to the origin",
            count(fallbacks as f64),
        ),
        (
            "Writes that waited for the window",
            count(cluster.writes_waited as f64),
        ),
    ];
    html! {
        h2 id="cluster" { "Cluster " (cluster.name) " since the start" }
        div class="card" {
            table aria-labelledby="cluster" {
                tbody {
                    @for (name, value) in rows {
                        tr { th scope="row" { (name) } td { (value) } }
                    }
                }
            }
            table aria-label="Members" {
                thead { tr { th scope="col" { "Member" } th scope="col" { "Address" } th scope="col" { "State" } th scope="col" { "Cache" } } }
                tbody {
                    @for member in &cluster.members {
                        tr {
                            th scope="row" { (member.node) @if member.node == cluster.node { " (this)" } }
                            td { (member.address) }
                            td {
                                (member.state)
                                @for fault in &member.faults { "; " (fault.advice()) }
                            }
                            td { (bytes(f64::from(member.weight_mib) * 1024.0 * 1024.0)) }
                        }
                    }
                }
            }
        }
    }
}

/// Returns why the cluster makes the server degraded, if it does.
pub(super) fn reason(cluster: &ClusterStatus) -> Option<String> {
    if let Some(address) = &cluster.double {
        return Some(format!(
            "the process at {address} has this node's identity: its data folder is a copy, give it one of its own"
        ));
    }
    if !cluster.etcd_answers {
        return Some(
            "etcd does not answer: objects are asked for at their origins, and writes wait for their windows".to_owned(),
        );
    }
    let faulty = cluster
        .members
        .iter()
        .find_map(|of| Some((of, of.faults.first()?)));
    if let Some((member, fault)) = faulty {
        let advice = fault.advice();
        return Some(format!(
            "member {} at {} {advice}",
            member.node, member.address
        ));
    }
    let other = cluster
        .members
        .iter()
        .find(|member| !member.other_settings.is_empty())?;
    Some(format!(
        "member {} at {} has other settings of {}: give both nodes the same",
        other.node,
        other.address,
        other.other_settings.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use bywash::cluster::{ClusterMember, MemberFault};

    use super::*;

    #[test]
    fn member_with_another_key_or_address_makes_the_server_degraded_and_is_named() {
        let member = |faults: &[MemberFault]| ClusterMember {
            node: "02".to_owned(),
            address: "10.0.0.2:8423".to_owned(),
            faults: faults.to_vec(),
            ..ClusterMember::default()
        };
        let cluster = |faults: &[MemberFault]| ClusterStatus {
            etcd_answers: true,
            members: vec![ClusterMember::default(), member(faults)],
            ..ClusterStatus::default()
        };
        assert_eq!(reason(&cluster(&[])), None);
        for (fault, setting) in [
            (MemberFault::OtherKey, "--cluster-key-file"),
            (MemberFault::SameAddress, "--advertise"),
        ] {
            let reason = reason(&cluster(&[fault])).unwrap_or_default();
            assert!(
                reason.starts_with("member 02 at 10.0.0.2:8423 "),
                "{reason}"
            );
            assert!(reason.contains(setting), "{reason}");
        }
    }
}
