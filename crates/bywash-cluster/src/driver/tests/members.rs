//! Members, shards and their records.

use super::*;
use crate::etcd::MemberState;

const WINDOW: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_shards_are_claimed_in_batches() {
    let mut world = World::new().await;
    world.shards = crate::SHARDS;
    let before = world.fake.transactions();
    let node = world.start(1, Some(WINDOW));
    until("all shards are held", || {
        node.node.status().shards == usize::from(crate::SHARDS)
    })
    .await;
    // Plus registration, lists and records.
    let batches = usize::from(crate::SHARDS).div_ceil(crate::etcd::BATCH);
    let asked = world.fake.transactions() - before;
    assert!(asked < batches + 20, "{asked} transactions");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_leaves_hands_its_shards_over() {
    let mut world = World::new().await;
    let mut nodes = world.nodes(3, Some(WINDOW)).await;
    let leaving = nodes.remove(1);
    let path = leaving.held();
    world.origin.set(&path, 1);
    // Another node has a read lease, which ends first.
    assert_eq!(nodes[0].read(&path).await, 1);
    let held = leaving.node.status().shards;
    let left = leaving.node.leave(Duration::from_secs(10)).await;
    assert_eq!((left.held, left.abandoned), (held, 0));
    assert!(left.deregistered);
    // No shard waits for the claim delay.
    let ends = tokio::time::timeout(timing().claim_delay, world.settled(&nodes));
    ends.await.unwrap();
    assert_eq!(leaving.read(&path).await, 1, "it still serves");
    until("it has no registration", || {
        leaving.node.status().member.is_none()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_node_leaves_without_waiting() {
    let mut world = World::new().await;
    let nodes = world.nodes(1, Some(WINDOW)).await;
    let leave = nodes[0].node.leave(Duration::from_secs(60));
    let left = tokio::time::timeout(Duration::from_secs(30), leave).await;
    let left = left.unwrap();
    assert_eq!(left.abandoned, usize::from(SHARDS));
    assert!(left.deregistered);
    // Without etcd as well, in bounded time.
    let node = world.start(2, Some(WINDOW));
    until("it is registered", || node.node.status().member.is_some()).await;
    world.fake.set_down(true);
    let left = tokio::time::timeout(Duration::from_secs(30), node.node.leave(ms(100))).await;
    assert!(!left.unwrap().deregistered);
}

/// With etcd itself, where `BYWASH_ETCD` names its program: all shards, a node that leaves, and one
/// whose lease ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_share_real_etcd() {
    let Some((_server, endpoint)) = crate::etcd::tests::start_real("driver").await else {
        return;
    };
    let mut world = World::new().await;
    world.endpoint = endpoint;
    world.shards = crate::SHARDS;
    let mut nodes = world.nodes(3, Some(WINDOW)).await;
    world.origin.set("a", 1);
    for node in &nodes {
        assert_eq!(node.read("a").await, 1);
    }
    nodes[1].write(&world.origin, "a", 2).await.unwrap();
    for node in &nodes {
        assert_eq!(node.read("a").await, 2);
    }
    let leaving = nodes.remove(1);
    let left = leaving.node.leave(Duration::from_secs(10)).await;
    assert_eq!((left.abandoned, left.deregistered), (0, true));
    world.settled(&nodes).await;
    let killed = nodes.remove(0);
    world.kill(killed);
    world.settled(&nodes).await;
    assert_eq!(nodes[0].read("a").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newcomer_gets_its_part_of_the_shards() {
    let mut world = World::new().await;
    let mut nodes = world.nodes(1, Some(WINDOW)).await;
    let joined = world.start(2, Some(WINDOW));
    nodes.push(joined);
    world.settled(&nodes).await;
    until("shards are spread by rank", || {
        nodes.iter().all(|of| of.node.status().shards > 4)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_listed_anew_after_a_compaction() {
    let mut world = World::new().await;
    let mut nodes = world.nodes(1, Some(WINDOW)).await;
    world.fake.compact();
    world.fake.end_watches();
    let joined = world.start(2, Some(WINDOW));
    nodes.push(joined);
    world.settled(&nodes).await;
    // A watch that ends while a member leaves.
    let gone = nodes.pop().unwrap();
    gone.node.leave(Duration::from_secs(10)).await;
    world.fake.end_watches();
    world.kill(gone);
    world.settled(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_register_anew_with_another_etcd() {
    let mut world = World::new().await;
    let nodes = world.nodes(2, Some(WINDOW)).await;
    let before: Vec<_> = nodes.iter().map(|of| of.node.status().member).collect();
    world.fake.restore();
    until("nodes have registered anew", || {
        let members = nodes.iter().map(|of| of.node.status().member);
        members
            .zip(&before)
            .all(|(new, old)| new.is_some() && new != *old)
    })
    .await;
    world.settled(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_other_settings_of_a_bucket_are_no_members_for_it() {
    let mut world = World::new().await;
    let (short, long) = (ms(200), ms(900));
    let nodes = vec![
        world.start(1, Some(short)),
        world.start(2, Some(long)),
        world.start(3, Some(short)),
    ];
    world.settled(&nodes).await;
    let differing = nodes[0].node.status().differing;
    assert_eq!(differing, [(BUCKET.to_owned(), vec![NodeId(2)])]);
    let differing = nodes[1].node.status().differing;
    assert_eq!(differing, [(BUCKET.to_owned(), vec![NodeId(1), NodeId(3)])]);
    // Its holder gives it no version and no lease, for it would use them for another time.
    let path = nodes[0].held();
    world.origin.set(&path, 1);
    assert_eq!(nodes[0].read(&path).await, 1);
    let asked = world.origin.asked();
    assert_eq!(nodes[1].read(&path).await, 1);
    assert_eq!(nodes[1].current(&path), None);
    assert_eq!(world.origin.asked(), asked + 1);
    // Versions that it holds itself are valid for its own window: a write of the others ends them
    // all the same.
    let path = nodes[1].held();
    world.origin.set(&path, 1);
    assert_eq!(nodes[1].read(&path).await, 1);
    nodes[0].write(&world.origin, &path, 2).await.unwrap();
    assert_eq!(nodes[1].read(&path).await, 2);
    let view = nodes[0].node.core.buckets.read().get(BUCKET).cloned();
    assert_eq!(view.unwrap().write_window, Some(long));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn earlier_of_two_processes_with_one_identity_yields_and_reports_it() {
    let mut world = World::new().await;
    let first = world.nodes(1, Some(WINDOW)).await.remove(0);
    let copy = world.start(1, Some(WINDOW));
    until("the earlier one has noticed", || {
        first.node.status().double.as_ref() == Some(&copy.address)
    })
    .await;
    until("the later one holds all shards", || {
        copy.node.status().shards == usize::from(SHARDS)
    })
    .await;
    let registered = copy.node.status();
    assert_eq!(registered.double, None);
    until("the earlier one has no registration", || {
        first.node.status().member.is_none()
    })
    .await;
    // No fight: it stays so over several attempts of the earlier one.
    tokio::time::sleep(ms(1500)).await;
    assert_eq!(copy.node.status().member, registered.member);
    assert_eq!(first.node.status().member, None);
    copy.node.leave(Duration::from_secs(5)).await;
    world.kill(copy);
    until("the earlier one registers again", || {
        first.node.status().shards == usize::from(SHARDS)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_follows_the_buckets_of_its_node() {
    let mut world = World::new().await;
    let nodes = world.nodes(2, Some(WINDOW)).await;
    let seen = |bucket: &str| {
        let directory = nodes[1].node.core.directory.lock();
        let (_, registered) = directory.newest(NodeId(1)).unwrap();
        let record = registered.record.as_ref().unwrap();
        assert_eq!(record.state, MemberState::Up);
        record.buckets.get(bucket).cloned()
    };
    let source = Source {
        origin: Arc::clone(&world.origin),
        forgotten: Arc::default(),
    };
    nodes[0]
        .node
        .attach("more", Some(ms(1500)), Arc::new(source));
    until("the other node sees the bucket", || {
        seen("more").is_some_and(|of| of.window() == Some(ms(1500)))
    })
    .await;
    nodes[0].node.detach("more");
    until("the other node sees it gone", || seen("more").is_none()).await;
}
