//! Development tasks, run as `cargo xtask TASK`: the gate and the benchmarks.
#![forbid(unsafe_code)]

mod charts;
mod counts;
mod fuzz;
mod gate;
mod install;
mod proofs;
mod run;
mod siege;
mod tools;
mod wide;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::gate::Stage;
use crate::run::{Failure, Step};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Development tasks of Bywash")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Runs the whole gate, stage by stage, and stops at the first stage that fails.
    Test {
        /// Run only these stages, in the gate's own order.
        #[arg(long, value_enum, value_delimiter = ',')]
        only: Vec<Stage>,
        /// Leave these stages out.
        #[arg(long, value_enum, value_delimiter = ',')]
        skip: Vec<Stage>,
        /// Fail where this machine lacks what some tests need (Go, Prometheus, libfaketime, root), though all others passed.
        #[arg(long)]
        complete: bool,
        /// Arguments for pytest in the clients stage, after `--` (for example `-k multipart`).
        #[arg(last = true)]
        pytest: Vec<String>,
    },
    /// Runs real clients against the released binary: those of the gate, or the wide matrix.
    Clients {
        /// Run mc, restic, the SDKs of Go, Java and JavaScript, Spark, table formats and the like, of today and old ones; what
        /// this machine cannot install is left out by name.
        #[arg(long)]
        wide: bool,
        /// Arguments for pytest, after `--` (for example `-k restic`).
        #[arg(last = true)]
        pytest: Vec<String>,
    },
    /// Runs long stress tests of the memory core, of random uploads, of the series engine, of the disk tier, or of the cluster's
    /// rules.
    Soak {
        /// What to soak.
        #[arg(value_enum)]
        what: proofs::Soaked,
        /// Operations of the stress test on threads (default 100,000,000), uploads (100,000), runs of series (1,000),
        /// names of series (10,000,000), or runs of the simulated cluster (10,000).
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
        /// Seed; the default is another one each time.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Runs the memory core's tests under Miri, on a nightly toolchain.
    Miri {
        /// Only tests whose name contains this.
        filter: Option<String>,
    },
    /// Runs the unit tests of a crate under ThreadSanitizer.
    Tsan {
        /// The crate.
        #[arg(short, long, default_value = "bywash-mem")]
        package: String,
        /// Only tests whose name contains this.
        filter: Option<String>,
    },
    /// Runs the fuzzers of `fuzz/`, on a nightly toolchain with cargo-fuzz.
    Fuzz {
        /// One of them, by its name; all, one after the other, if none is named.
        target: Option<String>,
        /// How long each runs.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Attacks a released server in a control group, from a seed, and judges what it does.
    Siege(siege::Args),
    /// Runs a benchmark of `bench`, for example `cargo xtask bench read`.
    Bench {
        /// The benchmark and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        args: Vec<String>,
    },
    /// Measures Bywash beside its ancestors and rivals, for example `cargo xtask peers pin`.
    Peers {
        /// `write-at`, `pin`, `registry`, `block-memory`, `disk`, `upload`, `series`, `serve` or `sort`, and arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        args: Vec<String>,
    },
    /// Draws the charts of `docs/performance.md` from the tables in `bench/results`.
    Charts,
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Charts => charts::run(),
        Task::Test {
            only,
            skip,
            complete,
            pytest,
        } => gate::run(&only, &skip, complete, &pytest),
        Task::Clients { wide: true, pytest } => wide::run(&pytest),
        Task::Clients { pytest, .. } => gate::run(&[Stage::Clients], &[], false, &pytest),
        Task::Soak {
            what: proofs::Soaked::Mem,
            ops,
            schedules,
            seed,
            ..
        } => proofs::soak(ops.unwrap_or(100_000_000), schedules, seed),
        Task::Soak {
            what: proofs::Soaked::Uploads,
            ops,
            kills,
            objects,
            scale,
            seed,
            ..
        } => {
            let uploads = ops.unwrap_or(100_000);
            proofs::soak_uploads(uploads, kills, (objects, scale), seed)
        }
        Task::Soak {
            what: proofs::Soaked::Series,
            ops,
            kills,
            seed,
            ..
        } => proofs::soak_series(ops.unwrap_or(1000), kills, seed),
        Task::Soak {
            what: proofs::Soaked::SeriesChurn,
            ops,
            seed,
            ..
        } => proofs::soak_series_churn(ops.unwrap_or(10_000_000), seed),
        Task::Soak {
            what: proofs::Soaked::Disk,
            kills,
            seed,
            ..
        } => proofs::soak_disk(kills, seed),
        Task::Soak {
            what: proofs::Soaked::Cluster,
            ops,
            seed,
            ..
        } => proofs::soak_cluster(ops.unwrap_or(10_000), seed),
        Task::Fuzz { target, seconds } => fuzz::run(target.as_deref(), seconds),
        Task::Miri { filter } => proofs::miri(filter.as_deref()),
        Task::Tsan { package, filter } => proofs::tsan(&package, filter.as_deref()),
        Task::Siege(args) => siege::run(&args),
        Task::Bench { args } => bench(&args),
        Task::Peers { args } => bench(&[vec!["peers".to_owned()], args].concat()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn bench(args: &[String]) -> Result<(), Failure> {
    Step::cargo(["run", "--quiet", "--release", "-p", "bywash-bench", "--"])
        .args(args)
        .run()
}
