//! Tests of objects: bytes, headers, ranges.

use crate::http::pattern;
use crate::server::{BUCKETS, Server};
use crate::sign::{Signer, borrow, sha256_hex};

#[tokio::test]
async fn object_is_returned_as_stored() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        for (key, length) in [
            ("empty", 0),
            ("small", 11),
            ("deep/er/key", 3 << 20),
            ("large", (33 << 20) + 7),
        ] {
            let target = format!("/{bucket}/{key}");
            let body = pattern(length);
            let headers = [
                ("Content-Type", "text/x-test"),
                ("Cache-Control", "max-age=7"),
                ("Content-Disposition", "attachment"),
                ("Content-Language", "de"),
                ("Content-Encoding", "gzip"),
                ("Expires", "Wed, 21 Oct 2026 07:28:00 GMT"),
                ("x-amz-meta-Colour", "red"),
                ("x-amz-meta-name", "=?UTF-8?B?w6k=?="),
            ];
            let written = server.put(&target, &headers, &body).await.expect(200);
            let e_tag = written.header("etag").unwrap().to_owned();
            assert!(
                e_tag.starts_with('"') && e_tag.ends_with('"') && e_tag.len() > 2,
                "{e_tag}"
            );
            for method in ["GET", "HEAD"] {
                let reply = server.send(method, &target, &[], b"").await.expect(200);
                if method == "GET" {
                    assert!(reply.body == body, "{target}");
                } else {
                    assert!(reply.body.is_empty());
                }
                let expected = [
                    ("etag", e_tag.as_str()),
                    ("content-type", "text/x-test"),
                    ("cache-control", "max-age=7"),
                    ("content-disposition", "attachment"),
                    ("content-language", "de"),
                    ("content-encoding", "gzip"),
                    ("expires", "Wed, 21 Oct 2026 07:28:00 GMT"),
                    ("x-amz-meta-colour", "red"),
                    ("x-amz-meta-name", "=?UTF-8?B?w6k=?="),
                    ("accept-ranges", "bytes"),
                ];
                for (name, value) in expected {
                    assert_eq!(reply.header(name), Some(value), "{method} {target} {name}");
                }
                assert_eq!(
                    reply.header("content-length"),
                    Some(length.to_string().as_str())
                );
                assert!(reply.header("last-modified").unwrap().ends_with(" GMT"));
                assert!(
                    !reply
                        .headers
                        .iter()
                        .any(|(name, _)| name.contains("x-amz-meta-bywash"))
                );
            }
        }
    }
}

#[tokio::test]
async fn reads_report_their_cache_status_and_requests_have_ids() {
    let server = Server::anonymous().await;
    server
        .put("/folder/key", &[], &pattern(3 << 20))
        .await
        .expect(200);
    let cold = server.get("/folder/key", &[]).await.expect(200);
    let warm = server.get("/folder/key", &[]).await.expect(200);
    assert!(matches!(
        cold.header("x-bywash-cache"),
        Some("miss" | "partial")
    ));
    assert_eq!(warm.header("x-bywash-cache"), Some("hit"));
    assert_eq!(
        cold.header("x-bywash-version"),
        warm.header("x-bywash-version")
    );
    assert!(!cold.header("x-bywash-version").unwrap().is_empty());
    assert_ne!(
        cold.header("x-amz-request-id").unwrap(),
        warm.header("x-amz-request-id").unwrap()
    );
    assert_eq!(cold.header("content-type"), Some("binary/octet-stream"));
}

