//! Several engines over one origin, with an authority and peers that are calls within the process.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use bywash::cluster::{
    Cluster, CurrentVersion, PeerBody, PeerRead, Peers, VersionAuthority, VersionSource, WriteEnd,
    WriteTurn,
};
use bywash::origin::memory::MemoryStore;
use bywash::{
    Bucket, BucketOptions, BucketStats, Consistency, Engine, EngineBuilder, EngineError, Origin,
    RetryPolicy,
};
use bywash_sim::WrappedMemory;
use bywash_support::faulty_store::FaultyStore;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt, Result};
use parking_lot::Mutex;

pub(super) const BLOCK: usize = 16 << 10;
/// Bytes of a stripe: two blocks.
pub(super) const STRIPE: u64 = 2 * BLOCK as u64;

/// An authority's state of one object.
#[derive(Debug, Default)]
struct Known {
    version: Option<CurrentVersion>,
    /// Nodes that hold a read lease.
    leases: BTreeSet<usize>,
    /// Writes that began or ended.
    writes: u64,
    /// Writes in progress.
    marks: usize,
}

/// The bucket of one node, with its window.
type Source = (Option<Duration>, Arc<dyn VersionSource>);

/// The one authority of all nodes: leases never end, and a write drops them.
#[derive(Debug, Default)]
pub(super) struct Authority {
    objects: Mutex<BTreeMap<String, Known>>,
    sources: Mutex<BTreeMap<usize, Source>>,
    pub(super) log: Mutex<Vec<String>>,
    /// Ends of writes fail.
    pub(super) refuses_ends: Mutex<bool>,
    pub(super) windows: Mutex<Vec<Option<Duration>>>,
    questions: Mutex<u64>,
}

impl Authority {
    fn touch(&self, paths: &[Path], marks: isize) {
        for path in paths {
            let mut objects = self.objects.lock();
            let known = objects.entry(path.to_string()).or_default();
            known.writes += 1;
            known.marks = known.marks.saturating_add_signed(marks);
            known.version = None;
            known.leases.clear();
            drop(objects);
            // As a node does: a version under a window is compared with the current one anyway.
            for (window, source) in self.sources.lock().values() {
                if window.is_none() {
                    source.forget(path);
                }
            }
        }
    }

    /// Drops an object as a write does, except at a node that the drop does not reach.
    pub(super) fn drop_except(&self, missed: usize, path: &Path) {
        self.objects.lock().remove(path.as_ref());
        for (node, (_, source)) in &*self.sources.lock() {
            if *node != missed {
                source.forget(path);
            }
        }
    }

    /// Returns the number of questions and looks at leases.
    pub(super) fn questions(&self) -> u64 {
        *self.questions.lock()
    }

    pub(super) fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock())
    }
}

#[derive(Debug)]
struct NodeAuthority {
    node: usize,
    shared: Arc<Authority>,
}

#[async_trait]
impl VersionAuthority for NodeAuthority {
    fn attach(&self, _: &str, window: Option<Duration>, source: Arc<dyn VersionSource>) {
        self.shared.windows.lock().push(window);
        self.shared
            .sources
            .lock()
            .insert(self.node, (window, source));
    }

    fn detach(&self, _: &str) {
        self.shared.sources.lock().remove(&self.node);
    }

    fn current(&self, _: &str, path: &str) -> Option<CurrentVersion> {
        *self.shared.questions.lock() += 1;
        // As a node does: of objects that never change there are no leases.
        self.shared.sources.lock().get(&self.node)?.0?;
        let objects = self.shared.objects.lock();
        let known = objects.get(path)?;
        known.leases.contains(&self.node).then_some(())?;
        known.version.clone()
    }

    async fn read(&self, _: &str, path: &Path) -> Result<CurrentVersion> {
        *self.shared.questions.lock() += 1;
        let before = {
            let mut objects = self.shared.objects.lock();
            let known = objects.entry(path.to_string()).or_default();
            if let Some(version) = known.version.clone() {
                known.leases.insert(self.node);
                return Ok(version);
            }
            known.writes
        };
        let source = self.shared.sources.lock().values().next().cloned();
        let (_, source) = source.unwrap();
        let version = source.request(path).await?;
        let mut objects = self.shared.objects.lock();
        let known = objects.entry(path.to_string()).or_default();
        if known.writes == before && known.marks == 0 {
            known.version = Some(version.clone());
            known.leases.insert(self.node);
        }
        Ok(version)
    }

