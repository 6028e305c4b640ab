//! Nodes that start while etcd does not respond.

use bywash::EngineError;

use super::*;
use crate::driver::JoinError;
use crate::etcd::{EtcdError, MemberState};

/// Waits until the node knows that etcd does not respond.
async fn without_etcd(node: &Process) {
    until("it knows that etcd does not respond", || {
        node.node.status().etcd_failure.is_some()
    })
    .await;
}

/// An address where nothing listens.
async fn nowhere() -> Url {
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    Url::parse(&format!("http://{}", socket.local_addr().unwrap())).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_starts_without_etcd_reads_from_the_origin_and_joins_later() {
    let mut world = World::new().await;
    world.fake.set_down(true);
    let node = world.start(1, Some(ms(300)));
    without_etcd(&node).await;
    world.origin.set("a", 1);
    for asked in 1..=2 {
        assert_eq!(node.read("a").await, 1);
        assert_eq!(world.origin.asked(), asked);
    }
    let state = |node: &Process| node.node.core.published.lock().state;
    assert_eq!(state(&node), MemberState::Joining);
    assert_eq!(node.node.status().member, None);
    world.fake.set_down(false);
    let nodes = [node];
    world.settled(&nodes).await;
    assert_eq!(state(&nodes[0]), MemberState::Up);
    nodes[0].write(&world.origin, "a", 2).await.unwrap();
    assert_eq!(nodes[0].count("writes_waited"), 0);
    assert_eq!(nodes[0].read("a").await, 2);
}

/// The node does not know that another one believes the replaced version for longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_is_not_acknowledged_before_the_windows_of_the_members_are_known() {
    let (short, long) = (ms(100), Duration::from_secs(30));
    let mut world = World::new().await;
    let other = world.nodes(1, Some(long)).await.remove(0);
    world.origin.set("a", 1);
    assert_eq!(other.read("a").await, 1);
    world.endpoint = nowhere().await;
    let node = world.start(2, Some(short));
    without_etcd(&node).await;
    let refused = node.write(&world.origin, "a", 2).await.unwrap_err();
    assert!(matches!(
        EngineError::find(&refused),
        Some(EngineError::WriteUnconfirmed { .. })
    ));
    assert_eq!(other.read("a").await, 1, "it may return what was replaced");
    assert_eq!(node.read("a").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_that_is_too_old_when_it_responds_is_not_used() {
    let mut world = World::new().await;
    (world.fake, world.endpoint) = Fake::start("3.4.23").await;
    world.fake.set_down(true);
    let node = world.start(1, Some(ms(300)));
    without_etcd(&node).await;
    world.fake.set_down(false);
    let refused = tokio::time::timeout(Duration::from_secs(10), node.node.refused()).await;
    assert!(matches!(
        *refused.unwrap(),
        JoinError::Etcd(EtcdError::Version(_))
    ));
    assert_eq!(world.fake.transactions(), 0);
    assert_eq!(node.node.status().member, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_is_alone_once_no_other_is_up_or_joins() {
    let mut world = World::new().await;
    let nodes = world.nodes(2, Some(ms(300))).await;
    nodes[0].node.leave(Duration::from_secs(10)).await;
    let alone = nodes[0].node.until_alone();
    let waits = tokio::time::timeout(ms(100), alone).await.is_err();
    assert!(waits, "the other node may ask for blocks");
    let alone = tokio::spawn({
        let node = nodes[0].node.clone();
        async move { node.until_alone().await }
    });
    nodes[1].node.leave(Duration::from_secs(10)).await;
    let alone = tokio::time::timeout(Duration::from_secs(10), alone).await;
    alone.unwrap().unwrap();
    nodes[1].node.until_alone().await;
}
