//! Which blocks stay at which node: cold ones at their owner, hot ones at each.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use bywash::cluster::PeerRead;
use bywash::{Consistency, EngineBuilder, UploadOptions, WriteCache};
use bywash_support::pattern;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStoreExt, Result};

use super::fake::{BLOCK, Nodes, STRIPE};

/// Memory of a node.
const MEMORY: usize = 128 * BLOCK;
/// Bytes of it that blocks of other nodes' stripes may take.
const FOREIGN: u64 = MEMORY as u64 / 8;

fn nodes(count: usize, owner: fn(usize, u64) -> usize) -> Nodes {
    let set = |builder: EngineBuilder| builder.memory(MEMORY as u64);
    Nodes::with(count, owner, Consistency::default(), set)
}

async fn read(nodes: &Nodes, node: usize, path: &Path, range: Range<u64>) -> Result<()> {
    let length = range.end - range.start;
    let bytes = nodes.buckets[node].get_range(path, range).await?;
    assert_eq!(bytes.len() as u64, length);
    Ok(())
}

fn stripe(number: u64) -> Range<u64> {
    number * STRIPE..(number + 1) * STRIPE
}

/// Returns the bytes of blocks of a kind that a node has in memory.
fn held(nodes: &Nodes, node: usize, kind: &str) -> u64 {
    nodes.engines[node].stats().memory.kinds[kind].bytes
}

/// Of blocks of other nodes' stripes.
fn foreign(nodes: &Nodes, node: usize) -> u64 {
    held(nodes, node, "foreign")
}

async fn wanted(nodes: &Nodes, path: &Path, range: Range<u64>) -> PeerRead {
    let meta = nodes.memory.head(path).await.unwrap();
    PeerRead {
        bucket: "data".to_owned(),
        path: path.clone(),
        e_tag: meta.e_tag.clone().unwrap(),
        size: meta.size,
        range,
        age: Some(Duration::ZERO),
    }
}

async fn is_here(nodes: &Nodes, node: usize, path: &Path, range: Range<u64>) -> bool {
    let wanted = wanted(nodes, path, range).await;
    nodes.buckets[node].serve_peer(&wanted, true).is_ok()
}

#[tokio::test]
async fn cold_scan_of_other_nodes_stripes_stays_within_an_eighth_and_displaces_no_own_block() {
    // Node 0 owns the first 32 stripes.
    let nodes = nodes(2, |_, stripe| usize::from(stripe >= 32));
    let path = Path::from("a");
    let all = 32 + 200;
    nodes.store(&path, pattern(0, all * STRIPE as usize)).await;
    // From the end, so that nothing is read ahead: that takes the place of blocks that were read once.
    for own in (0..32).rev() {
        read(&nodes, 0, &path, stripe(own)).await.unwrap();
    }
    for scanned in (32..all as u64).rev() {
        // In two halves, as clients read large objects.
        let Range { start, end } = stripe(scanned);
        read(&nodes, 0, &path, start..start + STRIPE / 2)
            .await
            .unwrap();
        read(&nodes, 0, &path, start + STRIPE / 2..end)
            .await
            .unwrap();
        assert!(foreign(&nodes, 0) <= FOREIGN, "at {scanned}");
    }
    for own in 0..32 {
        assert!(is_here(&nodes, 0, &path, stripe(own)).await, "{own}");
    }
    // The same through a download.
    let download = nodes.buckets[0].download(
        &path,
        bywash::DownloadOptions {
            range: Some(object_store::GetRange::Offset(stripe(all as u64 - 4).start)),
            ..bywash::DownloadOptions::default()
        },
    );
    download.await.unwrap().finish().await.unwrap();
    assert!(foreign(&nodes, 0) <= FOREIGN);
    for own in 0..32 {
        assert!(is_here(&nodes, 0, &path, stripe(own)).await, "{own}");
    }
}

/// Each node reads the hot block all the time, and more cold ones than its memory has.
#[tokio::test]
async fn hot_block_ends_on_every_node_and_cold_ones_at_their_owner() {
    let nodes = nodes(3, |_, stripe| (stripe % 3) as usize);
    let (hot, cold) = (Path::from("hot"), Path::from("cold"));
    nodes.store(&hot, pattern(0, STRIPE as usize)).await;
    nodes.store(&cold, pattern(1, 120 * STRIPE as usize)).await;
    for number in (0..120).rev() {
        for node in 0..3 {
            read(&nodes, node, &hot, 5..BLOCK as u64).await.unwrap();
            read(&nodes, node, &cold, stripe(number)).await.unwrap();
        }
    }
    for node in 0..3 {
        assert!(is_here(&nodes, node, &hot, 0..BLOCK as u64).await, "{node}");
        assert!(foreign(&nodes, node) <= FOREIGN);
    }
    for number in 20..30 {
        for node in 0..3 {
            let here = is_here(&nodes, node, &cold, stripe(number)).await;
            assert_eq!(here, node as u64 == number % 3, "{number} at {node}");
        }
    }
    assert_eq!(nodes.stats(0).peer_fallbacks, 0);
}

