//! A server as a node of a cluster: its port for other nodes, its place in etcd, and its end.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bywash::cluster::{Cluster, PeerBody, PeerRead, PeerReadError};
use bywash::{Engine, Origin, Reservation, Share, available_memory};
use bywash_cluster::etcd::{ClusterName, Etcd, EtcdError, EtcdUploads};
use bywash_cluster::{
    BlockSource, BucketSettings as SharedSettings, ClusterKeys, ClusterNode, DriverSettings,
    JoinError, KeyError, OBJECT_BYTES, PeerClient, PeerError, PeerIdentity, PeerMemory, PeerPort,
    PortSettings, Settings as MachineSettings, node_id,
};
use bywash_gateway::{ClusterUploads, GcsTokenKeys, HmacSeal};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::data_dir::DataDir;
use super::gcs_accounts::refuse_kept;
use super::settings::{BucketSettings, Settings};
use super::{Signals, bind, stop_asked};
use crate::failure::Failure;

/// Limit of the handover of shards at a stop.
const LEAVE: Duration = Duration::from_secs(3);
/// Max time between two searches of this node for records of multipart uploads that the origin has forgotten. All records of a cluster are
/// looked at in ten searches.
const SWEEP_EVERY: Duration = Duration::from_secs(3600);
/// Part of the memory for the objects that a node keeps state of as their holder, and for its read leases.
const STATE_DIVISOR: u64 = 32;
/// Min number of each, with little memory.
const MIN_OBJECTS: u64 = 1024;

/// The parts of a node that do not serve yet.
pub(super) struct ClusterParts {
    node: ClusterNode,
    listener: TcpListener,
    identity: Arc<PeerIdentity>,
    keys: ClusterKeys,
    client: Arc<PeerClient>,
    port: PortSettings,
    /// Memory of the node's tables, in bytes.
    tables: u64,
    uploads: ClusterUploads,
    token_keys: GcsTokenKeys,
    drain: Duration,
}

impl ClusterParts {
    /// Binds the port, asks etcd for its version and joins, as soon as etcd responds; `None` without `--cluster`.
    pub(super) async fn join(settings: &Settings, data: &DataDir) -> Result<Option<Self>, Failure> {
        let Some(cluster) = &settings.cluster else {
            return Ok(None);
        };
        refuse_kept(&data.gcs_accounts())?;
        let keys = ClusterKeys::read(&cluster.key_file).map_err(unusable)?;
        let listener = bind("--peer-addr", cluster.listen).await?;
        let id = node_id(data.path())
            .map_err(|error| Failure::io("cannot keep the node's identity", &error))?;
        let name = ClusterName::new(&cluster.name)
            .ok_or_else(|| Failure::usage(format!("--cluster: {} is no name", cluster.name)))?;
        let identity = Arc::new(PeerIdentity::new(name.clone(), id));
        let memory = settings.memory.bytes(available_memory());
        let port = PortSettings::for_memory(memory);
        let client = PeerClient::new(Arc::clone(&identity), &keys, port).map_err(unusable)?;
        let client = Arc::new(client);
        let etcd =
            Etcd::connect(name, id, cluster.endpoints.clone()).map_err(|error| refused(&error))?;
        let records = Arc::new(etcd.another());
        match etcd.check_versions().await {
            Ok(()) => {}
            Err(error) if error.may_pass() => tracing::warn!(
                "{error}; the node starts without it, is not ready, and joins when etcd responds: start etcd, or correct --cluster"
            ),
            Err(error) => return Err(refused(&error)),
        }
        let weight = u32::try_from(memory >> 20).unwrap_or(u32::MAX).max(1);
        let objects = (memory / STATE_DIVISOR / OBJECT_BYTES).max(MIN_OBJECTS);
        let machine = MachineSettings::new(
            id,
            rand::random(),
            usize::try_from(objects).unwrap_or(usize::MAX),
        );
        let node = ClusterNode::start(
            etcd,
            DriverSettings {
                machine,
                address: cluster.advertise.clone(),
                weight,
                keys: keys.check_values(),
            },
            Arc::<PeerClient>::clone(&client),
        );
        let (secret, older) = keys.derive("uploads");
        let uploads = ClusterUploads {
            seal: Arc::new(HmacSeal::new(secret, older)),
            shared: Arc::new(EtcdUploads::new(records)),
            sweep_every: SWEEP_EVERY,
        };
        let (secret, older) = keys.derive("gcs access tokens");
        Ok(Some(Self {
            node,
            listener,
            identity,
            client,
            port,
            tables: objects * OBJECT_BYTES,
            uploads,
            token_keys: GcsTokenKeys::new(secret, older),
            keys,
            drain: cluster.drain,
        }))
    }

