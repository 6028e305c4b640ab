//! `peers`: Bywash's parts beside the designs they grew from and beside rivals, on the same work in the same run.
//!
//! A benchmark is a function that fills a [`Report`]. For each cell it passes its [`Side`]s to [`alternate`], which runs
//! each once per round, and converts the returned rounds to [`Row`]s. Go sides run in a separate process ([`Go`]), which
//! prints one line per case. A new benchmark is a module here, a variant of [`Name`] and a line in [`run`]; a Go side of it
//! is a file and a line of the table in `bench/peers/main.go`.

mod block_memory;
mod cluster;
mod crew;
mod disk;
mod drain;
mod gcs;
mod go;
mod install;
mod pin;
mod pool;
mod registry;
mod report;
mod round;
mod series;
mod serve;
mod significance;
mod sort;
mod upload;
mod verify;
mod write_at;

use std::path::PathBuf;

pub(crate) use block_memory::{ChildArgs, run_child};
use clap::ValueEnum as _;
pub(crate) use disk::{WorkerArgs as DiskWorkerArgs, run_worker as run_disk_worker};
pub(crate) use drain::{WorkerArgs as DrainWorkerArgs, run_worker as run_drain_worker};
pub(crate) use go::Go;
pub(crate) use pin::{LoopArgs, run_loop};
pub(crate) use report::{Report, Row};
pub(crate) use round::{Pace, Side, alternate};
pub(crate) use serve::{WorkerArgs as DownloadWorkerArgs, run_worker as run_download_worker};
pub(crate) use upload::{
    WorkerArgs as UploadWorkerArgs, run_server as run_upload_server,
    run_worker as run_upload_worker,
};
pub(crate) use verify::{WorkerArgs as VerifyWorkerArgs, run_worker as run_verify_worker};

use crate::Failure;

/// The benchmarks.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Name {
    /// Buffers that threads fill together, against two Go designs and plain copies
    WriteAt,
    /// Blocks that threads pin together, against locks, compare-and-swap and caches
    Pin,
    /// Names that threads look up together, against locks and concurrent maps; the pool's table
    Registry,
    /// Memory of a resident block besides its bytes
    BlockMemory,
    /// Nodes that act as one, beside a single node and the goals of the design
    Cluster,
    /// Blocks read from the disk tier, against foyer's hybrid cache, plain reads of a file and nginx
    Disk,
    /// Blobs downloaded to durable files, against Kraken's two designs
    Drain,
    /// The GCS endpoint: uploads by Google's Java client, against fake-gcs-server; warm reads, against the S3 endpoint
    Gcs,
    /// Rows that threads write to series, against Catena's design
    Series,
    /// Objects uploaded through resumable sessions, against plain PUTs and Google's clients
    Upload,
    /// The S3 endpoint beside nginx and versitygw, queries over a slow origin, downloads beside transfer managers
    Serve,
    /// An external merge sort on scratch, against DuckDB's
    Sort,
    /// Reads compared with the digest of the object, against reads that are not
    Verify,
}

/// Settings of all of them.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    name: Name,
    /// Rounds; in each all sides run in turn [default: the benchmark's own; quick 3]
    #[arg(long)]
    rounds: Option<usize>,
    /// Fewer and shorter rounds
    #[arg(long)]
    quick: bool,
    /// Measure processor time instead of wall-clock time, for a busy machine; only for `series`
    #[arg(long)]
    processor: bool,
    /// Run only the cases whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Another build of `bywash` as the other side of `serve`: the cases of warm GETs with headers and of small requests
    #[arg(long, value_name = "PROGRAM")]
    against: Option<PathBuf>,
    /// File for the rows as JSON [default: target/peers/NAME.json]
    #[arg(long)]
    json: Option<PathBuf>,
}

impl Args {
    /// Returns the number of rounds of a cell with a default of `usual`.
    pub(crate) fn rounds(&self, usual: usize) -> usize {
        let usual = if self.quick { usual.min(3) } else { usual };
        self.rounds.unwrap_or(usual).max(1)
    }

    /// Returns the target duration of one side's turn in a round.
    pub(crate) fn turn(&self) -> std::time::Duration {
        std::time::Duration::from_millis(if self.quick { 10 } else { 40 })
    }

    /// Whether the case was selected.
    pub(crate) fn wants(&self, case: &str) -> bool {
        self.only.as_ref().is_none_or(|only| case.contains(only))
    }

    /// As [`Self::wants`]; if so, prints that the case begins.
    pub(crate) fn begins(&self, case: &str) -> bool {
        let wanted = self.wants(case);
        if wanted {
            eprintln!("{case}");
        }
        wanted
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let name = args
        .name
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned());
    let mut report = Report::default();
    match args.name {
        Name::BlockMemory => block_memory::run(args, &mut report)?,
        Name::Cluster => cluster::run(args, &mut report)?,
        Name::Disk => disk::run(args, &mut report)?,
        Name::Drain => drain::run(args, &mut report)?,
        Name::Gcs => gcs::run(args, &mut report)?,
        Name::Pin => pin::run(args, &mut report)?,
        Name::Registry => registry::run(args, &mut report)?,
        Name::Series => series::run(args, &mut report)?,
        Name::Serve => serve::run(args, &mut report)?,
        Name::Sort => sort::run(args, &mut report)?,
        Name::Upload => upload::run(args, &mut report)?,
        Name::Verify => verify::run(args, &mut report)?,
        Name::WriteAt => write_at::run(args, &mut report)?,
    }
    let json = args
        .json
        .clone()
        .unwrap_or_else(|| PathBuf::from(format!("target/peers/{name}.json")));
    report.finish(&json)
}