/// A node that has its memory full of own blocks would evict a cold one before it is read again.
#[tokio::test(start_paused = true)]
async fn block_that_its_owner_is_often_asked_for_is_kept_at_once() {
    for (requests, kept) in [(98, false), (99, true)] {
        // Memory for enough blocks that a new one stays for some others.
        let owner = |_: usize, stripe: u64| usize::from(stripe > 0);
        let nodes = Nodes::with(2, owner, Consistency::default(), |builder| {
            builder.memory(1024 * BLOCK as u64)
        });
        let path = Path::from("a");
        nodes.store(&path, pattern(0, 2 * STRIPE as usize)).await;
        let hot = stripe(1).start..stripe(1).start + BLOCK as u64;
        let wanted = wanted(&nodes, &path, hot.clone()).await;
        let ask = || nodes.buckets[1].serve_peer(&wanted, false).unwrap();
        ask().bytes.try_collect::<Vec<_>>().await.unwrap();
        drop(nodes.buckets[0].head(&path).await.unwrap());
        for number in 0..1024 + 3 {
            if number == 1024 {
                tokio::time::advance(Duration::from_secs(2)).await;
                (0..requests).for_each(|_| drop(ask()));
                read(&nodes, 0, &path, hot.clone()).await.unwrap();
            }
            let own = Path::from(format!("own/{number}"));
            nodes.store(&own, pattern(0, BLOCK)).await;
            drop(nodes.read(0, &own).await.unwrap());
        }
        assert_eq!(
            is_here(&nodes, 0, &path, hot).await,
            kept,
            "{requests} requests before"
        );
    }
}

/// An upload's blocks come into memory at the node that takes it, whichever nodes own them.
#[tokio::test]
async fn uploads_keep_blocks_of_other_nodes_stripes_within_an_eighth() {
    // Of an upload: a quarter of the memory, one half of it the other node's.
    const STRIPES: u64 = MEMORY as u64 / 4 / STRIPE;
    let owner = |_: usize, stripe: u64| (stripe % 2) as usize;
    let nodes = Nodes::with(2, owner, Consistency::default(), |builder| {
        let builder = builder.write_cache(WriteCache::OnWrite);
        builder.memory(MEMORY as u64)
    });
    let (first, second) = (Path::from("first"), Path::from("second"));
    for path in [&first, &second] {
        let data = pattern(1, (STRIPES * STRIPE) as usize);
        let upload = nodes.buckets[0].upload(path, UploadOptions::default());
        let mut upload = upload.await.unwrap();
        upload.write(data).await.unwrap();
        upload.finish().await.unwrap();
    }
    assert_eq!(held(&nodes, 0, "data"), STRIPES * STRIPE);
    assert_eq!(foreign(&nodes, 0), FOREIGN);
    for number in 0..STRIPES {
        assert!(is_here(&nodes, 0, &second, stripe(number)).await);
        let own = number % 2 == 0;
        assert_eq!(is_here(&nodes, 0, &first, stripe(number)).await, own);
    }
}

/// The node that owns all stripes.
static OWNER: AtomicUsize = AtomicUsize::new(1);

#[tokio::test]
async fn block_changes_between_own_and_other_nodes_ones_with_the_owner_of_its_stripe() {
    const STRIPES: u64 = 4;
    const ALL: u64 = STRIPES * STRIPE;
    let nodes = nodes(2, |_, _| OWNER.load(SeqCst));
    let path = Path::from("a");
    nodes.store(&path, pattern(1, ALL as usize)).await;
    let read_all = async || {
        for number in 0..STRIPES {
            // No read continues another: that would not be taken for a second one of its blocks.
            let Range { start, end } = stripe(number);
            read(&nodes, 0, &path, start + 1..end).await.unwrap();
        }
    };
    let asked_for_all = async |peek: bool| {
        for number in 0..STRIPES {
            let wanted = wanted(&nodes, &path, stripe(number)).await;
            let served = nodes.buckets[0].serve_peer(&wanted, peek).unwrap();
            served.bytes.try_collect::<Vec<_>>().await.unwrap();
        }
    };
    let kinds = || (held(&nodes, 0, "data"), foreign(&nodes, 0));
    read_all().await;
    assert_eq!(kinds(), (0, ALL));
    // The other node leaves.
    OWNER.store(0, SeqCst);
    read_all().await;
    assert_eq!(kinds(), (ALL, 0));
    // It joins: a read by a client moves nothing, for it may be the only copy.
    OWNER.store(1, SeqCst);
    read_all().await;
    asked_for_all(false).await;
    assert_eq!(kinds(), (ALL, 0));
    asked_for_all(true).await;
    assert_eq!(kinds(), (0, ALL));
    // It leaves again, and a third node asks the owner.
    OWNER.store(0, SeqCst);
    asked_for_all(false).await;
    assert_eq!(kinds(), (ALL, 0));
    assert_eq!(nodes.stats(0).origin_bytes, 0);
}
