//! Bytes from other nodes, and versions from the authority.

use std::sync::Arc;
use std::time::Duration;

use bywash::cluster::{PeerRead, PeerReadError};
use bywash::origin::memory::MemoryStore;
use bywash::{Consistency, DownloadOptions, EngineError};
use bywash_sim::{FaultProfile, SimOrigin, Validators};
use bywash_support::faulty_store::{Fault as OriginFault, FaultyStore};
use bywash_support::pattern;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Attribute, Attributes, Error, ObjectStore, ObjectStoreExt, PutOptions};

use super::fake::{BLOCK, Fault, Nodes, STRIPE, in_turn};

const LENGTH: usize = 13 * BLOCK + 17;

fn path() -> Path {
    Path::from("a/b")
}

#[tokio::test]
async fn each_byte_is_requested_once_for_all_nodes() {
    let nodes = Nodes::new();
    let data = pattern(0, LENGTH);
    nodes.store(&path(), data.clone()).await;
    for round in 0..2 {
        for node in 0..3 {
            let read = nodes.read(node, &path()).await.unwrap();
            assert!(read == data, "node {node}, round {round}");
        }
    }
    let (requests, heads) = nodes.take_requests();
    let bytes: u64 = requests.iter().map(|range| range.end - range.start).sum();
    assert_eq!(bytes, LENGTH as u64, "{requests:?}");
    assert_eq!(heads, 1, "one question for all nodes");

    let stats: Vec<_> = (0..3).map(|node| nodes.stats(node)).collect();
    let sum = |of: fn(&bywash::BucketStats) -> u64| stats.iter().map(of).sum::<u64>();
    assert_eq!(sum(|stats| stats.origin_bytes), LENGTH as u64);
    assert_eq!(
        sum(|stats| stats.origin_data_requests),
        requests.len() as u64
    );
    assert_eq!(
        sum(|stats| stats.origin_requests),
        requests.len() as u64 + 1
    );
    assert_eq!(sum(|stats| stats.peer_bytes), 2 * LENGTH as u64);
    assert_eq!(sum(|stats| stats.peer_served_bytes), 2 * LENGTH as u64);
    assert_eq!(sum(|stats| stats.peer_fallbacks), 0);
    assert!(stats.iter().all(|stats| stats.peer_hits > 0));
}

#[tokio::test]
async fn readers_of_all_nodes_at_once_read_the_exact_bytes() {
    let nodes = Arc::new(Nodes::new());
    let data = pattern(0, LENGTH);
    nodes.store(&path(), data.clone()).await;
    let readers = (0..30).map(|reader| {
        let nodes = Arc::clone(&nodes);
        tokio::spawn(async move { nodes.read(reader % 3, &path()).await.unwrap() })
    });
    for read in futures::future::join_all(readers).await {
        assert!(read.unwrap() == data);
    }
    let (requests, _) = nodes.take_requests();
    let bytes: u64 = requests.iter().map(|range| range.end - range.start).sum();
    assert_eq!(bytes, LENGTH as u64, "{requests:?}");
}

#[tokio::test]
async fn download_takes_parts_from_the_nodes_that_own_them() {
    let nodes = Nodes::new();
    let data = pattern(0, LENGTH);
    nodes.store(&path(), data.clone()).await;
    for node in 0..3 {
        let options = DownloadOptions {
            part_size: 3 * BLOCK as u64,
            ..DownloadOptions::default()
        };
        let download = nodes.buckets[node]
            .download(&path(), options)
            .await
            .unwrap();
        assert!(download.finish().await.unwrap().into_contiguous() == data);
    }
    let (requests, _) = nodes.take_requests();
    let bytes: u64 = requests.iter().map(|range| range.end - range.start).sum();
    assert!(bytes < 2 * LENGTH as u64, "{requests:?}");
    assert!(nodes.stats(2).peer_bytes > 0);
}

