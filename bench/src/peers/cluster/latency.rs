//! Times of single requests: hits of peers, hits under a read lease, writes.

use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::Mutex;

use super::SLOW_MS;
use super::nodes::{Nodes, Server, ServerSetup, SmallClient};
use crate::Failure;
use crate::origin::generated_content;
use crate::peers::{Args, Report, Row};
use crate::read::load::median;

/// Sizes of objects, how many are read, quick and full, and max milliseconds of a peer hit above a memory hit.
const SIZES: [(u64, &str, usize, usize, f64); 2] = [
    (4 << 10, "4 KiB", 60, 300, 1.0),
    (1 << 20, "1 MiB", 20, 100, 2.0),
];
/// Max milliseconds of a peer hit: the origin's and the patience of a reader.
const MAX_PEER_MS: f64 = SLOW_MS as f64 + 150.0;
/// Max ratio of a hit under a read lease.
const LEASE_GOAL: f64 = 1.02;

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn counter(stats: &Value, name: &str) -> u64 {
    stats[name].as_u64().unwrap_or(0)
}

/// Objects of the slow origin are read through one node, and then through the other.
pub(super) async fn peer_hits(
    args: &Args,
    report: &mut Report,
    setup: &ServerSetup,
) -> Result<(), Failure> {
    let title = |name: &str| format!("peer hit of {name}");
    let wanted = SIZES.iter().filter(|size| args.wants(&title(size.1)));
    let wanted: Vec<_> = wanted.collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let setup = setup.below(&setup.folder, "peer-hits");
    let nodes = Nodes::start(&setup, 2).await?;
    for (size, name, quick, full, max) in wanted {
        let case = title(name);
        args.begins(&case);
        let count = if args.quick { *quick } else { *full };
        let (mut cold, mut hits, mut own) = (Vec::new(), Vec::new(), Vec::new());
        let (first, second) = (nodes.server(0)?, nodes.server(1)?);
        let (mut loader, mut reader) = (first.client().await?, second.client().await?);
        for number in 0..count {
            let key = format!("s{size}/peer-{number}");
            cold.push(millis(loader.get(&key).await?.1));
            let before = counter(&second.stats().await?, "peer_hits");
            let time = millis(reader.get(&key).await?.1);
            if counter(&second.stats().await?, "peer_hits") > before {
                hits.push(time);
            }
            // What it has in memory now, or had before.
            reader.get(&key).await?;
            own.push(millis(reader.get(&key).await?.1));
        }
        if hits.is_empty() {
            return Err(format!("{case}: none of {count} reads").into());
        }
        let slowest = hits.iter().copied().fold(0.0, f64::max);
        let (hit, own, cold) = (median(hits), median(own), median(cold));
        let above = format!("{case}, above a hit in own memory");
        report
            .rows
            .push(Row::at_most(&above, "ms", hit - own, *max));
        let slowest_case = format!("{case}, slowest of {count} reads");
        let row = Row::at_most(&slowest_case, "ms", slowest, MAX_PEER_MS);
        report.rows.push(row);
        report
            .rows
            .push(Row::info(&case, "ms", hit, "own memory", own));
        let origin = format!("first read, origin of {SLOW_MS} ms");
        report.rows.push(Row::info(&case, "ms", hit, &origin, cold));
    }
    Ok(())
}

/// Returns the median time of so many hits of one key, in microseconds.
async fn hits(client: &mut SmallClient, count: usize) -> Result<f64, Failure> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        times.push(client.get("s4096/lease").await?.1.as_secs_f64() * 1e6);
    }
    Ok(median(times))
}

/// Hits of 4 KiB at a node that is not the holder, beside a server that is in no cluster, in turn.
pub(super) async fn leases(
    args: &Args,
    report: &mut Report,
    setup: &ServerSetup,
) -> Result<(), Failure> {
    let case = "hit of 4 KiB under a read lease";
    if !args.begins(case) {
        return Ok(());
    }
    let setup = setup.below(&setup.folder, "leases");
    let nodes = Nodes::start(&setup, 2).await?;
    let alone = setup.alone()?;
    let reader = under_a_lease(&nodes).await?;
    let count = if args.quick { 1_000 } else { 5_000 };
    let (mut ours, mut single) = (reader.client().await?, alone.client().await?);
    hits(&mut ours, count).await?;
    hits(&mut single, count).await?;
    let mut rounds = (Vec::new(), Vec::new());
    for _ in 0..args.rounds(11) {
        rounds.0.push(hits(&mut ours, count).await?);
        rounds.1.push(hits(&mut single, count).await?);
    }
    let ratios = rounds
        .0
        .iter()
        .zip(&rounds.1)
        .map(|(one, other)| one / other);
    let ratio = median(ratios.collect());
    let (one, other) = (median(rounds.0), median(rounds.1));
    let row = Row {
        ratio,
        ..Row::info(case, "us", one, "a server in no cluster", other)
    };
    report.rows.push(row.goal(LEASE_GOAL));
    Ok(())
}

/// Returns the node of two that gets leases for the key: the other one is its holder.
async fn under_a_lease(nodes: &Nodes) -> Result<&Server, Failure> {
    for server in nodes.running() {
        let of = |stats: &Value| stats["versions"]["lease"].as_u64().unwrap_or(0);
        let before = of(&server.stats().await?);
        hits(&mut server.client().await?, 20).await?;
        if of(&server.stats().await?) > before {
            return Ok(server);
        }
    }
    Err("no node reads under a lease".into())
}

/// PUTs of 4 KiB through a node, beside a server in no cluster, over one that stores files.
pub(super) async fn writes(
    args: &Args,
    report: &mut Report,
    setup: &ServerSetup,
) -> Result<(), Failure> {
    let case = "PUT of 4 KiB";
    if !args.begins(case) {
        return Ok(());
    }
    let objects = setup.folder.join("objects");
    std::fs::create_dir_all(&objects)?;
    let store = setup.store(&objects)?;
    let setup = ServerSetup {
        origin: store.s3,
        ..setup.below(&setup.folder, "writes")
    };
    let nodes = Nodes::start(&setup, 3).await?;
    let alone = setup.alone()?;
    let count = if args.quick { 100 } else { 500 };
    let clients = [nodes.server(0)?.client().await?, alone.client().await?];
    let clients = clients.map(Mutex::new);
    let turn = async |side: usize, round: usize| {
        let mut client = clients[side].lock().await;
        let mut times = Vec::with_capacity(count);
        for number in 0..count {
            let body: Bytes = generated_content(4096);
            let key = format!("put-{side}-{round}-{number}");
            times.push(millis(client.put(&key, body).await?));
        }
        Ok::<f64, Failure>(median(times))
    };
    let (mut ours, mut single) = (Vec::new(), Vec::new());
    turn(0, usize::MAX).await?;
    turn(1, usize::MAX).await?;
    for round in 0..args.rounds(7) {
        ours.push(turn(0, round).await?);
        single.push(turn(1, round).await?);
    }
    let (one, other) = (median(ours), median(single));
    let row = Row::info(case, "ms", one, "a server in no cluster", other);
    report.rows.push(row);
    Ok(())
}
