//! Objects: bytes, headers, ranges, conditions, keys, copies, deletes.

use crate::http::{Reply, get, pattern, put, send};
use crate::server::{BUCKETS, Server};

#[tokio::test]
async fn an_object_comes_back_as_it_was_put() {
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
                ("Content-Encoding", "aws-chunked,gzip"),
                ("Expires", "Wed, 21 Oct 2026 07:28:00 GMT"),
                ("x-amz-meta-Colour", "red"),
                ("x-amz-meta-name", "=?UTF-8?B?w6k=?="),
            ];
            let written = put(server.address, &target, &headers, &body)
                .await
                .expect(200);
            let e_tag = written.header("etag").unwrap().to_owned();
            assert!(
                e_tag.starts_with('"') && e_tag.ends_with('"') && e_tag.len() > 2,
                "{e_tag}"
            );
            for method in ["GET", "HEAD"] {
                let reply = send(server.address, method, &target, &[], b"")
                    .await
                    .expect(200);
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
async fn reads_tell_how_they_were_served_and_requests_have_ids() {
    let server = Server::anonymous().await;
    put(server.address, "/folder/key", &[], &pattern(3 << 20))
        .await
        .expect(200);
    let cold = get(server.address, "/folder/key", &[]).await.expect(200);
    let warm = get(server.address, "/folder/key", &[]).await.expect(200);
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
async fn ranges_of_all_forms() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        put(server.address, &target, &[], b"0123456789")
            .await
            .expect(200);
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
                let reply = send(server.address, method, &target, &[("Range", range)], b"")
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
            let reply = get(server.address, &target, &[("Range", range)])
                .await
                .expect_error(416, "InvalidRange");
            assert_eq!(reply.header("content-range"), Some("bytes */10"), "{range}");
            send(server.address, "HEAD", &target, &[("Range", range)], b"")
                .await
                .expect(416);
        }
        for range in [
            "bytes=0-1,3-4",
            "bytes=5-2",
            "items=0-1",
            "bytes=a-b",
            "bytes=99999999999999999999-",
        ] {
            let reply = get(server.address, &target, &[("Range", range)])
                .await
                .expect(200);
            assert_eq!(reply.text(), "0123456789", "{range}");
        }
        put(server.address, &format!("/{bucket}/empty"), &[], b"")
            .await
            .expect(200);
        for range in ["bytes=0-", "bytes=-1"] {
            get(
                server.address,
                &format!("/{bucket}/empty"),
                &[("Range", range)],
            )
            .await
            .expect_error(416, "InvalidRange");
        }
    }
}

#[tokio::test]
async fn an_object_is_one_part() {
    let server = Server::anonymous().await;
    put(server.address, "/memory/key", &[], b"0123")
        .await
        .expect(200);
    let reply = get(server.address, "/memory/key?partNumber=1", &[])
        .await
        .expect(206);
    assert_eq!(
        (reply.text().as_str(), reply.header("content-range")),
        ("0123", Some("bytes 0-3/4"))
    );
    get(server.address, "/memory/key?partNumber=2", &[])
        .await
        .expect_error(416, "InvalidPartNumber");
    get(
        server.address,
        "/memory/key?partNumber=1",
        &[("Range", "bytes=0-1")],
    )
    .await
    .expect_error(400, "InvalidRequest");
    put(server.address, "/memory/empty", &[], b"")
        .await
        .expect(200);
    get(server.address, "/memory/empty?partNumber=1", &[])
        .await
        .expect(200);
}

async fn e_tag_of(server: &Server, target: &str) -> (String, String) {
    let reply = send(server.address, "HEAD", target, &[], b"")
        .await
        .expect(200);
    (
        reply.header("etag").unwrap().to_owned(),
        reply.header("last-modified").unwrap().to_owned(),
    )
}

