//! The processes of a soak: etcd, and nodes behind links that can be cut.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bywash_support::cluster::{
    Etcd, Membership, cluster_stats, dying_with_this_thread, free_address, in_short, is_settled,
    write_key,
};
use bywash_support::link::{Link, LinkState};
use bywash_support::process::{Addresses, BywashProcess, without_settings};
use bywash_support::sign::{KEY, SECRET};
use parking_lot::Mutex;
use rustix::process::Signal;
use tokio::task::spawn_blocking;

use super::origin::BUCKET;
use super::stats::Stats;
use crate::CaseError;

/// `--memory` of a node: more than the objects of a soak.
const MEMORY: u64 = 64 << 20;
/// Time for which a node that ends serves peers.
const DRAIN: Duration = Duration::from_millis(500);

/// What each node is started with.
#[derive(Debug, Clone)]
pub(crate) struct NodeSetup {
    pub(crate) binary: PathBuf,
    /// Name of the cluster; `None` for nodes that do not know each other, a control.
    pub(crate) cluster: Option<String>,
    /// Window of the bucket.
    pub(crate) window: Duration,
    /// Rule that a build with that feature leaves out.
    pub(crate) leave_out: Option<String>,
}

/// One node: its process, if it runs, and the links to it and from it.
pub(crate) struct Node {
    number: usize,
    folder: PathBuf,
    setup: NodeSetup,
    /// From the other nodes.
    pub(crate) peers: Link,
    /// To the members of etcd.
    etcd: Vec<Link>,
    /// To the origin: one of all nodes, whose settings would differ otherwise.
    pub(crate) origin: Arc<Link>,
    /// Where the process listens for the other nodes.
    listen: Mutex<Option<SocketAddr>>,
    key_file: PathBuf,
    process: Mutex<Option<BywashProcess>>,
    addresses: Mutex<Option<Addresses>>,
    /// When a fault of the process began or ended last.
    disturbed: Mutex<Instant>,
    /// Whether the process is stopped.
    stopped: AtomicBool,
    /// Requests of clients in progress.
    pub(crate) in_flight: AtomicUsize,
    /// Held by a fault of the process.
    pub(crate) busy: tokio::sync::Mutex<()>,
    /// Counters of the processes that have ended, and the last ones of the present process.
    stats: Mutex<(Stats, Stats)>,
}

impl Node {
    async fn new(
        number: usize,
        folder: &Path,
        setup: &NodeSetup,
        (members, origin): (&[SocketAddr], &Arc<Link>),
    ) -> Result<Self, CaseError> {
        let mut etcd = Vec::new();
        for member in members {
            etcd.push(Link::start(*member).await?);
        }
        let key_file = folder.join("cluster.key");
        let folder = folder.join(format!("node-{number}"));
        fs::create_dir_all(&folder)?;
        let window = setup.window.as_millis();
        let settings = format!(
            "[[bucket]]\nname = \"{BUCKET}\"\nurl = \"s3://{BUCKET}\"\nconsistency = \"revalidate={window}ms\"\n\
             block-size = \"64KiB\"\n"
        );
        fs::write(folder.join("settings.toml"), settings)?;
        Ok(Self {
            number,
            folder,
            setup: setup.clone(),
            peers: Link::start(free_address()?).await?,
            etcd,
            origin: Arc::clone(origin),
            listen: Mutex::new(None),
            key_file,
            process: Mutex::new(None),
            addresses: Mutex::new(None),
            disturbed: Mutex::new(Instant::now()),
            stopped: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            busy: tokio::sync::Mutex::new(()),
            stats: Mutex::default(),
        })
    }

    #[must_use]
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    fn membership(&self, name: &str) -> Result<Membership, CaseError> {
        // Another port each time: the other nodes know the link alone.
        let listen = free_address()?;
        self.peers.lead_to(listen);
        *self.listen.lock() = Some(listen);
        Ok(Membership {
            etcd: self.etcd.iter().map(Link::address).collect(),
            name: name.to_owned(),
            key_file: self.key_file.clone(),
            advertise: self.peers.address(),
            listen,
            drain: DRAIN,
        })
    }

