//! A fake authority of a node of a cluster.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bywash::EngineError;
use bywash::cluster::{
    Cluster as Nodes, ClusterStatus, CurrentVersion, PeerBody, PeerRead, Peers, VersionAuthority,
    VersionSource, WriteEnd, WriteTurn,
};
use object_store::Result;
use object_store::path::Path;

use super::TARGET;

/// An authority that can refuse to confirm writes, of a node that reads the bytes of no other.
#[derive(Debug, Clone, Default)]
pub(crate) struct Authority {
    pub(crate) refuses: Arc<AtomicBool>,
    /// Status that an operator sees.
    pub(crate) status: Arc<Mutex<Option<ClusterStatus>>>,
}

impl Authority {
    /// Services of the authority for an engine.
    pub(crate) fn nodes(&self) -> Nodes {
        Nodes {
            versions: Arc::new(self.clone()),
            peers: Arc::new(self.clone()),
        }
    }
}

#[async_trait]
impl VersionAuthority for Authority {
    fn attach(&self, _: &str, _: Option<Duration>, _: Arc<dyn VersionSource>) {}

    fn detach(&self, _: &str) {}

    fn current(&self, _: &str, _: &str) -> Option<CurrentVersion> {
        None
    }

    async fn read(&self, _: &str, _: &Path) -> Result<CurrentVersion> {
        Ok(None)
    }

    async fn begin_write(&self, _: &str, _: Vec<Path>) -> Box<dyn WriteTurn> {
        Box::new(self.clone())
    }

    fn status(&self) -> Option<ClusterStatus> {
        self.status.lock().unwrap().clone()
    }
}

#[async_trait]
impl WriteTurn for Authority {
    async fn end(self: Box<Self>, end: WriteEnd) -> Result<()> {
        if end == WriteEnd::Written && self.refuses.load(SeqCst) {
            return Err(EngineError::WriteUnconfirmed {
                object: TARGET.to_owned(),
                waited_s: 15,
            }
            .into());
        }
        Ok(())
    }
}

#[async_trait]
impl Peers for Authority {
    fn stripe_end(&self, _: u64) -> u64 {
        u64::MAX
    }

    async fn read(&self, _: PeerRead) -> Option<PeerBody> {
        None
    }

    fn is_own(&self, _: &str, _: &Path, _: u64) -> bool {
        true
    }
}