#[tokio::test]
async fn conditional_reads() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        put(server.address, &target, &[], b"data").await.expect(200);
        let (e_tag, modified) = e_tag_of(&server, &target).await;
        let unquoted = e_tag.trim_matches('"').to_owned();
        let list = format!("\"other\", {e_tag}");
        let (past, future) = (
            "Mon, 01 Jan 2001 00:00:00 GMT",
            "Fri, 01 Jan 2100 00:00:00 GMT",
        );
        let cases: &[(&[(&str, &str)], u16)] = &[
            (&[("If-Match", &e_tag)], 200),
            (&[("If-Match", &unquoted)], 200),
            (&[("If-Match", &list)], 200),
            (&[("If-Match", "*")], 200),
            (&[("If-Match", "\"other\"")], 412),
            (&[("If-None-Match", &e_tag)], 304),
            (&[("If-None-Match", &list)], 304),
            (&[("If-None-Match", "*")], 304),
            (&[("If-None-Match", "\"other\"")], 200),
            (&[("If-Modified-Since", &modified)], 304),
            (&[("If-Modified-Since", past)], 200),
            (&[("If-Modified-Since", future)], 304),
            (&[("If-Unmodified-Since", &modified)], 200),
            (&[("If-Unmodified-Since", past)], 412),
            (&[("If-Match", &e_tag), ("If-Unmodified-Since", past)], 200),
            (
                &[
                    ("If-None-Match", "\"other\""),
                    ("If-Modified-Since", future),
                ],
                200,
            ),
        ];
        for (headers, status) in cases {
            for method in ["GET", "HEAD"] {
                let reply = send(server.address, method, &target, headers, b"").await;
                assert_eq!(reply.status, *status, "{method} {bucket} {headers:?}");
                if *status == 304 {
                    assert_eq!(reply.header("etag"), Some(e_tag.as_str()));
                    assert!(reply.body.is_empty());
                }
            }
        }
        get(server.address, &target, &[("If-Match", "\"other\"")])
            .await
            .expect_error(412, "PreconditionFailed");
        get(
            server.address,
            &format!("/{bucket}/absent"),
            &[("If-Match", "*")],
        )
        .await
        .expect_error(404, "NoSuchKey");
    }
}

#[tokio::test]
async fn conditional_writes() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        put(server.address, &target, &[("If-Match", "\"x\"")], b"a")
            .await
            .expect_error(404, "NoSuchKey");
        put(server.address, &target, &[("If-None-Match", "*")], b"first")
            .await
            .expect(200);
        put(
            server.address,
            &target,
            &[("If-None-Match", "*")],
            b"second",
        )
        .await
        .expect_error(412, "PreconditionFailed");
        put(
            server.address,
            &target,
            &[("If-Match", "\"other\"")],
            b"third",
        )
        .await
        .expect_error(412, "PreconditionFailed");
        let (e_tag, _) = e_tag_of(&server, &target).await;
        put(server.address, &target, &[("If-Match", &e_tag)], b"fourth")
            .await
            .expect(200);
        put(server.address, &target, &[("If-Match", &e_tag)], b"fifth")
            .await
            .expect_error(412, "PreconditionFailed");
        put(server.address, &target, &[("If-None-Match", "\"x\"")], b"a")
            .await
            .expect_error(501, "NotImplemented");
        assert_eq!(get(server.address, &target, &[]).await.text(), "fourth");
    }
}

#[tokio::test]
async fn responses_can_be_told_their_headers() {
    let server = Server::anonymous().await;
    put(
        server.address,
        "/memory/key",
        &[("Content-Type", "text/a"), ("Cache-Control", "no-store")],
        b"x",
    )
    .await;
    let target = "/memory/key?response-content-type=text%2Fb&response-content-disposition=inline\
                  &response-cache-control=public&response-content-language=fr&response-content-encoding=br";
    let reply = get(server.address, target, &[]).await.expect(200);
    for (name, value) in [
        ("content-type", "text/b"),
        ("content-disposition", "inline"),
        ("cache-control", "public"),
        ("content-language", "fr"),
        ("content-encoding", "br"),
    ] {
        assert_eq!(reply.header(name), Some(value));
    }
}

