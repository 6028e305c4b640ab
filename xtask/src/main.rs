//! Development tasks, run as `cargo xtask TASK`: the gate and the benchmarks.
#![forbid(unsafe_code)]

mod counts;
mod gate;
mod run;
mod tools;

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
        /// Arguments for pytest in the clients stage, after `--` (for example `-k multipart`).
        #[arg(last = true)]
        pytest: Vec<String>,
    },
    /// Runs a benchmark of `testing/bench`, for example `cargo xtask bench read`.
    Bench {
        /// The benchmark and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        args: Vec<String>,
    },
    /// Measures the memory core beside ancestors and rivals, for example `cargo xtask peers pin`.
    Peers {
        /// `write-at`, `pin` or `registry`, and arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        args: Vec<String>,
    },
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Test { only, skip, pytest } => gate::run(&only, &skip, &pytest),
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