    async fn begin_write(&self, _: &str, paths: Vec<Path>) -> Box<dyn WriteTurn> {
        let names: Vec<_> = paths.iter().map(ToString::to_string).collect();
        self.shared
            .log
            .lock()
            .push(format!("begin {}", names.join(" ")));
        self.shared.touch(&paths, 1);
        Box::new(Turn {
            paths,
            shared: Arc::clone(&self.shared),
            ended: false,
        })
    }
}

#[derive(Debug)]
struct Turn {
    paths: Vec<Path>,
    shared: Arc<Authority>,
    ended: bool,
}

impl Turn {
    fn note(&self, end: WriteEnd) {
        let names: Vec<_> = self.paths.iter().map(ToString::to_string).collect();
        let line = format!("{end:?} {}", names.join(" "));
        self.shared.log.lock().push(line);
        self.shared.touch(&self.paths, -1);
    }
}

#[async_trait]
impl WriteTurn for Turn {
    async fn end(mut self: Box<Self>, end: WriteEnd) -> Result<()> {
        self.ended = true;
        self.note(end);
        if *self.shared.refuses_ends.lock() {
            return Err(EngineError::SlowDown {
                operation: "write",
                object: "a".to_owned(),
                waited_s: 15,
            }
            .into());
        }
        Ok(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.ended {
            self.note(WriteEnd::InDoubt);
        }
    }
}

/// Fault of a peer's response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// Never a response.
    Silence,
    /// A response that never has a byte.
    SilentBody,
    /// Fails after this many bytes.
    FailAfter(usize),
    /// Ends after this many bytes.
    EndAfter(usize),
}

/// The owners of stripes, and the nodes' buckets.
#[derive(Debug)]
pub(super) struct Ring {
    buckets: Mutex<Vec<Bucket>>,
    /// Owner of a stripe by the node that is asked, and the stripe's number.
    owner: fn(usize, u64) -> usize,
    pub(super) fault: Mutex<Fault>,
    /// Requests between nodes: from, to.
    pub(super) asked: Mutex<Vec<(usize, usize)>>,
}

#[derive(Debug)]
struct NodePeers {
    node: usize,
    ring: Weak<Ring>,
}

#[async_trait]
impl Peers for NodePeers {
    fn stripe_end(&self, at: u64) -> u64 {
        (at / STRIPE + 1) * STRIPE
    }

    async fn read(&self, wanted: PeerRead) -> Option<PeerBody> {
        let ring = self.ring.upgrade()?;
        let owner = (ring.owner)(self.node, wanted.range.start / STRIPE);
        if owner == self.node {
            return None;
        }
        ring.asked.lock().push((self.node, owner));
        let fault = *ring.fault.lock();
        if fault == Fault::Silence {
            return futures::future::pending().await;
        }
        let bucket = ring.buckets.lock()[owner].clone();
        let found = bucket.serve_peer(&wanted, false).ok()?;
        Some(PeerBody {
            bytes: faulty(found.bytes, fault),
            ..found
        })
    }

    fn is_own(&self, _: &str, _: &Path, at: u64) -> bool {
        let ring = self.ring.upgrade();
        ring.is_none_or(|ring| (ring.owner)(self.node, at / STRIPE) == self.node)
    }
}

fn faulty(
    body: BoxStream<'static, Result<Bytes>>,
    fault: Fault,
) -> BoxStream<'static, Result<Bytes>> {
    let cut = |body: BoxStream<'static, Result<Bytes>>, length: usize| {
        let pieces = body.scan(length, |left, piece| {
            let piece = piece.map(|mut piece| {
                piece.truncate(*left);
                *left -= piece.len();
                piece
            });
            let ended = matches!(&piece, Ok(piece) if piece.is_empty());
            futures::future::ready((!ended).then_some(piece))
        });
        pieces.boxed()
    };
    match fault {
        Fault::None => body,
        Fault::Silence | Fault::SilentBody => stream::pending().boxed(),
        Fault::EndAfter(length) => cut(body, length),
        Fault::FailAfter(length) => {
            let error = Error::Generic {
                store: "peer",
                source: "connection reset".into(),
            };
            cut(body, length).chain(stream::iter([Err(error)])).boxed()
        }
    }
}

