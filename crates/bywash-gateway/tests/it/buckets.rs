//! Tests of buckets.

use bywash_gateway::S3Config;

use crate::server::Server;

#[tokio::test]
async fn created_and_deleted_buckets_appear_and_disappear() {
    let server = Server::anonymous().await;
    let names = |reply: crate::http::HttpResponse| reply.expect(200).tags("Name");
    assert_eq!(names(server.get("/", &[]).await), ["folder", "memory"]);
    let created = server.put("/newly.made", &[], b"").await.expect(200);
    assert_eq!(created.header("location"), Some("/newly.made"));
    // One's own bucket, in the region where S3 responds so.
    server.put("/newly.made", &[], b"").await.expect(200);
    let listed = server.get("/", &[]).await;
    assert!(listed.tag("CreationDate").unwrap().ends_with('Z'));
    assert_eq!(names(listed), ["folder", "memory", "newly.made"]);
    assert_eq!(
        names(server.get("/?max-buckets=1&prefix=m", &[]).await),
        ["memory"]
    );
    server
        .send("HEAD", "/newly.made", &[], b"")
        .await
        .expect(200);
    server.put("/newly.made/key", &[], b"x").await.expect(200);
    server
        .send("DELETE", "/newly.made", &[], b"")
        .await
        .expect_error(409, "BucketNotEmpty");
    server
        .send("DELETE", "/newly.made/key", &[], b"")
        .await
        .expect(204);
    server
        .send("DELETE", "/newly.made", &[], b"")
        .await
        .expect(204);
    server
        .send("HEAD", "/newly.made", &[], b"")
        .await
        .expect(404);
    for name in [
        "/UPPER",
        "/a",
        "/under_score",
        "/127.0.0.1",
        "/xn--a",
        "/a-s3alias",
    ] {
        server
            .put(name, &[], b"")
            .await
            .expect_error(400, "InvalidBucketName");
    }
}

#[tokio::test]
async fn bucket_is_created_once_in_other_regions() {
    let config = S3Config {
        region: "eu-central-1".to_owned(),
        ..S3Config::anonymous()
    };
    let server = Server::start(config).await;
    server.put("/made", &[], b"").await.expect(200);
    server
        .put("/made", &[], b"")
        .await
        .expect_error(409, "BucketAlreadyOwnedByYou");
}

#[tokio::test]
async fn buckets_are_listed_by_pages_and_prefix() {
    let server = Server::anonymous().await;
    for name in ["page-1", "page-2", "page-3"] {
        server.put(&format!("/{name}"), &[], b"").await.expect(200);
    }
    let mut found = Vec::new();
    let mut token = String::new();
    loop {
        let page = format!("/?prefix=page&max-buckets=2&continuation-token={token}");
        let page = server.get(&page, &[]).await.expect(200);
        assert_eq!(page.tag("Prefix").as_deref(), Some("page"));
        found.extend(page.tags("Name"));
        match page.tag("ContinuationToken") {
            Some(next) => token = next,
            None => break,
        }
    }
    assert_eq!(found, ["page-1", "page-2", "page-3"]);
    for max in ["0", "-1", "10001", "x"] {
        let target = format!("/?max-buckets={max}");
        server
            .get(&target, &[])
            .await
            .expect_error(400, "InvalidArgument");
    }
    let other = server
        .get("/?bucket-region=eu-west-1", &[])
        .await
        .expect(200);
    assert!(other.tags("Name").is_empty());
}

#[tokio::test]
async fn buckets_of_another_owner_are_denied() {
    let server = Server::anonymous().await;
    server.put("/folder/key", &[], b"x").await.expect(200);
    let other = [("x-amz-expected-bucket-owner", "123456789012")];
    for (method, target) in [
        ("GET", "/folder/key"),
        ("PUT", "/folder/key"),
        ("GET", "/folder?list-type=2"),
    ] {
        let reply = server.send(method, target, &other, b"").await;
        reply.expect_error(403, "AccessDenied");
        let own = [("x-amz-expected-bucket-owner", "bywash")];
        server.send(method, target, &own, b"x").await.expect(200);
    }
}

#[tokio::test]
async fn requests_for_a_missing_bucket_fail() {
    let server = Server::anonymous().await;
    let requests = [
        ("GET", "/absent"),
        ("GET", "/absent?list-type=2"),
        ("GET", "/absent?versions"),
        ("GET", "/absent?uploads"),
        ("GET", "/absent?location"),
        ("DELETE", "/absent"),
        ("GET", "/absent/key"),
        ("PUT", "/absent/key"),
        ("DELETE", "/absent/key"),
        ("POST", "/absent/key?uploads"),
        ("PUT", "/absent/key?partNumber=1&uploadId=x"),
        ("GET", "/absent/key?uploadId=x"),
        ("DELETE", "/absent/key?uploadId=x"),
    ];
    for (method, target) in requests {
        let reply = server.send(method, target, &[], b"").await;
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (404, "NoSuchBucket"),
            "{method} {target}"
        );
        assert_eq!(
            reply.tag("Resource").unwrap(),
            target.split('?').next().unwrap()
        );
    }
    server.send("HEAD", "/absent", &[], b"").await.expect(404);
}

#[tokio::test]
async fn bucket_location_is_the_configured_region() {
    let server = Server::anonymous().await;
    let reply = server.get("/memory?location", &[]).await.expect(200);
    assert!(reply.text().contains("LocationConstraint") && !reply.text().contains("us-east-1"));
    let server = Server::start(S3Config {
        region: "eu-north-1".to_owned(),
        ..S3Config::anonymous()
    })
    .await;
    let reply = server.get("/memory?location", &[]).await.expect(200);
    assert!(reply.text().contains("eu-north-1"), "{}", reply.text());
    let reply = server.send("HEAD", "/memory", &[], b"").await.expect(200);
    assert_eq!(reply.header("x-amz-bucket-region"), Some("eu-north-1"));
}

#[tokio::test]
async fn health_paths_of_minio_are_answered_without_a_signature() {
    let server = Server::signed().await;
    let paths = ["live", "ready", "cluster", "cluster/read"];
    for path in paths.map(|path| format!("/minio/health/{path}")) {
        server.get(&path, &[]).await.expect(200);
        server.send("HEAD", &path, &[], b"").await.expect(200);
        let written = server.put(&path, &[], b"x").await;
        written.expect_error(403, "AccessDenied");
    }
    let other = server.get("/minio/health/alive", &[]).await;
    other.expect_error(403, "AccessDenied");
    // They are keys of a bucket of that name.
    server.engine.create_bucket("minio").unwrap();
    for path in paths.map(|path| format!("/minio/health/{path}")) {
        let refused = server.get(&path, &[]).await;
        refused.expect_error(403, "AccessDenied");
    }
}
