//! Reads and writes of versions.

use std::sync::mpsc;
use std::time::Instant;

use bywash::EngineError;

use super::*;

const WINDOW: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn origin_is_asked_once_by_all_nodes() {
    let mut world = World::new().await;
    let nodes = world.nodes(3, Some(WINDOW)).await;
    world.origin.set("a", 7);
    assert_eq!(nodes[0].current("a"), None);
    for reader in &nodes {
        assert_eq!(reader.read_by_lease("a").await, 7);
    }
    assert_eq!(world.origin.asked(), 1);
    // Absence is known as well.
    for reader in &nodes {
        let absent = VersionAuthority::read(&reader.node, BUCKET, &Path::from("b")).await;
        assert_eq!(absent.unwrap(), None);
    }
    assert_eq!(world.origin.asked(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn look_at_a_known_version_allocates_nothing() {
    let mut world = World::new().await;
    let nodes = world.nodes(2, Some(WINDOW)).await;
    world.origin.set("a", 7);
    for of in &nodes {
        assert_eq!(of.read("a").await, 7);
        let counted = allocation_counter::measure(|| {
            for _ in 0..100 {
                drop(of.node.current(BUCKET, "a").expect("it is known"));
            }
        });
        assert_eq!(counted.count_total, 0, "it holds it: {}", of.holds("a"));
    }
}

/// A holder answers for itself under the lock. Readers with a lease do not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn look_by_a_read_lease_does_not_wait_for_the_machine() {
    let mut world = World::new().await;
    let nodes = world.nodes(2, Some(WINDOW)).await;
    world.origin.set("a", 7);
    let reader = nodes.iter().find(|of| !of.holds("a")).unwrap();
    // The lease may end under the test.
    let mut tries = 0..5;
    let looked = tries.any(|_| {
        let read = reader.read("a");
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(read));
        let (locked, is_locked) = mpsc::sync_channel(1);
        let (done, is_done) = mpsc::sync_channel(1);
        let core = Arc::clone(&reader.node.core);
        let locking = std::thread::spawn(move || {
            core.look(|_| {
                locked.send(()).unwrap();
                is_done.recv_timeout(Duration::from_secs(10)).is_ok()
            })
        });
        is_locked.recv().unwrap();
        assert!(matches!(reader.current("a"), Some(7) | None));
        let _ = done.send(());
        locking.join().unwrap()
    });
    assert!(looked, "it waited for the lock");
}

/// Slow is not dead: the holder sends frames that it is alive while it waits for the origin.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_that_waits_for_a_slow_origin_is_not_passed_by() {
    let mut world = World::new().await;
    let nodes = world.nodes(3, Some(WINDOW)).await;
    world.origin.set("a", 7);
    *world.origin.delay.lock().unwrap() = 4 * timing().patience;
    let reads = nodes.iter().map(|reader| reader.read("a"));
    assert_eq!(futures::future::join_all(reads).await, [7, 7, 7]);
    assert_eq!(world.origin.asked(), 1);
    // The control: without such frames each of the others asks the origin itself.
    world.network.mute.store(true, Ordering::SeqCst);
    world.origin.set("b", 8);
    let reads = nodes.iter().map(|reader| reader.read("b"));
    assert_eq!(futures::future::join_all(reads).await, [8, 8, 8]);
    assert_eq!(world.origin.asked(), 1 + 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_at_one_node_is_seen_at_once_at_the_others() {
    let mut world = World::new().await;
    let nodes = world.nodes(3, Some(WINDOW)).await;
    world.origin.set("a", 0);
    let mut version = 0;
    for _ in 0..5 {
        for writer in &nodes {
            for reader in &nodes {
                assert_eq!(reader.read("a").await, version);
            }
            version += 1;
            writer.write(&world.origin, "a", version).await.unwrap();
            for reader in &nodes {
                assert_ne!(reader.current("a"), Some(version - 1));
                assert_eq!(reader.read("a").await, version);
            }
        }
    }
    for node in &nodes {
        assert_eq!(node.count("writes_waited"), 0);
    }
    // The control: a change behind the cluster's back is not seen before the window has passed.
    world.origin.set("a", 99);
    assert_eq!(nodes[0].read("a").await, version);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_of_many_objects_is_one_turn() {
    let mut world = World::new().await;
    let nodes = world.nodes(3, Some(WINDOW)).await;
    let paths: Vec<Path> = (0..50).map(|name| Path::from(name.to_string())).collect();
    for path in &paths {
        world.origin.set(path.as_ref(), 1);
        for reader in &nodes {
            reader.read(path.as_ref()).await;
        }
    }
    let turn = nodes[0].node.begin_write(BUCKET, paths.clone()).await;
    for path in &paths {
        world.origin.set(path.as_ref(), 2);
    }
    turn.end(WriteEnd::Written).await.unwrap();
    for path in &paths {
        for reader in &nodes {
            assert_eq!(reader.read(path.as_ref()).await, 2);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_write_ends_in_doubt_and_its_object_is_known_again() {
    let mut world = World::new().await;
    let nodes = world.nodes(2, Some(WINDOW)).await;
    let path = nodes[0].held();
    world.origin.set(&path, 1);
    assert_eq!(nodes[0].read(&path).await, 1);
    let turn = nodes[1]
        .node
        .begin_write(BUCKET, vec![Path::from(path.as_str())])
        .await;
    assert_eq!(nodes[0].current(&path), None, "it is marked");
    world.origin.set(&path, 2);
    assert_eq!(nodes[0].read(&path).await, 2);
    drop(turn);
    // Its end needs a message.
    let known_again = async {
        while nodes[0].current(&path).is_none() {
            assert_eq!(nodes[0].read(&path).await, 2);
        }
    };
    let known_again = tokio::time::timeout(Duration::from_secs(10), known_again);
    known_again.await.unwrap();
    // So does one whose begin is given up.
    let address = nodes[0].address.clone();
    world.network.silent.lock().unwrap().insert(address);
    let begin = nodes[1]
        .node
        .begin_write(BUCKET, vec![Path::from(path.as_str())]);
    assert!(tokio::time::timeout(ms(20), begin).await.is_err());
    let writes = nodes[1].node.core.look(|node| node.writes.len());
    assert_eq!(writes, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failure_of_the_origin_keeps_its_kind_for_each_reader() {
    let mut world = World::new().await;
    let nodes = world.nodes(2, Some(WINDOW)).await;
    *world.origin.failing.lock().unwrap() = true;
    let path = nodes[0].held();
    for reader in &nodes {
        let path = Path::from(path.as_str());
        let failed = VersionAuthority::read(&reader.node, BUCKET, &path).await;
        assert!(
            matches!(failed, Err(Error::PermissionDenied { .. })),
            "{failed:?}"
        );
    }
    let unknown = VersionAuthority::read(&nodes[0].node, "other", &Path::from("a")).await;
    let unknown = unknown.unwrap_err();
    let unknown = EngineError::find(&unknown);
    assert!(matches!(unknown, Some(EngineError::NoSuchBucket(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_etcd_reads_ask_the_origin_and_writes_wait_for_their_window() {
    let window = ms(300);
    let mut world = World::new().await;
    let nodes = world.nodes(2, Some(window)).await;
    let path = nodes[0].held();
    world.origin.set(&path, 1);
    world.fake.set_down(true);
    let lapsed = |of: &Process| of.node.status().authority_left.is_zero();
    until("authority has ended", || nodes.iter().all(lapsed)).await;
    for reader in &nodes {
        assert!(reader.node.status().etcd_failure.is_some());
        let asked = world.origin.asked();
        assert_eq!(reader.read(&path).await, 1);
        assert_eq!(reader.read(&path).await, 1);
        assert_eq!(reader.current(&path), None);
        assert_eq!(world.origin.asked(), asked + 2);
    }
    let begun = Instant::now();
    nodes[1].write(&world.origin, &path, 2).await.unwrap();
    assert!(begun.elapsed() >= timing().wait_out(window));
    assert_eq!(nodes[1].count("writes_waited"), 1);
    assert_eq!(nodes[0].read(&path).await, 2);
    world.fake.set_down(false);
    world.settled(&nodes).await;
    until("nodes know that etcd responds", || {
        let healthy = |of: &Process| of.node.status().etcd_failure.is_none();
        nodes.iter().all(healthy)
    })
    .await;
    nodes[1].write(&world.origin, &path, 3).await.unwrap();
    assert_eq!(nodes[1].count("writes_waited"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_of_a_thousand_objects_costs_each_other_node_two_messages() {
    let mut world = World::new().await;
    let nodes = world.nodes(3, Some(WINDOW)).await;
    let path = |name: usize| Path::from(format!("logs/2026/{name}.parquet"));
    let paths: Vec<Path> = (0..1000).map(path).collect();
    let messages = |world: &World| world.network.messages.load(Ordering::SeqCst);
    let mut before = messages(&world);
    let turn = nodes[0].node.begin_write(BUCKET, paths.clone()).await;
    turn.end(WriteEnd::Written).await.unwrap();
    assert_eq!(messages(&world) - before, 4, "a begin and an end for each");
    // With read leases at another node, each holder asks it to drop them in one message more.
    for path in &paths[..100] {
        world.origin.set(path.as_ref(), 1);
    }
    let reads = paths[..100].iter().map(|path| nodes[1].read(path.as_ref()));
    futures::future::join_all(reads).await;
    before = messages(&world);
    let turn = nodes[0].node.begin_write(BUCKET, paths.clone()).await;
    for path in &paths[..100] {
        world.origin.set(path.as_ref(), 2);
    }
    turn.end(WriteEnd::Written).await.unwrap();
    let drops = messages(&world) - before - 4;
    assert!((1..=2).contains(&drops), "{drops}");
    for path in &paths[..100] {
        assert_eq!(nodes[1].read(path.as_ref()).await, 2);
    }
    assert_eq!(nodes[0].count("writes_waited"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_message_with_many_requests_is_one_failure_of_its_node() {
    let mut world = World::new().await;
    let nodes = world.nodes(2, Some(WINDOW)).await;
    let paths = (0..100).map(|name| Path::from(name.to_string())).collect();
    let address = nodes[1].address.clone();
    world.network.nodes.lock().unwrap().remove(&address);
    let turn = nodes[0].node.begin_write(BUCKET, paths).await;
    let failures = |count: u32| {
        nodes[0].node.core.look(|node| {
            let mut suspects = node.suspects.clone();
            let (now, timing) = (node.now, timing());
            for _ in 0..count {
                suspects.note(NodeId(2), false, now, &timing);
            }
            suspects.has(NodeId(2), now)
        })
    };
    // One failure more does not make three, and two do.
    assert!(!failures(1));
    assert!(failures(2));
    drop(turn);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writes_at_once_take_few_connections() {
    let mut world = World::new().await;
    let nodes = world.nodes(2, Some(WINDOW)).await;
    let writes = (0..500).map(|name| {
        let names = vec![Path::from(name.to_string())];
        let node = &nodes[0].node;
        async move {
            let turn = node.begin_write(BUCKET, names).await;
            turn.end(WriteEnd::Written).await
        }
    });
    for ended in futures::future::join_all(writes).await {
        ended.unwrap();
    }
    assert_eq!(nodes[0].count("writes_waited"), 0);
    let writes = world.network.writes.lock().unwrap();
    let (now, most) = writes[&nodes[1].address];
    assert_eq!(now, 0);
    assert!((2..=64).contains(&most), "{most}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_with_a_long_window_and_no_holder_is_an_error() {
    let mut world = World::new().await;
    world.fake.set_down(true);
    let node = world.start(1, Some(Duration::from_secs(60)));
    let refused = node.write(&world.origin, "a", 1).await.unwrap_err();
    assert!(matches!(
        EngineError::find(&refused),
        Some(EngineError::WriteUnconfirmed { .. })
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_a_holder_that_is_killed_or_silent_ask_the_origin() {
    let mut world = World::new().await;
    let mut nodes = world.nodes(3, Some(WINDOW)).await;
    let silent = nodes.pop().unwrap();
    let path = silent.held();
    world.origin.set(&path, 5);
    let address = silent.address.clone();
    world.network.silent.lock().unwrap().insert(address.clone());
    let begun = Instant::now();
    assert_eq!(nodes[0].read(&path).await, 5);
    assert!(begun.elapsed() >= timing().patience);
    world.network.silent.lock().unwrap().remove(&address);
    assert_eq!(nodes[1].read(&path).await, 5);
    let shards = silent.node.status().shards;
    assert!(shards > 0);
    world.kill(silent);
    assert_eq!(nodes[0].read(&path).await, 5, "its shard has no holder");
    world.expire(3);
    let expired = Instant::now();
    world.settled(&nodes).await;
    assert!(expired.elapsed() >= timing().claim_delay);
    let before = world.origin.asked();
    for _ in 0..2 {
        for reader in &nodes {
            assert_eq!(reader.read(&path).await, 5);
        }
    }
    assert_eq!(world.origin.asked(), before + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_for_which_there_was_no_memory_is_not_suspected() {
    let mut world = World::new().await;
    let nodes = world.nodes(2, Some(WINDOW)).await;
    let [reader, holder] = &nodes[..] else {
        unreachable!();
    };
    let path = holder.held();
    world.origin.set(&path, 1);
    let address = holder.address.clone();
    world.network.busy.lock().unwrap().insert(address.clone());
    for _ in 0..2 * timing().suspect_after {
        assert_eq!(reader.read(&path).await, 1);
    }
    assert_eq!(
        reader.count("fallback_busy"),
        2 * u64::from(timing().suspect_after)
    );
    world.network.busy.lock().unwrap().remove(&address);
    let before = reader.count("versions_by_holder");
    assert_eq!(reader.read(&path).await, 1);
    assert_eq!(reader.count("versions_by_holder"), before + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bucket_that_is_attached_again_knows_nothing_of_its_former_origin() {
    let mut world = World::new().await;
    let nodes = world.nodes(2, Some(WINDOW)).await;
    let (own, other) = (nodes[0].held(), nodes[1].held());
    for path in [&own, &other] {
        world.origin.set(path, 1);
    }
    for detached in [true, false] {
        for path in [&own, &other] {
            assert_eq!(nodes[0].read_by_lease(path).await, 1);
        }
        if detached {
            nodes[0].node.detach(BUCKET);
        }
        world.attach(&nodes[0], Some(WINDOW));
        assert_eq!(nodes[0].current(&other), None, "{detached}");
        until("its window is used", || {
            let view = nodes[0].node.core.buckets.read().get(BUCKET).cloned();
            view.unwrap().usable_window(&timing()) == Some(WINDOW)
        })
        .await;
        assert_eq!(nodes[0].current(&own), None, "{detached}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overwritten_object_of_an_immutable_bucket_is_dropped_at_all_nodes() {
    let mut world = World::new().await;
    let nodes = world.nodes(3, None).await;
    world.origin.set("a", 1);
    assert_eq!(nodes[1].read("a").await, 1);
    nodes[0].write(&world.origin, "a", 2).await.unwrap();
    for other in &nodes[1..] {
        assert_eq!(*other.forgotten.lock().unwrap(), [Path::from("a")]);
    }
    assert!(nodes[0].forgotten.lock().unwrap().is_empty());
    // A node that does not respond does not keep the writer.
    let address = nodes[2].address.clone();
    world.network.silent.lock().unwrap().insert(address);
    let begun = Instant::now();
    nodes[0].write(&world.origin, "a", 3).await.unwrap();
    assert!(begun.elapsed() >= timing().read_lease);
    assert_eq!(nodes[1].forgotten.lock().unwrap().len(), 2);
}
