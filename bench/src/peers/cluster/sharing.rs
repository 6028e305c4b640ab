//! What the origin is asked for: blocks of a large object, and versions of a hot one.

use std::time::Duration;

use futures::future::try_join_all;
use tokio::time::Instant;

use super::nodes::{Nodes, ServerSetup};
use crate::Failure;
use crate::origin::Counters;
use crate::peers::{Args, Report, Row};
use crate::read::counters;

const READERS: usize = 32;
const LARGE_BYTES: u64 = 256 << 20;
const QUICK_LARGE_BYTES: u64 = 32 << 20;
/// Max bytes from the origin as part of the object: each block once.
const ONCE: f64 = 1.0;
/// Nodes, clients and requests of a client a second of the hot key.
const HOT_NODES: usize = 3;
const HOT_RATE: u64 = 200;

async fn since(setup: &ServerSetup, before: Counters) -> Result<Counters, Failure> {
    let now = counters(setup.origin).await?;
    Ok(Counters {
        requests: now.requests - before.requests,
        bytes: now.bytes - before.bytes,
    })
}

/// 32 cold readers of one object through 1, 2 and 3 nodes.
pub(super) async fn blocks(
    args: &Args,
    report: &mut Report,
    setup: &ServerSetup,
) -> Result<(), Failure> {
    let size = if args.quick {
        QUICK_LARGE_BYTES
    } else {
        LARGE_BYTES
    };
    for count in 1..=3 {
        let case = format!(
            "{READERS} cold readers of {} MiB, {count} nodes",
            size >> 20
        );
        if !args.begins(&case) {
            continue;
        }
        let setup = setup.below(&setup.folder, &format!("blocks-{count}"));
        let nodes = Nodes::start(&setup, count).await?;
        let key = format!("s{size}/blocks-{count}");
        let before = counters(setup.origin).await?;
        let begun = Instant::now();
        let readers = (0..READERS).map(|reader| {
            let (nodes, key) = (&nodes, &key);
            async move {
                let mut client = nodes.server(reader % count)?.client().await?;
                Ok::<_, Failure>(client.get(key).await?.0)
            }
        });
        for bytes in try_join_all(readers).await? {
            if bytes != size {
                return Err(format!("a read of {size} bytes gave {bytes}").into());
            }
        }
        let took = begun.elapsed().as_secs_f64();
        let asked = since(&setup, before).await?;
        let part = asked.bytes as f64 / size as f64;
        report.rows.push(Row::at_most(
            &format!("{case}: bytes of the origin"),
            "of the object",
            part,
            ONCE,
        ));
        let rate = READERS as f64 * size as f64 / took / f64::from(1 << 20);
        let requests = asked.requests as f64;
        let row = Row::info(
            &format!("{case}: rate, and requests of the origin"),
            "MiB/s",
            rate,
            "requests",
            requests,
        );
        report.rows.push(row);
    }
    Ok(())
}

/// Reads of one key through three nodes: questions for its version.
pub(super) async fn heads(
    args: &Args,
    report: &mut Report,
    setup: &ServerSetup,
) -> Result<(), Failure> {
    let seconds: u32 = if args.quick { 5 } else { 30 };
    let case = format!("hot key, {HOT_NODES} nodes x {HOT_RATE} reads/s, {seconds} s, window 1 s");
    if !args.begins(&case) {
        return Ok(());
    }
    let setup = setup.below(&setup.folder, "heads");
    let nodes = Nodes::start(&setup, HOT_NODES).await?;
    let key = "s4096/hot";
    for server in nodes.running() {
        server.client().await?.get(key).await?;
    }
    let before = counters(setup.origin).await?;
    let end = Instant::now() + Duration::from_secs(1) * seconds;
    let readers = nodes.running().map(|server| async move {
        let mut client = server.client().await?;
        let mut turns = tokio::time::interval(Duration::from_secs(1) / HOT_RATE as u32);
        let mut count = 0;
        while Instant::now() < end {
            turns.tick().await;
            client.get(key).await?;
            count += 1;
        }
        Ok::<u64, Failure>(count)
    });
    let reads: u64 = try_join_all(readers).await?.into_iter().sum();
    let asked = since(&setup, before).await?;
    // One at each end of the time.
    let max = f64::from(seconds) + 2.0;
    let requests = asked.requests as f64;
    let case = format!("{case}: requests of the origin for {reads} reads");
    report
        .rows
        .push(Row::at_most(&case, "requests", requests, max));
    Ok(())
}
