//! Blocks of other nodes.

use bytes::Bytes;
use bywash::cluster::Peers;
use futures::TryStreamExt;

use super::*;
use crate::STRIPE_BYTES;
use crate::driver::BlockSource;
use crate::limits::MAX_PEER_READS;

const WINDOW: Duration = Duration::from_secs(1);

/// Returns the number of its node as bytes; in memory only if `resident`.
#[derive(Debug)]
struct Blocks {
    node: u64,
    resident: bool,
}

#[async_trait]
impl BlockSource for Blocks {
    async fn read(&self, _: PeerRead, peek: bool) -> Result<PeerBody, PeerError> {
        if peek && !self.resident {
            return Err(PeerError::Absent);
        }
        let bytes = Bytes::from(self.node.to_string());
        let stream = futures::stream::iter([Ok(bytes)]);
        Ok(PeerBody {
            rate: 0,
            bytes: Box::pin(stream),
        })
    }
}

async fn with_blocks(world: &mut World, resident: bool) -> Vec<Process> {
    let nodes = world.nodes(3, Some(WINDOW)).await;
    for (node, process) in (1..).zip(&nodes) {
        let blocks = Blocks { node, resident };
        process.node.set_blocks(Arc::new(blocks));
    }
    nodes
}

fn wanted(stripe: u64) -> PeerRead {
    let start = stripe * STRIPE_BYTES;
    PeerRead {
        bucket: BUCKET.to_owned(),
        path: Path::from("a"),
        e_tag: "\"1\"".to_owned(),
        size: 100 * STRIPE_BYTES,
        range: start..start + 10,
        age: None,
    }
}

async fn read(process: &Process, stripe: u64) -> Option<u64> {
    let stream = Peers::read(&process.node, wanted(stripe)).await?;
    let bytes: Vec<Bytes> = stream.bytes.try_collect().await.unwrap();
    Some(String::from_utf8(bytes.concat()).unwrap().parse().unwrap())
}

fn owner(nodes: &[Process], stripe: u64) -> usize {
    let at = stripe * STRIPE_BYTES + 5;
    let own = |of: &Process| of.node.is_own(BUCKET, &Path::from("a"), at);
    let owners: Vec<usize> = (0..nodes.len()).filter(|of| own(&nodes[*of])).collect();
    assert_eq!(owners.len(), 1, "stripe {stripe}");
    owners[0]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_come_from_the_owner_of_their_stripe() {
    let mut world = World::new().await;
    let nodes = with_blocks(&mut world, false).await;
    assert_eq!(nodes[0].node.stripe_end(0), STRIPE_BYTES);
    assert_eq!(nodes[0].node.stripe_end(STRIPE_BYTES - 1), STRIPE_BYTES);
    assert_eq!(nodes[0].node.stripe_end(STRIPE_BYTES), 2 * STRIPE_BYTES);
    let mut owned = HashSet::new();
    for stripe in 0..40 {
        let owner = owner(&nodes, stripe);
        owned.insert(owner);
        for (at, node) in nodes.iter().enumerate() {
            let expected = (at != owner).then_some(owner as u64 + 1);
            assert_eq!(
                read(node, stripe).await,
                expected,
                "stripe {stripe} at {at}"
            );
        }
        assert!(stripe > 0 || nodes[owner].holds("a"));
    }
    assert_eq!(owned.len(), 3);
    assert_eq!(nodes[0].count("fallback_unreachable"), 0);
    let bucket = PeerRead {
        bucket: "other".to_owned(),
        ..wanted(1)
    };
    assert!(Peers::read(&nodes[0].node, bucket).await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owner_looks_in_the_memory_of_the_one_before() {
    let mut world = World::new().await;
    let nodes = with_blocks(&mut world, true).await;
    let owner = owner(&nodes, 7);
    let found = read(&nodes[owner], 7).await.unwrap();
    assert_ne!(found, owner as u64 + 1);
    assert_eq!(nodes[owner].count("peek_hits"), 1);
    assert_eq!(nodes[owner].count("peer_hits"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_owner_looks_in_the_memory_of_the_one_that_has_left() {
    for stripe in [0, 7] {
        let mut world = World::new().await;
        let mut nodes = with_blocks(&mut world, true).await;
        let owner = owner(&nodes, stripe);
        let number = nodes[owner].node.core.node.0;
        let leaving = nodes.remove(owner);
        let left = leaving.node.leave(Duration::from_secs(5)).await;
        assert!(left.deregistered, "{left:?}");
        until("the others take its stripes", || {
            let view = |of: &Process| of.node.core.buckets.read().get(BUCKET).cloned();
            let placed =
                |of: &Process| view(of).is_some_and(|of| of.candidates.len() == nodes.len());
            nodes.iter().all(placed)
        })
        .await;
        let next = self::owner(&nodes, stripe);
        assert_eq!(read(&nodes[next], stripe).await, Some(number), "{stripe}");
        assert_eq!(nodes[next].count("peek_hits"), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_in_rank_stands_in_for_an_owner_that_does_not_respond() {
    let mut world = World::new().await;
    let nodes = with_blocks(&mut world, false).await;
    let owner = owner(&nodes, 7);
    let view = nodes[0].node.core.buckets.read().get(BUCKET).cloned();
    let key = crate::names::Key::new(BUCKET, "a");
    let ranked = crate::ranked(crate::stripe_hash(&key, 7), &view.unwrap().candidates);
    let reader = nodes
        .iter()
        .find(|of| of.node.core.node == ranked[2])
        .unwrap();
    let address = nodes[owner].address.clone();
    world.network.silent.lock().unwrap().insert(address);
    // The origin is asked until it is suspected.
    for _ in 0..timing().suspect_after {
        assert_eq!(read(reader, 7).await, None);
    }
    assert_eq!(read(reader, 7).await, Some(ranked[1].0));
    assert_eq!(reader.count("fallback_unreachable"), 3);
    assert_eq!(reader.count("fallback_suspect"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_beyond_the_limit_ask_the_origin() {
    let mut world = World::new().await;
    let nodes = with_blocks(&mut world, false).await;
    let reader = &nodes[(owner(&nodes, 7) + 1) % 3];
    let mut held = Vec::new();
    for _ in 0..MAX_PEER_READS {
        held.push(Peers::read(&reader.node, wanted(7)).await.unwrap());
    }
    assert_eq!(read(reader, 7).await, None);
    assert_eq!(reader.count("fallback_full"), 1);
    held.pop();
    assert!(read(reader, 7).await.is_some());
    assert!(read(reader, 7).await.is_some(), "its place is free again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stripes_of_others_and_buckets_with_other_settings_are_refused() {
    let mut world = World::new().await;
    let nodes = with_blocks(&mut world, true).await;
    let view = nodes[0].node.core.buckets.read().get(BUCKET).cloned();
    let key = crate::names::Key::new(BUCKET, "a");
    let ranked = crate::ranked(crate::stripe_hash(&key, 7), &view.unwrap().candidates);
    let last = nodes
        .iter()
        .find(|of| of.node.core.node == ranked[2])
        .unwrap();
    let refused = PeerService::read(&last.node, ranked[0], wanted(7), false).await;
    assert!(matches!(refused, Err(PeerError::Absent)));
    let peeked = PeerService::read(&last.node, ranked[0], wanted(7), true).await;
    assert!(peeked.is_ok());
    let stranger = PeerService::read(&last.node, NodeId(99), wanted(7), true).await;
    assert!(matches!(stranger, Err(PeerError::OtherSettings)));
}
