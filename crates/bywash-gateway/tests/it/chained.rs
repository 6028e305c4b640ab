//! An endpoint whose origin is another endpoint of Bywash, by S3 and by Google's API.

use std::sync::Arc;

use bywash::origin::gcs::GcsStore;
use bywash::origin::s3::S3Store;
use bywash::{Consistency, Engine, Origin};
use bywash_gateway::GcsConfig;
use bywash_sim::server::Server as Store;
use bywash_sim::server::s3::S3;
use bywash_support::sign::{KEY, SECRET};
use object_store::aws::AmazonS3Builder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use serde_json::Value;

use crate::gcs_server::GcsServer;
use crate::http::{HttpResponse, pattern};
use crate::multipart::{complete, completion, create, part};
use crate::s3_origin::mount_cloud;
use crate::server::{BUCKETS, Server};

const MIN_PART: usize = 5 << 20;

/// The endpoints of an engine, and of the engine that is the origin of its bucket `cloud`.
struct Chain {
    /// Whether the protocol between the two has tags.
    tags: bool,
    outer: Server,
    outer_gcs: GcsServer,
    inner: Server,
    inner_gcs: GcsServer,
}

async fn both(engine: Engine) -> (Server, GcsServer) {
    let s3 = Server::start_beside(&engine).await;
    let root = tempfile::tempdir().unwrap();
    let gcs = GcsServer::start_over(engine, root, GcsConfig::anonymous("")).await;
    (s3, gcs)
}

impl Chain {
    async fn new(protocol: &str, bucket: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let engine = Server::engine(64 << 20, &root);
        let (inner, mut inner_gcs) = both(engine).await;
        inner_gcs.root = root;
        Self::over(protocol, bucket, inner, inner_gcs).await
    }

    async fn over(protocol: &str, bucket: &str, inner: Server, inner_gcs: GcsServer) -> Self {
        let origin: Arc<dyn Origin> = if protocol == "s3" {
            let builder = AmazonS3Builder::new()
                .with_endpoint(format!("http://{}", inner.address))
                .with_bucket_name(bucket)
                .with_access_key_id(KEY)
                .with_secret_access_key(SECRET)
                .with_allow_http(true);
            let store = S3Store::from_builder(builder, bucket, &Path::default()).unwrap();
            Arc::new(store.with_conditional_delete(Some("etag")).unwrap())
        } else {
            let builder = GoogleCloudStorageBuilder::new()
                .with_bucket_name(bucket)
                .with_base_url(&format!("http://{}", inner_gcs.address))
                .with_skip_signature(true);
            let store = GcsStore::from_builder(builder, bucket, &Path::default()).unwrap();
            Arc::new(store.with_conditional_delete(Some("generation")).unwrap())
        };
        let engine = Engine::builder().memory(64 << 20).build().unwrap();
        engine
            .mount("cloud", origin, Consistency::default())
            .unwrap();
        let (outer, outer_gcs) = both(engine).await;
        Self {
            tags: protocol == "s3",
            outer,
            outer_gcs,
            inner,
            inner_gcs,
        }
    }

    /// Headers of a write, with tags where the protocol has them.
    fn sent<'h>(&self, more: &[(&'h str, &'h str)]) -> Vec<(&'h str, &'h str)> {
        let tags = [("x-amz-tagging", "t=1&u=2")];
        let tags = tags.into_iter().filter(|_| self.tags);
        let all = SENT.into_iter().chain(tags);
        all.chain(more.iter().copied()).collect()
    }

    /// Asserts that a response states this number of tags, if there can be any.
    fn has_tags(&self, response: &HttpResponse, count: &str) {
        let stated = response.header("x-amz-tagging-count");
        assert_eq!(stated, Some(count).filter(|_| self.tags));
    }

    /// All pairs of a protocol between the two and a bucket of the inner one.
    async fn all() -> Vec<(Self, &'static str)> {
        let mut all = Vec::new();
        for protocol in ["s3", "gs"] {
            for bucket in BUCKETS {
                all.push((Self::new(protocol, bucket).await, bucket));
            }
        }
        all
    }
}

fn has(response: &HttpResponse, headers: &[(&str, &str)]) {
    for (name, value) in headers {
        assert_eq!(response.header(name), Some(*value), "{name}");
    }
}