    /// Interface of the cluster for the engine.
    pub(super) fn for_engine(&self) -> Cluster {
        self.node.as_cluster()
    }

    /// States the settings of a bucket that must be the same at all nodes.
    pub(super) fn describe(&self, bucket: &BucketSettings, origin: &dyn Origin) {
        let identity = origin.identity().map(|identity| identity.reads);
        let shared = SharedSettings {
            url: identity.unwrap_or_else(|| bucket.url.to_string()),
            endpoint: None,
            block_bytes: bucket.reads.block_size.map_or(0, |bytes| bytes as u64),
            consistency: bucket.reads.consistency.to_string(),
        };
        self.node.describe(&bucket.name, &shared);
    }

    /// Charges the memory of the node's tables and of its port, and serves other nodes until the process ends.
    pub(super) fn serve(self, engine: &Engine) -> Result<RunningNode, Failure> {
        let bytes = self.tables + self.port.reserved_bytes();
        let charge = engine.try_reserve(Share::Download, bytes).ok_or_else(|| {
            Failure::usage(format!(
                "--memory: a node of a cluster needs {bytes} bytes for its tables and its port, which are not free; give it more"
            ))
        })?;
        let memory = PeerMemory::new(engine, &self.port);
        self.client.set_memory(&memory);
        let service = Arc::new(self.node.clone());
        let port = PeerPort::new(self.identity, &self.keys, service, &memory, self.port);
        let port = port.map_err(unusable)?;
        self.node.set_blocks(Arc::new(EngineBlocks(engine.clone())));
        let (stop, stopped) = watch::channel(false);
        let serving = tokio::spawn(port.serve(self.listener, stop_asked(stopped)));
        Ok(RunningNode {
            node: self.node,
            drain: self.drain,
            left: OnceLock::new(),
            uploads: self.uploads,
            token_keys: self.token_keys,
            stop,
            serving,
            _charge: charge,
        })
    }
}

fn unusable(error: KeyError) -> Failure {
    Failure::usage(format!("--cluster-key-file: {error}"))
}

fn refused(error: &EtcdError) -> Failure {
    Failure::failed(format!("--cluster: {error}"))
}

fn not_admitted(error: &JoinError) -> Failure {
    let setting = match error {
        JoinError::Etcd(_) => "--cluster",
        JoinError::OtherKey { .. } => "--cluster-key-file",
        JoinError::SameAddress { .. } => "--advertise",
    };
    Failure::failed(format!("{setting}: {error}"))
}

/// A node that serves.
pub(super) struct RunningNode {
    node: ClusterNode,
    drain: Duration,
    left: OnceLock<Instant>,
    uploads: ClusterUploads,
    token_keys: GcsTokenKeys,
    stop: watch::Sender<bool>,
    serving: JoinHandle<usize>,
    /// Charge of its tables, of handshakes at its port, and of calls at others.
    _charge: Reservation,
}