#[tokio::test(start_paused = true)]
async fn failing_node_is_continued_at_the_origin_from_the_byte_reached() {
    let cut = BLOCK + 5;
    for fault in [
        Fault::Silence,
        Fault::SilentBody,
        Fault::FailAfter(0),
        Fault::FailAfter(cut),
        Fault::EndAfter(0),
        Fault::EndAfter(cut),
    ] {
        let nodes = Nodes::with(2, |_, _| 1, Consistency::default(), |builder| builder);
        let data = pattern(0, LENGTH);
        nodes.store(&path(), data.clone()).await;
        *nodes.ring.fault.lock() = fault;
        assert!(nodes.read(0, &path()).await.unwrap() == data, "{fault:?}");
        let stats = nodes.stats(0);
        let stripes = (LENGTH as u64).div_ceil(STRIPE);
        match fault {
            Fault::FailAfter(5..) | Fault::EndAfter(5..) => {
                assert!(stats.peer_bytes >= cut as u64, "{fault:?}");
                assert_eq!(
                    stats.peer_bytes + stats.origin_bytes,
                    LENGTH as u64,
                    "{fault:?}"
                );
                assert!(stats.peer_fallbacks >= stripes - 1, "{fault:?}");
            }
            _ => assert_eq!(stats.origin_bytes, LENGTH as u64, "{fault:?}"),
        }
        assert_eq!(stats.retries, 0, "{fault:?}");
    }
}

#[tokio::test]
async fn request_of_a_node_is_not_passed_on() {
    // Node 0 takes node 1 for the owner, which takes node 2 for it.
    let nodes = Nodes::with(3, |node, _| (node + 1) % 3, Consistency::default(), |b| b);
    let data = pattern(0, LENGTH);
    nodes.store(&path(), data.clone()).await;
    assert!(nodes.read(0, &path()).await.unwrap() == data);
    let asked = nodes.ring.asked.lock().clone();
    assert!(
        !asked.is_empty() && asked.iter().all(|asked| *asked == (0, 1)),
        "{asked:?}"
    );
    assert_eq!(nodes.stats(1).origin_bytes, LENGTH as u64);
}

/// Each takes the other for the owner of everything, and both have readers.
#[tokio::test(start_paused = true)]
async fn nodes_that_take_each_other_for_the_owner_do_not_wait_for_each_other() {
    for round in 0..20 {
        let nodes = Nodes::with(2, |node, _| 1 - node, Consistency::default(), |b| b);
        let nodes = Arc::new(nodes);
        let data = pattern(0, LENGTH);
        nodes.store(&path(), data.clone()).await;
        for _ in 0..round % 4 {
            nodes.faults.fault(
                "get",
                "",
                OriginFault::DelayResponse(Duration::from_millis(5)),
            );
        }
        let began = tokio::time::Instant::now();
        let readers = (0..8).map(|reader| {
            let nodes = Arc::clone(&nodes);
            tokio::spawn(async move { nodes.read(reader % 2, &path()).await.unwrap() })
        });
        for read in futures::future::join_all(readers).await {
            assert!(read.unwrap() == data);
        }
        // No wait is ended by a limit: the shortest is half the stall limit.
        assert!(
            began.elapsed() < Duration::from_millis(500),
            "{:?}",
            began.elapsed()
        );
    }
}

#[tokio::test]
async fn overwritten_during_a_read_is_one_version_or_an_error() {
    let nodes = Nodes::with(2, |_, _| 1, Consistency::default(), |builder| builder);
    let (old, new) = (pattern(0, LENGTH), pattern(1, LENGTH));
    nodes.store(&path(), old.clone()).await;
    let mut body = nodes.buckets[0].get(&path()).await.unwrap().into_stream();
    let first = body.try_next().await.unwrap().unwrap();
    nodes.buckets[1]
        .put(&path(), new.clone().into())
        .await
        .unwrap();
    let rest: Result<Vec<_>, _> = body.try_collect().await;
    match rest {
        Ok(rest) => assert!([vec![first], rest].concat().concat() == old),
        Err(error) => assert!(
            matches!(
                EngineError::find(&error),
                Some(EngineError::VersionChanged { .. })
            ),
            "{error}"
        ),
    }
    for node in 0..2 {
        assert!(
            nodes.read(node, &path()).await.unwrap() == new,
            "node {node}"
        );
    }
}