const SENT: [(&str, &str); 7] = [
    ("content-type", "text/x"),
    ("cache-control", "no-store"),
    ("expires", "Thu, 01 Dec 1994 16:00:00 GMT"),
    ("x-amz-meta-a", "1"),
    // As programs send it that copy between stores.
    ("x-amz-meta-bywash-tags", "no=tag"),
    ("x-amz-meta-bywash-acl", "public-read"),
    ("x-amz-meta-bywashupload", "no mark"),
];

#[tokio::test]
async fn object_has_its_attributes_tags_and_checksum_through_both() {
    for (chain, bucket) in Chain::all().await {
        let outer = &chain.outer;
        let class = ("x-amz-storage-class", "STANDARD_IA");
        let wrong = chain.sent(&[("x-amz-checksum-crc32", "y/U6HA=="), class]);
        let refused = outer.put("/cloud/dir/a", &wrong, b"123456789").await;
        refused.expect_error(400, "BadDigest");
        let body = b"The quick brown fox jumps over the lazy dog";
        let sent = chain.sent(&[("x-amz-checksum-crc32", "QU+jOQ=="), class]);
        outer.put("/cloud/dir/a", &sent, body).await.expect(200);
        let whole = [("x-amz-checksum-mode", "ENABLED")];
        for headers in [&whole, &[("range", "bytes=4-8")]] {
            let read = outer.get("/cloud/dir/a", headers).await;
            has(&read, &SENT);
            chain.has_tags(&read, "2");
            if read.status == 200 {
                assert_eq!(read.body, body);
                has(&read, &[("x-amz-checksum-crc32", "QU+jOQ==")]);
            } else {
                assert_eq!((read.status, read.text().as_str()), (206, "quick"));
            }
        }
        if chain.tags {
            let tags = outer.get("/cloud/dir/a?tagging", &[]).await.expect(200);
            assert_eq!(tags.tags("Key"), ["t", "u"]);
        }
        let at_inner = format!("/{bucket}/dir/a");
        let at_inner = chain.inner.get(&at_inner, &[]).await.expect(200);
        assert_eq!(at_inner.body, body);
        has(&at_inner, &[("x-amz-meta-a", "1"), SENT[0]]);
        let json = chain.outer_gcs.get("/storage/v1/b/cloud/o/dir%2Fa").await;
        let json: Value = serde_json::from_slice(&json.expect(200).body).unwrap();
        let names: Vec<_> = json["metadata"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["a", "bywash-acl", "bywash-tags", "bywashupload"]);
        // Metadata of a client grants nothing.
        let acl = outer.get("/cloud/dir/a?acl", &[]).await.expect(200);
        assert!(!acl.text().contains("AllUsers"), "{}", acl.text());
    }
}

#[tokio::test]
async fn copies_and_changes_of_attributes_pass_through_both() {
    for (chain, _) in Chain::all().await {
        let outer = &chain.outer;
        let sent = chain.sent(&[]);
        outer.put("/cloud/a", &sent, b"bytes").await.expect(200);
        let copy = [("x-amz-copy-source", "/cloud/a")];
        outer.put("/cloud/b", &copy, b"").await.expect(200);
        let read = outer.get("/cloud/b", &[]).await.expect(200);
        has(&read, &SENT);
        chain.has_tags(&read, "2");
        let replace = [
            ("x-amz-copy-source", "/cloud/b"),
            ("x-amz-metadata-directive", "REPLACE"),
            ("x-amz-meta-bywash-checksum-crc32", "of another object"),
        ];
        outer.put("/cloud/b", &replace, b"").await.expect(200);
        let mode = [("x-amz-checksum-mode", "ENABLED")];
        let read = outer.get("/cloud/b", &mode).await.expect(200);
        has(&read, &replace[2..]);
        assert_eq!(read.header("x-amz-meta-a"), None);
        let checksum = read.header("x-amz-checksum-crc32");
        assert_ne!(checksum, Some("of another object"));
        if chain.tags {
            let tags = b"<Tagging><TagSet><Tag><Key>n</Key><Value>2</Value></Tag><Tag><Key>o</Key><Value>3</Value></Tag></TagSet></Tagging>";
            outer.put("/cloud/a?tagging", &[], tags).await.expect(200);
        }
        let change = br#"{"metadata":{"bywash-acl":null,"A":"2"}}"#;
        let object = "/storage/v1/b/cloud/o/a";
        let patched = chain.outer_gcs.send("PATCH", object, &[], change).await;
        let json: Value = serde_json::from_slice(&patched.expect(200).body).unwrap();
        assert_eq!(json["metadata"]["bywash-tags"], "no=tag", "{json}");
        assert_eq!(json["metadata"]["bywash-acl"], Value::Null);
        let read = outer.get("/cloud/a", &[]).await.expect(200);
        has(&read, &[("x-amz-meta-a", "2"), SENT[1], SENT[4]]);
        chain.has_tags(&read, "2");
        if chain.tags {
            let tags = outer.get("/cloud/a?tagging", &[]).await;
            assert_eq!(tags.tags("Key"), ["n", "o"]);
        }
        outer.send("DELETE", "/cloud/a", &[], b"").await.expect(204);
        assert_eq!(outer.get("/cloud/a", &[]).await.status, 404);
    }
}

