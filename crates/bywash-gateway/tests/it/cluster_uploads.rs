//! Tests of multipart uploads that the nodes of a cluster share: every request at another node, which ends after it.

pub(crate) mod authority;
mod confirmed;
mod exactly_once;
mod records;
mod sweep;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use bywash::cluster_uploads::{SharedUpload, SharedUploads, UploadSeal};
use bywash::origin::azure::AzureStore;
use bywash::origin::gcs::GcsStore;
use bywash::{Consistency, Engine};
use bywash_gateway::limits::MAX_SHOWN_UPLOADS;
use bywash_gateway::{ClusterUploads, HmacSeal, S3Config};
use bywash_sim::server::azure::Azure;
use bywash_sim::server::gcs::Gcs;
use bywash_sim::server::s3::S3;
use bywash_sim::server::{Protocol, Server as Store, ServerFault};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;

use crate::http::{HttpResponse, pattern};
use crate::multipart::{MIN, complete, completion, create, part, upload};
use crate::s3_origin::mount_cloud;
use crate::server::Server;
use records::Records;

pub(crate) const TARGET: &str = "/cloud/dir/key";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    S3,
    Gcs,
    Azure,
}

/// Mounts a store of this kind as the bucket `cloud`.
pub(crate) fn mount_store(engine: &Engine, kind: Kind, store: &Store) {
    let origin: Arc<dyn bywash::Origin> = match kind {
        Kind::S3 => return mount_cloud(engine, store),
        Kind::Gcs => {
            let builder = GoogleCloudStorageBuilder::new()
                .with_bucket_name("data")
                .with_base_url(&store.url())
                .with_skip_signature(true);
            let origin = GcsStore::from_builder(builder, "data", &Path::default()).unwrap();
            Arc::new(origin.with_conditional_delete(Some("generation")).unwrap())
        }
        Kind::Azure => {
            let builder = MicrosoftAzureBuilder::new()
                .with_account("account")
                .with_access_key("c2VjcmV0")
                .with_container_name("data")
                .with_endpoint(format!("{}/account", store.url()));
            Arc::new(AzureStore::from_builder(builder, "data", &Path::default()).unwrap())
        }
    };
    engine
        .mount("cloud", origin, Consistency::Immutable)
        .unwrap();
}

pub(crate) struct Cluster {
    kind: Kind,
    store: Store,
    records: Arc<Records>,
}

impl Cluster {
    pub(crate) async fn of(kind: Kind) -> Self {
        let protocol: Arc<dyn Protocol> = match kind {
            // A page of one part, so that lists have several.
            Kind::S3 => S3::new().with_limits(1, 1),
            Kind::Gcs => Gcs::new(),
            Kind::Azure => Azure::new(),
        };
        Self {
            kind,
            store: Store::start(protocol).await.unwrap(),
            records: Arc::default(),
        }
    }

    async fn s3() -> Self {
        Self::of(Kind::S3).await
    }

    pub(crate) fn mount(&self, engine: &Engine) {
        mount_store(engine, self.kind, &self.store);
    }

    /// Starts a node with the cluster's key.
    async fn node(&self) -> Server {
        self.node_with_key([1; 32]).await
    }

    async fn node_with_key(&self, key: [u8; 32]) -> Server {
        self.node_with(self.config(key)).await
    }

    fn config(&self, key: [u8; 32]) -> S3Config {
        S3Config {
            cluster_uploads: Some(self.uploads(key)),
            ..S3Config::anonymous()
        }
    }

    /// State that the nodes with a key share.
    pub(crate) fn uploads(&self, key: [u8; 32]) -> ClusterUploads {
        let shared = Arc::<Records>::clone(&self.records);
        ClusterUploads {
            seal: Arc::new(HmacSeal::new(key, [])),
            shared,
            sweep_every: Duration::from_secs(3600),
        }
    }

    async fn node_with(&self, config: S3Config) -> Server {
        let root = tempfile::tempdir().unwrap();
        let engine = Server::engine(64 << 20, &root);
        self.mount(&engine);
        Server::start_with(engine, root, config).await
    }

    async fn begin(&self, target: &str) -> String {
        let node = self.node().await;
        let id = create(&node, target, &[]).await;
        node.kill();
        id
    }

