//! Writes: begun at the authority before the origin is asked, ended after it, and then seen by all nodes at once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bywash::origin::gcs::GcsStore;
use bywash::origin::memory::MemoryStore;
use bywash::{Consistency, DeleteCondition, DownloadOptions, EngineError, UploadOptions};
use bywash_sim::server::Server;
use bywash_sim::server::gcs::Gcs;
use bywash_support::faulty_store::{Fault as OriginFault, FaultyStore};
use bywash_support::pattern;
use futures::{StreamExt, stream};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions};

use super::fake::{BLOCK, Nodes, in_turn};

fn path() -> Path {
    Path::from("a")
}

/// Reads the object at all nodes, so that each holds a lease of its version.
async fn all_read(nodes: &Nodes, expected: Option<&Bytes>) {
    for node in 0..3 {
        match (nodes.read(node, &path()).await, expected) {
            (Err(Error::NotFound { .. }), None) => {}
            (Ok(read), Some(expected)) => assert!(read == *expected, "node {node}"),
            (read, _) => panic!("node {node}: {read:?}"),
        }
    }
}

#[tokio::test]
async fn each_kind_of_write_is_seen_by_all_nodes_at_once() {
    let nodes = Nodes::new();
    let long = pattern(7, 9 * BLOCK);
    nodes.store(&Path::from("from"), "copied".into()).await;
    all_read(&nodes, None).await;

    nodes.buckets[1].put(&path(), "put".into()).await.unwrap();
    all_read(&nodes, Some(&"put".into())).await;
    assert_eq!(nodes.authority.take_log(), ["begin a", "Written a"]);

    nodes.buckets[2]
        .copy(&Path::from("from"), &path())
        .await
        .unwrap();
    all_read(&nodes, Some(&"copied".into())).await;
    assert_eq!(nodes.authority.take_log(), ["begin a", "Written a"]);

    let mut upload = nodes.buckets[0]
        .upload(&path(), UploadOptions::default())
        .await
        .unwrap();
    upload.write(long.clone()).await.unwrap();
    upload.finish().await.unwrap();
    all_read(&nodes, Some(&long)).await;
    assert_eq!(nodes.authority.take_log(), ["begin a", "Written a"]);

    let bucket = &nodes.buckets[1];
    let id = bucket
        .create_upload(&path(), PutMultipartOptions::default())
        .await
        .unwrap();
    let body = stream::iter([Ok(Bytes::from("part"))]).boxed();
    let e_tag = bucket.put_part(&path(), &id, 1, 4, body).await.unwrap();
    all_read(&nodes, Some(&long)).await;
    assert!(
        nodes.authority.take_log().is_empty(),
        "a part changes nothing"
    );
    let parts = [bywash::UploadedPart { number: 1, e_tag }];
    bucket
        .complete_upload(&path(), &id, &parts, PutMode::Overwrite)
        .await
        .unwrap();
    all_read(&nodes, Some(&"part".into())).await;
    assert_eq!(nodes.authority.take_log(), ["begin a", "Written a"]);

    nodes.buckets[2].delete(&path()).await.unwrap();
    all_read(&nodes, None).await;
    assert_eq!(nodes.authority.take_log(), ["begin a", "Written a"]);
}

#[tokio::test]
async fn one_request_that_deletes_many_is_one_write() {
    let nodes = Nodes::new();
    let names = ["a", "b", "c"].map(Path::from);
    for name in &names {
        nodes.store(name, "old".into()).await;
        assert_eq!(nodes.read(0, name).await.unwrap(), "old");
    }
    let paths = stream::iter(names.clone().map(Ok)).boxed();
    let deleted: Vec<_> = nodes.buckets[1].delete_stream(paths).collect().await;
    assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
    assert_eq!(nodes.authority.take_log(), ["begin a b c", "Written a b c"]);
    for name in &names {
        let read = nodes.read(0, name).await;
        assert!(matches!(read, Err(Error::NotFound { .. })), "{read:?}");
    }
}

/// Nodes over a store whose ETags name contents, as Google's do, and whose versions name writes.
async fn over_gcs(count: usize) -> (Nodes, Server) {
    let server = Server::start(Gcs::new()).await.unwrap();
    let builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name("data")
        .with_base_url(&server.url())
        .with_skip_signature(true);
    let origin = Arc::new(GcsStore::from_builder(builder, "data", &Path::default()).unwrap());
    let memory = MemoryStore::new();
    let all = (memory.clone(), FaultyStore::over(Arc::new(memory)));
    let nodes = Nodes::over(origin, all, count, |_, _| 1, Consistency::default(), |b| b);
    (nodes, server)
}

/// A download that joins one of equal bytes shares its buffer, and states the version that it found itself.
#[tokio::test]
async fn download_that_joins_one_of_equal_bytes_states_the_version_of_its_own_time() {
    let (nodes, _server) = over_gcs(2).await;
    let data = pattern(7, 3 * BLOCK);
    let path = path();
    let put = || nodes.buckets[1].put(&path, data.clone().into());
    let begin = || nodes.buckets[0].download(&path, DownloadOptions::default());
    let old = put().await.unwrap();
    let first = begin().await.unwrap();
    let new = put().await.unwrap();
    assert_ne!(old.version, new.version);
    let second = begin().await.unwrap();
    assert_eq!(first.meta().version, old.version);
    assert_eq!(second.meta().version, new.version);
    for download in [first, second] {
        assert!(download.finish().await.unwrap().into_contiguous() == data);
    }
    let requested = nodes.stats(0).origin_bytes + nodes.stats(1).origin_bytes;
    assert_eq!(requested, data.len() as u64, "the bytes are the same");
}

