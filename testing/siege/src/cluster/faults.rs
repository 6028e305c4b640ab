//! Faults of a soak: drawn from the seed, or one scenario again and again, for a control.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bywash_support::link::LinkState;
use bywash_support::pattern::mix;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use tokio::task::JoinSet;

use super::clients::Soak;
use super::etcd;
use super::nodes::Node;
use crate::CaseError;

/// Shortest drawn fault.
const MIN_FAULT: Duration = Duration::from_millis(300);
/// Faults at one time.
const AT_ONCE: usize = 2;
/// Time between two looks whether the soak is over.
const LOOK: Duration = Duration::from_millis(50);
/// Max time of attempts to start a node, longer than etcd is away.
const START: Duration = Duration::from_secs(40);
/// Time for which a node is away from etcd and the others in [`Faults::Islands`]: its lease ends after 5 s, and a claim takes 7 s more.
const ISLAND: Duration = Duration::from_secs(18);
/// Time for which the other nodes do not hear a node in [`Faults::SilentHolders`]: begins of writes wait for 2.5 s of it.
const SILENCE: Duration = Duration::from_secs(8);
/// Time for which the leader of etcd is stopped: a lease ends after 5 s.
const LEADER_STOP: Duration = Duration::from_secs(8);

/// Which faults happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Faults {
    /// Of all kinds, drawn from the seed.
    Drawn,
    None,
    /// One node after the other is silent to etcd and to the others, long enough to lose its shards. Clients reach it.
    Islands,
    /// The same, shorter: all leases are revoked as soon as the node is silent.
    Revoked,
    /// One node after the other ends by SIGTERM and starts again.
    Restarts,
    /// One node after the other does not respond to the others.
    SilentHolders,
    /// etcd is stopped, so no node has authority, and the origin is slow, for each request another time.
    NoAuthority,
    /// The origin is slow, for each request another time.
    SlowOrigin,
    /// Requests to one node after the other are slow.
    SlowHolders,
    /// The leader of etcd is stopped for longer than a lease lasts, again and again. Needs an etcd of three members.
    StoppedLeaders,
}

impl Faults {
    /// Returns whether clients begin when all shards are held.
    pub(super) fn needs_authority(self) -> bool {
        self != Self::Drawn
    }

    /// Returns the members that etcd needs.
    #[must_use]
    pub fn etcd_members(self) -> usize {
        match self {
            Self::StoppedLeaders => 3,
            _ => 1,
        }
    }

    /// Returns whether a request may take as long as several requests to the origin.
    pub(super) fn slows_the_origin(self) -> bool {
        matches!(self, Self::NoAuthority | Self::SlowOrigin)
    }
}

/// A drawn fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    Stop,
    Terminate,
    StopEtcd,
    KillEtcd,
    RevokeLease,
    CutPeers,
    SilencePeers,
    DelayPeers,
    CutEtcd,
    SilenceEtcd,
    DelayOrigin,
    Island,
}

/// Faults with their weights.
const WEIGHTS: [(Fault, u32); 13] = [
    (Fault::Kill, 4),
    (Fault::Stop, 4),
    (Fault::Terminate, 2),
    (Fault::StopEtcd, 1),
    (Fault::KillEtcd, 1),
    (Fault::RevokeLease, 2),
    (Fault::CutPeers, 2),
    (Fault::SilencePeers, 2),
    (Fault::DelayPeers, 3),
    (Fault::CutEtcd, 1),
    (Fault::SilenceEtcd, 2),
    (Fault::DelayOrigin, 3),
    (Fault::Island, 2),
];

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "kills",
            Self::Stop => "stops",
            Self::Terminate => "SIGTERMs",
            Self::StopEtcd => "etcd stops",
            Self::KillEtcd => "etcd kills",
            Self::RevokeLease => "leases revoked",
            Self::CutPeers => "peer cuts",
            Self::SilencePeers => "silent peers",
            Self::DelayPeers => "slow peers",
            Self::CutEtcd => "etcd cuts",
            Self::SilenceEtcd => "silent etcd",
            Self::DelayOrigin => "slow origin",
            Self::Island => "islands",
        }
    }
}

