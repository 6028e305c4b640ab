//! A cluster of nodes under faults, judged by an oracle.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bywash_sim::server::{Server, s3::S3};
use bywash_support::cluster::etcd_program;
use bywash_support::link::LinkState;

use super::raw::open;
use super::{Case, case};
use crate::CaseError;
use crate::client::Client;
use crate::cluster::controls::{checked_strangers, strangers};
use crate::cluster::nodes::{Cluster, NodeSetup};
use crate::cluster::{CHECKER, Judging, Plan, address_of, checker, run_recorded};
use crate::context::{Campaign, CaseContext, body};
use crate::machine::Stopwatch;
use crate::record::{Class, Outcome};

pub(super) const CASES: &[Case] = &[
    case!("cluster", cluster),
    case!("cluster-judge", cluster_judge),
    case!("peer-connections", peer_connections),
];

/// Environment variable by which a build for the controls leaves rules out.
const LEAVE_OUT: &[u8] = b"BYWASH_CLUSTER_LEAVE_OUT";

/// Returns whether the program is a build in which rules can be left out.
fn leaves_rules_out(program: &Path) -> std::io::Result<bool> {
    let bytes = std::fs::read(program)?;
    let mut starts = bytes
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == LEAVE_OUT[0]);
    Ok(starts.any(|(at, _)| bytes[at..].starts_with(LEAVE_OUT)))
}

fn etcd_or_skipped(context: &CaseContext) -> Option<PathBuf> {
    let etcd = etcd_program();
    if etcd.is_none() {
        let record = &context.record;
        record.skipped("no etcd for the cluster: name it by BYWASH_ETCD");
    }
    etcd
}

/// Three nodes, clients through all of them, kills, stops and cuts: nothing stale, torn or lost.
async fn cluster(context: &mut CaseContext) -> Result<(), CaseError> {
    let binary = context.campaign.binary.clone();
    if leaves_rules_out(&binary)? {
        context
            .record
            .finding("the program is a build in which rules of the cluster can be left out");
    }
    let Some(etcd) = etcd_or_skipped(context) else {
        return Ok(());
    };
    let seed = context.campaign.seed;
    let plan = Plan::new(binary, Some(etcd), seed);
    let plan = if context.campaign.is_full() {
        plan
    } else {
        plan.short()
    };
    let judging = checker().map(|checker| Judging {
        is_alone: false,
        ..plan.judging_by(checker)
    });
    let plan = Plan { judging, ..plan };
    let report = run_recorded(&plan, &context.record).await?;
    for (name, value) in &report.figures {
        context.record.figure(name, value);
    }
    if let Some(violation) = report.violation {
        context.record.finding(violation);
    }
    Ok(())
}

/// The judge of the case before finds that nodes which do not know each other are stale, and nothing at one alone.
async fn cluster_judge(context: &mut CaseContext) -> Result<(), CaseError> {
    let Campaign { binary, seed, .. } = context.campaign.clone();
    let alone = strangers(binary.clone(), 1, seed).await?;
    if alone.violation.is_some() || alone.failed > 0 {
        context.record.finding(format!("one node alone: {alone}"));
    }
    let report = strangers(binary, 3, seed).await?;
    context.record.request(Class::WellBehaved, Outcome::Correct);
    context.record.figure("operations", report.ops);
    if report.violation.is_none() {
        let text = "nodes without a cluster gave no wrong result";
        context.record.finding(text);
    }
    checker_of_linearizability(context).await
}

/// porcupine finds the same by histories alone.
async fn checker_of_linearizability(context: &mut CaseContext) -> Result<(), CaseError> {
    let Some(checker) = checker() else {
        let record = &context.record;
        record.skipped(format!(
            "no checker of linearizability: name it by {CHECKER}"
        ));
        return Ok(());
    };
    let Campaign { binary, seed, .. } = context.campaign.clone();
    for (nodes, is_right) in [(1, true), (3, false)] {
        let checker = checker.clone();
        let report = checked_strangers(binary.clone(), nodes, seed, checker).await?;
        for (_, words) in report
            .figures
            .iter()
            .filter(|(name, _)| *name == "porcupine")
        {
            context
                .record
                .figure(&format!("porcupine, {nodes} nodes alone"), words);
        }
        if report.violation.is_none() != is_right {
            context.record.finding(format!(
                "porcupine's verdict is wrong on {nodes} nodes alone: {report}"
            ));
        }
    }
    Ok(())
}

/// Connections to the port of a node's peers that never send a byte.
const IDLE: u64 = 10_000;
/// How many are opened at once.
const BATCH: u64 = 100;
/// Objects of 5 KB in `peer-connections`.
const OBJECTS: u64 = 40;
/// Max wait for a read whose peer does not respond: 150 ms, and time for a busy machine.
const MAX_READ: Duration = Duration::from_secs(1);

/// Reads all objects through a node.
async fn read_all(context: &CaseContext, client: &mut Client, when: &str) {
    let mut slowest = Duration::ZERO;
    for number in 0..OBJECTS {
        let wait = Stopwatch::start();
        let path = format!("/data/{number}");
        client.get(&path, &body(context.seed, number, 5_000)).await;
        slowest = slowest.max(wait.counted());
    }
    let name = format!("slowest read {when}");
    context.record.figure(&name, format!("{slowest:.1?}"));
    if slowest > MAX_READ {
        context.record.late(format!("{name}: {slowest:.1?}"));
    }
}

/// The port of a node's peers is full of half-open connections, then accepts and never responds: clients of the other node are served.
async fn peer_connections(context: &mut CaseContext) -> Result<(), CaseError> {
    let Some(etcd) = etcd_or_skipped(context) else {
        return Ok(());
    };
    let server = Server::start(S3::plain()).await?;
    let setup = NodeSetup {
        binary: context.campaign.binary.clone(),
        cluster: Some("siege".to_owned()),
        window: Duration::from_secs(1),
        leave_out: None,
    };
    let origin = (2, address_of(&server)?);
    let cluster = Cluster::start(context.path(), Some((&etcd, 1)), &setup, origin).await?;
    cluster.settled(Duration::from_secs(30)).await?;
    let (attacked, other) = (&cluster.nodes[0], &cluster.nodes[1]);
    let address = other.address().ok_or("a node does not run")?;
    let mut client = Client::new(address, Class::WellBehaved, &context.record);
    for number in 0..OBJECTS {
        let bytes = body(context.seed, number, 5_000);
        client.put(&format!("/data/{number}"), &bytes).await;
    }
    read_all(context, &mut client, "before").await;
    let port = attacked.peer_address().ok_or("a node does not listen")?;
    let mut idle = Vec::new();
    for _ in 0..IDLE / BATCH {
        let batch = context.run_concurrently(BATCH, |_| open(port, [127, 0, 0, 3]));
        idle.extend(batch.await.into_iter().flatten());
    }
    context.record.figure("idle connections", idle.len());
    read_all(context, &mut client, "beside idle connections").await;
    drop(idle);
    attacked.peers.set(LinkState::Silent);
    read_all(context, &mut client, "beside a silent node").await;
    attacked.heal();
    read_all(context, &mut client, "afterwards").await;
    if let Some(ended) = cluster.nodes.iter().find_map(|node| node.ended()) {
        context.record.died(ended);
    }
    Ok(())
}
