//! `bywash mv`: objects and files to another place, and away from where they were.

use crate::failure::Failure;
use crate::output::Output;
use crate::transfer::{self, After};

/// Move objects or files, one or whole trees
///
/// Each is copied whole, and only then deleted where it was: an object only if it still is the version that was copied. Folders
/// that become empty stay. Names, options and JSON lines are those of cp.
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
    transfer::run(args.transfer, After::Remove).await
}
