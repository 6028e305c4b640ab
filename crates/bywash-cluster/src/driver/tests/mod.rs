#![allow(clippy::unwrap_used, reason = "tests")]
//! Nodes over a fake etcd, a network in memory and an origin that counts its requests.

mod bytes_of_peers;
mod faults;
mod hardest;
mod members;
mod start;
mod versions;
mod windows;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bywash::cluster::{
    CurrentVersion, ObjectVersion, PeerBody, PeerRead, VersionAuthority, VersionSource, WriteEnd,
};
use object_store::path::Path;
use object_store::{Attributes, Error, ObjectMeta, Result};
use url::Url;

use super::{BucketSettings, ClusterNode, DriverSettings};
use crate::etcd::tests::fake::Fake;
use crate::etcd::{ClusterName, Etcd};
use crate::message::{PeerRequest, PeerResponse};
use crate::names::{NodeId, Shard};
use crate::node::{Node, Settings};
use crate::placement::{first, shard_hash};
use crate::timing::Timing;
use crate::transport::{PeerAddress, PeerError, PeerService, PeerTransport};

const BUCKET: &str = "data";
const SHARDS: u16 = 32;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Shorter than the product's, so that tests are.
fn timing() -> Timing {
    Timing {
        lease: ms(200),
        keepalive: ms(200),
        register_pause: ms(50),
        authority: ms(1500),
        claim_delay: ms(2000),
        next_in_rank: ms(1000),
        settle: ms(200),
        handovers: 4096,
        suspect: ms(300),
        give_up: ms(1000),
        ..Timing::DEFAULT
    }
}

/// Objects whose versions are numbers.
#[derive(Debug, Default)]
struct Origin {
    objects: Mutex<HashMap<Path, u64>>,
    asked: AtomicUsize,
    /// Questions in progress, and the most that were.
    at_once: Mutex<(usize, usize)>,
    failing: Mutex<bool>,
    /// Time after which it responds.
    delay: Mutex<Duration>,
}

impl Origin {
    fn set(&self, path: &str, version: u64) {
        self.objects
            .lock()
            .unwrap()
            .insert(Path::from(path), version);
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn begin(&self) -> Question<'_> {
        let mut at_once = self.at_once.lock().unwrap();
        at_once.0 += 1;
        at_once.1 = at_once.1.max(at_once.0);
        Question(self)
    }
}

/// A question in progress.
struct Question<'a>(&'a Origin);

impl Drop for Question<'_> {
    fn drop(&mut self) {
        self.0.at_once.lock().unwrap().0 -= 1;
    }
}

/// The origin as one node has it.
#[derive(Debug)]
struct Source {
    origin: Arc<Origin>,
    forgotten: Arc<Mutex<Vec<Path>>>,
}

#[async_trait]
impl VersionSource for Source {
    async fn request(&self, path: &Path) -> Result<CurrentVersion> {
        self.origin.asked.fetch_add(1, Ordering::SeqCst);
        let _question = self.origin.begin();
        let delay = *self.origin.delay.lock().unwrap();
        tokio::time::sleep(delay).await;
        if *self.origin.failing.lock().unwrap() {
            return Err(Error::PermissionDenied {
                path: path.to_string(),
                source: "no".into(),
            });
        }
        let version = self.origin.objects.lock().unwrap().get(path).copied();
        let delay = *self.origin.delay.lock().unwrap();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        Ok(version.map(|version| {
            Arc::new(ObjectVersion {
                meta: ObjectMeta {
                    location: path.clone(),
                    last_modified: chrono::DateTime::UNIX_EPOCH,
                    size: 1,
                    e_tag: Some(version.to_string()),
                    version: None,
                },
                attributes: Attributes::new(),
                tag_count: 0,
                digest: None,
            })
        }))
    }

    fn forget(&self, path: &Path) {
        self.forgotten.lock().unwrap().push(path.clone());
    }
}

fn number(version: &CurrentVersion) -> u64 {
    let version = version.as_ref().unwrap();
    version.meta.e_tag.as_ref().unwrap().parse().unwrap()
}

/// Processes by address; those whose requests and responses are lost.
#[derive(Debug, Default)]
struct Network {
    nodes: Mutex<HashMap<String, ClusterNode>>,
    silent: Mutex<HashSet<String>>,
    /// Those to which no message is sent for lack of memory.
    busy: Mutex<HashSet<String>>,
    /// No frame states that a node is alive.
    mute: AtomicBool,
    /// Messages of begins and ends of writes by their recipient: in progress, and the most that were.
    writes: Mutex<HashMap<String, (usize, usize)>>,
    /// Messages since the start.
    messages: AtomicUsize,
    /// Addresses of all requests.
    dialled: Mutex<Vec<String>>,
}

