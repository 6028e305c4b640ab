//! Tests that unknown operations and contradictory requests change nothing.

use crate::http::HttpResponse;
use crate::server::{BUCKETS, Server};

const BODY: &[u8] = b"the object";

/// Sends a request that must be rejected, and checks that object and bucket are unchanged.
async fn refused(
    server: &Server,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
) -> HttpResponse {
    let bucket = target.trim_start_matches('/');
    let bucket = bucket.split(['/', '?']).next().unwrap();
    let path = format!("/{bucket}/key");
    server
        .put(&path, &[("x-amz-meta-a", "b")], BODY)
        .await
        .expect(200);
    let reply = server.send(method, target, headers, b"<new/>").await;
    let found = server.get(&path, &[]).await.expect(200);
    assert_eq!(found.body, BODY, "{method} {target}");
    assert_eq!(found.header("x-amz-meta-a"), Some("b"), "{method} {target}");
    let listed = server.get(&format!("/{bucket}?list-type=2"), &[]).await;
    assert_eq!(listed.expect(200).tags("Key"), ["key"], "{method} {target}");
    reply
}

#[tokio::test]
async fn newer_operations_are_not_served_as_the_plain_verb() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        for (method, rest) in [
            ("DELETE", "/key?annotation&annotationName=a"),
            ("PUT", "/key?annotation&annotationName=a"),
            ("PUT", "/key?renameObject"),
            ("PUT", "/key?encryption"),
            ("PUT", "/key?an-operation-of-tomorrow"),
            ("DELETE", "/key?an-operation-of-tomorrow=1"),
            ("DELETE", "?metadataConfiguration"),
            ("PUT", "?abac"),
            ("GET", "/key?annotation&annotationName=a"),
            ("GET", "?abac"),
            ("PUT", "/key?x-id=RenameObject"),
            ("DELETE", "/key?x-id=DeleteObjectAnnotation"),
        ] {
            refused(&server, method, &format!("/{bucket}{rest}"), &[])
                .await
                .expect_error(501, "NotImplemented");
        }
        // The header alone selects another operation, which has no body.
        let rename = [("x-amz-rename-source", "/memory/other")];
        refused(
            &server,
            "PUT",
            &format!("/{bucket}/key?renameObject"),
            &rename,
        )
        .await
        .expect_error(501, "NotImplemented");
        refused(&server, "PUT", &format!("/{bucket}/key"), &rename)
            .await
            .expect_error(501, "NotImplemented");
    }
}

#[tokio::test]
async fn headers_and_parameters_of_two_operations_are_rejected() {
    let server = Server::anonymous().await;
    let copy = [("x-amz-copy-source", "/memory/key")];
    for (method, target) in [("DELETE", "/memory/key"), ("PUT", "/memory/key?tagging")] {
        refused(&server, method, target, &copy)
            .await
            .expect_error(400, "InvalidRequest");
    }
    let range = [("x-amz-copy-source-range", "bytes=0-1")];
    refused(&server, "PUT", "/memory/key", &range)
        .await
        .expect_error(400, "InvalidRequest");
    for target in [
        "/memory/key?tagging&partNumber=1&uploadId=u",
        "/memory/key?partNumber=1",
    ] {
        refused(&server, "PUT", target, &[])
            .await
            .expect_error(400, "InvalidArgument");
    }
}

#[tokio::test]
async fn matching_x_id_and_unknown_parameters_of_reads_pass() {
    let server = Server::anonymous().await;
    server
        .put("/memory/key?x-id=PutObject", &[], BODY)
        .await
        .expect(200);
    let target = "/memory/key?x-id=GetObject&utm_source=page";
    assert_eq!(server.get(target, &[]).await.expect(200).body, BODY);
    server
        .send("DELETE", "/memory/key?x-id=DeleteObject", &[], b"")
        .await
        .expect(204);
}
