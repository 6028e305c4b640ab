//! The judged soak of a cluster: real processes, faults from a seed, and an oracle that knows what each read may return.
//!
//! The seed fixes what each client tries and which fault comes when. It does not fix how they meet, so a failure is repeated by its seed
//! with a good chance, not for certain.

mod clients;
pub mod controls;
mod etcd;
mod faults;
mod history;
pub(crate) mod nodes;
mod origin;
mod report;
mod stats;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bywash_sim::server::Server;
use bywash_sim::{Oracle, Rules};
use parking_lot::Mutex;
use tokio::task::JoinSet;

pub use faults::Faults;
pub use history::{CHECKER, Judging, checker};
pub use report::Report;

use self::clients::{Soak, Times, run_client};
use self::history::History;
use self::nodes::{Cluster, NodeSetup};
use self::origin::JudgedStore;
use crate::CaseError;
use crate::record::Record;

/// Time between two samples of counters.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// States of objects that ended so long ago are forgotten: longer than any request and any window.
const FORGET: Duration = Duration::from_secs(40);
/// Max time after the last fault until all nodes are up and hold all shards: a claim takes 13 s.
const SETTLE: Duration = Duration::from_secs(45);

/// What a soak does.
#[derive(Debug, Clone)]
pub struct Plan {
    pub binary: PathBuf,
    /// etcd's program; `None` for nodes that do not know each other.
    pub etcd: Option<PathBuf>,
    pub seed: u64,
    /// Operations of all clients together.
    pub ops: u64,
    /// Operations a second, as far as nodes respond.
    pub rate: u64,
    pub nodes: usize,
    pub clients: u64,
    pub keys: u64,
    /// Window of the bucket.
    pub window: Duration,
    pub faults: Faults,
    /// Longest stop, cut and absence of a process.
    pub max_fault: Duration,
    /// Share of changes behind the cluster's back, in per mille.
    pub behind: u32,
    /// Share of PUTs, in per mille. There are a fifth as many deletions.
    pub puts: u32,
    /// Rule that a build with that feature leaves out.
    pub leave_out: Option<String>,
    /// How the checker of linearizability judges the history; `None`: only the oracle judges.
    pub judging: Option<Judging>,
}

impl Plan {
    /// A soak of three nodes with drawn faults.
    #[must_use]
    pub fn new(binary: PathBuf, etcd: Option<PathBuf>, seed: u64) -> Self {
        Self {
            binary,
            etcd,
            seed,
            ops: 10_000,
            rate: 400,
            nodes: 3,
            clients: 24,
            keys: 24,
            window: Duration::from_secs(1),
            faults: Faults::Drawn,
            max_fault: Duration::from_secs(15),
            behind: 20,
            puts: 220,
            leave_out: None,
            judging: None,
        }
    }

    /// The checker of linearizability as the only judge of this plan, by the promise of a cluster under faults.
    #[must_use]
    pub fn judging_by(&self, checker: PathBuf) -> Judging {
        Judging {
            checker,
            window: self.window,
            is_strict: false,
            is_alone: true,
        }
    }

    /// The same on a scale that takes less than 40 s.
    #[must_use]
    pub fn short(self) -> Self {
        Self {
            ops: 1_500,
            max_fault: Duration::from_secs(4),
            ..self
        }
    }
}

/// Runs a soak, until its operations are done or a wrong result is found.
///
/// # Errors
/// If a process does not start, or ends by itself.
pub async fn run(plan: &Plan) -> Result<Report, CaseError> {
    run_recorded(plan, &Arc::new(Record::default())).await
}

