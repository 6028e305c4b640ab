//! Tests of copies.

use crate::conditions::e_tag_of;
use crate::http::HttpResponse;
use crate::server::{BUCKETS, Server};

fn copied(reply: HttpResponse) -> String {
    reply.expect(200).tag("ETag").unwrap()
}

#[tokio::test]
async fn copy_keeps_or_replaces_attributes() {
    let server = Server::anonymous().await;
    let headers = [("Content-Type", "text/a"), ("x-amz-meta-a", "1")];
    for bucket in BUCKETS {
        server
            .put(&format!("/{bucket}/from"), &headers, b"copied bytes")
            .await
            .expect(200);
        for to in BUCKETS {
            let target = format!("/{to}/to-{bucket}");
            let source = format!("/{bucket}/from");
            copied(
                server
                    .put(&target, &[("x-amz-copy-source", &source)], b"")
                    .await,
            );
            let reply = server.get(&target, &[]).await.expect(200);
            assert_eq!(reply.text(), "copied bytes");
            assert_eq!(
                (reply.header("content-type"), reply.header("x-amz-meta-a")),
                (Some("text/a"), Some("1"))
            );
            let replace = [
                ("x-amz-copy-source", source.as_str()),
                ("x-amz-metadata-directive", "REPLACE"),
                ("Content-Type", "text/b"),
                ("x-amz-meta-b", "2"),
            ];
            copied(server.put(&target, &replace, b"").await);
            let reply = server.get(&target, &[]).await.expect(200);
            assert_eq!(
                (reply.header("content-type"), reply.header("x-amz-meta-b")),
                (Some("text/b"), Some("2"))
            );
            assert_eq!(reply.header("x-amz-meta-a"), None);
        }
    }
}

#[tokio::test]
async fn copy_follows_the_conditions_on_its_source() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        server
            .put(&format!("/{bucket}/from"), &[], b"copied bytes")
            .await
            .expect(200);
        let (e_tag, _) = e_tag_of(&server, &format!("/{bucket}/from")).await;
        let source = format!("{bucket}/from");
        let conditions: &[(&str, &str, u16)] = &[
            ("x-amz-copy-source-if-match", &e_tag, 200),
            ("x-amz-copy-source-if-match", "\"other\"", 412),
            ("x-amz-copy-source-if-none-match", &e_tag, 412),
            ("x-amz-copy-source-if-none-match", "\"other\"", 200),
            (
                "x-amz-copy-source-if-modified-since",
                "Mon, 01 Jan 2001 00:00:00 GMT",
                200,
            ),
            (
                "x-amz-copy-source-if-unmodified-since",
                "Mon, 01 Jan 2001 00:00:00 GMT",
                412,
            ),
        ];
        for (name, value, status) in conditions {
            let headers = [("x-amz-copy-source", source.as_str()), (*name, *value)];
            let reply = server.put(&format!("/{bucket}/to"), &headers, b"").await;
            assert_eq!(reply.status, *status, "{name}: {value} {}", reply.text());
        }
        let headers = [
            ("x-amz-copy-source", source.as_str()),
            ("If-None-Match", "*"),
        ];
        server
            .put(&format!("/{bucket}/to"), &headers, b"")
            .await
            .expect_error(412, "PreconditionFailed");
        server
            .put(&format!("/{bucket}/from"), &headers[..1], b"")
            .await
            .expect_error(400, "InvalidRequest");
    }
}

#[tokio::test]
async fn copy_onto_itself_replaces_metadata_and_missing_source_fails() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let source = format!("{bucket}/from");
        server
            .put(&format!("/{bucket}/from"), &[], b"copied bytes")
            .await
            .expect(200);
        let itself = [
            ("x-amz-copy-source", source.as_str()),
            ("x-amz-metadata-directive", "REPLACE"),
            ("x-amz-meta-c", "3"),
        ];
        copied(server.put(&format!("/{bucket}/from"), &itself, b"").await);
        let reply = server
            .get(&format!("/{bucket}/from"), &[])
            .await
            .expect(200);
        assert_eq!(
            (reply.text().as_str(), reply.header("x-amz-meta-c")),
            ("copied bytes", Some("3"))
        );
        let absent = [("x-amz-copy-source", "memory/absent")];
        server
            .put(&format!("/{bucket}/to"), &absent, b"")
            .await
            .expect_error(404, "NoSuchKey");
        let absent = [("x-amz-copy-source", "no-such-bucket/from")];
        server
            .put(&format!("/{bucket}/to"), &absent, b"")
            .await
            .expect_error(404, "NoSuchBucket");
    }
}

/// Whether `body` is one of the versions written: 3 MiB of one byte.
fn is_one_version(body: &[u8]) -> bool {
    body.len() == 3 << 20 && body.iter().all(|byte| *byte == body[0])
}

#[tokio::test]
async fn copies_during_writes_have_one_version_and_respect_conditions() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let from = format!("/{bucket}/from");
        server.put(&from, &[], &[0; 3 << 20]).await.expect(200);
        let address = server.address;
        let target = from.clone();
        let writer = tokio::spawn(async move {
            for number in (0..=255).cycle() {
                let body = vec![number; 3 << 20];
                crate::http::send(address, "PUT", &target, &[], &body)
                    .await
                    .expect(200);
            }
        });
        let id = server
            .send("POST", &format!("/{bucket}/parts?uploads"), &[], b"")
            .await
            .expect(200)
            .tag("UploadId")
            .unwrap();
        let source = [("x-amz-copy-source", from.as_str())];
        let replace = [source[0], ("x-amz-metadata-directive", "REPLACE")];
        for round in 0..12 {
            let to = format!("/{bucket}/to");
            let headers = if round % 2 == 0 {
                &source[..]
            } else {
                &replace
            };
            let reply = server.put(&to, headers, b"").await;
            // Continuous writes may replace the source during every attempt.
            if reply.status == 503 {
                reply.expect_error(503, "SlowDown");
                continue;
            }
            reply.expect(200);
            let copy = server.get(&to, &[]).await.expect(200);
            assert!(is_one_version(&copy.body), "{bucket} {round}");
            let part = format!("/{bucket}/parts?partNumber=1&uploadId={id}");
            let reply = server.put(&part, &source, b"").await;
            assert!(matches!(reply.status, 200 | 503), "{}", reply.text());
        }
        writer.abort();
        let _ = writer.await;
    }
}