/// The authority names the replaced version, whose bytes are gone.
#[tokio::test]
async fn change_behind_the_cluster_is_met_and_made_known() {
    let nodes = Nodes::with(2, |_, _| 1, Consistency::default(), |builder| builder);
    let (old, new) = (pattern(0, LENGTH), pattern(1, LENGTH));
    nodes.store(&path(), old.clone()).await;
    for node in 0..2 {
        let meta = nodes.buckets[node].head(&path()).await.unwrap();
        assert_eq!(meta.size, LENGTH as u64);
    }
    nodes.store(&path(), new.clone()).await;
    assert!(nodes.read(0, &path()).await.unwrap() == new);
    assert_eq!(nodes.authority.take_log(), ["begin a/b", "Written a/b"]);
    assert!(nodes.read(1, &path()).await.unwrap() == new);
}

#[tokio::test]
async fn absence_is_stated_by_the_authority() {
    let nodes = Nodes::new();
    for node in [0, 0, 1, 1] {
        let read = nodes.read(node, &path()).await;
        assert!(matches!(read, Err(Error::NotFound { .. })), "{read:?}");
    }
    assert_eq!(nodes.faults.requests(), 1);
    assert_eq!(nodes.stats(0).absences + nodes.stats(1).absences, 2);
    nodes.buckets[2].put(&path(), "new".into()).await.unwrap();
    for node in 0..3 {
        assert_eq!(nodes.read(node, &path()).await.unwrap(), "new");
    }
}

#[tokio::test]
async fn lease_that_ends_is_asked_for_again_before_the_next_read() {
    let nodes = Nodes::with(
        2,
        in_turn,
        Consistency::Revalidate(Duration::from_secs(3600)),
        |b| b,
    );
    nodes.store(&path(), "old".into()).await;
    assert_eq!(nodes.read(0, &path()).await.unwrap(), "old");
    assert!(nodes.buckets[0].resident("a/b").is_some());
    // Without a lease the window of the node itself counts for nothing.
    nodes.buckets[1].put(&path(), "new".into()).await.unwrap();
    assert!(nodes.buckets[0].resident("a/b").is_none());
    assert_eq!(nodes.read(0, &path()).await.unwrap(), "new");
    assert!(nodes.buckets[0].resident("a/b").is_some());
}

/// The response to a question that was sent before a read began need not have a write between.
#[tokio::test]
async fn read_joins_no_question_that_was_sent_before_it_began() {
    let nodes = Arc::new(Nodes::with(2, in_turn, Consistency::default(), |builder| {
        builder
    }));
    nodes.store(&path(), "old".into()).await;
    nodes.faults.fault("get", "", OriginFault::HoldResponse);
    let early = tokio::spawn({
        let nodes = Arc::clone(&nodes);
        async move { nodes.read(0, &path()).await }
    });
    nodes.faults.wait_until_held().await;
    nodes.store(&path(), "new".into()).await;
    assert_eq!(nodes.read(0, &path()).await.unwrap(), "new");
    assert_eq!(
        nodes.faults.in_progress(),
        1,
        "it did not wait for the early one"
    );
    nodes.faults.release(1);
    let early = early.await.unwrap().unwrap();
    assert!(early == "old" || early == "new");
    assert_eq!(nodes.read(0, &path()).await.unwrap(), "new");
}

#[tokio::test]
async fn known_version_of_an_immutable_bucket_is_used_without_a_question() {
    let nodes = Nodes::with(2, in_turn, Consistency::Immutable, |builder| builder);
    assert_eq!(*nodes.authority.windows.lock(), [None, None]);
    nodes.store(&path(), "old".into()).await;
    assert_eq!(nodes.read(0, &path()).await.unwrap(), "old");
    let asked = nodes.authority.questions();
    assert_eq!(nodes.read(0, &path()).await.unwrap(), "old");
    assert!(nodes.buckets[0].resident("a/b").is_some());
    assert_eq!(nodes.authority.questions(), asked);
    // A write is made known all the same.
    nodes.buckets[1].put(&path(), "new".into()).await.unwrap();
    assert_eq!(nodes.read(0, &path()).await.unwrap(), "new");
}

