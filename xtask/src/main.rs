//! Development tasks, run as `cargo xtask TASK`: the gate and the benchmarks.
#![forbid(unsafe_code)]

mod api;
mod charts;
mod clients;
mod cluster;
mod counts;
mod disk;
mod fuzz;
mod gate;
mod image;
mod install;
mod load;
mod local;
mod map;
mod package;
mod proofs;
mod quick;
mod retry;
mod run;
mod shard;
mod siege;
mod tools;
mod trust;
mod wide;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::clients::Selection;
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
        /// Run the stages `unit`, `clients` and `siege`, or those of --only, next to four busy processes: each test waits for what it
        /// needs, whatever the speed of the machine.
        #[arg(long)]
        under_load: bool,
        /// Arguments for pytest in the clients stage, after `--` (for example `-k multipart`).
        #[arg(last = true)]
        pytest: Vec<String>,
    },
    /// Runs the inner loop of a change: fmt, tidy, clippy, unit tests and `--test it` of the crates that changed since main, built incrementally.
    /// Prints the time, and what is left to the gate.
    Quick {
        /// These packages instead, whatever changed.
        packages: Vec<String>,
    },
    /// Prints the code map: each source file of `crates/` with the first sentence of its documentation.
    Map {
        /// Only files whose path contains this.
        filter: Option<String>,
    },
    /// Compares the public interface of the crates that programs embed with the lists in `docs/api`.
    Api {
        /// Write the lists.
        #[arg(long)]
        update: bool,
    },
    /// Runs real clients against the released binary: those of the gate, or the wide matrix.
    Clients {
        /// Run mc, restic, the SDKs of Go, Java and JavaScript, Spark, table formats and the like, of today and old ones; what
        /// this machine cannot install is left out by name.
        #[arg(long)]
        wide: bool,
        /// Of the wide matrix, only the clients of Google's storage.
        #[arg(long, requires = "wide")]
        gcs: bool,
        /// Arguments for pytest, after `--` (for example `-k restic`).
        #[arg(last = true)]
        pytest: Vec<String>,
    },
    /// Runs long stress tests of the memory core, of random uploads, of the series engine, of the disk tier, of a cluster, of the
    /// cluster's rules, or of uploads by Google's client.
    Soak(proofs::SoakArgs),
    /// Judges histories of one server, of a cluster without faults and of one under random faults, by porcupine.
    Linearizability(cluster::HistoryArgs),
    /// Runs every seeded proof on seeds that no run before had, or against planted faults.
    Trust(trust::Args),
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
        /// `write-at`, `pin`, `registry`, `block-memory`, `cluster`, `disk`, `gcs`, `upload`, `series`, `serve`, `sort` or `local`, and arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        args: Vec<String>,
    },
    /// Makes an OCI image of the program as `target/bywash-image.tar`, without a container runtime.
    Image {
        /// Another build of bywash [default: one with the profile `dist`, built first]
        #[arg(long)]
        binary: Option<std::path::PathBuf>,
    },
    /// Draws the charts of `docs/performance.md` from the tables in `bench/results`.
    Charts,
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Quick { packages } => quick::run(&packages),
        Task::Api { update } => api::run(update),
        Task::Map { filter } => map::run(filter.as_deref()),
        Task::Charts => charts::run(),
        Task::Image { binary } => image::run(binary.as_deref()),
        Task::Test {
            only,
            skip,
            complete,
            under_load,
            pytest,
        } => gate::run(
            &gate::Run {
                only: only.clone(),
                skip,
                complete,
                under_load,
            },
            &Selection {
                pytest,
                whole: !only.is_empty(),
            },
        ),
        Task::Clients {
            wide: true,
            gcs,
            pytest,
        } => wide::run(gcs, &pytest),
        Task::Clients { pytest, .. } => gate::run(
            &gate::Run::only(Stage::Clients),
            &Selection {
                pytest,
                whole: true,
            },
        ),
        Task::Soak(args) => proofs::run(&args),
        Task::Trust(args) => trust::run(&args),
        Task::Fuzz { target, seconds } => fuzz::run(target.as_deref(), seconds),
        Task::Miri { filter } => proofs::miri(filter.as_deref()),
        Task::Tsan { package, filter } => proofs::tsan(&package, filter.as_deref()),
        Task::Linearizability(args) => cluster::linearizability(&args),
        Task::Siege(args) => siege::run(&args),
        Task::Bench { args } => bench(&args),
        Task::Peers { args } => peers(args),
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
    benchmark(args).run()
}

fn benchmark(args: &[String]) -> Step {
    Step::cargo(["run", "--quiet", "--release", "-p", "bywash-bench", "--"]).args(args)
}

fn peers(args: Vec<String>) -> Result<(), Failure> {
    if args.first().is_some_and(|peers| peers == "local") {
        return local::run(&args[1..]);
    }
    let etcd = match args.first().map(String::as_str) {
        Some("cluster") => cluster::etcd()?,
        _ => None,
    };
    let step = benchmark(&[vec!["peers".to_owned()], args].concat());
    match etcd {
        Some(etcd) => step.env("BYWASH_ETCD", etcd).run(),
        None => step.run(),
    }
}