    async fn part(&self, id: &str, number: u32, body: &[u8]) -> String {
        let node = self.node().await;
        let e_tag = part(&node, TARGET, id, number, body).await;
        node.kill();
        e_tag
    }

    async fn complete(&self, id: &str, parts: &[(u32, &str)]) -> HttpResponse {
        let node = self.node().await;
        let response = complete(&node, TARGET, id, &[], &completion(parts)).await;
        node.kill();
        response
    }

    async fn get(&self, target: &str) -> HttpResponse {
        let node = self.node().await;
        let response = node.get(target, &[]).await;
        node.kill();
        response
    }

    async fn abort(&self, id: &str) -> HttpResponse {
        let node = self.node().await;
        let target = format!("{TARGET}?uploadId={id}");
        let response = node.send("DELETE", &target, &[], b"").await;
        node.kill();
        response
    }

    /// Loses the response to the next completion.
    pub(crate) fn lose_completion(&self) {
        let text = match self.kind {
            Kind::S3 => "POST /data/dir/key?uploadId=",
            Kind::Gcs => "POST /data/dir%2Fkey?uploadId=",
            Kind::Azure => "PUT /account/data/dir/key?comp=blocklist",
        };
        self.store.script(text, ServerFault::LoseResponse);
    }
}

#[tokio::test]
async fn each_request_of_an_upload_is_served_by_another_node() {
    for kind in [Kind::S3, Kind::Gcs, Kind::Azure] {
        let cluster = Cluster::of(kind).await;
        let body = pattern(MIN + 12345);
        let id = cluster.begin(TARGET).await;
        let other = cluster.begin("/cloud/other").await;
        let last = cluster.part(&id, 9, &body[MIN..]).await;
        cluster.part(&id, 2, b"replaced below").await;
        let first = cluster.part(&id, 2, &body[..MIN]).await;

        let listed = cluster.get("/cloud?uploads").await.expect(200);
        assert_eq!(listed.tags("Key"), ["dir/key", "other"], "{kind:?}");
        assert_eq!(listed.tags("UploadId"), [&*id, &*other]);
        let parts = format!("{TARGET}?uploadId={id}");
        let listed = cluster.get(&parts).await.expect(200);
        assert_eq!(listed.tags("PartNumber"), ["2", "9"], "{kind:?}");
        let listed = cluster.get(&format!("{parts}&max-parts=1")).await;
        let listed = listed.expect(200);
        assert_eq!(listed.tags("PartNumber"), ["2"]);
        assert_eq!(listed.tag("NextPartNumberMarker").as_deref(), Some("2"));
        let listed = cluster.get(&format!("{parts}&part-number-marker=2")).await;
        let listed = listed.expect(200);
        assert_eq!(listed.tags("PartNumber"), ["9"]);
        assert_eq!(listed.tag("IsTruncated").as_deref(), Some("false"));

        let list = [(2, &*first), (9, &*last)];
        let reply = cluster.complete(&id, &list).await.expect(200);
        assert!(cluster.get(TARGET).await.expect(200).body == body);
        let again = cluster.complete(&id, &list).await.expect(200);
        assert_eq!(again.tag("ETag"), reply.tag("ETag"), "{kind:?}");
        let listed = cluster.get("/cloud?uploads").await.expect(200);
        assert_eq!(listed.tags("Key"), ["other"], "{kind:?}");
        // A part that was named and is not stored.
        let refused = cluster.complete(&other, &[(1, "missing")]).await;
        assert!([400, 404].contains(&refused.status), "{}", refused.text());
    }
}

#[tokio::test]
async fn aborted_upload_has_ended_at_all_nodes() {
    for kind in [Kind::S3, Kind::Gcs, Kind::Azure] {
        let cluster = Cluster::of(kind).await;
        let id = cluster.begin(TARGET).await;
        let e_tag = cluster.part(&id, 1, b"x").await;
        cluster.abort(&id).await.expect(204);
        let refused = cluster.complete(&id, &[(1, &e_tag)]).await;
        refused.expect_error(404, "NoSuchUpload");
        cluster.abort(&id).await.expect_error(404, "NoSuchUpload");
        cluster.get(TARGET).await.expect(404);
        assert_eq!(cluster.records.open(), 0, "{kind:?}");
        if kind != Kind::Azure {
            let node = cluster.node().await;
            let refused = upload(&node, TARGET, &id, 1, &[], b"x").await;
            refused.expect_error(404, "NoSuchUpload");
            let parts = cluster.get(&format!("{TARGET}?uploadId={id}")).await;
            parts.expect_error(404, "NoSuchUpload");
        }
    }
}