/// In a bucket of objects that never change a known version is used without a question, so it may be old.
#[tokio::test]
async fn node_that_a_drop_did_not_reach_brings_no_old_version_back_at_the_owner() {
    let nodes = Arc::new(Nodes::with(2, |_, _| 1, Consistency::Immutable, |b| b));
    nodes.store(&path(), pattern(0, LENGTH)).await;
    let first = nodes.buckets[0].get_range(&path(), 0..9).await.unwrap();
    assert!(first == pattern(0, LENGTH)[..9]);
    nodes.store(&path(), pattern(1, LENGTH)).await;
    nodes.authority.drop_except(0, &path());
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(1)).await;
    tokio::time::resume();
    assert!(nodes.read(1, &path()).await.unwrap() == pattern(1, LENGTH));
    // The other node asks the owner for the rest of the old version, and then the origin.
    nodes.faults.fault("get", "", OriginFault::HoldResponse);
    let asked = nodes.ring.asked.lock().len();
    let late = tokio::spawn({
        let nodes = Arc::clone(&nodes);
        async move { nodes.read(0, &path()).await }
    });
    nodes.faults.wait_until_held().await;
    assert!(nodes.ring.asked.lock().len() > asked);
    let kept = nodes.buckets[1].resident(path().as_ref());
    assert!(kept.is_some(), "the newer version is known");
    nodes.faults.release(1);
    let _ = late.await.unwrap();
    assert!(nodes.read(0, &path()).await.unwrap() == pattern(1, LENGTH));
}

#[tokio::test]
async fn object_without_a_validator_comes_from_the_origin() {
    let origin = SimOrigin::new(
        1,
        FaultProfile {
            latency: Duration::ZERO..Duration::ZERO,
            pause: Duration::ZERO..Duration::ZERO,
            piece: 4096..4096,
            faults: Vec::new(),
        },
    );
    origin.set_validators(Validators::None);
    let memory = MemoryStore::new();
    let faults = FaultyStore::over(Arc::new(memory.clone()));
    let (store, all) = (Arc::new(origin.clone()), (memory, faults));
    let nodes = Nodes::over(store, all, 2, |_, _| 1, Consistency::default(), |b| b);
    origin
        .put(&path(), pattern(0, LENGTH).into())
        .await
        .unwrap();
    for _ in 0..2 {
        assert!(nodes.read(0, &path()).await.unwrap() == pattern(0, LENGTH));
    }
    assert!(nodes.ring.asked.lock().is_empty());
    assert_eq!(nodes.stats(0).origin_bytes, 2 * LENGTH as u64);
}

#[tokio::test]
async fn other_headers_of_the_same_bytes_are_seen_by_all_nodes() {
    let path = path();
    let nodes = Nodes::with(2, |_, _| 1, Consistency::default(), |builder| builder);
    let of = |text: &'static str| PutOptions {
        attributes: Attributes::from_iter([(Attribute::ContentType, text)]),
        ..PutOptions::default()
    };
    let data = pattern(0, LENGTH);
    for text in ["text/plain", "text/html"] {
        let put = nodes.buckets[0].put_opts(&path, data.clone().into(), of(text));
        put.await.unwrap();
        for node in 0..2 {
            let got = nodes.buckets[node].get(&path).await.unwrap();
            let seen = got
                .attributes
                .get(&Attribute::ContentType)
                .unwrap()
                .to_string();
            assert_eq!(seen, text, "node {node}");
            assert!(got.bytes().await.unwrap() == data);
        }
    }
}

fn wanted(meta: &object_store::ObjectMeta, range: std::ops::Range<u64>) -> PeerRead {
    PeerRead {
        bucket: "data".to_owned(),
        path: path(),
        e_tag: meta.e_tag.clone().unwrap(),
        size: meta.size,
        range,
        age: Some(Duration::ZERO),
    }
}