    /// Starts the process and waits until it is ready.
    ///
    /// # Errors
    /// If it ends, or is not ready in time.
    pub(crate) async fn start(&self) -> Result<(), CaseError> {
        let log = self.folder.join("stderr.log");
        let stderr = File::options().create(true).append(true).open(&log)?;
        let mut command = dying_with_this_thread(&self.setup.binary);
        command
            .args(["serve", "--s3-addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0"])
            .args(["--gcs-addr=off", "--no-history"])
            .arg(format!("--memory={MEMORY}"))
            .args(["--access-key", KEY, "--secret-key", SECRET])
            .arg("--data-dir")
            .arg(self.folder.join("data"))
            .arg("--config")
            .arg(self.folder.join("settings.toml"));
        if let Some(name) = &self.setup.cluster {
            command.args(self.membership(name)?.arguments());
        }
        without_settings(&mut command)
            .env(
                "AWS_ENDPOINT_URL",
                format!("http://{}", self.origin.address()),
            )
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_ACCESS_KEY_ID", "origin")
            .env("AWS_SECRET_ACCESS_KEY", "origin")
            .env("AWS_REGION", "us-east-1");
        if let Some(rule) = &self.setup.leave_out {
            command.env("BYWASH_CLUSTER_LEAVE_OUT", rule);
        }
        command.stdin(Stdio::null()).stderr(stderr);
        // Not on a thread for blocking calls: the process is killed when the thread that spawned it ends.
        let starting = BywashProcess::spawn(&mut command)?;
        let started = spawn_blocking(move || starting.wait_until_ready()).await;
        let process = started.map_err(std::io::Error::other)?.map_err(|error| {
            let text = fs::read_to_string(&log).unwrap_or_default();
            let tail: Vec<&str> = text.lines().rev().take(3).collect();
            CaseError(format!(
                "node {}: {error}; its log: {}",
                self.number,
                tail.join(" | ")
            ))
        })?;
        *self.addresses.lock() = Some(process.addresses.clone());
        *self.process.lock() = Some(process);
        self.disturb();
        Ok(())
    }

    fn disturb(&self) {
        *self.disturbed.lock() = Instant::now();
    }

    /// Returns whether no fault of the process began, lasted or ended since `moment`.
    #[must_use]
    pub(crate) fn is_undisturbed_since(&self, moment: Instant) -> bool {
        // Relaxed: each change comes after one of `disturbed` under its lock.
        !self.stopped.load(Relaxed) && *self.disturbed.lock() < moment
    }

    /// Returns the address of its S3 endpoint; `None` while it does not run.
    #[must_use]
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.addresses.lock().as_ref().map(Addresses::s3_address)
    }

    /// Returns the address at which it listens for the other nodes, without the link.
    #[must_use]
    pub(crate) fn peer_address(&self) -> Option<SocketAddr> {
        *self.listen.lock()
    }

    /// Sends a signal to the process, if it runs.
    pub(crate) fn signal(&self, signal: Signal) {
        self.disturb();
        match signal {
            Signal::STOP => self.stopped.store(true, Relaxed),
            Signal::CONT => self.stopped.store(false, Relaxed),
            _ => {}
        }
        if let Some(process) = &*self.process.lock() {
            // It may have ended by itself, which the end of the soak reports.
            let _ = process.signal(signal);
        }
    }

    /// Kills the process as a power failure would, or asks it to end, and waits for its end.
    ///
    /// # Errors
    /// If it does not end.
    pub(crate) async fn end(&self, signal: Signal) -> Result<(), CaseError> {
        self.sample().await;
        let Some(process) = self.process.lock().take() else {
            return Ok(());
        };
        if signal == Signal::KILL {
            *self.addresses.lock() = None;
        }
        self.disturb();
        process.signal(signal)?;
        let ended = spawn_blocking(move || process.wait()).await;
        *self.addresses.lock() = None;
        let mut stats = self.stats.lock();
        let last = std::mem::take(&mut stats.1);
        stats.0.add(&last);
        ended.map_err(std::io::Error::other)??;
        Ok(())
    }

    /// Returns whether the node is a member. Until then it may be without etcd, and its writes wait longer than those of a member: it
    /// counts as disturbed.
    pub(super) async fn joined(&self) -> bool {
        let joined = self
            .sample()
            .await
            .is_none_or(|stats| stats["state"] == "up");
        self.disturb();
        joined
    }

    /// Reads the counters of the process, if it responds in time.
    pub(crate) async fn sample(&self) -> Option<serde_json::Value> {
        let admin = self.addresses.lock().as_ref()?.admin;
        let cluster = cluster_stats(admin).await?;
        self.stats.lock().1 = Stats::of(&cluster);
        Some(cluster)
    }

    /// Returns the sum of the counters of all its processes, as last seen.
    #[must_use]
    pub(crate) fn stats(&self) -> Stats {
        let stats = self.stats.lock();
        let mut sum = stats.0.clone();
        sum.add(&stats.1);
        sum
    }

    /// Returns the exit status, if the process has ended by itself.
    #[must_use]
    pub(crate) fn ended(&self) -> Option<String> {
        let mut process = self.process.lock();
        let status = process.as_mut()?.try_wait().ok()??;
        Some(format!("node {} ended: {status}", self.number))
    }

    /// Opens all links.
    pub(crate) fn heal(&self) {
        self.peers.set(LinkState::Open);
        self.origin.set(LinkState::Open);
        self.set_etcd(LinkState::Open);
    }

    /// Sets the links to all members of etcd.
    pub(crate) fn set_etcd(&self, state: LinkState) {
        for link in &self.etcd {
            link.set(state);
        }
    }
}

