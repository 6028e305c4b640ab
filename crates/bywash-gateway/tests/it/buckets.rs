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
    server
        .put("/newly.made", &[], b"")
        .await
        .expect_error(409, "BucketAlreadyOwnedByYou");
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
    for name in ["/UPPER", "/a", "/under_score", "/127.0.0.1"] {
        server
            .put(name, &[], b"")
            .await
            .expect_error(400, "InvalidBucketName");
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