#[tokio::test]
async fn peek_returns_only_what_is_in_memory() {
    let nodes = Nodes::with(2, |_, _| 0, Consistency::default(), |builder| builder);
    let data = pattern(0, LENGTH);
    nodes.store(&path(), data.clone()).await;
    let meta = nodes.memory.head(&path()).await.unwrap();
    let bucket = &nodes.buckets[0];
    let wanted = wanted(&meta, 5..STRIPE);
    let peek = |wanted: &PeerRead| bucket.serve_peer(wanted, true).err();
    assert_eq!(peek(&wanted), Some(PeerReadError::Absent));
    assert_eq!(nodes.faults.requests(), 0);
    let body = bucket.serve_peer(&wanted, false).unwrap().bytes;
    let served: Vec<_> = body.try_collect().await.unwrap();
    assert!(served.concat() == data[5..STRIPE as usize]);
    assert_eq!(nodes.take_requests().1, 0, "no question");
    let body = bucket.serve_peer(&wanted, true).unwrap().bytes;
    let served: Vec<_> = body.try_collect().await.unwrap();
    assert!(served.concat() == data[5..STRIPE as usize]);
    // The requested version is no known object of its own: headers and date are not known.
    assert!(bucket.resident("a/b").is_none());
    let head = bucket.head(&path()).await.unwrap();
    assert_eq!(head.last_modified, meta.last_modified);
    assert!(
        bucket
            .resident("a/b")
            .is_some_and(|object| object.read(0..9).is_some())
    );
}

#[tokio::test]
async fn replaced_and_unnamed_versions_are_absent() {
    let nodes = Nodes::with(2, |_, _| 0, Consistency::default(), |builder| builder);
    nodes.store(&path(), pattern(0, LENGTH)).await;
    let old = nodes.memory.head(&path()).await.unwrap();
    nodes.buckets[0]
        .put(&path(), pattern(1, LENGTH).into())
        .await
        .unwrap();
    drop(nodes.read(0, &path()).await.unwrap());
    let bucket = &nodes.buckets[0];
    let refused = |wanted: PeerRead| bucket.serve_peer(&wanted, false).err();
    assert_eq!(refused(wanted(&old, 0..9)), Some(PeerReadError::Absent));
    let now = nodes.memory.head(&path()).await.unwrap();
    assert!(bucket.serve_peer(&wanted(&now, 0..9), false).is_ok());
    let size = now.size;
    for wanted in [
        wanted(&now, 9..9),
        wanted(&now, 0..size + 1),
        PeerRead {
            size: size + 1,
            ..wanted(&now, 0..9)
        },
        PeerRead {
            bucket: "other".to_owned(),
            ..wanted(&now, 0..9)
        },
    ] {
        assert_eq!(
            refused(wanted.clone()),
            Some(PeerReadError::Absent),
            "{wanted:?}"
        );
    }
    for tag in ["", "W/\"1\""] {
        let wanted = PeerRead {
            path: Path::from("new"),
            e_tag: tag.to_owned(),
            ..wanted(&now, 0..9)
        };
        assert_eq!(refused(wanted), Some(PeerReadError::Absent), "{tag}");
    }
    // A version that the origin does not have: the stream fails, and no byte of another is returned.
    let gone = PeerRead {
        path: Path::from("gone"),
        ..wanted(&now, 0..9)
    };
    let mut body = bucket.serve_peer(&gone, false).unwrap().bytes;
    assert!(body.next().await.unwrap().is_err());
}

/// Blocks that other nodes own leave memory before blocks that this node owns.
#[tokio::test]
async fn blocks_of_other_nodes_are_evicted_first() {
    let set = |builder: bywash::EngineBuilder| builder.memory(64 * BLOCK as u64);
    let nodes = Nodes::with(
        2,
        |_, stripe| (stripe % 2) as usize,
        Consistency::default(),
        set,
    );
    nodes.store(&path(), pattern(0, 20 * BLOCK)).await;
    drop(nodes.read(0, &path()).await.unwrap());
    let more = Path::from("more");
    nodes.store(&more, pattern(1, 60 * BLOCK)).await;
    drop(nodes.read(0, &more).await.unwrap());
    let meta = nodes.memory.head(&path()).await.unwrap();
    let here = |stripe: u64| {
        let wanted = wanted(&meta, stripe * STRIPE..(stripe + 1) * STRIPE);
        nodes.buckets[0].serve_peer(&wanted, true).is_ok()
    };
    let own = (0..10)
        .filter(|stripe| stripe % 2 == 0 && here(*stripe))
        .count();
    let foreign = (0..10)
        .filter(|stripe| stripe % 2 == 1 && here(*stripe))
        .count();
    assert!(
        own > foreign,
        "{own} own stripes and {foreign} of the other node"
    );
}