/// All processes of a soak.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Arc<Node>>,
    /// Members of etcd; none for nodes that do not know each other.
    pub(crate) etcd: Vec<Mutex<Etcd>>,
}

impl Cluster {
    /// Starts etcd with so many members and the nodes in `folder`, and waits until each is ready.
    ///
    /// # Errors
    /// If one does not start.
    pub(crate) async fn start(
        folder: &Path,
        etcd: Option<(&Path, usize)>,
        setup: &NodeSetup,
        (count, origin): (usize, SocketAddr),
    ) -> Result<Self, CaseError> {
        let etcd = match etcd {
            Some((program, members)) => {
                write_key(&setup.binary, &folder.join("cluster.key"))?;
                Etcd::start_members(program, &folder.join("etcd"), members)?
            }
            None => Vec::new(),
        };
        let addresses: Vec<SocketAddr> = etcd.iter().map(Etcd::address).collect();
        let etcd = etcd.into_iter().map(Mutex::new).collect();
        let mut nodes = Vec::new();
        let link = Arc::new(Link::start(origin).await?);
        for number in 0..count {
            let node = Node::new(number, folder, setup, (&addresses, &link)).await?;
            nodes.push(Arc::new(node));
        }
        let starts = nodes.iter().map(|node| node.start());
        futures::future::try_join_all(starts).await?;
        Ok(Self { nodes, etcd })
    }

    /// Returns a node for a request: the drawn one, or the next that runs and has fewer than `max` requests in progress.
    #[must_use]
    pub(crate) fn pick(&self, drawn: usize, max: usize) -> Option<(Arc<Node>, SocketAddr)> {
        let count = self.nodes.len();
        (0..count).find_map(|step| {
            let node = &self.nodes[(drawn + step) % count];
            // Relaxed: a limit that two clients may pass together.
            let free = node.in_flight.load(Relaxed) < max;
            let address = node.address().filter(|_| free)?;
            Some((Arc::clone(node), address))
        })
    }

    /// Waits until all nodes are up and hold all shards together. Returns how long that took.
    ///
    /// # Errors
    /// If that takes longer than `limit`.
    pub(crate) async fn settled(&self, limit: Duration) -> Result<Duration, CaseError> {
        let begun = Instant::now();
        loop {
            let mut seen = Vec::new();
            for node in &self.nodes {
                seen.push(node.sample().await);
            }
            if self.etcd.is_empty() || is_settled(&seen, self.nodes.len()) {
                return Ok(begun.elapsed());
            }
            if begun.elapsed() > limit {
                let short: Vec<String> = seen.iter().map(|node| in_short(node.as_ref())).collect();
                return Err(CaseError(format!(
                    "not all shards are held after {limit:?}: {}",
                    short.join("; ")
                )));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Returns the sum of the counters of all nodes.
    #[must_use]
    pub(crate) fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for node in &self.nodes {
            sum.add(&node.stats());
        }
        sum
    }
}