impl Network {
    /// A message of a write on its way to `address`, for long enough that others are sent in
    /// parallel.
    async fn pass_write(&self, address: &str) {
        {
            let mut writes = self.writes.lock().unwrap();
            let (now, most) = writes.entry(address.to_owned()).or_default();
            *now += 1;
            *most = (*most).max(*now);
        }
        tokio::time::sleep(ms(20)).await;
        self.writes.lock().unwrap().get_mut(address).unwrap().0 -= 1;
    }
}

#[derive(Debug)]
struct Link {
    from: NodeId,
    network: Arc<Network>,
}

impl Link {
    async fn reach(&self, to: &PeerAddress) -> Result<ClusterNode, PeerError> {
        let address = to.address.clone();
        self.network.dialled.lock().unwrap().push(address);
        if self.network.silent.lock().unwrap().contains(&to.address) {
            std::future::pending::<()>().await;
        }
        if self.network.busy.lock().unwrap().contains(&to.address) {
            return Err(PeerError::Busy);
        }
        let node = self.network.nodes.lock().unwrap().get(&to.address).cloned();
        let node = node.ok_or(PeerError::Unreachable)?;
        if node.is_current(to.boot) {
            Ok(node)
        } else {
            Err(PeerError::Unreachable)
        }
    }
}

#[async_trait]
impl PeerTransport for Link {
    async fn call(
        &self,
        to: &PeerAddress,
        requests: Vec<PeerRequest>,
        alive: &(dyn Fn() + Send + Sync),
    ) -> Result<Vec<PeerResponse<CurrentVersion>>, PeerError> {
        self.network.messages.fetch_add(1, Ordering::SeqCst);
        let node = self.reach(to).await?;
        if matches!(
            requests[0],
            PeerRequest::Begin { .. } | PeerRequest::End { .. }
        ) {
            self.network.pass_write(&to.address).await;
        }
        let mut response = node.respond(self.from, requests);
        loop {
            match tokio::time::timeout(ms(50), &mut response).await {
                Ok(response) => return Ok(response),
                Err(_) if self.network.mute.load(Ordering::SeqCst) => {}
                Err(_) => alive(),
            }
        }
    }

    async fn read(
        &self,
        to: &PeerAddress,
        wanted: &PeerRead,
        peek: bool,
        patience: Duration,
    ) -> Result<PeerBody, PeerError> {
        let node = tokio::time::timeout(patience, self.reach(to)).await;
        let node = node.map_err(|_| PeerError::Unreachable)??;
        PeerService::read(&node, self.from, wanted.clone(), peek).await
    }
}

/// A cluster in this process.
struct World {
    fake: Fake,
    endpoint: Url,
    network: Arc<Network>,
    origin: Arc<Origin>,
    shards: u16,
    /// Of the nodes that start from now on.
    timing: Timing,
    processes: u64,
}

/// A process of a node.
struct Process {
    node: ClusterNode,
    address: String,
    forgotten: Arc<Mutex<Vec<Path>>>,
}

impl World {
    async fn new() -> Self {
        let (fake, endpoint) = Fake::start("3.6.16").await;
        Self {
            fake,
            endpoint,
            network: Arc::default(),
            origin: Arc::default(),
            shards: SHARDS,
            timing: timing(),
            processes: 0,
        }
    }

    /// Starts a process of a node, with a bucket of this window.
    fn start(&mut self, node: u64, window: Option<Duration>) -> Process {
        let address = format!("node-{node}:{}", self.processes + 1);
        self.start_with(node, window, &address, &["key"])
    }

    /// Starts one with this address and these check values of keys.
    fn start_with(
        &mut self,
        node: u64,
        window: Option<Duration>,
        address: &str,
        keys: &[&str],
    ) -> Process {
        // Fails only if a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        self.processes += 1;
        let name = ClusterName::new("demo").unwrap();
        let http = reqwest::Client::builder().build().unwrap();
        let etcd = Etcd::new(name, NodeId(node), vec![self.endpoint.clone()], http);
        let mut machine = Settings::new(NodeId(node), self.processes, 10_000);
        machine.timing = self.timing;
        machine.shards = self.shards;
        let address = address.to_owned();
        let settings = DriverSettings {
            machine,
            address: address.clone(),
            weight: 100,
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        };
        let link = Link {
            from: NodeId(node),
            network: Arc::clone(&self.network),
        };
        let node = ClusterNode::start(etcd, settings, Arc::new(link));
        let mut nodes = self.network.nodes.lock().unwrap();
        nodes.insert(address.clone(), node.clone());
        let process = Process {
            node,
            address,
            forgotten: Arc::default(),
        };
        self.attach(&process, window);
        process
    }

