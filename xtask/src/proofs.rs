//! Proofs of the memory core that need more than the gate has: time, or another toolchain.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::ValueEnum;

use crate::cluster::{self, ClusterLoad};
use crate::run::{Failure, Step, root};
use crate::siege;
use crate::tools;

/// The one target that ThreadSanitizer is tried on. Named outright, so that build scripts and macros stay uninstrumented.
const TSAN_TARGET: &str = "x86_64-unknown-linux-gnu";

/// What `cargo xtask soak` can run for long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Soaked {
    /// The memory core.
    Mem,
    /// Uploads to servers with injected faults.
    Uploads,
    /// The series engine: its files, and processes that are killed.
    Series,
    /// The series engine: names that come and go.
    SeriesChurn,
    /// The disk tier: processes that are killed.
    Disk,
    /// A cluster of processes that are killed, stopped and cut off.
    Cluster,
    /// The rules of the cluster, in the simulation.
    ClusterRules,
    /// Uploads by Google's Python client to a server that is killed, over connections with faults.
    Gcs,
}

/// Arguments of `cargo xtask soak`.
#[derive(Debug, clap::Args)]
pub(crate) struct SoakArgs {
    /// What to soak.
    #[arg(value_enum)]
    what: Soaked,
    /// Operations of the stress test on threads (default 100,000,000), uploads (100,000), runs of series (1,000),
    /// names of series (10,000,000), requests to a cluster (100,000), runs of the simulated cluster (10,000), or uploads by Google's
    /// client (10,000).
    #[arg(long)]
    ops: Option<u64>,
    /// Schedules of each kind of the stress tests on shuttle.
    #[arg(long, default_value_t = 20_000)]
    schedules: u64,
    /// Kills of a server with open uploads over each kind of store, or of a process that writes series or a disk tier.
    #[arg(long, default_value_t = 100)]
    kills: u64,
    /// Objects of the large load on a folder.
    #[arg(long, default_value_t = 4096)]
    objects: u64,
    /// The part of the free disk of the temporary folder that the large load takes; 0 leaves it out.
    #[arg(long, default_value_t = 0.4)]
    scale: f64,
    #[command(flatten)]
    load: ClusterLoad,
    /// For the cluster: leave out one rule after the other, and fail if one is not found.
    #[arg(long)]
    controls: bool,
    /// Of the controls, only these rules.
    #[arg(long, value_delimiter = ',', requires = "controls")]
    rule: Vec<String>,
    /// Seed; the default is another one each time.
    #[arg(long)]
    seed: Option<u64>,
}

/// Runs the soak of the verb.
pub(crate) fn run(args: &SoakArgs) -> Result<(), Failure> {
    let (ops, seed) = (args.ops, args.seed);
    match args.what {
        Soaked::Mem => soak(ops.unwrap_or(100_000_000), args.schedules, seed),
        Soaked::Uploads => {
            let load = (args.objects, args.scale);
            soak_uploads(ops.unwrap_or(100_000), args.kills, load, seed)
        }
        Soaked::Series => soak_series(ops.unwrap_or(1000), args.kills, seed),
        Soaked::SeriesChurn => soak_series_churn(ops.unwrap_or(10_000_000), seed),
        Soaked::Disk => soak_disk(args.kills, seed),
        Soaked::Cluster if args.controls => {
            cluster::controls(seed.unwrap_or_else(drawn), &args.rule)
        }
        Soaked::Cluster => {
            let seed = seed.unwrap_or_else(drawn);
            cluster::soak(ops.unwrap_or(100_000), &args.load, seed)
        }
        Soaked::ClusterRules => soak_cluster_rules(ops.unwrap_or(10_000), seed),
        Soaked::Gcs => soak_gcs(ops.unwrap_or(10_000), seed),
    }
}

/// The tests of the memory core itself, in a folder of their own for each way to build them.
fn core_tests(before: &[&str], folder: &str) -> Step {
    Step::cargo(before)
        .args(["-p", "bywash-mem", "--lib"])
        .target(folder)
}

