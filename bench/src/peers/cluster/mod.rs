//! `cluster`: nodes that act as one, beside a single node, beside their origin, and beside the goals.

mod failover;
mod latency;
mod load;
mod nodes;
mod restart;
mod sharing;

use std::time::Duration;

use self::nodes::ServerSetup;
use super::{Args, Report};
use crate::Failure;
use crate::read::{build_server, start_origin};

/// `--memory` of a node.
const MEMORY_BYTES: u64 = 1 << 30;
/// Milliseconds to the first byte of the slow origin.
const SLOW_MS: u64 = 20;

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    report.note(
        "Nodes, etcd (3.6, one member), the origin and all clients share this machine's cores. The origin makes its objects up, and \
         counts requests and bytes. Goals are those of the design: rows beside `goal` show a figure and its max.",
    );
    let folder = tempfile::tempdir()?;
    let (_fast, fast) = start_origin(0, 0, None)?;
    let (_slow, slow) = start_origin(SLOW_MS, 0, None)?;
    let setup = ServerSetup {
        program: build_server()?,
        folder: folder.path().to_path_buf(),
        origin: fast,
        memory: MEMORY_BYTES,
        drain: Duration::from_secs(2),
    };
    let slow = ServerSetup {
        origin: slow,
        ..setup.clone()
    };
    let runtime = crate::runtime()?;
    runtime.block_on(async {
        sharing::blocks(args, report, &setup).await?;
        sharing::heads(args, report, &setup).await?;
        latency::peer_hits(args, report, &slow).await?;
        latency::leases(args, report, &setup).await?;
        latency::writes(args, report, &setup).await?;
        failover::run(args, report, &setup).await?;
        restart::run(args, report, &setup).await
    })
}
