//! `bywash-bench`: benchmarks of Bywash, beside rivals on the same work in the same run.
//!
//! `read` runs each measured program in a separate process, so that peak memory is measured for each: the origin, the
//! engine behind its Rust API (`worker`), and `bywash serve`. `peers` measures the memory core in this process, beside
//! others.

#![forbid(unsafe_code)]

mod hit_ratio;
mod machine;
mod origin;
mod peers;
mod process;
mod read;
mod worker;

use std::process::ExitCode;

use clap::Parser;

/// Any failure ends a benchmark; its message is all that is needed.
type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Parser)]
#[command(about = "Benchmarks of Bywash, beside rivals")]
enum Cli {
    /// Cold and warm reads, through the Rust API and the S3 endpoint, beside direct ones
    Read(read::Args),
    /// Hits of seeded traces, beside LRU, quick_cache and moka
    HitRatio(hit_ratio::Args),
    /// The memory core beside its ancestors and rivals, in alternating rounds
    Peers(peers::Args),
    /// Pins and unpins, for `perf stat` to count (started by `peers pin`)
    #[command(hide = true)]
    PinLoop(peers::LoopArgs),
    /// Fills one cache and prints the memory of its blocks (started by `peers block-memory`)
    #[command(hide = true)]
    BlockMemoryChild(peers::ChildArgs),
    /// The store of `peers upload` (started by it)
    #[command(hide = true)]
    UploadServer,
    /// Our client of `peers upload` (started by it)
    #[command(hide = true)]
    UploadWorker(peers::UploadWorkerArgs),
    /// The library's download of `peers serve` (started by it)
    #[command(hide = true)]
    DownloadWorker(peers::DownloadWorkerArgs),
    /// A cache of `peers disk` (started by it)
    #[command(hide = true)]
    DiskWorker(peers::DiskWorkerArgs),
    /// Our side of `peers drain` (started by it)
    #[command(hide = true)]
    DrainWorker(peers::DrainWorkerArgs),
    /// The engine of `peers verify` (started by it)
    #[command(hide = true)]
    VerifyWorker(peers::VerifyWorkerArgs),
    /// The origin of `read`: with generated objects (started by `read`)
    #[command(hide = true)]
    Origin(origin::Args),
    /// The engine of `read` behind its Rust API (started by `read`)
    #[command(hide = true)]
    Worker(worker::Args),
}

fn main() -> ExitCode {
    // The HTTP client is built without a TLS provider of its own; an error means one is installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let result = match Cli::parse() {
        Cli::Read(args) => read::run(&args),
        Cli::HitRatio(args) => hit_ratio::run(&args),
        Cli::Peers(args) => peers::run(&args),
        Cli::PinLoop(args) => peers::run_loop(&args),
        Cli::BlockMemoryChild(args) => peers::run_child(&args),
        Cli::UploadServer => peers::run_upload_server(),
        Cli::UploadWorker(args) => peers::run_upload_worker(&args),
        Cli::DownloadWorker(args) => peers::run_download_worker(&args),
        Cli::DiskWorker(args) => peers::run_disk_worker(&args),
        Cli::DrainWorker(args) => peers::run_drain_worker(&args),
        Cli::VerifyWorker(args) => peers::run_verify_worker(&args),
        Cli::Origin(args) => origin::run(&args),
        Cli::Worker(args) => worker::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("bywash-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?)
}
