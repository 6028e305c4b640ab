//! `bywash cluster`: the key of a cluster, and the state of a running node.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bywash::cluster::ClusterStatus;
use bywash_cluster::ClusterKey;
use indicatif::BinaryBytes;
use serde::Deserialize;
use serde_json::json;

use crate::admin::AdminClient;
use crate::failure::Failure;
use crate::interrupt::or_interrupt;
use crate::output::Output;
use crate::serve::data_dir::DEFAULT_DATA_DIR;

/// Make the key of a cluster, and show its nodes
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Write a new key to FILE, for `serve --cluster-key-file`
    ///
    /// All nodes have the same. A program with it can be a node, so only the user of the server may read the file. To change it, restart each
    /// node with a file of the old key and the new one below it, then with the new one above, then with the new one alone.
    Key {
        /// The file, which must not exist
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Print the members of the cluster as a running node sees them, and what it does for them
    ///
    /// The node is found by its data folder, or named by --admin-addr. Exits with 1 while the node is not ready.
    Status {
        /// The node's data folder
        #[arg(long, value_name = "DIR", env = "BYWASH_DATA_DIR", default_value = DEFAULT_DATA_DIR)]
        data_dir: PathBuf,
        /// Address of the node's admin endpoints [default: that in the data folder]
        #[arg(long, value_name = "HOST:PORT")]
        admin_addr: Option<SocketAddr>,
    },
}

/// The part of `/stats` about a cluster.
#[derive(Debug, Deserialize)]
struct NodeStats {
    cluster: Option<ClusterStatus>,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let out = args.output;
    match args.verb {
        Verb::Key { file } => write_key(&file, out),
        Verb::Status {
            data_dir,
            admin_addr,
        } => {
            let server = AdminClient::find(&data_dir, admin_addr)?;
            or_interrupt(status(&server, out)).await
        }
    }
}

fn write_key(path: &Path, out: Output) -> Result<(), Failure> {
    let key = ClusterKey::generate().map_err(|error| Failure::failed(error.to_string()))?;
    let failed = |error| Failure::io(format!("cannot write {}", path.display()), &error);
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    let text = format!("{}\n", key.to_text());
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(failed)?;
    out.line(&json!({ "file": path }), || {
        format!(
            "wrote a new key to {}; copy it to each node",
            path.display()
        )
    })
}

async fn status(server: &AdminClient, out: Output) -> Result<(), Failure> {
    let stats: NodeStats = server.get("/stats", &[]).await?;
    let Some(cluster) = stats.cluster else {
        return Err(Failure::failed(format!(
            "the server at {} is no node of a cluster; start it with --cluster",
            server.address()
        )));
    };
    out.lines(&cluster, || lines(&cluster))?;
    match cluster.state.as_str() {
        "up" => Ok(()),
        state => Err(Failure::failed(format!("the node is {state}, not up"))),
    }
}

fn lines(cluster: &ClusterStatus) -> Vec<String> {
    let authority = cluster.authority_left_ms as f64 / 1000.0;
    let mut lines = vec![
        format!(
            "cluster {}, node {}: {}",
            cluster.name, cluster.node, cluster.state
        ),
        format!(
            "  etcd      {}",
            match (cluster.etcd_answers, &cluster.etcd_failure) {
                (true, _) => "answers".to_owned(),
                (false, failure) => format!(
                    "does not answer: reads ask the origin, writes wait for the window of their bucket ({})",
                    failure.as_deref().unwrap_or("no response yet")
                ),
            }
        ),
        format!(
            "  shards    {} of {}, for {authority:.1} s without etcd; {} objects",
            cluster.shards, cluster.shards_total, cluster.objects
        ),
    ];
    if let Some(address) = &cluster.double {
        lines.push(format!(
            "  identity  the process at {address} has it too: give it a data folder of its own, not a copy"
        ));
    }
    for (index, member) in cluster.members.iter().enumerate() {
        let heading = if index == 0 { "members" } else { "" };
        let this = if member.node == cluster.node {
            " (this)"
        } else {
            ""
        };
        let size = BinaryBytes(u64::from(member.weight_mib) << 20);
        lines.push(format!(
            "  {heading:<9} {} at {}, {}, {size}{this}",
            member.node, member.address, member.state
        ));
        for fault in &member.faults {
            lines.push(format!("            it {}", fault.advice()));
        }
        if !member.other_settings.is_empty() {
            lines.push(format!(
                "            it has other settings of {}, and is no member for these buckets",
                member.other_settings.join(", ")
            ));
        }
    }
    lines.push(format!(
        "  blocks    {} requests to other nodes, {}; {} for other nodes",
        cluster.peer_hits,
        BinaryBytes(cluster.peer_bytes),
        BinaryBytes(cluster.served_bytes)
    ));
    lines.push(format!("  versions  {}", counted(&cluster.versions)));
    lines.push(format!("  fallbacks {}", counted(&cluster.fallbacks)));
    lines.push(format!(
        "  writes    {} waited for their window, {} refused",
        cluster.writes_waited, cluster.writes_refused
    ));
    lines
}

fn counted(counters: &std::collections::BTreeMap<String, u64>) -> String {
    let named = counters.iter().filter(|(_, count)| **count > 0);
    let named: Vec<_> = named
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    if named.is_empty() {
        "none".to_owned()
    } else {
        named.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bywash::cluster::{ClusterMember, MemberFault};

    #[test]
    fn status_names_members_their_other_settings_and_faults() {
        let member = |node: &str, other: &[&str]| ClusterMember {
            node: node.to_owned(),
            address: "10.0.0.1:8423".to_owned(),
            state: "up".to_owned(),
            weight_mib: 1024,
            other_settings: other.iter().map(|bucket| (*bucket).to_owned()).collect(),
            faults: other.iter().map(|_| MemberFault::OtherKey).collect(),
        };
        let cluster = ClusterStatus {
            name: "demo".to_owned(),
            node: "01".to_owned(),
            state: "up".to_owned(),
            etcd_answers: true,
            members: vec![member("01", &[]), member("02", &["data"])],
            versions: [("lease".to_owned(), 3), ("peer".to_owned(), 0)].into(),
            ..ClusterStatus::default()
        };
        let text = lines(&cluster).join("\n");
        assert!(
            text.contains("members   01 at 10.0.0.1:8423, up, 1.00 GiB (this)"),
            "{text}"
        );
        assert!(text.contains("other settings of data"), "{text}");
        assert!(text.contains("it has another cluster key"), "{text}");
        assert_eq!(text.matches("--cluster-key-file").count(), 1, "{text}");
        assert!(text.contains("versions  lease 3\n"), "{text}");
        assert!(text.contains("fallbacks none"), "{text}");
    }
}
