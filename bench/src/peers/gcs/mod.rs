//! `gcs`: the endpoint of Google's storage. Uploads by Google's Java client, beside fake-gcs-server; warm reads, beside the S3
//! endpoint of the same server.

mod reads;
mod servers;
mod upload;

use super::{Args, Report};
use crate::Failure;

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    upload::run(args, report, folder.path())?;
    reads::run(args, report, folder.path())
}