#[tokio::test]
async fn uploads_in_parts_and_conditions_pass_through_both() {
    for (chain, bucket) in Chain::all().await {
        let outer = &chain.outer;
        let body = pattern(MIN_PART + 1000);
        let begun = chain.sent(&[("x-amz-checksum-algorithm", "CRC32C")]);
        let id = create(outer, "/cloud/big", &begun).await;
        let one = part(outer, "/cloud/big", &id, 1, &body[..MIN_PART]).await;
        let two = part(outer, "/cloud/big", &id, 2, &body[MIN_PART..]).await;
        let xml = completion(&[(1, &one), (2, &two)]);
        let done = complete(outer, "/cloud/big", &id, &[], &xml).await;
        done.expect(200);
        let read = outer.get("/cloud/big", &[]).await.expect(200);
        assert!(read.body == body);
        has(&read, &SENT);
        chain.has_tags(&read, "2");
        let at_inner = chain.inner.get(&format!("/{bucket}/big"), &[]).await;
        assert!(at_inner.expect(200).body == body);
        let absent = [("if-none-match", "*")];
        let refused = outer.put("/cloud/big", &absent, b"x").await;
        refused.expect_error(412, "PreconditionFailed");
        outer.put("/cloud/dir/k", &absent, b"x").await.expect(200);
        let listed = outer.get("/cloud?list-type=2", &[]).await.expect(200);
        assert_eq!(listed.tags("Key"), ["big", "dir/k"]);
        let insert = "/upload/storage/v1/b/cloud/o?uploadType=multipart";
        let related = "--b\r\ncontent-type: application/json\r\n\r\n{\"name\":\"json\",\"metadata\":{\"bywash-x\":\"1\"}}\r\n--b\r\n\
             content-type: text/x\r\n\r\nbytes\r\n--b--";
        let kind = [("content-type", "multipart/related; boundary=b")];
        let written = chain
            .outer_gcs
            .post(insert, &kind, related.as_bytes())
            .await;
        let written: Value = serde_json::from_slice(&written.expect(200).body).unwrap();
        assert_eq!(written["metadata"]["bywash-x"], "1", "{written}");
        let at_inner = format!("/storage/v1/b/{bucket}/o/json?alt=media");
        assert_eq!(chain.inner_gcs.get(&at_inner).await.body, b"bytes");
    }
}

#[tokio::test]
async fn folder_markers_pass_through_both() {
    for (chain, bucket) in Chain::all().await {
        let (outer, inner) = (&chain.outer, &chain.inner);
        outer.put("/cloud/dir/", &[], b"").await.expect(200);
        outer.put("/cloud/dir/a", &[], b"a").await.expect(200);
        for (server, bucket) in [(outer, "cloud"), (inner, bucket)] {
            let list = format!("/{bucket}?list-type=2&prefix=dir/");
            let list = server.get(&list, &[]).await.expect(200);
            assert_eq!(list.tags("Key"), ["dir/", "dir/a"]);
            let marker = server.get(&format!("/{bucket}/dir/"), &[]).await;
            assert_eq!(marker.expect(200).body, b"");
        }
        let deleted = outer.send("DELETE", "/cloud/dir/", &[], b"").await;
        deleted.expect(204);
        let list = outer.get("/cloud?list-type=2", &[]).await.expect(200);
        assert_eq!(list.tags("Key"), ["dir/a"]);
        let absent = inner.get(&format!("/{bucket}/dir/"), &[]).await;
        absent.expect_error(404, "NoSuchKey");
    }
}

