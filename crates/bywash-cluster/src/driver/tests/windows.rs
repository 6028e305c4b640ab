//! The time for which a write waits without a holder: the longest time for which a member may
//! believe a replaced version.

use std::time::Instant;

use bywash::EngineError;

use super::*;
use crate::driver::clock::boottime;
use crate::message::Believed;

const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(60);

impl Process {
    fn believed(&self) -> Believed {
        self.node.core.believed(BUCKET).unwrap().1.unwrap()
    }

    fn members(&self) -> usize {
        self.node.status().members.len()
    }
}

fn is_unconfirmed(ended: &Result<()>) -> bool {
    let error = ended.as_ref().err().and_then(EngineError::find);
    matches!(error, Some(EngineError::WriteUnconfirmed { .. }))
}

/// etcd may revoke the lease of a node that has authority for some seconds more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn window_of_a_member_that_is_gone_counts_as_long_as_its_authority_may_last() {
    let mut world = World::new().await;
    let mut nodes = vec![world.start(1, Some(SHORT)), world.start(2, Some(LONG))];
    world.settled(&nodes).await;
    let gone = nodes.pop().unwrap();
    let node = nodes.pop().unwrap();
    assert_eq!(node.believed().window, LONG);
    let path = gone.held();
    world.kill(gone);
    let expired = Instant::now();
    world.expire(2);
    until("it is gone", || node.members() == 1).await;
    assert_eq!(node.believed().window, SHORT);
    node.write(&world.origin, &path, 1).await.unwrap();
    assert!(expired.elapsed() >= timing().claim_delay);
    // The control: afterwards its window does not count.
    let until = node.believed().until;
    assert!(until <= boottime(), "{until:?}");
}

