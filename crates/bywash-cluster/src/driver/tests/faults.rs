//! Nodes with another cluster key, or with the address of another node.

use bywash::cluster::MemberFault;

use super::*;
use crate::driver::JoinError;

const WINDOW: Option<Duration> = Some(Duration::from_millis(300));

async fn refusal(node: &Process) -> Arc<JoinError> {
    let refused = tokio::time::timeout(Duration::from_secs(60), node.node.refused());
    refused.await.expect("the node is refused")
}

/// Faults that a node sees, with the members that have them.
fn faults(of: &Process) -> Vec<(NodeId, Vec<MemberFault>)> {
    of.node.status().faults.into_iter().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_with_another_key_is_refused_and_costs_the_others_no_write() {
    let mut world = World::new().await;
    let nodes = world.nodes(2, WINDOW).await;
    let other = world.start_with(3, WINDOW, "node-3:1", &["another key"]);
    let error = refusal(&other).await;
    assert!(matches!(*error, JoinError::OtherKey { .. }), "{error}");
    assert_eq!(other.node.status().member, None);
    for node in &nodes {
        assert_eq!(node.node.status().members.len(), 2);
        assert_eq!(faults(node), []);
    }
    nodes[0].write(&world.origin, "a", 2).await.unwrap();
    assert_eq!(nodes[0].count("writes_waited"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_with_the_address_of_another_is_refused() {
    let mut world = World::new().await;
    let first = world.nodes(1, WINDOW).await.remove(0);
    let other = world.start_with(2, WINDOW, &first.address, &["key"]);
    let error = refusal(&other).await;
    let expected = first.address.clone();
    assert!(
        matches!(&*error, JoinError::SameAddress { node: NodeId(1), address } if *address == expected),
        "{error}"
    );
    assert_eq!(first.node.status().members.len(), 1);
}

/// A container that lost its data folder has another identity, and its predecessor's registration lasts as long as the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_replaces_a_killed_one_at_its_address_or_with_another_key() {
    for keys in [["key"], ["another key"]] {
        let mut world = World::new().await;
        // The time for which it waits.
        world.timing.claim_delay = Duration::from_secs(600);
        let killed = world.nodes(1, WINDOW).await.remove(0);
        let address = killed.address.clone();
        world.kill(killed);
        let before = world.fake.transactions();
        let next = world.start_with(2, WINDOW, &address, &keys);
        until("it has seen the registration", || {
            world.fake.transactions() > before + 1
        })
        .await;
        assert_eq!(next.node.status().member, None);
        world.expire(1);
        let joined = until("it joins", || next.node.status().member.is_some());
        tokio::select! {
            error = next.node.refused() => panic!("refused: {error}"),
            () = joined => {}
        }
    }
}

/// Nodes that start at one time do not see each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_with_other_keys_or_one_address_name_each_other() {
    let mut world = World::new().await;
    let first = world.nodes(1, WINDOW).await.remove(0);
    let second = world.start_with(2, WINDOW, &first.address, &["another key"]);
    // As if it had listed the members before the first one registered.
    second.node.core.start.admit();
    until("each names the other", || {
        let both = vec![MemberFault::OtherKey, MemberFault::SameAddress];
        let same = vec![MemberFault::SameAddress];
        faults(&first) == [(NodeId(1), same.clone()), (NodeId(2), both.clone())]
            && faults(&second) == [(NodeId(1), both), (NodeId(2), same)]
    })
    .await;
    let shown = crate::driver::status::shown(&first.node);
    let named = shown.members.iter().find(|of| of.node.ends_with('2'));
    assert_eq!(named.unwrap().faults.len(), 2);
    second.node.leave(Duration::from_secs(10)).await;
    until("the fault ends with the member", || {
        faults(&first).is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_an_earlier_version_and_those_of_a_change_of_keys_join() {
    let pairs: [[&[&str]; 2]; 3] = [
        [&["old"], &["old", "new"]],
        [&["old", "new"], &["new", "old"]],
        [&["new", "old"], &["new"]],
    ];
    for pair in pairs {
        let mut world = World::new().await;
        let mut nodes = Vec::new();
        let earlier: &[&str] = &[];
        for (number, keys) in (1..).zip([earlier].into_iter().chain(pair)) {
            let address = format!("node-{number}:1");
            nodes.push(world.start_with(number, WINDOW, &address, keys));
            world.settled(&nodes).await;
        }
        assert!(nodes.iter().all(|of| faults(of).is_empty()));
    }
}
