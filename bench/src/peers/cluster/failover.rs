//! What a node that is killed, stopped or ended costs the others: the slowest read, and the time until its shards are held again.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::task::spawn_blocking;

use super::load::Load;
use super::nodes::{Nodes, ServerSetup};
use crate::Failure;
use crate::peers::{Args, Report, Row};

const NODES: usize = 3;
/// The node that leaves.
const VICTIM: usize = 0;
const CLIENTS: usize = 4;
/// Objects of 4 KiB that are read, and the time between two reads of a client.
const OBJECTS: (usize, u64) = (64, 4 << 10);
const PAUSE: Duration = Duration::from_millis(2);
/// Max milliseconds of a read: a reader waits 150 ms for the holder, and the origin responds at once.
const MAX_READ_MS: f64 = 170.0;

/// What happens to the node, and the max seconds until its shards are held by others.
const CASES: [(&str, Signal, f64); 3] = [
    ("SIGTERM", Signal::TERM, 1.5),
    ("stop", Signal::STOP, 12.9),
    ("kill", Signal::KILL, 12.9),
];

pub(super) async fn run(
    args: &Args,
    report: &mut Report,
    setup: &ServerSetup,
) -> Result<(), Failure> {
    let title = |name: &str| format!("{name} of one of {NODES} nodes");
    if !CASES.iter().any(|(name, ..)| args.wants(&title(name))) {
        return Ok(());
    }
    let setup = setup.below(&setup.folder, "failover");
    let mut nodes = Nodes::start(&setup, NODES).await?;
    for (name, signal, max) in CASES {
        let case = title(name);
        if !args.begins(&case) {
            continue;
        }
        let load = Arc::new(Load::new(OBJECTS, PAUSE));
        let others = nodes.servers.iter().enumerate();
        let others = others.filter(|(number, _)| *number != VICTIM);
        load.lead_to(
            others
                .flat_map(|(_, server)| Some(server.as_ref()?.s3))
                .collect(),
        );
        let clients = load.start(CLIENTS);
        let left = leave(&mut nodes, signal, &load).await;
        load.stop();
        for client in clients {
            client.await??;
        }
        let (shards, slowest) = left?;
        let text = format!("{case}: its shards are held again");
        let row = Row::at_most(&text, "s", shards.as_secs_f64(), max);
        report.rows.push(row);
        let text = format!("{case}: slowest read through the others");
        let slowest = slowest.as_secs_f64() * 1e3;
        report
            .rows
            .push(Row::at_most(&text, "ms", slowest, MAX_READ_MS));
        if load.failed() > 0 {
            let failed = load.failed();
            return Err(format!("{case}: {failed} reads through the others failed").into());
        }
    }
    Ok(())
}

/// Sends the signal. Returns the time until the others hold all shards, and their slowest read until then. The node is back at the
/// end.
async fn leave(
    nodes: &mut Nodes,
    signal: Signal,
    load: &Load,
) -> Result<(Duration, Duration), Failure> {
    // Every object is in memory, and each node knows its version.
    while load.reads() < 10 * OBJECTS.0 {
        tokio::time::sleep(PAUSE).await;
    }
    load.take_slowest();
    let server = nodes.servers[VICTIM].take().ok_or("the node runs")?;
    server.process.signal(signal)?;
    let shards = nodes.held_by_the_rest().await?;
    let slowest = load.take_slowest();
    match signal {
        Signal::STOP => {
            server.process.signal(Signal::CONT)?;
            nodes.servers[VICTIM] = Some(server);
        }
        _ => {
            spawn_blocking(move || server.process.wait()).await??;
            nodes.start_again(VICTIM)?;
        }
    }
    nodes.settled(NODES).await?;
    Ok((shards, slowest))
}
