//! `bywash local`: the local door of a running server.

use std::path::PathBuf;

use bywash::LocalStats;
use bywash_client::Client;
use bywash_client::place::default_socket;
use indicatif::BinaryBytes;

use crate::failure::{Failure, Kind};
use crate::output::Output;

/// Show what programs of this machine hold of a running server's memory
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Print clients, leases and counters of the local door
    ///
    /// With --json, one line: clients, leases, leased_bytes, shared_bytes, copied_bytes, refused, requests, failures, rejected,
    /// oldest_lease_seconds, shares_memory.
    Status {
        /// Socket of the server [default: BYWASH_LOCAL, or this user's well-known one]
        #[arg(long, value_name = "PATH")]
        socket: Option<PathBuf>,
    },
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let Verb::Status { socket } = args.verb;
    let socket = socket.unwrap_or_else(default_socket);
    let failed = |error: bywash_client::Error| Failure::new(Kind::Unreachable, error.to_string());
    let client = Client::connect_to(&socket).map_err(failed)?;
    let status = client.status().map_err(failed)?;
    let stats: LocalStats = serde_json::from_str(&status)
        .map_err(|error| Failure::failed(format!("the server's status cannot be read: {error}")))?;
    args.output.lines(&stats, || lines(&socket, &stats))
}

fn lines(socket: &std::path::Path, stats: &LocalStats) -> Vec<String> {
    let memory = if stats.shares_memory {
        "shared with clients"
    } else {
        "copied to clients"
    };
    vec![
        format!("{}: memory is {memory}", socket.display()),
        // This connection is of no interest.
        format!("  clients   {}", stats.clients.saturating_sub(1)),
        format!(
            "  leases    {}, {}, the oldest for {} s",
            stats.leases,
            BinaryBytes(stats.leased_bytes),
            stats.oldest_lease_seconds
        ),
        format!(
            "  read      {} in memory, {} copied, {} leases refused",
            BinaryBytes(stats.shared_bytes),
            BinaryBytes(stats.copied_bytes),
            stats.refused
        ),
        format!(
            "  requests  {}, {} failed; {} connections refused",
            stats.requests, stats.failures, stats.rejected
        ),
    ]
}
