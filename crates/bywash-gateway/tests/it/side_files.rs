//! Objects of a folder whose side file is damaged: an error at once, by each endpoint, that names the file and the next step.

use std::path::PathBuf;

use bywash_gateway::GcsConfig;

use crate::gcs_server::GcsServer;
use crate::http::HttpResponse;
use crate::server::Server;

/// Both endpoints over one engine, with the object `a` in the bucket `folder`.
async fn with_damaged(contents: &[u8]) -> (GcsServer, Server, PathBuf) {
    let gcs = GcsServer::start_with(GcsConfig::anonymous("")).await;
    let s3 = Server::start_beside(&gcs.engine).await;
    let headers = [("x-amz-meta-m", "1"), ("content-type", "text/x")];
    s3.put("/folder/a", &headers, b"one").await.expect(200);
    s3.put("/folder/b", &headers, b"two").await.expect(200);
    let folder = gcs.root.path().join("folder/.bywash/attributes/a");
    let files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(files.len(), 1, "{files:?}");
    std::fs::write(&files[0], contents).unwrap();
    let bucket = gcs.engine.bucket("folder").unwrap();
    let _ = bucket.drop_cached("a");
    (gcs, s3, files[0].clone())
}

/// Asserts that this is no error of the origin for which a client waits, and names the file and the next step.
fn names_file(response: &HttpResponse, file: &std::path::Path) {
    assert_eq!(response.status, 500, "{}", response.text());
    assert_eq!(response.header("retry-after"), None);
    let text = response.text();
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(text.contains(".bywash/attributes/a/"), "{text}");
    assert!(text.contains(name), "{text}");
    assert!(text.contains("restore it, or delete it"), "{text}");
}

#[tokio::test]
async fn damaged_side_file_fails_each_read_at_once_and_names_itself() {
    // Truncated, emptied, zeroed after a loss of power, of another type, and no text.
    let contents: [&[u8]; 5] = [b"{\"content_type\":\"te", b"", &[0; 40], b"[1]", &[0xff; 9]];
    for contents in contents {
        let (gcs, s3, file) = with_damaged(contents).await;
        names_file(&s3.get("/folder/a", &[]).await, &file);
        let head = s3.send("HEAD", "/folder/a", &[], b"").await;
        assert_eq!((head.status, head.header("retry-after")), (500, None));
        let ranged = s3.get("/folder/a", &[("range", "bytes=1-1")]).await;
        names_file(&ranged, &file);
        names_file(&s3.get("/folder/a?tagging", &[]).await, &file);
        let copy = [("x-amz-copy-source", "/folder/a")];
        names_file(&s3.put("/folder/c", &copy, b"").await, &file);
        names_file(&gcs.get("/storage/v1/b/folder/o/a").await, &file);
        names_file(&gcs.get("/storage/v1/b/folder/o/a?alt=media").await, &file);
        names_file(&gcs.get("/folder/a").await, &file);
        let rewrite = "/storage/v1/b/folder/o/a/rewriteTo/b/folder/o/c";
        names_file(&gcs.post(rewrite, &[], b"").await, &file);
        let patch = gcs
            .send(
                "PATCH",
                "/storage/v1/b/folder/o/a",
                &[],
                b"{\"metadata\":{\"n\":\"2\"}}",
            )
            .await;
        names_file(&patch, &file);
        let stats = gcs.engine.stats();
        assert_eq!(stats.buckets["folder"].retries, 0);
        // It costs no other object anything.
        s3.get("/folder/b", &[]).await.expect(200);
    }
}

#[tokio::test]
async fn object_with_a_damaged_side_file_is_listed_and_can_be_written_and_deleted() {
    let (gcs, s3, file) = with_damaged(b"{").await;
    let listed = s3.get("/folder?list-type=2", &[]).await.expect(200);
    assert_eq!(listed.tags("Key"), ["a", "b"]);
    let listed = gcs.get("/storage/v1/b/folder/o").await.expect(200);
    assert!(
        listed.text().contains("\"name\":\"a\""),
        "{}",
        listed.text()
    );
    s3.put("/folder/a", &[], b"new").await.expect(200);
    assert_eq!(s3.get("/folder/a", &[]).await.expect(200).body, b"new");

    let (gcs, s3, other) = with_damaged(b"{").await;
    s3.send("DELETE", "/folder/a", &[], b"").await.expect(204);
    assert_eq!(gcs.get("/storage/v1/b/folder/o/a").await.status, 404);

    // The advice of the message.
    let (gcs, _s3, deleted) = with_damaged(b"{").await;
    std::fs::remove_file(&deleted).unwrap();
    let read = gcs.get("/storage/v1/b/folder/o/a?alt=media").await;
    assert_eq!(read.expect(200).body, b"one");
    assert!(file.is_absolute() && other.is_absolute());
}