#[tokio::test]
async fn equal_bytes_written_again_have_their_new_version_at_all_nodes() {
    let (nodes, _server) = over_gcs(2).await;
    let data = pattern(7, 3 * BLOCK);
    for _ in 0..2 {
        let put = nodes.buckets[0]
            .put(&path(), data.clone().into())
            .await
            .unwrap();
        assert!(put.version.is_some());
        for node in 0..2 {
            let got = nodes.buckets[node].get(&path()).await.unwrap();
            assert_eq!(got.meta.version, put.version, "node {node}");
            assert!(got.bytes().await.unwrap() == data);
        }
    }
    let requested = nodes.stats(0).origin_bytes + nodes.stats(1).origin_bytes;
    assert_eq!(requested, data.len() as u64, "the bytes are the same");
}

/// Clients take it for a success, so no node may return the object afterwards.
#[tokio::test]
async fn delete_of_an_absent_object_ends_as_a_write() {
    let (nodes, _server) = over_gcs(2).await;
    let deleted = nodes.buckets[0].delete(&path()).await;
    assert!(
        matches!(deleted, Err(Error::NotFound { .. })),
        "{deleted:?}"
    );
    assert_eq!(nodes.authority.take_log(), ["begin a", "Written a"]);
    *nodes.authority.refuses_ends.lock() = true;
    let unconfirmed = nodes.buckets[0].delete(&path()).await.unwrap_err();
    assert!(EngineError::find(&unconfirmed).is_some(), "{unconfirmed:?}");

    let nodes = Nodes::new();
    let condition = DeleteCondition {
        e_tag: Some("x".to_owned()),
        ..DeleteCondition::default()
    };
    let deleted = nodes.buckets[0].delete_if(&path(), condition).await;
    assert!(
        matches!(deleted, Err(Error::NotFound { .. })),
        "{deleted:?}"
    );
    assert_eq!(nodes.authority.take_log(), ["begin a", "Written a"]);
}

#[tokio::test(start_paused = true)]
async fn end_of_a_failed_write_states_whether_it_may_have_succeeded() {
    let nodes = Nodes::new();
    nodes.store(&path(), "old".into()).await;
    let create = PutOptions::from(PutMode::Create);
    let refused = nodes.buckets[0]
        .put_opts(&path(), "new".into(), create.clone())
        .await;
    assert!(
        matches!(refused, Err(Error::AlreadyExists { .. })),
        "{refused:?}"
    );
    assert_eq!(nodes.authority.take_log(), ["begin a", "Refused a"]);

    nodes.faults.fault("put", "", OriginFault::LoseResponse);
    let path = Path::from("b");
    let lost = nodes.buckets[0].put_opts(&path, "new".into(), create).await;
    assert!(lost.is_err(), "{lost:?}");
    assert_eq!(nodes.authority.take_log(), ["begin b", "InDoubt b"]);
    assert_eq!(nodes.read(1, &path).await.unwrap(), "new");
}

#[tokio::test]
async fn write_that_the_other_nodes_may_not_see_is_not_acknowledged() {
    let nodes = Nodes::new();
    *nodes.authority.refuses_ends.lock() = true;
    let bucket = &nodes.buckets[0];
    let is_slow_down =
        |error: &Error| matches!(EngineError::find(error), Some(EngineError::SlowDown { .. }));
    let put = bucket.put(&path(), "new".into()).await;
    assert!(put.as_ref().is_err_and(is_slow_down), "{put:?}");
    let deleted = bucket.delete(&path()).await;
    assert!(deleted.is_err(), "{deleted:?}");
    // A refusal stays a refusal.
    nodes.store(&path(), "old".into()).await;
    let create = PutOptions::from(PutMode::Create);
    let refused = bucket.put_opts(&path(), "new".into(), create).await;
    assert!(
        matches!(refused, Err(Error::AlreadyExists { .. })),
        "{refused:?}"
    );
}

/// The origin may apply it after its client has left, so the write continues to its end.
#[tokio::test]
async fn write_whose_client_leaves_is_ended() {
    let nodes = Arc::new(Nodes::with(2, in_turn, Consistency::default(), |builder| {
        builder
    }));
    nodes.faults.fault("put", "", OriginFault::HoldResponse);
    let client = tokio::spawn({
        let bucket = nodes.buckets[0].clone();
        async move { bucket.put(&path(), "new".into()).await }
    });
    nodes.faults.wait_until_held().await;
    client.abort();
    assert!(client.await.is_err());
    assert_eq!(nodes.authority.take_log(), ["begin a"]);
    nodes.faults.release(1);
    let ended = async {
        while nodes.authority.log.lock().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ended)
        .await
        .unwrap();
    assert_eq!(nodes.authority.take_log(), ["Written a"]);
}