/// Runs the faults of the plan until the clients are done.
pub(super) async fn run(soak: Arc<Soak>) -> Result<(), CaseError> {
    if soak.cluster.etcd.is_empty() {
        return Ok(());
    }
    let done = match soak.plan.faults {
        Faults::None => Ok(()),
        Faults::Drawn => drawn(&soak).await,
        scenario => repeat(&soak, scenario).await,
    };
    for node in &soak.cluster.nodes {
        node.heal();
    }
    done
}

fn is_over(soak: &Soak) -> bool {
    // Relaxed: a fault that misses it lasts a look longer.
    soak.over.load(Relaxed)
}

/// Waits for so long, or until the clients are done.
async fn pause(soak: &Soak, time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time && !is_over(soak) {
        tokio::time::sleep(LOOK.min(time)).await;
    }
}

async fn drawn(soak: &Arc<Soak>) -> Result<(), CaseError> {
    let mut rng = StdRng::seed_from_u64(mix(soak.plan.seed) ^ 0xFA17);
    let mut faults = JoinSet::new();
    while !is_over(soak) {
        pause(soak, Duration::from_millis(rng.random_range(100..1_200))).await;
        // All is drawn before the look at what runs, so that the seed fixes it.
        let weighted = WEIGHTS.choose_weighted(&mut rng, |(_, weight)| *weight);
        let fault = weighted.map_or(Fault::Stop, |(fault, _)| *fault);
        let node = rng.random_range(0..soak.plan.nodes);
        let longest = soak.plan.max_fault.div_duration_f64(MIN_FAULT);
        let time = MIN_FAULT.mul_f64(longest.powf(rng.random::<f64>()));
        let delay = Duration::from_millis(rng.random_range(2..150));
        while faults.len() >= AT_ONCE {
            if let Some(ended) = faults.join_next().await {
                ended.map_err(std::io::Error::other)??;
            }
        }
        let soak = Arc::clone(soak);
        faults.spawn(async move { apply(&soak, fault, node, (time, delay)).await });
    }
    while let Some(ended) = faults.join_next().await {
        ended.map_err(std::io::Error::other)??;
    }
    Ok(())
}

/// Counts a fault, and keeps it for the report of a wrong result.
fn note(soak: &Soak, fault: Fault, node: usize, (time, delay): (Duration, Duration)) {
    /// Faults that are kept.
    const KEPT: usize = 16;
    *soak.faults.lock().entry(fault.name()).or_default() += 1;
    let begun = soak.begun.elapsed();
    let mut latest = soak.latest_faults.lock();
    if latest.len() == KEPT {
        latest.pop_front();
    }
    latest.push_back(format!(
        "{begun:.1?} {} node {node} for {time:.1?} delay {delay:?}",
        fault.name()
    ));
}

async fn apply(
    soak: &Soak,
    fault: Fault,
    node: usize,
    (time, delay): (Duration, Duration),
) -> Result<(), CaseError> {
    note(soak, fault, node, (time, delay));
    let node = &soak.cluster.nodes[node];
    match fault {
        Fault::Kill => restart(soak, node, Signal::KILL, time).await?,
        Fault::Terminate => restart(soak, node, Signal::TERM, time).await?,
        Fault::Stop => {
            let _alone = node.busy.lock().await;
            node.signal(Signal::STOP);
            pause(soak, time).await;
            node.signal(Signal::CONT);
        }
        Fault::StopEtcd => {
            let etcd = etcd::leader(soak).await;
            etcd.lock().signal(Signal::STOP)?;
            pause(soak, time).await;
            etcd.lock().signal(Signal::CONT)?;
        }
        Fault::KillEtcd => {
            let etcd = etcd::leader(soak).await;
            etcd.lock().kill()?;
            pause(soak, time).await;
            etcd.lock().restart()?;
        }
        Fault::RevokeLease => etcd::revoke(soak, 1).await,
        Fault::CutPeers => {
            node.peers.set(LinkState::Cut);
            pause(soak, time).await;
        }
        Fault::SilencePeers => {
            node.peers.set(LinkState::Silent);
            pause(soak, time).await;
        }
        Fault::DelayPeers => {
            node.peers.set(LinkState::Delayed(delay));
            pause(soak, time).await;
        }
        Fault::CutEtcd => {
            node.set_etcd(LinkState::Cut);
            pause(soak, time).await;
        }
        Fault::SilenceEtcd => {
            node.set_etcd(LinkState::Silent);
            pause(soak, time).await;
        }
        Fault::DelayOrigin => {
            node.origin.set(LinkState::Delayed(delay));
            pause(soak, time).await;
        }
        Fault::Island => {
            silence(node);
            pause(soak, time).await;
        }
    }
    node.heal();
    Ok(())
}

