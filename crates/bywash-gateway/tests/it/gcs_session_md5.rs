//! MD5s of objects that resumable sessions make: `gcloud` and `gsutil` compare them with the MD5s
//! of their files.

use bywash_gateway::{ETagStyle, GcsConfig};
use bywash_sim::server::Server as Store;
use bywash_sim::server::s3::S3;
use serde_json::Value;

use crate::gcs::{document, refused};
use crate::gcs_server::GcsServer;
use crate::gcs_sessions::{CHUNK, Session, finished, open};
use crate::http::pattern;
use crate::s3_origin::mount_cloud;

const DIGITS: &[u8] = b"123456789";
const MD5_OF_DIGITS: &str = "JfnnlDI7RTiF9RgfG2JNCw==";
const WRONG: &str = "AAAAAAAAAAAAAAAAAAAAAA==";

fn fast() -> GcsConfig {
    GcsConfig {
        etag: ETagStyle::Fast,
        ..GcsConfig::anonymous("")
    }
}

async fn find(server: &GcsServer, bucket: &str, key: &str) -> Value {
    let target = format!("/storage/v1/b/{bucket}/o/{key}");
    document(&server.get(&target).await.expect(200))
}

/// Starts a session and states this MD5, in a header or in the metadata.
async fn start_with<'a>(server: &'a GcsServer, md5: &str, in_header: bool) -> Session<'a> {
    let target = "/upload/storage/v1/b/folder/o?uploadType=resumable&name=key";
    let started = if in_header {
        let hash = format!("md5={md5}");
        server.post(target, &[("x-goog-hash", &*hash)], b"").await
    } else {
        let metadata = format!(r#"{{"md5Hash":"{md5}"}}"#);
        server.post(target, &[], metadata.as_bytes()).await
    };
    Session::of(server, &started.expect(200))
}

async fn end<'a>(session: &Session<'a>, md5: &str) -> crate::http::HttpResponse {
    let hash = format!("md5={md5}");
    let headers = [("Content-Range", "bytes 0-8/9"), ("x-goog-hash", &*hash)];
    let server = session.server;
    server.send("PUT", &session.target, &headers, DIGITS).await
}

/// The state of the MD5 is in the session's file: a block of it is begun at the end of the first chunk, bytes are resent, and the
/// server is replaced.
#[tokio::test]
async fn md5_of_chunks_is_that_of_the_object_after_a_restart_too() {
    let mut server = GcsServer::start().await;
    let body = pattern(3 * CHUNK + 21);
    server.put_object("folder", "plain", &body).await;
    let expected = find(&server, "folder", "plain").await["md5Hash"].clone();
    assert!(expected.is_string());
    for restarts in [false, true] {
        let session = Session::start(&server, "folder", "key", "", b"").await;
        let target = session.target.clone();
        open(
            &session.put("bytes 0-262243/*", &body[..CHUNK + 100]).await,
            CHUNK + 100,
        );
        if restarts {
            server.restart().await;
        }
        let server = &server;
        let session = Session { server, target };
        // From the beginning.
        open(
            &session.put("bytes 0-524287/*", &body[..2 * CHUNK]).await,
            2 * CHUNK,
        );
        let range = format!("bytes {}-{}/{}", 2 * CHUNK, body.len() - 1, body.len());
        let object = finished(&session.put(&range, &body[2 * CHUNK..]).await, body.len());
        assert_eq!(object["md5Hash"], expected, "restart: {restarts}");
        let found = find(server, "folder", "key").await;
        assert_eq!(
            [&found["md5Hash"], &found["etag"], &found["generation"]],
            [&expected, &object["etag"], &object["generation"]]
        );
        let read = server.get("/storage/v1/b/folder/o/key?alt=media").await;
        let hash = format!("md5={}", expected.as_str().unwrap());
        let mut hashes = read
            .headers
            .iter()
            .filter(|(name, _)| name == "x-goog-hash");
        assert!(
            hashes.any(|(_, found)| *found == hash),
            "{:?}",
            read.headers
        );
    }
}

#[tokio::test]
async fn md5_at_the_end_is_compared() {
    let server = GcsServer::start().await;
    let session = Session::start(&server, "folder", "key", "", b"").await;
    refused(end(&session, WRONG).await, 400, "invalid");
    refused(session.status("*").await, 404, "notFound");
    refused(
        server.get("/storage/v1/b/folder/o/key").await,
        404,
        "notFound",
    );
    let session = Session::start(&server, "folder", "key", "", b"").await;
    let object = finished(&end(&session, MD5_OF_DIGITS).await, DIGITS.len());
    assert_eq!(object["md5Hash"], MD5_OF_DIGITS);
}

#[tokio::test]
async fn md5_of_the_start_is_compared_also_where_none_are_computed() {
    for config in [GcsConfig::anonymous(""), fast()] {
        let server = GcsServer::start_with(config).await;
        for in_header in [true, false] {
            let session = start_with(&server, WRONG, in_header).await;
            let refusal = session.put("bytes 0-8/9", DIGITS).await;
            refused(refusal, 400, "invalid");
            refused(
                server.get("/storage/v1/b/folder/o/key").await,
                404,
                "notFound",
            );
            let session = start_with(&server, MD5_OF_DIGITS, in_header).await;
            let object = finished(&session.put("bytes 0-8/9", DIGITS).await, DIGITS.len());
            assert_eq!(object["md5Hash"], MD5_OF_DIGITS);
            server
                .delete("/storage/v1/b/folder/o/key")
                .await
                .expect(204);
        }
        let target = "/upload/storage/v1/b/folder/o?uploadType=resumable&name=key";
        let metadata = br#"{"md5Hash":"x"}"#;
        refused(server.post(target, &[], metadata).await, 400, "invalid");
    }
}

#[tokio::test]
async fn server_with_fast_etags_computes_no_md5_and_keeps_a_session_with_one_stated_at_its_end() {
    let mut server = GcsServer::start_with(fast()).await;
    let session = Session::start(&server, "folder", "key", "", b"").await;
    let refusal = end(&session, MD5_OF_DIGITS).await;
    assert!(refusal.text().contains("--etag fast"), "{}", refusal.text());
    refused(refusal, 400, "invalid");
    let target = session.target.clone();
    // Nor does one that continues the session.
    server.restart().await;
    let server = &server;
    let session = Session { server, target };
    let object = finished(&session.status("9").await, DIGITS.len());
    assert!(object["md5Hash"].is_null(), "{object}");
}

/// Other origins keep no MD5; the response to the write has it.
#[tokio::test]
async fn responses_to_writes_over_s3_have_the_md5() {
    let store = Store::start(S3::new()).await.unwrap();
    let server = GcsServer::start().await;
    mount_cloud(&server.engine, &store);
    let session = Session::start(&server, "cloud", "key", "", b"").await;
    let object = finished(&session.put("bytes 0-8/9", DIGITS).await, DIGITS.len());
    assert_eq!(object["md5Hash"], MD5_OF_DIGITS);
    let target = "/upload/storage/v1/b/cloud/o?uploadType=media&name=plain";
    let plain = document(&server.post(target, &[], DIGITS).await.expect(200));
    assert_eq!(plain["md5Hash"], MD5_OF_DIGITS);
    assert!(find(&server, "cloud", "key").await["md5Hash"].is_null());
}
