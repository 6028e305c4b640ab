//! The hardest cases by name: etcd with a history that is gone or another one, processes in each other's place, slow origins.

use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;

use super::*;

const WINDOW: Duration = Duration::from_secs(1);

/// Writes through one node after the other, and reads each version through all.
async fn write_and_read(
    world: &World,
    nodes: &[Process],
    path: &str,
    versions: std::ops::Range<u64>,
) {
    for version in versions {
        let writer = &nodes[version as usize % nodes.len()];
        writer.write(&world.origin, path, version).await.unwrap();
        for reader in nodes {
            assert_eq!(reader.read(path).await, version, "at {}", reader.address);
        }
    }
}

/// While the nodes get nothing from etcd, a member leaves, and the history that has it is
/// compacted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_8_member_that_went_in_a_compacted_history_is_no_ghost() {
    let mut world = World::new().await;
    let mut nodes = world.nodes(3, Some(WINDOW)).await;
    world.fake.set_down(true);
    world.fake.end_watches();
    world.kill(nodes.pop().unwrap());
    world.expire(3);
    world.fake.compact();
    world.fake.set_down(false);
    world.settled(&nodes).await;
    world.origin.set("a", 0);
    write_and_read(&world, &nodes, "a", 1..4).await;
}

/// In the backup one node holds all shards, in a registration that is long over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_9_etcd_restored_with_other_holders_makes_no_read_stale() {
    let window = ms(200);
    let mut world = World::new().await;
    let mut nodes = world.nodes(1, Some(window)).await;
    let backup = world.fake.backup();
    let joined = world.start(2, Some(window));
    nodes.push(joined);
    world.settled(&nodes).await;
    let path = nodes[1].held();
    let before: Vec<_> = nodes.iter().map(|of| of.node.status().member).collect();
    world.origin.set(&path, 0);
    write_and_read(&world, &nodes, &path, 1..3).await;
    world.fake.restore_from(backup);
    write_and_read(&world, &nodes, &path, 3..12).await;
    until("nodes have registered anew", || {
        let mut members = nodes.iter().map(|of| of.node.status().member).zip(&before);
        members.all(|(new, old)| new.is_some() && new != *old)
    })
    .await;
    world.settled(&nodes).await;
    write_and_read(&world, &nodes, &path, 12..15).await;
}

/// Killed and started at another port before etcd ends the lease. A read lease that the dead process gave is waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_10_process_started_at_another_port_replaces_the_one_before() {
    let mut world = World::new().await;
    let mut nodes = world.nodes(3, Some(WINDOW)).await;
    let killed = nodes.pop().unwrap();
    let path = killed.held();
    world.origin.set(&path, 1);
    assert_eq!(nodes[0].read_by_lease(&path).await, 1);
    let old = killed.address.clone();
    world.kill(killed);
    let started = world.start(3, Some(WINDOW));
    nodes.push(started);
    write_and_read(&world, &nodes, &path, 2..3).await;
    let known = |of: &Process| {
        let members = of.node.status().members;
        let at = |address: &str| members.iter().any(|of| of.address == address);
        at(&nodes[2].address) && !at(&old)
    };
    until("the others know the new port", || nodes.iter().all(known)).await;
    world.network.dialled.lock().unwrap().clear();
    write_and_read(&world, &nodes, &path, 3..8).await;
    world.settled(&nodes).await;
    write_and_read(&world, &nodes, &path, 8..12).await;
    let dialled = world.network.dialled.lock().unwrap();
    assert!(
        !dialled.is_empty() && !dialled.contains(&old),
        "{dialled:?}"
    );
}

/// Its frames distinguish a holder that waits for the origin from one that is silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_12_slow_origin_behind_a_live_holder_is_asked_once() {
    let mut world = World::new().await;
    let nodes = world.nodes(3, Some(Duration::from_secs(5))).await;
    *world.origin.delay.lock().unwrap() = 8 * timing().patience;
    // A machine that stops this process for longer than the patience costs a question more.
    for attempt in 0..5 {
        let path = format!("slow-{attempt}");
        world.origin.set(&path, 7);
        let before = world.origin.asked();
        let readers = (0..24).map(|reader| nodes[reader % 3].read(&path));
        assert_eq!(join_all(readers).await, [7; 24]);
        if world.origin.asked() == before + 1 {
            return;
        }
    }
    panic!("five objects cost more than a question each");
}

/// Each object is known to all nodes. Once etcd is back, one question an object is enough for all
/// nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_18_etcd_that_comes_back_causes_no_storm() {
    const OBJECTS: usize = 60;
    let window = Duration::from_secs(4);
    let mut world = World::new().await;
    let nodes = world.nodes(3, Some(window)).await;
    let paths: Vec<String> = (0..OBJECTS).map(|at| format!("object-{at}")).collect();
    for path in &paths {
        world.origin.set(path, 1);
    }
    let read_all = async || {
        for node in &nodes {
            let reads = paths.iter().map(|path| node.read(path));
            assert_eq!(join_all(reads).await, [1; OBJECTS]);
        }
    };
    read_all().await;
    world.fake.set_down(true);
    let lapsed = |of: &Process| of.node.status().authority_left.is_zero();
    until("authority has ended", || nodes.iter().all(lapsed)).await;
    let before = world.origin.asked();
    read_all().await;
    // Without authority each read is a question, and no more than that.
    assert_eq!(world.origin.asked(), before + 3 * OBJECTS);
    let transactions = world.fake.transactions();
    world.fake.set_down(false);
    world.settled(&nodes).await;
    let before = world.origin.asked();
    read_all().await;
    read_all().await;
    let asked = world.origin.asked() - before;
    assert!(
        (OBJECTS..=3 * OBJECTS).contains(&asked),
        "{asked} questions"
    );
    // Registrations are as they were, and no shard moves.
    let transactions = world.fake.transactions() - transactions;
    assert!(transactions < 30, "{transactions} transactions");
}

/// Without etcd a node has no authority. A hundred reads of one object meet an origin that takes
/// longer than all reads together, while another program changes the object before each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_15_slow_origin_without_authority_has_two_questions_and_returns_nothing_old() {
    let mut world = World::new().await;
    world.fake.set_down(true);
    let node = world.start(1, Some(WINDOW));
    *world.origin.delay.lock().unwrap() = 2 * timing().patience;
    let (mut reads, mut ended) = (FuturesUnordered::new(), Vec::new());
    for begun in 1..=100 {
        world.origin.set("a", begun);
        let node = &node;
        reads.push(async move { (begun, node.read("a").await) });
        // Begins the read, without waiting for it.
        if let Ok(Some(read)) = tokio::time::timeout(ms(5), reads.next()).await {
            ended.push(read);
        }
    }
    ended.extend(reads.collect::<Vec<_>>().await);
    assert_eq!(ended.len(), 100);
    for (begun, version) in ended {
        assert!(version >= begun, "{version} instead of {begun}");
    }
    let (asked, most) = (world.origin.asked(), world.origin.at_once.lock().unwrap().1);
    assert!(most <= 2, "{most} questions beside each other of {asked}");
}
