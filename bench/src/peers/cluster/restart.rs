//! A rolling restart of three nodes under load: bytes that the origin is asked for again.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::task::spawn_blocking;

use super::load::Load;
use super::nodes::{Nodes, ServerSetup};
use crate::Failure;
use crate::peers::{Args, Report, Row};
use crate::read::counters;

const NODES: usize = 3;
const CLIENTS: usize = 4;
/// `--memory` of a node, of which the hot set is half.
const MEMORY_BYTES: u64 = 256 << 20;
const QUICK_MEMORY_BYTES: u64 = 64 << 20;
const OBJECT_BYTES: u64 = 256 << 10;
/// Time for which a node that ends serves peers.
const DRAIN: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_micros(200);
/// Max bytes of the origin, as part of the hot set.
const GOAL: f64 = 0.05;

pub(super) async fn run(
    args: &Args,
    report: &mut Report,
    setup: &ServerSetup,
) -> Result<(), Failure> {
    let memory = if args.quick {
        QUICK_MEMORY_BYTES
    } else {
        MEMORY_BYTES
    };
    let case = format!(
        "rolling restart of {NODES} nodes, hot set of {} MiB",
        memory >> 21
    );
    if !args.begins(&case) {
        return Ok(());
    }
    let setup = ServerSetup {
        memory,
        drain: DRAIN,
        ..setup.below(&setup.folder, "restart")
    };
    let mut nodes = Nodes::start(&setup, NODES).await?;
    let objects = (memory / 2 / OBJECT_BYTES) as usize;
    let load = Arc::new(Load::new((objects, OBJECT_BYTES), PAUSE));
    load.lead_to(nodes.running().map(|server| server.s3).collect());
    let clients = load.start(CLIENTS);
    let bytes = restart_all(&mut nodes, &setup, &load).await;
    load.stop();
    for client in clients {
        client.await??;
    }
    let part = bytes? as f64 / load.bytes() as f64;
    let text = format!("{case}: bytes of the origin");
    report
        .rows
        .push(Row::at_most(&text, "of the hot set", part, GOAL));
    let (failed, reads) = (load.failed() as f64, load.reads() as f64);
    let text = format!("{case}: failed reads");
    report
        .rows
        .push(Row::info(&text, "reads", failed, "all reads", reads));
    Ok(())
}

/// Restarts one node after the other. Returns the bytes of the origin meanwhile.
async fn restart_all(nodes: &mut Nodes, setup: &ServerSetup, load: &Load) -> Result<u64, Failure> {
    rounds(load, 6).await;
    let before = counters(setup.origin).await?;
    for number in 0..NODES {
        let server = nodes.servers[number].take().ok_or("the node runs")?;
        load.lead_to(nodes.running().map(|server| server.s3).collect());
        server.process.signal(Signal::TERM)?;
        spawn_blocking(move || server.process.wait()).await??;
        nodes.start_again(number)?;
        nodes.settled(NODES).await?;
        load.lead_to(nodes.running().map(|server| server.s3).collect());
        rounds(load, 3).await;
    }
    let after = counters(setup.origin).await?;
    Ok(after.bytes - before.bytes)
}

/// Waits until the hot set was read so many times more.
async fn rounds(load: &Load, count: usize) {
    let end = load.reads() + count * (load.bytes() / OBJECT_BYTES) as usize;
    while load.reads() < end {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
