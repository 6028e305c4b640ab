//! The judged soak of a cluster of real processes, and its negative controls.

use std::fs;
use std::path::PathBuf;

use crate::run::{Failure, Step, doing, target};
use crate::siege::{self, released_binary};
use crate::tools;

/// Returns etcd's program, built if it is missing; `None` where it cannot be built.
pub(crate) fn etcd() -> Result<Option<PathBuf>, Failure> {
    tools::etcd(&tools::cache()?)
}

/// The soak's program, with what it always needs.
fn program(binary: PathBuf, seed: u64) -> Result<Step, Failure> {
    let etcd = etcd()?.ok_or_else(|| {
        let remedy = "install Go, or name a built one by BYWASH_ETCD";
        Failure::Missing(format!("etcd is missing: {remedy}"))
    })?;
    Ok(Step::new(siege::program("bywash-cluster-soak")?)
        .args(["--binary".as_ref(), binary.as_os_str()])
        .args(["--etcd".as_ref(), etcd.as_os_str()])
        .args([format!("--seed={seed}")]))
}

/// Load of a soak of processes.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ClusterLoad {
    /// Nodes of the cluster.
    #[arg(long, default_value_t = 3)]
    nodes: u64,
    /// Operations of the cluster's clients a second, as far as nodes and faults allow.
    #[arg(long, default_value_t = 400)]
    rate: u64,
    /// Clients of the cluster, each with one operation at a time.
    #[arg(long, default_value_t = 24)]
    clients: u64,
    /// Faults of the cluster: `drawn` from the seed, `none`, or one scenario again and again, such as `stopped-leaders` (of an etcd of
    /// three members), `revoked` or `islands`.
    #[arg(long, default_value = "drawn")]
    faults: String,
}

/// Runs so many operations through random nodes of the released program under faults.
pub(crate) fn soak(ops: u64, load: &ClusterLoad, seed: u64) -> Result<(), Failure> {
    program(released_binary()?, seed)?
        .args([
            format!("--ops={ops}"),
            format!("--nodes={}", load.nodes),
            format!("--rate={}", load.rate),
            format!("--clients={}", load.clients),
            format!("--faults={}", load.faults),
        ])
        .run()
}

/// Runs the negative controls, of all rules or of these, on a debug build that can leave rules out. It is moved away, so that nothing takes it for
/// the program.
pub(crate) fn controls(seed: u64, rules: &[String]) -> Result<(), Failure> {
    Step::cargo(["build", "--quiet", "-p", "bywash-cli"])
        .args(["--features", "bywash-cluster/rules-left-out"])
        .run()?;
    let folder = target().join("controls");
    fs::create_dir_all(&folder).map_err(doing(format!("create {}", folder.display())))?;
    let binary = folder.join("bywash");
    fs::rename(target().join("debug").join("bywash"), &binary)
        .map_err(doing(format!("move to {}", binary.display())))?;
    let rules = rules.iter().map(|rule| format!("--rule={rule}"));
    program(binary, seed)?
        .args(["--controls"])
        .args(rules)
        .run()
}
