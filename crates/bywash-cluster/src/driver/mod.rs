//! The driver of a node: joins the state machine, etcd and the port of its peers, and serves the engine.
//!
//! The machine is behind one short lock. Its clock is read after an event has arrived, and its
//! actions are executed after the lock is released, each in a task of its own.

mod authority;
mod batch;
mod blocks;
mod buckets;
mod clock;
mod core;
mod counters;
mod directory;
mod faults;
mod identity;
mod join;
mod leave;
mod publish;
mod requests;
mod service;
mod status;
#[cfg(test)]
mod tests;
mod turn;
mod view;

use std::sync::{Arc, OnceLock};

use bywash::cluster::Cluster;
use tokio::task::JoinHandle;

pub use self::buckets::BucketSettings;
use self::core::Core;
pub use self::identity::node_id;
pub use self::join::JoinError;
pub use self::leave::Left;
pub use self::service::BlockSource;
use crate::etcd::Etcd;
use crate::node::Settings;
use crate::transport::PeerTransport;

/// Settings of a node's driver.
#[derive(Debug, Clone)]
pub struct DriverSettings {
    /// Settings of the state machine.
    pub machine: Settings,
    /// Host and port that the node advertises to the others.
    pub address: String,
    /// Mebibytes of cache.
    pub weight: u32,
    /// [Check values](crate::ClusterKeys::check_values) of its cluster keys.
    pub keys: Vec<String>,
}

/// A node of a cluster, while its process runs. Clones are handles of the same node, which ends
/// with the last handle.
#[derive(Debug, Clone)]
pub struct ClusterNode {
    core: Arc<Core>,
    blocks: Arc<OnceLock<Arc<dyn BlockSource>>>,
    _tasks: Arc<Tasks>,
}

/// Tasks that run as long as the node.
#[derive(Debug)]
struct Tasks(Vec<JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

impl ClusterNode {
    /// Starts a node. Returns at once: until it is registered, reads ask the origin and writes wait for their window; writes before
    /// it has read the list of members wait for a holder. Called in a runtime, on which its tasks run.
    #[must_use]
    pub fn start(etcd: Etcd, settings: DriverSettings, transport: Arc<dyn PeerTransport>) -> Self {
        let core = Arc::new(Core::new(settings, etcd, transport));
        let tasks = vec![
            tokio::spawn(Arc::clone(&core).run_admission()),
            tokio::spawn(Arc::clone(&core).run_timers()),
            tokio::spawn(Arc::clone(&core).run_view()),
            tokio::spawn(Arc::clone(&core).run_publisher()),
        ];
        Self {
            core,
            blocks: Arc::default(),
            _tasks: Arc::new(Tasks(tasks)),
        }
    }

    /// States the settings of a bucket that must be the same at all nodes. Called before the bucket is attached.
    pub fn describe(&self, bucket: &str, settings: &BucketSettings) {
        let digest = settings.digest();
        self.core.buckets.write().describe(bucket, digest);
    }

    /// Sets where the blocks come from that other nodes ask for. Only the first call counts.
    pub fn set_blocks(&self, blocks: Arc<dyn BlockSource>) {
        let _ = self.blocks.set(blocks);
    }

    /// This node as the engine's cluster.
    #[must_use]
    pub fn as_cluster(&self) -> Cluster {
        Cluster {
            versions: Arc::new(self.clone()),
            peers: Arc::new(self.clone()),
        }
    }
}
