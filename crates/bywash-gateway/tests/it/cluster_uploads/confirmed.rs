//! A completion is acknowledged only when no node returns the replaced object, also if an earlier
//! request has sent it.

use std::sync::atomic::Ordering::SeqCst;

use bywash::Engine;

use super::authority::Authority;
use super::{Cluster, TARGET};
use crate::multipart::{complete, completion};
use crate::server::Server;

#[tokio::test]
async fn proven_completion_is_acknowledged_once_no_node_returns_what_it_replaced() {
    let cluster = Cluster::s3().await;
    let id = cluster.begin(TARGET).await;
    let e_tag = cluster.part(&id, 1, b"all").await;
    let authority = Authority::default();
    let builder = Engine::builder().memory(64 << 20);
    let builder = builder.cluster(authority.nodes());
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