/// Stress tests on shuttle's schedules: this many of each kind from a seed, or as many as the gate runs.
pub(crate) fn shuttle(more: Option<(u64, u64)>) -> Step {
    let step = core_tests(&["test", "--quiet", "--profile", "soak"], "shuttle")
        .env("RUSTFLAGS", "--cfg shuttle");
    match more {
        Some((schedules, seed)) => step
            .args(["stress::schedules::stress_test"])
            .env("BYWASH_SHUTTLE_SCHEDULES", schedules.to_string())
            .env("BYWASH_SOAK_SEED", seed.to_string()),
        None => step,
    }
}

/// The stress test on threads, then on shuttle's schedules.
fn soak(ops: u64, schedules: u64, seed: Option<u64>) -> Result<(), Failure> {
    let seed = seed.unwrap_or_else(drawn);
    println!("seed {seed}: {ops} operations on threads");
    core_tests(&["test", "--quiet", "--profile", "soak"], "soak")
        .args(["stress::runs::soak", "--", "--ignored", "--nocapture"])
        .env("BYWASH_SOAK_OPS", ops.to_string())
        .env("BYWASH_SOAK_SEED", seed.to_string())
        .run()?;
    println!("seed {seed}: {schedules} schedules of each kind");
    shuttle(Some((schedules, seed))).run()
}

/// Returns a seed for a run without `--seed`.
fn drawn() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(1, |now| now.as_secs())
}

/// Runs random uploads from a first seed on, then uploads whose server or copy is killed, then a load of `objects` on a part of the disk.
fn soak_uploads(
    uploads: u64,
    kills: u64,
    (objects, scale): (u64, f64),
    seed: Option<u64>,
) -> Result<(), Failure> {
    let first = seed.unwrap_or_else(drawn);
    let seeds = format!("{first}..{}", first.saturating_add(uploads));
    println!("seeds {seeds}: {uploads} uploads");
    Step::cargo(["test", "--quiet", "--profile", "soak", "-p", "bywash"])
        .args(["--test", "it"])
        .target("soak")
        .args([
            "upload_servers::seeded::seeded_uploads",
            "--",
            "--nocapture",
        ])
        .env("BYWASH_SEEDS", seeds)
        .run()?;
    println!("seed {first}: {kills} kills of a server and of a copy, over each store");
    Step::cargo(["test", "--quiet", "--profile", "soak", "-p", "bywash-cli"])
        .args(["--test", "it"])
        .target("soak")
        .args(["killed", "--", "--nocapture"])
        .env("BYWASH_KILLS", kills.to_string())
        .env("BYWASH_SEED", first.to_string())
        .run()?;
    if scale == 0.0 {
        return Ok(());
    }
    println!("seed {first}: {objects} objects on {scale} of the free disk");
    Step::cargo(["test", "--quiet", "--profile", "soak", "-p", "bywash"])
        .args(["--test", "it"])
        .target("soak")
        .args(["load_of_the_given_seed", "--", "--ignored", "--nocapture"])
        .env("BYWASH_LOAD_OBJECTS", objects.to_string())
        .env("BYWASH_LOAD_SCALE", scale.to_string())
        .env("BYWASH_SEED", first.to_string())
        .run()
}

/// Random runs of data files compared with a sorted map, then kills of a process that writes, flushes and compacts.
fn soak_series(runs: u64, kills: u64, seed: Option<u64>) -> Result<(), Failure> {
    let first = seed.unwrap_or_else(drawn);
    let seeds = format!("{first}..{}", first.saturating_add(runs));
    println!("seeds {seeds}: {runs} runs of files compared with a sorted map");
    Step::cargo(["test", "--quiet", "--profile", "soak"])
        .args(["-p", "bywash-series", "--lib", "files_match_a_sorted_map"])
        .target("soak")
        .env("BYWASH_SEEDS", seeds)
        .run()?;
    println!("seed {first}: {kills} kills of a process");
    Step::cargo(["test", "--quiet", "--profile", "soak"])
        .args(["-p", "bywash-series-proofs", "--test", "it"])
        .target("soak")
        .args(["kills", "--", "--nocapture"])
        .env("BYWASH_KILLS", kills.to_string())
        .env("BYWASH_SEED", first.to_string())
        .run()
}