#[tokio::test]
async fn keys_that_cannot_be_stored_are_refused() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let before = get(server.address, &format!("/{bucket}?list-type=2"), &[])
            .await
            .expect(200)
            .tags("Key");
        for key in [
            "a//b",
            "/a",
            "./a",
            "../folder/a",
            "a/..",
            "a/./b",
            "nul%00byte",
            "line%0Abreak",
            "%2E%2E/a",
            "a/",
        ] {
            let target = format!("/{bucket}/{key}");
            let reply = put(server.address, &target, &[], b"x")
                .await
                .expect_error(400, "InvalidArgument");
            assert!(
                reply.tag("Message").unwrap().contains("cannot be stored"),
                "{key}"
            );
            send(
                server.address,
                "POST",
                &format!("{target}?uploads"),
                &[],
                b"",
            )
            .await
            .expect_error(400, "InvalidArgument");
            let copy = [("x-amz-copy-source", format!("/{bucket}/a"))];
            let copy: Vec<_> = copy
                .iter()
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            put(server.address, &target, &copy, b"")
                .await
                .expect_error(400, "InvalidArgument");
        }
        // A client that probes for a folder hears that it is not there; other names are wrong.
        get(server.address, &format!("/{bucket}/a/"), &[])
            .await
            .expect_error(404, "NoSuchKey");
        send(server.address, "DELETE", &format!("/{bucket}/a/"), &[], b"")
            .await
            .expect(204);
        get(server.address, &format!("/{bucket}/a/../b"), &[])
            .await
            .expect_error(400, "InvalidArgument");
        let long = "k".repeat(1025);
        for method in ["GET", "PUT", "DELETE"] {
            send(
                server.address,
                method,
                &format!("/{bucket}/{long}"),
                &[],
                b"",
            )
            .await
            .expect_error(400, "KeyTooLongError");
        }
        get(server.address, &format!("/{bucket}/%FF"), &[])
            .await
            .expect_error(400, "InvalidURI");
        let after = get(server.address, &format!("/{bucket}?list-type=2"), &[])
            .await
            .expect(200)
            .tags("Key");
        assert_eq!(before, after);
    }
}

#[tokio::test]
async fn keys_of_unusual_characters_are_kept() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let keys = [
            "%20blank",
            "pl%2Bus",
            "a%26b%3Cc%3E",
            "%C3%BC/%F0%9F%A6%80",
            "per%25cent",
            "q%3Fm",
            "back%5Cslash",
            "..a",
            "a..b",
        ];
        for key in keys {
            put(
                server.address,
                &format!("/{bucket}/{key}"),
                &[],
                key.as_bytes(),
            )
            .await
            .expect(200);
        }
        put(
            server.address,
            &format!("/{bucket}/{}", "k".repeat(200)),
            &[],
            b"k",
        )
        .await
        .expect(200);
        for key in keys {
            let reply = get(server.address, &format!("/{bucket}/{key}"), &[])
                .await
                .expect(200);
            assert_eq!(reply.text(), key);
        }
    }
}

fn copied(reply: Reply) -> String {
    reply.expect(200).tag("ETag").unwrap()
}