#[tokio::test]
async fn prefixes_with_a_space_at_their_end_are_listed_through_both() {
    for (chain, bucket) in Chain::all().await {
        for key in ["my", "my%20file", "my%20files/a", "mz"] {
            let target = format!("/{bucket}/{key}");
            chain.inner.put(&target, &[], b"x").await.expect(200);
        }
        let outer = &chain.outer;
        for query in ["list-type=2&", "list-type=2&encoding-type=url&", ""] {
            let list = format!("/cloud?{query}delimiter=/&prefix=my%20");
            let list = outer.get(&list, &[]).await.expect(200);
            let keys = list.tags("Key").len();
            assert_eq!((keys, list.tags("CommonPrefixes").len()), (1, 1), "{query}");
        }
        let after = "/cloud?list-type=2&encoding-type=url&start-after=my%1F";
        let list = outer.get(after, &[]).await.expect(200);
        assert_eq!(list.tags("Key"), ["my%20file", "my%20files/a", "mz"]);
        let list = chain.outer_gcs.get("/storage/v1/b/cloud/o?prefix=my%20");
        let list: Value = serde_json::from_slice(&list.await.expect(200).body).unwrap();
        assert_eq!(list["items"].as_array().unwrap().len(), 2);
    }
}

#[tokio::test]
async fn metadata_named_as_marks_pass_through_both_and_marks_are_hidden() {
    // The inner server has an origin that keeps marks too.
    let store = Store::start(S3::new()).await.unwrap();
    let root = tempfile::tempdir().unwrap();
    let engine = Server::engine(64 << 20, &root);
    mount_cloud(&engine, &store);
    let (inner, mut inner_gcs) = both(engine).await;
    inner_gcs.root = root;
    for chain in [
        Chain::over("s3", "cloud", inner, inner_gcs).await,
        Chain::new("gs", "memory").await,
        Chain::new("s3", "folder").await,
    ] {
        let outer = &chain.outer;
        let digits = "0123456789abcdef0123456789abcdef";
        let sent = [
            ("x-amz-meta-bywashwrite", digits),
            ("x-amz-meta-bywashwrite0", "of a user"),
            ("x-amz-meta-a", "1"),
        ];
        for condition in [None, Some(("if-none-match", "*"))] {
            let headers: Vec<_> = sent.into_iter().chain(condition).collect();
            let key = format!("/cloud/{}", headers.len());
            outer.put(&key, &headers, b"bytes").await.expect(200);
            let read = outer.get(&key, &[]).await.expect(200);
            has(&read, &sent);
            let metadata = |response: &HttpResponse| {
                let names = response.headers.iter().map(|(name, _)| name);
                let names = names.filter(|name| name.starts_with("x-amz-meta-"));
                names.count()
            };
            assert_eq!(metadata(&read), sent.len());
            // A plain one has none of its own.
            let plain = format!("{key}/plain");
            let headers: Vec<_> = condition.into_iter().collect();
            outer.put(&plain, &headers, b"bytes").await.expect(200);
            let read = outer.get(&plain, &[]).await.expect(200);
            assert_eq!(metadata(&read), 0);
        }
    }
}

#[tokio::test]
async fn content_headers_that_are_not_ascii_pass_through_both() {
    for (chain, bucket) in Chain::all().await {
        let outer = &chain.outer;
        let name = "attachment; filename=\"\u{fc}ber \u{2713}.txt\"";
        let sent = [("content-disposition", name), ("x-amz-meta-a", "1")];
        outer.put("/cloud/put", &sent, b"--bytes").await.expect(200);
        let absent = [sent[0], ("if-none-match", "*")];
        let again = outer.put("/cloud/put", &absent, b"other").await;
        again.expect_error(412, "PreconditionFailed");
        let long = pattern(3 * MIN_PART);
        outer.put("/cloud/long", &sent, &long).await.expect(200);
        let copy = [("x-amz-copy-source", "/cloud/put")];
        outer.put("/cloud/copy", &copy, b"").await.expect(200);
        for (key, body) in [
            ("put", b"--bytes".as_slice()),
            ("long", &long),
            ("copy", b"--bytes"),
        ] {
            for (server, bucket) in [(outer, "cloud"), (&chain.inner, bucket)] {
                let read = server.get(&format!("/{bucket}/{key}"), &[]).await;
                let read = read.expect(200);
                assert!(read.body == body, "{key}");
                has(&read, &sent);
            }
        }
        let begun = outer.send("POST", "/cloud/parts?uploads", &sent, b"").await;
        if chain.tags {
            begun.expect(200);
        } else {
            // Google's parts are of its XML API.
            let message = begun.expect_error(400, "InvalidArgument").tag("Message");
            assert!(message.unwrap().contains("content-disposition"));
        }
    }
}