/// As [`run`], with the requests in a record of the caller.
///
/// # Errors
/// As [`run`].
pub async fn run_recorded(plan: &Plan, record: &Arc<Record>) -> Result<Report, CaseError> {
    let folder = tempfile::Builder::new()
        .prefix("bywash-cluster-")
        .tempdir()?;
    let oracle = Arc::new(Oracle::default());
    let store = Arc::new(JudgedStore::new(&oracle));
    let server = Server::start(Arc::<JudgedStore>::clone(&store)).await?;
    let origin = address_of(&server)?;
    let setup = NodeSetup {
        binary: plan.binary.clone(),
        cluster: plan.etcd.as_ref().map(|_| "soak".to_owned()),
        window: plan.window,
        leave_out: plan.leave_out.clone(),
    };
    let cluster = Cluster::start(
        folder.path(),
        plan.etcd
            .as_deref()
            .map(|etcd| (etcd, plan.faults.etcd_members())),
        &setup,
        (plan.nodes, origin),
    );
    let soak = Arc::new(Soak {
        plan: plan.clone(),
        cluster: cluster.await?,
        rules: Rules {
            window: Some(plan.window),
            tight_memory: false,
        },
        oracle,
        store,
        record: Arc::clone(record),
        begun: Instant::now(),
        history: plan
            .judging
            .as_ref()
            .map(|_| History::create(folder.path()))
            .transpose()?,
        next: AtomicU64::new(0),
        failed: Mutex::default(),
        internal: Mutex::default(),
        over: AtomicBool::new(false),
        violation: Mutex::new(None),
        reads: Times::default(),
        writes: Times::default(),
        faults: Mutex::default(),
        latest_faults: Mutex::default(),
    });
    let settled = drive(&soak, &server).await;
    let mut report = Report::of(&soak, settled.as_ref().ok().copied().flatten()).await;
    if let (Some(judging), Some(history)) = (&plan.judging, &soak.history) {
        report.add_verdict(history.judged(judging).await?);
    }
    let is_control = plan.etcd.is_none() || plan.leave_out.is_some();
    if report.violation.is_some() && !is_control {
        let kept = folder.keep();
        eprintln!("logs of the nodes are in {}", kept.display());
    }
    settled?;
    Ok(report)
}

/// Returns the address of a store.
pub(crate) fn address_of(server: &Server) -> Result<SocketAddr, CaseError> {
    let url = server.url();
    let address = url.rsplit('/').next().and_then(|text| text.parse().ok());
    Ok(address.ok_or("the origin has no address")?)
}

/// Runs clients and faults to their end, heals everything and looks at every object through every node.
async fn drive(soak: &Arc<Soak>, server: &Server) -> Result<Option<Duration>, CaseError> {
    let sampler = tokio::spawn(sample(Arc::clone(soak)));
    if soak.plan.faults.needs_authority() {
        soak.cluster.settled(SETTLE).await?;
    }
    let faults = tokio::spawn(faults::run(Arc::clone(soak)));
    let mut clients = JoinSet::new();
    for number in 0..soak.plan.clients {
        clients.spawn(run_client(Arc::clone(soak), number));
    }
    let mut logs = tokio::time::interval(SAMPLE_EVERY);
    loop {
        tokio::select! {
            // Counted by the store itself; the log would grow without end.
            _ = logs.tick() => drop(server.take_log()),
            ended = clients.join_next() => match ended {
                Some(ended) => ended.map_err(std::io::Error::other)?,
                None => break,
            },
        }
    }
    // Relaxed: a fault that misses it begins once more.
    soak.over.store(true, Relaxed);
    faults.await.map_err(std::io::Error::other)??;
    sampler.abort();
    if let Some(ended) = soak.cluster.nodes.iter().find_map(|node| node.ended()) {
        return Err(ended.into());
    }
    if soak.is_violated() {
        return Ok(None);
    }
    let settled = soak.cluster.settled(SETTLE).await?;
    clients::look_at_all(soak).await;
    drop(server.take_log());
    Ok(Some(settled))
}

/// Samples counters, and forgets states of objects that no read can return.
async fn sample(soak: Arc<Soak>) {
    loop {
        for node in &soak.cluster.nodes {
            node.sample().await;
        }
        soak.oracle.forget_older(FORGET + soak.plan.window);
        tokio::time::sleep(SAMPLE_EVERY).await;
    }
}
