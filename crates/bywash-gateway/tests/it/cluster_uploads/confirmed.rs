//! A completion is acknowledged only when no node returns what it replaced, also if an earlier request has sent it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use bywash::cluster::{
    Cluster as Nodes, CurrentVersion, PeerRead, Peers, VersionAuthority, VersionSource, WriteEnd,
    WriteTurn,
};
use bywash::{Engine, EngineError};
use futures::stream::BoxStream;
use object_store::Result;
use object_store::path::Path;

use super::{Cluster, TARGET};
use crate::multipart::{complete, completion};
use crate::server::Server;

/// An authority that can refuse to confirm writes, of a node without others.
#[derive(Debug, Clone, Default)]
struct Authority {
    refuses: Arc<AtomicBool>,
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

    async fn read(&self, _: PeerRead) -> Option<BoxStream<'static, Result<Bytes>>> {
        None
    }

    fn is_own(&self, _: &str, _: &Path, _: u64) -> bool {
        true
    }
}

#[tokio::test]
async fn proven_completion_is_acknowledged_once_no_node_returns_what_it_replaced() {
    let cluster = Cluster::s3().await;
    let id = cluster.begin(TARGET).await;
    let e_tag = cluster.part(&id, 1, b"all").await;
    let authority = Authority::default();
    let nodes = Nodes {
        versions: Arc::new(authority.clone()),
        peers: Arc::new(authority.clone()),
    };
    let builder = Engine::builder().memory(64 << 20).cluster(nodes);
    let engine = builder.build().unwrap();
    cluster.mount(&engine);
    let root = tempfile::tempdir().unwrap();
    let node = Server::start_with(engine, root, cluster.config([1; 32])).await;
    let list = completion(&[(1, &e_tag)]);
    authority.refuses.store(true, SeqCst);
    // The second one finds that the first was stored.
    for _ in 0..2 {
        let refused = complete(&node, TARGET, &id, &[], &list).await;
        assert_eq!(refused.status, 503, "{}", refused.text());
    }
    assert_eq!(cluster.get(TARGET).await.expect(200).text(), "all");
    authority.refuses.store(false, SeqCst);
    complete(&node, TARGET, &id, &[], &list).await.expect(200);
}