#[tokio::test]
async fn copies() {
    let server = Server::anonymous().await;
    let headers = [("Content-Type", "text/a"), ("x-amz-meta-a", "1")];
    for bucket in BUCKETS {
        put(
            server.address,
            &format!("/{bucket}/from"),
            &headers,
            b"copied bytes",
        )
        .await
        .expect(200);
        let (e_tag, _) = e_tag_of(&server, &format!("/{bucket}/from")).await;
        for to in BUCKETS {
            let target = format!("/{to}/to-{bucket}");
            let source = format!("/{bucket}/from");
            copied(
                put(
                    server.address,
                    &target,
                    &[("x-amz-copy-source", &source)],
                    b"",
                )
                .await,
            );
            let reply = get(server.address, &target, &[]).await.expect(200);
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
            copied(put(server.address, &target, &replace, b"").await);
            let reply = get(server.address, &target, &[]).await.expect(200);
            assert_eq!(
                (reply.header("content-type"), reply.header("x-amz-meta-b")),
                (Some("text/b"), Some("2"))
            );
            assert_eq!(reply.header("x-amz-meta-a"), None);
        }
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
            let reply = put(server.address, &format!("/{bucket}/to"), &headers, b"").await;
            assert_eq!(reply.status, *status, "{name}: {value} {}", reply.text());
        }
        let headers = [
            ("x-amz-copy-source", source.as_str()),
            ("If-None-Match", "*"),
        ];
        put(server.address, &format!("/{bucket}/to"), &headers, b"")
            .await
            .expect_error(412, "PreconditionFailed");
        put(
            server.address,
            &format!("/{bucket}/from"),
            &headers[..1],
            b"",
        )
        .await
        .expect_error(400, "InvalidRequest");
        let itself = [
            ("x-amz-copy-source", source.as_str()),
            ("x-amz-metadata-directive", "REPLACE"),
            ("x-amz-meta-c", "3"),
        ];
        copied(put(server.address, &format!("/{bucket}/from"), &itself, b"").await);
        let reply = get(server.address, &format!("/{bucket}/from"), &[])
            .await
            .expect(200);
        assert_eq!(
            (reply.text().as_str(), reply.header("x-amz-meta-c")),
            ("copied bytes", Some("3"))
        );
        let absent = [("x-amz-copy-source", "memory/absent")];
        put(server.address, &format!("/{bucket}/to"), &absent, b"")
            .await
            .expect_error(404, "NoSuchKey");
        let absent = [("x-amz-copy-source", "no-such-bucket/from")];
        put(server.address, &format!("/{bucket}/to"), &absent, b"")
            .await
            .expect_error(404, "NoSuchBucket");
    }
}

#[tokio::test]
async fn deletes() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        for key in ["a", "b", "c", "d&amp"] {
            put(server.address, &format!("/{bucket}/{key}"), &[], b"x")
                .await
                .expect(200);
        }
        send(server.address, "DELETE", &format!("/{bucket}/a"), &[], b"")
            .await
            .expect(204);
        send(server.address, "DELETE", &format!("/{bucket}/a"), &[], b"")
            .await
            .expect(204);
        get(server.address, &format!("/{bucket}/a"), &[])
            .await
            .expect_error(404, "NoSuchKey");
        send(
            server.address,
            "DELETE",
            &format!("/{bucket}/b?versionId=7"),
            &[],
            b"",
        )
        .await
        .expect_error(404, "NoSuchVersion");
        send(
            server.address,
            "DELETE",
            &format!("/{bucket}/b?versionId=null"),
            &[],
            b"",
        )
        .await
        .expect(204);
        let xml = "<Delete><Object><Key>c</Key><VersionId>null</VersionId></Object><Object><Key>d&amp;amp</Key></Object>\
                   <Object><Key>absent</Key></Object><Object><Key>x//y</Key></Object></Delete>";
        let reply = send(
            server.address,
            "POST",
            &format!("/{bucket}?delete"),
            &[],
            xml.as_bytes(),
        )
        .await
        .expect(200);
        assert_eq!(reply.tags("Deleted").len(), 3, "{}", reply.text());
        assert_eq!(reply.tag("Code").as_deref(), Some("InvalidArgument"));
        let quiet = "<Delete><Quiet>true</Quiet><Object><Key>absent</Key></Object></Delete>";
        let reply = send(
            server.address,
            "POST",
            &format!("/{bucket}?delete"),
            &[],
            quiet.as_bytes(),
        )
        .await
        .expect(200);
        assert!(reply.tags("Deleted").is_empty());
        let listed = get(server.address, &format!("/{bucket}?list-type=2"), &[])
            .await
            .expect(200);
        assert!(listed.tags("Key").is_empty(), "{}", listed.text());
        let many: String = (0..1001)
            .map(|n| format!("<Object><Key>{n}</Key></Object>"))
            .collect();
        send(
            server.address,
            "POST",
            &format!("/{bucket}?delete"),
            &[],
            format!("<Delete>{many}</Delete>").as_bytes(),
        )
        .await
        .expect_error(400, "MalformedXML");
    }
}