/// Such a registration is in no list. The same holds after each change of etcd.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registration_that_was_gone_before_the_first_list_counts_for_a_while() {
    let mut world = World::new().await;
    let before = boottime();
    let node = world.nodes(1, Some(SHORT)).await.remove(0);
    let started = node.believed();
    assert!(started.until >= before + timing().claim_delay);
    let changed = boottime();
    world.fake.restore();
    world.fake.end_watches();
    until("it has listed the other etcd", || {
        let listed = node.node.core.start.listed();
        listed.is_some_and(|listed| listed >= changed)
    })
    .await;
    assert!(node.believed().until >= changed + timing().claim_delay);
    // The control: lists of the same etcd begin no such time.
    let (listed, lists) = (node.believed().until, world.fake.transactions());
    world.fake.end_watches();
    until("it has listed again", || {
        world.fake.transactions() > lists + 1
    })
    .await;
    assert_eq!(node.believed().until, listed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_of_another_protocol_count_and_a_record_that_is_not_understood_has_any() {
    let mut world = World::new().await;
    let node = world.nodes(1, Some(SHORT)).await.remove(0);
    let key = |node: u64| format!("/bywash/demo/nodes/{node:016x}/{:016x}", 7);
    let record = serde_json::json!({
        "address": "other:1", "weight": 1, "state": "up", "protocol": 1,
        "buckets": {BUCKET: {"digest": "d", "window_ms": 60_000}},
    });
    world.fake.put(&key(8), &record.to_string());
    until("it has seen the record", || node.members() == 2).await;
    assert_eq!(node.believed().window, LONG);
    world.fake.put(&key(9), r#"{"other": "format"}"#);
    until("it has seen both", || node.members() == 3).await;
    assert_eq!(node.believed().window, Duration::MAX);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_that_joins_during_a_write_counts_at_its_end() {
    let mut world = World::new().await;
    let node = world.nodes(1, Some(SHORT)).await.remove(0);
    let turn = node.node.begin_write(BUCKET, vec![Path::from("a")]).await;
    let nodes = vec![node, world.start(2, Some(LONG))];
    world.settled(&nodes).await;
    world.fake.set_down(true);
    let lapsed = |of: &Process| of.node.status().authority_left.is_zero();
    until("authority has ended", || nodes.iter().all(lapsed)).await;
    let ended = turn.end(WriteEnd::Written).await;
    assert!(is_unconfirmed(&ended), "{ended:?}");
}

impl Process {
    /// Whether etcd has been seen to have its bucket as it is.
    fn is_published(&self) -> bool {
        let view = self.node.core.buckets.read().get(BUCKET).cloned();
        view.unwrap().published.is_some()
    }

    fn usable_window(&self) -> Duration {
        let view = self.node.core.buckets.read().get(BUCKET).cloned();
        let window = view.unwrap().usable_window(&self.node.core.timing);
        window.unwrap()
    }
}

/// Two nodes: a writer, and the holder of an object's version. From the moment at which the holder
/// attaches the bucket with a longer window, the writer learns of no change, and the holder does
/// not hear of its write. Returns the version that the holder then reads.
async fn read_beside_a_node_that_has_not_seen_the_window(list_age: Duration) -> u64 {
    let mut world = World::new().await;
    let (late, late_endpoint) = world.fake.another_endpoint().await;
    let endpoint = std::mem::replace(&mut world.endpoint, late_endpoint);
    // It lists nothing during the test.
    world.timing.list = LONG;
    world.timing.list_age = LONG;
    let writer = world.start(1, Some(SHORT));
    world.endpoint = endpoint;
    world.timing.list_age = list_age;
    let nodes = vec![writer, world.start(2, Some(SHORT))];
    world.settled(&nodes).await;
    let [writer, holder] = &nodes[..] else {
        unreachable!();
    };
    let path = holder.held();
    world.origin.set(&path, 1);
    until("no other window counts", || {
        writer.believed().until <= boottime()
    })
    .await;
    late.set_late();
    world.attach(holder, Some(LONG));
    until("it is published", || holder.is_published()).await;
    // In the control, the window in use is longer from now on.
    tokio::time::sleep(5 * SHORT).await;
    assert_eq!(holder.read(&path).await, 1);
    world.network.nodes.lock().unwrap().remove(&holder.address);
    writer.write(&world.origin, &path, 2).await.unwrap();
    assert_eq!(writer.believed().window, SHORT, "it has not seen it");
    holder.read(&path).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn window_that_another_node_has_not_seen_is_not_used() {
    // The control: without the wait, the read returns a version that an acknowledged write has
    // replaced.
    let (read, control) = tokio::join!(
        read_beside_a_node_that_has_not_seen_the_window(LONG),
        read_beside_a_node_that_has_not_seen_the_window(Duration::ZERO),
    );
    assert_eq!((read, control), (2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn window_that_all_have_seen_is_used_and_one_that_none_is_shorter_than_at_once() {
    let mut world = World::new().await;
    world.timing.list = ms(50);
    world.timing.list_age = ms(500);
    let nodes = world.nodes(2, Some(SHORT)).await;
    let [other, holder] = &nodes[..] else {
        unreachable!();
    };
    assert_eq!(
        (holder.usable_window(), other.usable_window()),
        (SHORT, SHORT)
    );
    let published = boottime();
    world.fake.set_down(true);
    world.attach(holder, Some(LONG));
    assert_eq!(holder.usable_window(), Duration::ZERO, "not published");
    world.fake.set_down(false);
    until("it is longer", || holder.usable_window() > ms(500)).await;
    assert!(boottime() >= published + ms(1000));
    let path = holder.held();
    world.origin.set(&path, 1);
    assert_eq!(holder.read(&path).await, 1);
    tokio::time::sleep(2 * SHORT).await;
    let asked = world.origin.asked();
    assert_eq!(holder.current(&path), Some(1));
    assert_eq!(world.origin.asked(), asked);
    // The other one has no longer window than this one.
    world.attach(other, Some(LONG));
    until("it is published", || other.is_published()).await;
    assert_eq!(other.usable_window(), LONG);
}
