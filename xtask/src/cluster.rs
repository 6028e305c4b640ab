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

/// Judges histories of clients of the released program by porcupine, another project's checker of linearizability.
pub(crate) fn linearizability(args: &HistoryArgs) -> Result<(), Failure> {
    let checker = tools::linearizability(&tools::cache()?)?.ok_or_else(|| {
        Failure::Missing(
            "porcupine is missing: install Go, or name a built checker by BYWASH_LINEARIZABILITY"
                .to_owned(),
        )
    })?;
    let binary = args.binary.clone().map_or_else(released_binary, Ok)?;
    program(binary, args.seed)?
        .args(["--linearizability".as_ref(), checker.as_os_str()])
        .args([
            format!("--ops={}", args.ops),
            format!("--rate={}", args.rate),
        ])
        .run()
}

/// Arguments of `cargo xtask linearizability`.
#[derive(Debug, clap::Args)]
pub(crate) struct HistoryArgs {
    /// Seed of the clients and of the faults
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Operations of each history of a cluster
    #[arg(long, default_value_t = 10_000)]
    ops: u64,
    /// Operations a second
    #[arg(long, default_value_t = 400)]
    rate: u64,
    /// Another build of bywash [default: the released binary, built first]
    #[arg(long)]
    binary: Option<PathBuf>,
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
