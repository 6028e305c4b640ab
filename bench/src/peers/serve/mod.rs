//! `serve`: the S3 endpoint and downloads beside other servers and clients, on the same bytes.

mod cold;
mod download;
mod idle;
mod load;
mod processor;
mod python;
mod queries;
mod servers;
mod small;
mod warm;

pub(crate) use download::{WorkerArgs, run_worker};
pub(super) use load::{Client, Extent, SignedRequest, connect, drive, send};
pub(super) use servers::{ACCESS_KEY, NGINX, SECRET_KEY, free_address, listening, request};

use super::{Args, Report};
use crate::Failure;

/// One bucket everywhere.
pub(super) const BUCKET: &str = "bench";
/// The side of `--against`.
const OTHER_BUILD: &str = "the other build";
/// Max ratio of any time to that of `--against`.
const OTHER_BUILD_GOAL: f64 = 1.03;
/// Memory of each Bywash here: more than any cell's data, for what is compared is a cache that holds it.
pub(super) const MEMORY_BYTES: u64 = 4 << 30;

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    if args.against.is_some() {
        processor::run(args, report, folder.path())?;
        return small::run(args, report, folder.path());
    }
    warm::run(args, report, folder.path())?;
    processor::run(args, report, folder.path())?;
    small::run(args, report, folder.path())?;
    cold::run(args, report, folder.path())?;
    idle::run(args, report, folder.path())?;
    queries::run(args, report, folder.path())?;
    download::run(args, report)
}