#[tokio::test]
async fn completion_with_a_lost_response_is_proven_at_another_node() {
    for kind in [Kind::S3, Kind::Gcs, Kind::Azure] {
        let cluster = Cluster::of(kind).await;
        let id = cluster.begin(TARGET).await;
        let e_tag = cluster.part(&id, 1, b"all").await;
        cluster.lose_completion();
        let lost = cluster.complete(&id, &[(1, &e_tag)]).await;
        assert!(lost.status >= 500, "{kind:?} {}", lost.text());
        assert_eq!(cluster.get(TARGET).await.expect(200).text(), "all");
        let again = cluster.complete(&id, &[(1, &e_tag)]).await.expect(200);
        let read = cluster.get(TARGET).await.expect(200);
        let bare = |text: &str| text.replace("&quot;", "").replace('"', "");
        assert_eq!(
            bare(&again.tag("ETag").unwrap()),
            bare(read.header("etag").unwrap())
        );
        assert_eq!(cluster.records.open(), 0, "{kind:?}");
    }
}

#[tokio::test]
async fn object_of_another_list_or_writer_is_not_the_result() {
    for kind in [Kind::S3, Kind::Gcs] {
        let cluster = Cluster::of(kind).await;
        let id = cluster.begin(TARGET).await;
        let one = cluster.part(&id, 1, b"one").await;
        let two = cluster.part(&id, 2, b"two").await;
        cluster.lose_completion();
        let lost = cluster.complete(&id, &[(1, &one)]).await;
        assert!(lost.status >= 500);
        // Of the same size.
        let refused = cluster.complete(&id, &[(2, &two)]).await;
        refused.expect_error(404, "NoSuchUpload");
        assert_eq!(cluster.get(TARGET).await.expect(200).text(), "one");
        let proven = cluster.complete(&id, &[(1, &one)]).await;
        proven.expect(200);
        cluster.records.forget_completed();
        let node = cluster.node().await;
        node.put(TARGET, &[], b"own").await.expect(200);
        let refused = cluster.complete(&id, &[(1, &one)]).await;
        refused.expect_error(404, "NoSuchUpload");
    }
}

#[tokio::test]
async fn of_two_completions_at_once_one_wins_and_the_other_is_an_error() {
    for kind in [Kind::S3, Kind::Gcs] {
        for _ in 0..8 {
            let cluster = Cluster::of(kind).await;
            let id = cluster.begin(TARGET).await;
            let one = cluster.part(&id, 1, b"one").await;
            let two = cluster.part(&id, 2, b"two").await;
            let (first, second) = ([(1, &*one)], [(2, &*two)]);
            let (first, second) = tokio::join!(
                cluster.complete(&id, &first),
                cluster.complete(&id, &second)
            );
            let winner = match (first.status, second.status) {
                (200, 404) => "one",
                (404, 200) => "two",
                other => panic!("{other:?} {} {}", first.text(), second.text()),
            };
            assert_eq!(cluster.get(TARGET).await.expect(200).text(), winner);
        }
    }
}

#[tokio::test]
async fn forged_and_foreign_ids_reach_no_upload() {
    let cluster = Cluster::s3().await;
    let id = cluster.begin(TARGET).await;
    let other_key = cluster.begin("/cloud/other").await;
    let foreign = cluster.node_with_key([2; 32]).await;
    let foreign = create(&foreign, TARGET, &[]).await;
    let mut forged = id.clone();
    let changed = if &id[10..11] == "A" { "B" } else { "A" };
    forged.replace_range(10..11, changed);
    let node = cluster.node().await;
    let _ = cluster.store.take_log();
    for bad in ["", "x", "c1.", &other_key, &foreign, &forged] {
        let sent = upload(&node, TARGET, bad, 1, &[], b"x").await;
        sent.expect_error(404, "NoSuchUpload");
        let listed = node.get(&format!("{TARGET}?uploadId={bad}"), &[]).await;
        listed.expect_error(404, "NoSuchUpload");
        let list = completion(&[(1, "x")]);
        let completed = complete(&node, TARGET, bad, &[], &list).await;
        completed.expect_error(404, "NoSuchUpload");
        let target = format!("{TARGET}?uploadId={bad}");
        let aborted = node.send("DELETE", &target, &[], b"").await;
        aborted.expect_error(404, "NoSuchUpload");
    }
    let sent = cluster.store.take_log();
    assert!(
        sent.is_empty(),
        "{:?}",
        sent.iter().map(|sent| &sent.line).collect::<Vec<_>>()
    );
    let moved = "/memory/dir/key";
    let sent = upload(&node, moved, &id, 1, &[], b"x").await;
    sent.expect_error(404, "NoSuchUpload");
}