    /// Attaches the bucket to a node, in place of the one that it has.
    fn attach(&self, process: &Process, window: Option<Duration>) {
        let bucket = BucketSettings {
            url: "s3://data".to_owned(),
            endpoint: None,
            block_bytes: 1 << 20,
            consistency: format!("{window:?}"),
        };
        process.node.describe(BUCKET, &bucket);
        let source = Source {
            origin: Arc::clone(&self.origin),
            forgotten: Arc::clone(&process.forgotten),
        };
        process.node.attach(BUCKET, window, Arc::new(source));
    }

    /// Starts nodes 1 to `count`, and waits until each holds its shards.
    async fn nodes(&mut self, count: u64, window: Option<Duration>) -> Vec<Process> {
        let nodes: Vec<Process> = (1..=count).map(|node| self.start(node, window)).collect();
        self.settled(&nodes).await;
        nodes
    }

    /// Waits until these nodes see each other up, and each holds the shards that are its own by rank, so that none moves.
    async fn settled(&self, nodes: &[Process]) {
        let settled = || {
            let all = nodes.iter().all(|of| {
                let members = of.node.status().members;
                let up = members
                    .iter()
                    .filter(|of| of.state == Some(crate::etcd::MemberState::Up));
                let view = of.node.core.buckets.read().get(BUCKET).cloned().unwrap();
                let placed = view.candidates.len() + view.differing.len();
                members.len() == nodes.len() && up.count() == nodes.len() && placed >= nodes.len()
            });
            let held: Vec<usize> = nodes.iter().map(|of| of.node.status().shards).collect();
            let ranked = |node: &Node<CurrentVersion>| {
                let candidates = node.view.candidates();
                (0..self.shards).map(Shard).all(|shard| {
                    let holder = node.holder(shard).map(|holder| holder.node);
                    holder.is_some() && holder == first(shard_hash(shard), &candidates)
                })
            };
            let agree = nodes.iter().all(|of| of.node.core.look(ranked));
            let sum: usize = held.iter().sum();
            all && agree && sum == usize::from(self.shards) && !held.contains(&0)
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), until_true(settled)).await;
        if waited.is_err() {
            for of in nodes {
                println!("{:?}", of.node.status());
                println!("{:?}", of.node.core.look(|node| format!("{node:?}")));
            }
            panic!("nodes have not settled");
        }
    }

    /// Ends a process without a word. Its lease ends only with [`Fake::expire`].
    fn kill(&self, process: Process) {
        self.network.nodes.lock().unwrap().remove(&process.address);
    }

    fn expire(&self, node: u64) {
        self.fake.expire(&format!("nodes/{node:016x}/"));
    }
}

/// Waits for a condition that a node's own tasks bring about.
async fn until(what: &str, condition: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(30), until_true(condition)).await;
    assert!(waited.is_ok(), "{what}: not within 30 s");
}

async fn until_true(mut condition: impl FnMut() -> bool) {
    while !condition() {
        tokio::time::sleep(ms(5)).await;
    }
}

impl Process {
    async fn read(&self, path: &str) -> u64 {
        let path = Path::from(path);
        let read = VersionAuthority::read(&self.node, BUCKET, &path);
        number(&read.await.unwrap())
    }

    /// Reads until the version is known here, as the holder's or by a lease: a lease may end before it is looked at.
    async fn read_by_lease(&self, path: &str) -> u64 {
        let reading = async {
            loop {
                let version = self.read(path).await;
                if self.current(path) == Some(version) {
                    return version;
                }
            }
        };
        let read = tokio::time::timeout(Duration::from_secs(30), reading).await;
        read.expect("a lease within 30 s")
    }

    fn current(&self, path: &str) -> Option<u64> {
        let found = self.node.current(BUCKET, path);
        found.as_ref().map(number)
    }

    /// Writes through this node.
    async fn write(&self, origin: &Origin, path: &str, version: u64) -> Result<()> {
        let turn = self.node.begin_write(BUCKET, vec![Path::from(path)]).await;
        origin.set(path, version);
        turn.end(WriteEnd::Written).await
    }

    fn count(&self, name: &str) -> u64 {
        let counts = self.node.status().counts;
        counts.into_iter().find(|(of, _)| *of == name).unwrap().1
    }

    /// Whether it holds the shard of an object.
    fn holds(&self, path: &str) -> bool {
        let key = crate::names::Key::new(BUCKET, path);
        let holder = self.node.core.look(|node| node.holder_of(&key));
        holder.is_some() && holder == self.node.core.me()
    }

    /// An object whose shard it holds.
    fn held(&self) -> String {
        let mut names = (0..1000).map(|name| name.to_string());
        names.find(|name| self.holds(name)).unwrap()
    }
}