fn silence(node: &Node) {
    node.set_etcd(LinkState::Silent);
    node.peers.set(LinkState::Silent);
}

/// Ends a node, and starts it again after a time.
async fn restart(
    soak: &Soak,
    node: &Node,
    signal: Signal,
    time: Duration,
) -> Result<(), CaseError> {
    let _alone = node.busy.lock().await;
    node.end(signal).await?;
    pause(soak, time).await;
    let begun = Instant::now();
    loop {
        match node.start().await {
            Err(_) if begun.elapsed() < START => tokio::time::sleep(4 * LOOK).await,
            started => break started?,
        }
    }
    while !node.joined().await && begun.elapsed() < START && !is_over(soak) {
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// Repeats a scenario with one node after the other.
async fn repeat(soak: &Arc<Soak>, scenario: Faults) -> Result<(), CaseError> {
    let mut rng = StdRng::seed_from_u64(mix(soak.plan.seed) ^ 0xFA17);
    if scenario == Faults::NoAuthority {
        etcd::signal_all(soak, Signal::STOP)?;
    }
    while !is_over(soak) {
        let node = &soak.cluster.nodes[rng.random_range(0..soak.plan.nodes)];
        let time = begin(soak, scenario, node, &mut rng).await?;
        *soak.faults.lock().entry("scenarios").or_default() += 1;
        pause(soak, time).await;
        node.heal();
        if matches!(scenario, Faults::Islands | Faults::Revoked) {
            // The node registers again and gets shards back.
            pause(soak, Duration::from_secs(12)).await;
        }
    }
    if scenario == Faults::NoAuthority {
        etcd::signal_all(soak, Signal::CONT)?;
    }
    Ok(())
}

/// Begins a scenario at a node. Returns how long it lasts.
async fn begin(
    soak: &Arc<Soak>,
    scenario: Faults,
    node: &Node,
    rng: &mut StdRng,
) -> Result<Duration, CaseError> {
    let time = match scenario {
        Faults::Islands => {
            silence(node);
            ISLAND
        }
        Faults::Revoked => {
            silence(node);
            // The node's next keepalive is not sent any more.
            etcd::revoke(soak, usize::MAX).await;
            Duration::from_secs(4)
        }
        Faults::Restarts => {
            restart(soak, node, Signal::TERM, Duration::ZERO).await?;
            // Members settle for 2 s, and shards come back.
            Duration::from_secs(6)
        }
        Faults::SilentHolders => {
            node.peers.set(LinkState::Silent);
            SILENCE
        }
        Faults::NoAuthority => {
            // Some questions take longer than a window, and some writes much shorter.
            let max = Duration::from_millis(1_500);
            node.origin.set(LinkState::Jittered(max));
            Duration::from_secs(4)
        }
        Faults::SlowOrigin => {
            let max = Duration::from_millis(400);
            node.origin.set(LinkState::Jittered(max));
            Duration::from_secs(4)
        }
        Faults::SlowHolders => {
            let delay = Duration::from_millis(rng.random_range(20..60));
            node.peers.set(LinkState::Delayed(delay));
            Duration::from_secs(3)
        }
        Faults::StoppedLeaders => {
            let before = etcd::leases(soak).await;
            let leader = etcd::leader(soak).await;
            leader.lock().signal(Signal::STOP)?;
            pause(soak, LEADER_STOP).await;
            leader.lock().signal(Signal::CONT)?;
            pause(soak, Duration::from_secs(1)).await;
            let after = etcd::leases(soak).await;
            let lost = before.difference(&after).count();
            *soak.faults.lock().entry("leases lost").or_default() += lost as u64;
            Duration::from_secs(4)
        }
        Faults::Drawn | Faults::None => Duration::from_secs(1),
    };
    Ok(time)
}