#[tokio::test]
async fn each_form_of_range_returns_its_bytes() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        server.put(&target, &[], b"0123456789").await.expect(200);
        let satisfied = [
            ("bytes=0-0", "0", "bytes 0-0/10"),
            ("bytes=2-5", "2345", "bytes 2-5/10"),
            ("bytes=7-", "789", "bytes 7-9/10"),
            ("bytes=7-700", "789", "bytes 7-9/10"),
            ("bytes=0-9", "0123456789", "bytes 0-9/10"),
            ("bytes=-3", "789", "bytes 7-9/10"),
            ("bytes=-30", "0123456789", "bytes 0-9/10"),
        ];
        for (range, body, content_range) in satisfied {
            for method in ["GET", "HEAD"] {
                let reply = server
                    .send(method, &target, &[("Range", range)], b"")
                    .await
                    .expect(206);
                assert_eq!(
                    reply.header("content-range"),
                    Some(content_range),
                    "{method} {range}"
                );
                assert_eq!(
                    reply.header("content-length"),
                    Some(body.len().to_string().as_str())
                );
                if method == "GET" {
                    assert_eq!(reply.text(), body);
                }
            }
        }
        for range in ["bytes=10-", "bytes=10-20", "bytes=-0"] {
            let reply = server
                .get(&target, &[("Range", range)])
                .await
                .expect_error(416, "InvalidRange");
            assert_eq!(reply.header("content-range"), Some("bytes */10"), "{range}");
            server
                .send("HEAD", &target, &[("Range", range)], b"")
                .await
                .expect(416);
        }
        for range in ["bytes=0-1,3-4", "bytes=5-2", "items=0-1", "bytes=a-b"] {
            let reply = server.get(&target, &[("Range", range)]).await.expect(200);
            assert_eq!(reply.text(), "0123456789", "{range}");
        }
        server
            .put(&format!("/{bucket}/empty"), &[], b"")
            .await
            .expect(200);
        for range in ["bytes=0-", "bytes=-1"] {
            server
                .get(&format!("/{bucket}/empty"), &[("Range", range)])
                .await
                .expect_error(416, "InvalidRange");
        }
    }
}

#[tokio::test]
async fn object_is_reported_as_one_part() {
    let server = Server::anonymous().await;
    server.put("/memory/key", &[], b"0123").await.expect(200);
    let reply = server
        .get("/memory/key?partNumber=1", &[])
        .await
        .expect(206);
    assert_eq!(
        (reply.text().as_str(), reply.header("content-range")),
        ("0123", Some("bytes 0-3/4"))
    );
    server
        .get("/memory/key?partNumber=2", &[])
        .await
        .expect_error(416, "InvalidPartNumber");
    server
        .get("/memory/key?partNumber=1", &[("Range", "bytes=0-1")])
        .await
        .expect_error(400, "InvalidRequest");
    server.put("/memory/empty", &[], b"").await.expect(200);
    server
        .get("/memory/empty?partNumber=1", &[])
        .await
        .expect(200);
}

#[tokio::test]
async fn response_headers_can_be_overridden() {
    let server = Server::anonymous().await;
    server
        .put(
            "/memory/key",
            &[("Content-Type", "text/a"), ("Cache-Control", "no-store")],
            b"x",
        )
        .await;
    let target = "/memory/key?response-content-type=text%2Fb&response-content-disposition=inline\
                  &response-cache-control=public&response-content-language=fr&response-content-encoding=br";
    let reply = server.get(target, &[]).await.expect(200);
    for (name, value) in [
        ("content-type", "text/b"),
        ("content-disposition", "inline"),
        ("cache-control", "public"),
        ("content-language", "fr"),
        ("content-encoding", "br"),
    ] {
        assert_eq!(reply.header(name), Some(value));
    }
    let twice = "/memory/key?response-content-type=text%2Fc&response-content-type=text%2Fd";
    let reply = server.get(twice, &[]).await.expect(200);
    assert_eq!(reply.header("content-type"), Some("text/c"));
}

#[tokio::test]
async fn metadata_that_is_not_ascii_comes_back_in_encoded_words() {
    let server = Server::anonymous().await;
    let word = "=?UTF-8?B?SsO8cmdlbiDinJM=?=";
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        for given in ["J\u{fc}rgen \u{2713}", word] {
            let named = [("x-amz-meta-name", given)];
            server.put(&target, &named, b"x").await.expect(200);
            let head = server.send("HEAD", &target, &[], b"").await.expect(200);
            assert_eq!(head.header("x-amz-meta-name"), Some(word));
            // By the fast path too.
            for _ in 0..2 {
                let read = server.get(&target, &[]).await.expect(200);
                assert_eq!(read.header("x-amz-meta-name"), Some(word), "{given}");
            }
        }
    }
}