#[tokio::test]
async fn upload_goes_on_without_the_records_and_names_what_cannot_be_proven() {
    let cluster = Cluster::s3().await;
    let early = cluster.begin(TARGET).await;
    let down = |down| cluster.records.down.store(down, SeqCst);
    down(true);
    let id = cluster.begin(TARGET).await;
    let one = cluster.part(&id, 1, b"one").await;
    let two = cluster.part(&id, 2, b"two").await;
    let listed = cluster.get("/cloud?uploads").await;
    listed.expect_error(503, "SlowDown");
    cluster.lose_completion();
    assert!(cluster.complete(&id, &[(1, &one)]).await.status >= 500);
    // The ETag proves the list, and cannot disprove another one.
    cluster.complete(&id, &[(1, &one)]).await.expect(200);
    let unproven = cluster.complete(&id, &[(2, &two)]).await;
    let text = unproven.expect_error(503, "SlowDown").text();
    assert!(text.contains("cannot be proven while"), "{text}");
    let one = cluster.part(&early, 1, b"early").await;
    cluster.complete(&early, &[(1, &one)]).await.expect(200);
    down(false);
    let refused = cluster.complete(&id, &[(2, &two)]).await;
    refused.expect_error(404, "NoSuchUpload");
    assert_eq!(cluster.get(TARGET).await.expect(200).text(), "early");
}

#[tokio::test]
async fn completion_that_needs_a_record_is_not_sent_without_one() {
    for kind in [Kind::Gcs, Kind::Azure] {
        let cluster = Cluster::of(kind).await;
        let id = cluster.begin(TARGET).await;
        let e_tag = cluster.part(&id, 1, b"all").await;
        for lost in [false, true] {
            let fails = if lost {
                &cluster.records.lost
            } else {
                &cluster.records.down
            };
            fails.store(true, SeqCst);
            let refused = cluster.complete(&id, &[(1, &e_tag)]).await;
            refused.expect_error(503, "SlowDown");
            fails.store(false, SeqCst);
            cluster.get(TARGET).await.expect(404);
        }
        cluster.complete(&id, &[(1, &e_tag)]).await.expect(200);
    }
}

#[tokio::test]
async fn store_without_uploads_begins_none_without_the_records() {
    let cluster = Cluster::of(Kind::Azure).await;
    cluster.records.down.store(true, SeqCst);
    let node = cluster.node().await;
    let refused = node
        .send("POST", &format!("{TARGET}?uploads"), &[], b"")
        .await;
    refused.expect_error(503, "SlowDown");
}

#[tokio::test]
async fn uploads_of_a_cluster_are_listed_in_pages_and_by_prefix() {
    let cluster = Cluster::s3().await;
    let node = cluster.node().await;
    for key in ["a", "b/1", "b/2", "b/3", "c"] {
        create(&node, &format!("/cloud/{key}"), &[]).await;
    }
    let node = cluster.node().await;
    let (mut keys, mut marker) = (Vec::new(), String::new());
    loop {
        let target = format!("/cloud?uploads&max-uploads=2{marker}");
        let page = node.get(&target, &[]).await.expect(200);
        keys.extend(page.tags("Key"));
        if page.tag("IsTruncated").as_deref() != Some("true") {
            break;
        }
        let (key, id) = (page.tag("NextKeyMarker"), page.tag("NextUploadIdMarker"));
        marker = format!(
            "&key-marker={}&upload-id-marker={}",
            key.unwrap(),
            id.unwrap()
        );
    }
    assert_eq!(keys, ["a", "b/1", "b/2", "b/3", "c"]);
    let folded = node
        .get("/cloud?uploads&delimiter=/", &[])
        .await
        .expect(200);
    assert_eq!(folded.tags("Key"), ["a", "c"]);
    assert_eq!(folded.tags("Prefix").last().map(String::as_str), Some("b/"));
    let within = node.get("/cloud?uploads&prefix=b/", &[]).await.expect(200);
    assert_eq!(within.tags("Key"), ["b/1", "b/2", "b/3"]);
}