#[tokio::test]
async fn what_is_not_supported_is_said() {
    let server = Server::anonymous().await;
    put(server.address, "/memory/key", &[], b"x")
        .await
        .expect(200);
    for header in [
        ("x-amz-tagging", "a=b"),
        ("x-amz-server-side-encryption", "AES256"),
        ("x-amz-object-lock-mode", "GOVERNANCE"),
        ("x-amz-acl", "public-read"),
        ("x-amz-grant-read", "id=x"),
        ("x-amz-website-redirect-location", "/x"),
    ] {
        put(server.address, "/memory/new", &[header], b"x")
            .await
            .expect_error(501, "NotImplemented");
    }
    put(
        server.address,
        "/memory/new",
        &[("x-amz-storage-class", "GLACIER")],
        b"x",
    )
    .await
    .expect_error(400, "InvalidStorageClass");
    put(server.address, "/memory/new?partNumber=1", &[], b"x")
        .await
        .expect_error(400, "InvalidArgument");
    put(
        server.address,
        "/memory/new",
        &[("x-amz-meta-bywash-checksum-crc32", "x")],
        b"x",
    )
    .await
    .expect_error(400, "InvalidArgument");
    put(
        server.address,
        "/memory/new",
        &[("x-amz-meta-a", &"m".repeat(3000))],
        b"x",
    )
    .await
    .expect_error(400, "MetadataTooLarge");
    get(server.address, "/memory/new", &[])
        .await
        .expect_error(404, "NoSuchKey");
    for target in [
        "/memory/key?tagging",
        "/memory/key?acl",
        "/memory?versioning",
        "/memory?policy",
        "/memory?lifecycle",
    ] {
        get(server.address, target, &[])
            .await
            .expect_error(501, "NotImplemented");
    }
    put(
        server.address,
        "/memory?versioning",
        &[],
        b"<VersioningConfiguration/>",
    )
    .await
    .expect_error(501, "NotImplemented");
    get(server.address, "/memory/key?versionId=7", &[])
        .await
        .expect_error(404, "NoSuchVersion");
    get(server.address, "/memory/key?versionId=null", &[])
        .await
        .expect(200);
}

#[tokio::test]
async fn attributes_of_an_object() {
    let server = Server::anonymous().await;
    let written = put(
        server.address,
        "/memory/key",
        &[("x-amz-checksum-crc32", "NhCmhg==")],
        b"hello",
    )
    .await
    .expect(200);
    let headers = [("x-amz-object-attributes", "ETag,ObjectSize,Checksum")];
    let reply = get(server.address, "/memory/key?attributes", &headers)
        .await
        .expect(200);
    assert_eq!(reply.tag("ObjectSize").as_deref(), Some("5"));
    assert_eq!(reply.tag("ChecksumCRC32").as_deref(), Some("NhCmhg=="));
    let bare = written.header("etag").unwrap().trim_matches('"').to_owned();
    assert_eq!(reply.tag("ETag").unwrap().trim_matches('"'), bare);
    assert_eq!(reply.tag("StorageClass"), None);
    get(server.address, "/memory/absent?attributes", &headers)
        .await
        .expect_error(404, "NoSuchKey");
}