#[tokio::test]
async fn headers_come_back_as_they_were_given() {
    let headers = [
        (
            "Content-Disposition",
            "attachment; filename=\"gr\u{fc}n.csv\"",
        ),
        ("Content-Encoding", "gzip, br"),
        ("Cache-Control", "max-age=1, x=\u{e9}"),
        ("x-amz-meta-name", "as put"),
        ("x-amz-storage-class", "STANDARD_IA"),
    ];
    let open = Server::anonymous().await;
    let closed = Server::signed().await;
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        let body = b"body of an object";
        let hash = sha256_hex(body);
        let (signed, _) = Signer::default().headers("PUT", &target, "", &hash, &headers);
        closed
            .put(&target, &borrow(&signed), body)
            .await
            .expect(200);
        let (query, _) = Signer::default().headers("GET", &target, "", &sha256_hex(b""), &[]);
        open.put(&target, &headers, body).await.expect(200);
        for reply in [
            open.get(&target, &[]).await.expect(200),
            closed.get(&target, &borrow(&query)).await.expect(200),
        ] {
            assert_eq!(reply.body, body);
            for (name, value) in &headers[..4] {
                assert_eq!(
                    reply.header(&name.to_ascii_lowercase()),
                    Some(*value),
                    "{name}"
                );
            }
            // One class serves for all.
            assert_eq!(reply.header("x-amz-storage-class"), None);
        }
    }
    // A header of this name is the server's own.
    let forged = [("x-bywash-text-content-type", "text%2Fforged")];
    open.put("/memory/forged", &forged, b"x").await.expect(200);
    let reply = open.get("/memory/forged", &[]).await.expect(200);
    assert_eq!(reply.header("content-type"), Some("binary/octet-stream"));
}

#[tokio::test]
async fn unsupported_headers_are_rejected() {
    let server = Server::anonymous().await;
    server.put("/memory/key", &[], b"x").await.expect(200);
    for header in [
        ("x-amz-server-side-encryption", "AES256"),
        ("x-amz-object-lock-mode", "GOVERNANCE"),
        ("x-amz-grant-read", "id=x"),
        ("x-amz-website-redirect-location", "/x"),
    ] {
        server
            .put("/memory/new", &[header], b"x")
            .await
            .expect_error(501, "NotImplemented");
    }
    server
        .put("/memory/new", &[("x-amz-storage-class", "MARBLE")], b"x")
        .await
        .expect_error(400, "InvalidStorageClass");
    for acl in [
        "public-read-write",
        "authenticated-read",
        "bucket-owner-read",
    ] {
        server
            .put("/memory/new", &[("x-amz-acl", acl)], b"x")
            .await
            .expect_error(400, "AccessControlListNotSupported");
    }
    server
        .put("/memory/new?partNumber=1", &[], b"x")
        .await
        .expect_error(400, "InvalidArgument");
    server
        .put("/memory/new", &[("x-amz-meta-a", &"m".repeat(3000))], b"x")
        .await
        .expect_error(400, "MetadataTooLarge");
    server
        .get("/memory/new", &[])
        .await
        .expect_error(404, "NoSuchKey");
    for target in ["/memory?metrics", "/memory?analytics", "/memory?inventory"] {
        server
            .get(target, &[])
            .await
            .expect_error(501, "NotImplemented");
    }
    server
        .put("/memory?versioning", &[], b"<VersioningConfiguration/>")
        .await
        .expect_error(501, "NotImplemented");
    server
        .get("/memory/key?versionId=7", &[])
        .await
        .expect_error(400, "InvalidArgument");
    server
        .get("/memory/key?versionId=null", &[])
        .await
        .expect(200);
}

#[tokio::test]
async fn object_attributes_are_returned() {
    let server = Server::anonymous().await;
    let written = server
        .put(
            "/memory/key",
            &[("x-amz-checksum-crc32", "NhCmhg==")],
            b"hello",
        )
        .await
        .expect(200);
    let headers = [("x-amz-object-attributes", "ETag,ObjectSize,Checksum")];
    let reply = server
        .get("/memory/key?attributes", &headers)
        .await
        .expect(200);
    assert_eq!(reply.tag("ObjectSize").as_deref(), Some("5"));
    assert_eq!(reply.tag("ChecksumCRC32").as_deref(), Some("NhCmhg=="));
    let bare = written.header("etag").unwrap().trim_matches('"').to_owned();
    assert_eq!(reply.tag("ETag").unwrap().trim_matches('"'), bare);
    assert_eq!(reply.tag("StorageClass"), None);
    server
        .get("/memory/absent?attributes", &headers)
        .await
        .expect_error(404, "NoSuchKey");
}