impl RunningNode {
    /// Hands the node's shards over, while it still serves clients.
    pub(super) async fn leave(&self) {
        let left = self.node.leave(LEAVE).await;
        let _ = self.left.set(Instant::now());
        tracing::info!(
            shards = left.held,
            not_handed_over = left.abandoned,
            "left the cluster"
        );
    }

    /// Uploads that any node continues, for the endpoints.
    pub(super) fn uploads(&self) -> ClusterUploads {
        self.uploads.clone()
    }

    /// The keys of access tokens that all nodes have.
    pub(super) fn token_keys(&self) -> GcsTokenKeys {
        self.token_keys.clone()
    }

    /// Returns the failure of a node that has found that it may not join with its settings. Otherwise never returns.
    pub(super) async fn refused(node: Option<&Self>) -> Failure {
        match node {
            Some(node) => not_admitted(&*node.node.refused().await),
            None => std::future::pending().await,
        }
    }

    /// Serves the blocks in memory to other nodes for the rest of `--drain`, or until no other is left. A signal ends it.
    pub(super) async fn drain(node: Option<Self>, signals: &mut Signals) -> Result<(), Failure> {
        let Some(node) = node else {
            return Ok(());
        };
        let since = node.left.get().map_or(Duration::ZERO, Instant::elapsed);
        let rest = node.drain.saturating_sub(since);
        tracing::info!(
            seconds = rest.as_secs(),
            "blocks in memory are served to other nodes, if there are any"
        );
        let served = async {
            let _ = tokio::time::timeout(rest, node.node.until_alone()).await;
            node.stop.send_replace(true);
            let _ = node.serving.await;
        };
        signals.unless_any(served).await
    }
}

/// Blocks of the engine for other nodes.
#[derive(Debug)]
struct EngineBlocks(Engine);

#[async_trait]
impl BlockSource for EngineBlocks {
    async fn read(&self, wanted: PeerRead, peek: bool) -> Result<PeerBody, PeerError> {
        let bucket = self.0.bucket(&wanted.bucket).ok_or(PeerError::Absent)?;
        bucket
            .serve_peer(&wanted, peek)
            .map_err(|error| match error {
                PeerReadError::Busy => PeerError::Busy,
                PeerReadError::Absent => PeerError::Absent,
            })
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Signal, getpid, kill_process};

    use super::super::cluster_settings::DEFAULT_DRAIN;
    use super::super::databases::CLOSE_DEADLINE;
    use super::super::{DISK_DEADLINE, DRAIN_DEADLINE, DRAIN_GRACE};
    use super::*;
    use crate::failure::Kind;

    #[test]
    fn unit_of_systemd_gives_a_node_the_time_to_stop() {
        let unit = include_str!("../../../../packaging/bywash.service");
        let line = unit
            .lines()
            .find_map(|line| line.strip_prefix("TimeoutStopSec="));
        let given = Duration::from_secs(line.unwrap().parse().unwrap());
        // A registration is revoked within a second; the port lets requests end.
        let leave = LEAVE + Duration::from_secs(1);
        let closing = DRAIN_DEADLINE + DRAIN_GRACE + DISK_DEADLINE + CLOSE_DEADLINE;
        let ended = leave + DEFAULT_DRAIN.max(closing) + PortSettings::DEFAULT.drain;
        assert!(given > ended, "{given:?} is given, {ended:?} may be needed");
        // Time that docs/operations.md and the unit state.
        assert!(closing < Duration::from_secs(15));
        assert_eq!(given, DEFAULT_DRAIN + Duration::from_secs(15));
    }

    #[tokio::test]
    async fn signal_ends_what_a_server_that_stops_waits_for() {
        let mut signals = Signals::new().unwrap();
        let done = signals.unless_any(async { 7 }).await;
        assert_eq!(done.unwrap(), 7);
        kill_process(getpid(), Signal::TERM).unwrap();
        let ended = signals.unless_any(std::future::pending::<()>()).await;
        assert_eq!(ended.unwrap_err().kind, Kind::Interrupted);
    }
}