/// So many names of series, of which 100,000 are live at a time.
fn soak_series_churn(names: u64, seed: Option<u64>) -> Result<(), Failure> {
    let seed = seed.unwrap_or_else(drawn);
    println!("seed {seed}: {names} names of series, 100,000 live");
    Step::cargo(["test", "--quiet", "--profile", "soak"])
        .args(["-p", "bywash-series-proofs", "--test", "it"])
        .target("soak")
        .args(["memory_stays_flat", "--", "--nocapture"])
        .env("BYWASH_CHURN_NAMES", names.to_string())
        .env("BYWASH_CHURN_LIVE", "100000")
        .env("BYWASH_SEED", seed.to_string())
        .run()
}

/// Kills of a process that uses a disk tier.
fn soak_disk(kills: u64, seed: Option<u64>) -> Result<(), Failure> {
    let seed = seed.unwrap_or_else(drawn);
    println!("seed {seed}: {kills} kills of a process");
    Step::cargo(["test", "--quiet", "--profile", "soak", "-p", "bywash-disk"])
        .args(["--test", "it"])
        .target("soak")
        .args(["killed_processes", "--", "--nocapture"])
        .env("BYWASH_KILLS", kills.to_string())
        .env("BYWASH_SEED", seed.to_string())
        .run()
}

/// So many runs of the simulated cluster, each from a seed.
fn soak_cluster_rules(runs: u64, seed: Option<u64>) -> Result<(), Failure> {
    let first = seed.unwrap_or_else(drawn);
    let seeds = format!("{first}..{}", first.saturating_add(runs));
    println!("seeds {seeds}: {runs} runs of a cluster of three nodes");
    Step::cargo(["test", "--quiet", "--profile", "soak"])
        .args(["-p", "bywash-cluster", "--lib"])
        .target("soak")
        .args(["simulation::no_read_is_stale", "--", "--nocapture"])
        .env("BYWASH_SEEDS", seeds)
        .run()
}

/// So many uploads by Google's Python client, each from a seed.
fn soak_gcs(uploads: u64, seed: Option<u64>) -> Result<(), Failure> {
    let python = tools::clients_python(&tools::cache()?)?;
    let seed = seed.unwrap_or_else(drawn);
    Step::new(python)
        .args(["gcs_faults.py"])
        .args([format!("--seed={seed}"), format!("--uploads={uploads}")])
        .folder(&root().join("testing/clients"))
        .env("BYWASH_BIN", siege::released_binary()?)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .run()
}

/// Cargo of the nightly toolchain, through rustup: this toolchain's own cargo takes no `+nightly`.
pub(crate) fn nightly() -> Step {
    Step::new("rustup")
        .args(["run", "nightly", "cargo"])
        .unset(["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"])
}

fn need(found: bool, what: &str) -> Result<(), Failure> {
    if found {
        return Ok(());
    }
    Err(Failure::Missing(format!(
        "{what} is missing: rustup toolchain install nightly --component miri,rust-src"
    )))
}

/// Aliasing, races, leaks: the tests interpreted.
pub(crate) fn miri(filter: Option<&str>) -> Result<(), Failure> {
    let works = nightly().args(["miri", "--version"]).succeeds();
    need(works, "Miri")?;
    nightly()
        .args(["miri", "test", "-p", "bywash-mem", "--lib"])
        .target("miri")
        .args(filter)
        // Deadlines read the clock; isolation would only refuse that.
        .env("MIRIFLAGS", "-Zmiri-disable-isolation")
        .run()
}

/// Data races among the real threads of the tests. The standard library is built with the sanitizer too: without that, the last
/// drop of each `Arc` is taken for a race.
pub(crate) fn tsan(package: &str, filter: Option<&str>) -> Result<(), Failure> {
    let sysroot = Step::new("rustup")
        .args(["run", "nightly", "rustc", "--print", "sysroot"])
        .unset(["RUSTUP_TOOLCHAIN"])
        .output();
    let sources = sysroot.is_ok_and(|root| {
        let library = "lib/rustlib/src/rust/library/Cargo.toml";
        Path::new(root.trim()).join(library).exists()
    });
    need(
        sources,
        "a nightly toolchain with the standard library's source, for ThreadSanitizer",
    )?;
    nightly()
        .args(["test", "-p", package, "--lib"])
        .target("tsan")
        .args(["-Zbuild-std", "--target", TSAN_TARGET])
        .args(filter)
        .env("RUSTFLAGS", "-Zsanitizer=thread")
        // Some twenty times slower than without.
        .env("BYWASH_STRESS_OPS", "100000")
        .run()
}
