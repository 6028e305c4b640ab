//! A content-addressed bucket at both endpoints: no object with other bytes than its key states is written or read whole.

use std::sync::Arc;

use bytes::Bytes;
use bywash::origin::memory::MemoryStore;
use bywash::{BucketOptions, ContentDigest, Engine, Verify};
use bywash_gateway::{GcsConfig, S3Config};
use object_store::ObjectStoreExt as _;
use object_store::path::Path;

use crate::gcs_server::GcsServer;
use crate::http::HttpResponse;
use crate::server::Server;

const BODY: &[u8] = b"test";
/// SHA-256 of [`BODY`].
const DIGEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
/// SHA-256 of no bytes, which the damaged object claims.
const DAMAGED: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

async fn servers() -> (Server, GcsServer) {
    let builder = Engine::builder().memory(64 << 20).verify(Verify::Off);
    let engine = builder.build().unwrap();
    let origin = MemoryStore::new();
    let damaged = Path::from(format!("sha256:{DAMAGED}"));
    origin.put(&damaged, "bytes".into()).await.unwrap();
    let options = BucketOptions {
        digest_in_key: Some("sha256".parse().unwrap()),
        ..BucketOptions::default()
    };
    engine.mount("blobs", Arc::new(origin), options).unwrap();
    let root = tempfile::tempdir().unwrap();
    let gcs = GcsServer::start_over(engine.clone(), root, GcsConfig::anonymous("")).await;
    let root = tempfile::tempdir().unwrap();
    let s3 = Server::start_with(engine, root, S3Config::anonymous()).await;
    (s3, gcs)
}

#[tokio::test]
async fn s3_endpoint_compares_writes_and_whole_reads_with_the_key() {
    let (s3, _) = servers().await;
    let key = format!("/blobs/a/sha256:{DIGEST}");
    let refused = s3.put(&key, &[], b"tesT").await.expect(400);
    assert_eq!(
        refused.tag("Code").as_deref(),
        Some("XAmzContentSHA256Mismatch")
    );
    s3.get(&key, &[]).await.expect(404);
    let refused = s3.put("/blobs/a/plain", &[], BODY).await.expect(400);
    assert_eq!(refused.tag("Code").as_deref(), Some("InvalidArgument"));

    s3.put(&key, &[], BODY).await.expect(200);
    // From the origin, from memory and, once compared, by the short way.
    for _ in 0..3 {
        assert_eq!(s3.get(&key, &[]).await.expect(200).body, BODY);
    }
    let source = ("x-amz-copy-source", key.trim_start_matches('/'));
    let other = format!("/blobs/{DAMAGED}");
    let refused = s3.put(&other, &[source], b"").await;
    assert_eq!(refused.status, 400);
    let twin = format!("/blobs/b/{DIGEST}");
    s3.put(&twin, &[source], b"").await.expect(200);
    assert_eq!(s3.get(&twin, &[]).await.expect(200).body, BODY);

    let damaged = format!("/blobs/sha256:{DAMAGED}");
    for _ in 0..2 {
        s3.get(&damaged, &[]).await.expect(500);
        // A ranged read is not compared.
        let range = s3.get(&damaged, &[("range", "bytes=0-1")]).await;
        assert_eq!(range.expect(206).body, b"by");
    }
}

/// Uploads these parts, and completes the upload. Returns the last response.
async fn in_parts(s3: &Server, key: &str, parts: &[&[u8]]) -> HttpResponse {
    let begun = s3.send("POST", &format!("{key}?uploads"), &[], b"").await;
    let id = begun.expect(200).tag("UploadId").unwrap();
    let mut named = String::new();
    for (number, part) in (1..).zip(parts) {
        let target = format!("{key}?partNumber={number}&uploadId={id}");
        let sent = s3.put(&target, &[], part).await.expect(200);
        let e_tag = sent.header("etag").unwrap();
        named += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{e_tag}</ETag></Part>");
    }
    let body = format!("<CompleteMultipartUpload>{named}</CompleteMultipartUpload>");
    let target = format!("{key}?uploadId={id}");
    s3.send("POST", &target, &[], body.as_bytes()).await
}

#[tokio::test]
async fn s3_endpoint_compares_uploads_in_parts_with_the_key() {
    let (s3, _) = servers().await;
    let (head, tail) = (vec![7; 5 << 20], b"tail");
    let bytes = Bytes::from([&head[..], tail].concat());
    let digest = ContentDigest::Sha256([0; 32]).same_of(std::slice::from_ref(&bytes));
    let digest = digest.to_string();
    let key = format!("/blobs/{}", digest.strip_prefix("SHA-256 ").unwrap());
    let refused = in_parts(&s3, &key, &[&head, b"tale"]).await;
    refused.expect_error(400, "XAmzContentSHA256Mismatch");
    s3.get(&key, &[]).await.expect(404);
    in_parts(&s3, &key, &[&head, tail]).await.expect(200);
    assert_eq!(s3.get(&key, &[]).await.expect(200).body, bytes);
}

#[tokio::test]
async fn gcs_endpoint_compares_writes_and_whole_reads_with_the_key() {
    let (_, gcs) = servers().await;
    let upload = |name: &str, kind: &str| {
        let name = name.replace(':', "%3A").replace('/', "%2F");
        format!("/upload/storage/v1/b/blobs/o?uploadType={kind}&name={name}")
    };
    let media = upload(DIGEST, "media");
    gcs.post(&media, &[], b"tesT").await.expect(400);
    gcs.post(&upload("plain", "media"), &[], BODY)
        .await
        .expect(400);
    gcs.post(&upload("plain", "resumable"), &[], b"")
        .await
        .expect(400);
    let object = format!("/storage/v1/b/blobs/o/{DIGEST}");
    gcs.get(&object).await.expect(404);
    gcs.post(&media, &[], BODY).await.expect(200);
    let read = gcs.get(&format!("{object}?alt=media")).await.expect(200);
    assert_eq!(read.body, BODY);
    let damaged = format!("/storage/v1/b/blobs/o/sha256%3A{DAMAGED}?alt=media");
    let read = gcs.get(&damaged).await;
    assert!(read.status >= 500, "{}", read.status);
}
