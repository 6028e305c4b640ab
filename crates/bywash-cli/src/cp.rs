//! `bywash cp`: objects and files to another place.

use crate::failure::Failure;
use crate::output::Output;
use crate::transfer::{self, After};

/// Copy objects or files, one or whole trees
///
/// A destination that is a folder, a bucket or ends in / gets the source's name; with --recursive it gets all names below the
/// source. Objects keep their content headers and metadata, files the time of what they are a copy of. A large download that was
/// killed goes on when the same command runs again; the upload of a large file is taken over by: bywash uploads resume.
///
/// With --json, one line a copy: source, destination, bytes (null if the store copied by itself), resumed_bytes, seconds, e_tag.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    transfer: transfer::Transfer,
}

impl Args {
    pub(crate) fn output(&self) -> Output {
        self.transfer.output
    }
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    transfer::run(args.transfer, After::Keep).await
}