/// Several engines over one origin.
pub(super) struct Nodes {
    pub(super) memory: MemoryStore,
    /// Between the engines and the memory.
    pub(super) faults: FaultyStore,
    pub(super) engines: Vec<Engine>,
    pub(super) buckets: Vec<Bucket>,
    pub(super) authority: Arc<Authority>,
    pub(super) ring: Arc<Ring>,
}

/// Stripes in turn; all nodes agree.
pub(super) fn in_turn(_: usize, stripe: u64) -> usize {
    (stripe % 3) as usize
}

impl Nodes {
    pub(super) fn new() -> Self {
        Self::with(3, in_turn, Consistency::default(), |builder| builder)
    }

    pub(super) fn with(
        count: usize,
        owner: fn(usize, u64) -> usize,
        options: impl Into<BucketOptions>,
        set: impl Fn(EngineBuilder) -> EngineBuilder,
    ) -> Self {
        let memory = MemoryStore::new();
        let faults = FaultyStore::over(Arc::new(memory.clone()));
        let origin = Arc::new(WrappedMemory::new(faults.shared(), memory.clone()));
        Self::over(origin, (memory, faults), count, owner, options, set)
    }

    pub(super) fn over(
        origin: Arc<dyn Origin>,
        (memory, faults): (MemoryStore, FaultyStore),
        count: usize,
        owner: fn(usize, u64) -> usize,
        options: impl Into<BucketOptions>,
        set: impl Fn(EngineBuilder) -> EngineBuilder,
    ) -> Self {
        let authority = Arc::new(Authority::default());
        let ring = Arc::new(Ring {
            buckets: Mutex::default(),
            owner,
            fault: Mutex::new(Fault::None),
            asked: Mutex::default(),
        });
        let options = options.into();
        let engine = |node| {
            let builder = Engine::builder()
                .memory(16 << 20)
                .block_size(BLOCK)
                .chunk_size(4 * BLOCK)
                .retry(RetryPolicy {
                    stall: Duration::from_secs(2),
                    ..RetryPolicy::default()
                })
                .cluster(Cluster {
                    versions: Arc::new(NodeAuthority {
                        node,
                        shared: Arc::clone(&authority),
                    }),
                    peers: Arc::new(NodePeers {
                        node,
                        ring: Arc::downgrade(&ring),
                    }),
                });
            set(builder).build().unwrap()
        };
        let engines: Vec<Engine> = (0..count).map(engine).collect();
        let mount = |engine: &Engine| engine.mount("data", Arc::clone(&origin), options).unwrap();
        let buckets: Vec<Bucket> = engines.iter().map(mount).collect();
        ring.buckets.lock().clone_from(&buckets);
        Self {
            memory,
            faults,
            engines,
            buckets,
            authority,
            ring,
        }
    }

    /// Stores an object behind the cluster's back.
    pub(super) async fn store(&self, path: &Path, bytes: Bytes) {
        self.memory.put(path, bytes.into()).await.unwrap();
    }

    pub(super) async fn read(&self, node: usize, path: &Path) -> Result<Bytes> {
        self.buckets[node].get(path).await?.bytes().await
    }

    pub(super) fn stats(&self, node: usize) -> BucketStats {
        self.engines[node].stats().buckets["data"]
    }

    /// Returns the ranges requested from the origin since the last call, and the number of requests without one.
    pub(super) fn take_requests(&self) -> (Vec<Range<u64>>, usize) {
        let gets = self.faults.gets();
        let ranges: Vec<_> = gets.iter().filter_map(|(_, range)| range.clone()).collect();
        let heads = gets.len() - ranges.len();
        (ranges, heads)
    }
}