#[tokio::test]
async fn checksum_is_combined_from_those_that_the_completion_names() {
    let cluster = Cluster::s3().await;
    let node = cluster.node().await;
    let id = create(&node, TARGET, &[("x-amz-checksum-algorithm", "CRC32")]).await;
    let crc = "7w0OFA==";
    let sent = upload(&node, TARGET, &id, 1, &[], b"all").await.expect(200);
    let e_tag = sent.header("etag").unwrap();
    let crc = sent
        .header("x-amz-checksum-crc32")
        .unwrap_or(crc)
        .to_owned();
    let wrong = upload(
        &node,
        TARGET,
        &id,
        1,
        &[("x-amz-checksum-crc32", "AAAAAA==")],
        b"all",
    );
    wrong.await.expect_error(400, "BadDigest");
    let xml = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{e_tag}</ETag>\
         <ChecksumCRC32>{crc}</ChecksumCRC32></Part></CompleteMultipartUpload>"
    );
    let other = cluster.node().await;
    let reply = complete(&other, TARGET, &id, &[], &xml).await.expect(200);
    let composite = reply.tag("ChecksumCRC32").unwrap();
    assert!(composite.ends_with("-1"), "{composite}");
    assert_eq!(reply.tag("ChecksumType").as_deref(), Some("COMPOSITE"));
}

#[tokio::test]
async fn node_shows_and_aborts_the_uploads_of_its_cluster() {
    let cluster = Cluster::s3().await;
    let id = cluster.begin(TARGET).await;
    create(&cluster.node_with_key([2; 32]).await, TARGET, &[]).await;
    let config = cluster.config([1; 32]);
    let shown = config.open_uploads.clone();
    let node = cluster.node_with(config).await;
    assert!(shown.of_cluster(&node.engine).await.is_none(), "not served");
    node.get("/cloud?uploads", &[]).await.expect(200);
    let (uploads, all) = shown.of_cluster(&node.engine).await.unwrap().unwrap();
    let [open] = &uploads[..] else {
        panic!("of another key: {uploads:?}");
    };
    assert!(all);
    assert_eq!(
        (&*open.bucket, &*open.key, &*open.id),
        ("cloud", "dir/key", &*id)
    );
    assert!(!open.origin_id.is_empty() && open.origin_id != id);
    let aborted = shown.abort(&node.engine, "cloud", "dir/key", &id).await;
    aborted.unwrap();
    let (uploads, _) = shown.of_cluster(&node.engine).await.unwrap().unwrap();
    assert_eq!(uploads, []);
    cluster.records.down.store(true, SeqCst);
    assert!(shown.of_cluster(&node.engine).await.unwrap().is_err());
}

#[tokio::test]
async fn uploads_past_those_that_a_node_shows_are_missing_and_it_is_stated() {
    let cluster = Cluster::s3().await;
    let seal = HmacSeal::new([1; 32], []);
    let begin = async |number: usize| {
        let key = format!("{number:04}");
        let upload = SharedUpload {
            id: seal.seal("cloud", &key, br#"{"o":"1","t":0}"#),
            bucket: "cloud".to_owned(),
            key,
            initiated: Default::default(),
            algorithm: None,
            origin: None,
        };
        cluster.records.begun(&upload).await.unwrap();
    };
    let config = cluster.config([1; 32]);
    let shown = config.open_uploads.clone();
    let node = cluster.node_with(config).await;
    node.get("/cloud?uploads", &[]).await.expect(200);
    for number in 0..MAX_SHOWN_UPLOADS {
        begin(number).await;
    }
    let (uploads, all) = shown.of_cluster(&node.engine).await.unwrap().unwrap();
    assert_eq!((uploads.len(), all), (MAX_SHOWN_UPLOADS, true));
    begin(MAX_SHOWN_UPLOADS).await;
    let (uploads, all) = shown.of_cluster(&node.engine).await.unwrap().unwrap();
    assert_eq!((uploads.len(), all), (MAX_SHOWN_UPLOADS, false));
}
