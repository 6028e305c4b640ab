//! Tests of headers and parameters that S3 reads as text, leniently, or not at all.

use crate::http::{head, raw};
use crate::server::{BUCKETS, Server};

/// Values of Expires that are stored as they are.
const TEXTS: [&str; 12] = [
    "0",
    "-1",
    "5d",
    "Fri, 1 Sep 2023 01:01:01 GMT",
    "Fri, 01 Sep 2023 01:01:01 GMT",
    "Friday, 01-Sep-23 01:01:01 GMT",
    "Fri Sep  1 01:01:01 2023",
    "2023-09-01T01:01:01Z",
    "Mon, 01 Sep 2023 01:01:01 GMT",
    "never",
    "1693530061",
    "\u{fc}ber",
];

#[tokio::test]
async fn expires_is_any_text_by_each_kind_of_write() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        for text in TEXTS {
            let expires = [("Expires", text)];
            let [put, copied, parts] =
                ["put", "copied", "parts"].map(|key| format!("/{bucket}/{key}"));
            server.put(&put, &expires, b"x").await.expect(200);
            let source = [
                ("x-amz-copy-source", put.as_str()),
                ("x-amz-metadata-directive", "REPLACE"),
                expires[0],
            ];
            server.put(&copied, &source, b"").await.expect(200);
            let begun = server
                .send("POST", &format!("{parts}?uploads"), &expires, b"")
                .await;
            let id = begun.expect(200).tag("UploadId").unwrap();
            let part = format!("{parts}?partNumber=1&uploadId={id}");
            let part = server.put(&part, &[], b"x").await.expect(200);
            let e_tag = part.header("etag").unwrap();
            let body = format!(
                "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{e_tag}</ETag></Part></CompleteMultipartUpload>"
            );
            let target = format!("{parts}?uploadId={id}");
            server
                .send("POST", &target, &[], body.as_bytes())
                .await
                .expect(200);
            for target in [&put, &copied, &parts] {
                // Twice: the second read may go the fast path.
                for method in ["GET", "HEAD", "GET", "HEAD"] {
                    let reply = server.send(method, target, &[], b"").await.expect(200);
                    assert_eq!(reply.header("expires"), Some(text), "{method} {target}");
                }
            }
            let encoded: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
            let target = format!("{put}?response-expires={encoded}");
            let reply = server.get(&target, &[]).await.expect(200);
            assert_eq!(reply.header("expires"), Some(text));
        }
        // A copy keeps it.
        let source = [("x-amz-copy-source", "/memory/put")];
        server
            .put(&format!("/{bucket}/kept"), &source, b"")
            .await
            .expect(200);
        let kept = server.get(&format!("/{bucket}/kept"), &[]).await;
        assert_eq!(kept.header("expires"), Some(TEXTS[TEXTS.len() - 1]));
    }
}

/// Dates of one moment in each form of HTTP, with one digit and two.
fn forms(date: chrono::DateTime<chrono::Utc>) -> Vec<String> {
    let forms = [
        "%a, %d %b %Y %H:%M:%S GMT",
        "%a, %-d %b %Y %H:%M:%S GMT",
        "%A, %d-%b-%y %H:%M:%S GMT",
        "%A, %-d-%b-%y %H:%M:%S GMT",
        "%a %b %e %H:%M:%S %Y",
        "%a %b %d %H:%M:%S %Y",
        "%a %b %-d %H:%M:%S %Y",
        "%a, %d %b %Y %H:%M:%S +0000",
    ];
    forms.map(|form| date.format(form).to_string()).to_vec()
}

const NO_DATES: [&str; 8] = [
    "0",
    "-1",
    "yesterday",
    "2023-09-01T01:01:01Z",
    "Mon, 01 Jan 2100 00:00:00 GMT",
    "Fri, 32 Jan 2100 00:00:00 GMT",
    "Fri, 1 Jan 2100",
    "\u{fc}",
];

#[tokio::test]
async fn conditions_take_dates_of_each_form_and_ignore_others() {
    let server = Server::anonymous().await;
    let date = |text: &str| chrono::DateTime::parse_from_rfc3339(text).unwrap().to_utc();
    let (past, future) = (date("2001-01-05T00:00:00Z"), date("2060-01-05T00:00:00Z"));
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        server.put(&target, &[], b"data").await.expect(200);
        let read = async |name: &str, value: &str| {
            let mut statuses = Vec::new();
            for method in ["GET", "HEAD"] {
                let reply = server.send(method, &target, &[(name, value)], b"").await;
                statuses.push(reply.status);
            }
            assert_eq!(statuses[0], statuses[1], "{name}: {value}");
            statuses[0]
        };
        let copy = async |name: &str, value: &str| {
            let headers = [("x-amz-copy-source", target.as_str()), (name, value)];
            server
                .put(&format!("/{bucket}/copy"), &headers, b"")
                .await
                .status
        };
        for (date, since, unmodified) in [(past, 200, 412), (future, 304, 200)] {
            for text in forms(date) {
                assert_eq!(read("If-Modified-Since", &text).await, since, "{text}");
                assert_eq!(
                    read("If-Unmodified-Since", &text).await,
                    unmodified,
                    "{text}"
                );
                let since = if since == 304 { 412 } else { since };
                let name = "x-amz-copy-source-if-modified-since";
                assert_eq!(copy(name, &text).await, since, "{text}");
                let name = "x-amz-copy-source-if-unmodified-since";
                assert_eq!(copy(name, &text).await, unmodified, "{text}");
            }
        }
        for text in NO_DATES {
            for name in ["If-Modified-Since", "If-Unmodified-Since"] {
                assert_eq!(read(name, text).await, 200, "{name}: {text}");
                let name = format!("x-amz-copy-source-{}", name.to_ascii_lowercase());
                assert_eq!(copy(&name, text).await, 200, "{name}: {text}");
            }
            // Without its condition a delete would remove the object.
            let condition = [("x-amz-if-match-last-modified-time", text)];
            let reply = server.send("DELETE", &target, &condition, b"").await;
            reply.expect_error(400, "InvalidArgument");
        }
        let condition = [(
            "x-amz-if-match-last-modified-time",
            "Fri, 5 Jan 2001 00:00:00 GMT",
        )];
        let reply = server.send("DELETE", &target, &condition, b"").await;
        reply.expect_error(412, "PreconditionFailed");
    }
}

#[tokio::test]
async fn copy_sources_are_decoded_as_forms() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let objects = [
            ("a%20b", "space"),
            ("a%2Bb", "plus"),
            ("%C3%BC/c%25", "percent"),
        ];
        for (key, body) in objects {
            let target = format!("/{bucket}/{key}");
            server.put(&target, &[], body.as_bytes()).await.expect(200);
        }
        for (source, expected) in [
            ("a+b", "space"),
            ("a%20b", "space"),
            ("a%2Bb", "plus"),
            ("a%2bb", "plus"),
            ("%C3%BC/c%25", "percent"),
            ("%C3%BC%2Fc%25?versionId=null", "percent"),
        ] {
            let source = format!("{bucket}/{source}");
            let target = format!("/{bucket}/copy");
            let headers = [("x-amz-copy-source", source.as_str())];
            server.put(&target, &headers, b"").await.expect(200);
            assert_eq!(server.get(&target, &[]).await.text(), expected, "{source}");
            let begun = server
                .send("POST", &format!("{target}?uploads"), &[], b"")
                .await;
            let id = begun.expect(200).tag("UploadId").unwrap();
            let part = format!("{target}?partNumber=1&uploadId={id}");
            let reply = server.put(&part, &headers, b"").await.expect(200);
            let e_tag = reply.tag("ETag").unwrap();
            let head = server.send("HEAD", &target, &[], b"").await;
            assert_eq!(head.header("etag").unwrap(), e_tag.replace("&quot;", "\""));
        }
        for source in ["", "x", "/x/", "%FF/x", "B/k"] {
            let headers = [("x-amz-copy-source", source)];
            let reply = server.put(&format!("/{bucket}/copy"), &headers, b"").await;
            assert!(reply.status == 400, "{source}: {}", reply.text());
        }
        let source = format!("{bucket}/a+b?versionId=other");
        let headers = [("x-amz-copy-source", source.as_str())];
        let reply = server.put(&format!("/{bucket}/copy"), &headers, b"").await;
        reply.expect_error(400, "InvalidArgument");
    }
}

#[tokio::test]
async fn numbers_and_switches_of_queries_are_read_as_s3_reads_them() {
    let server = Server::anonymous().await;
    for key in ["a", "b", "c"] {
        server
            .put(&format!("/memory/{key}"), &[], b"x")
            .await
            .expect(200);
    }
    for (query, keys) in [
        ("max-keys=2", 2),
        ("max-keys=002", 2),
        ("max-keys=", 3),
        ("max-keys=1&max-keys=x", 1),
        ("max-keys=-0", 0),
        ("max-keys=99999", 3),
        ("list-type=2&max-keys=2&fetch-owner=TRUE", 2),
        ("list-type=2&fetch-owner=maybe", 3),
        ("versions&max-keys=2", 2),
        ("encoding-type=URL", 3),
        ("prefix=a&prefix=b", 1),
    ] {
        let reply = server
            .get(&format!("/memory?{query}"), &[])
            .await
            .expect(200);
        assert_eq!(reply.tags("Key").len(), keys, "{query}");
    }
    for query in [
        "max-keys=x",
        "max-keys=-1",
        "max-keys=%205",
        "max-keys=2147483648",
        "list-type=2&max-keys=1.0",
        "versions&max-keys=x",
        "versions&key-marker=a&version-id-marker=x",
        "uploads&max-uploads=x",
        "encoding-type=base64",
        "encoding-type=",
    ] {
        let reply = server.get(&format!("/memory?{query}"), &[]).await;
        reply.expect_error(400, "InvalidArgument");
    }
    for query in ["max-buckets=x", "max-buckets=0", "max-buckets=10001"] {
        server
            .get(&format!("/?{query}"), &[])
            .await
            .expect_error(400, "InvalidArgument");
    }
}

#[tokio::test]
async fn numbers_of_parts_and_versions_that_cannot_exist_are_refused() {
    let server = Server::anonymous().await;
    server.put("/memory/a", &[], b"x").await.expect(200);
    for query in [
        "partNumber=0",
        "partNumber=x",
        "partNumber=",
        "versionId=",
        "versionId=x",
    ] {
        let target = format!("/memory/a?{query}");
        server
            .get(&target, &[])
            .await
            .expect_error(400, "InvalidArgument");
        assert_eq!(server.send("HEAD", &target, &[], b"").await.status, 400);
    }
    server.get("/memory/a?partNumber=01", &[]).await.expect(206);
    for operation in ["tagging&", "acl&", "attributes&", ""] {
        for version in ["", "x"] {
            let target = format!("/memory/a?{operation}versionId={version}");
            let headers = [("x-amz-object-attributes", "ETag")];
            server
                .get(&target, &headers)
                .await
                .expect_error(400, "InvalidArgument");
        }
    }
}

#[tokio::test]
async fn modes_conditions_and_ranges_are_read_as_s3_reads_them() {
    let server = Server::anonymous().await;
    let put = [("x-amz-checksum-crc32", "NhCmhg==")];
    server.put("/memory/key", &put, b"hello").await.expect(200);
    type Headers<'a> = &'a [(&'a str, &'a str)];
    let reads: &[(Headers<'_>, u16)] = &[
        (&[("x-amz-checksum-mode", "enabled")], 200),
        (&[("x-amz-checksum-mode", "disabled")], 400),
        (&[("x-amz-request-payer", "somebody")], 200),
        (&[("If-Match", "*")], 200),
        (&[("If-None-Match", "")], 200),
        (&[("If-None-Match", "\"a\u{fc}\"")], 200),
        (&[("If-Match", "\"a\u{fc}\"")], 412),
        (&[("If-Match", "\"unclosed")], 412),
        (&[("Range", "bytes=0-1,3-4")], 200),
        (&[("Range", "bytes=x")], 200),
        (&[("Range", "")], 200),
    ];
    for (headers, status) in reads {
        for method in ["GET", "HEAD"] {
            let reply = server.send(method, "/memory/key", headers, b"").await;
            assert_eq!(
                reply.status,
                *status,
                "{method} {headers:?} {}",
                reply.text()
            );
        }
    }
    let mode = [("x-amz-checksum-mode", "Enabled")];
    let reply = server.get("/memory/key", &mode).await;
    assert_eq!(reply.header("x-amz-checksum-crc32"), Some("NhCmhg=="));
    assert_eq!(reply.header("x-amz-checksum-type"), Some("FULL_OBJECT"));
}

#[tokio::test]
async fn names_of_attributes_are_those_of_s3_separated_by_commas() {
    let server = Server::anonymous().await;
    server.put("/memory/key", &[], b"hello").await.expect(200);
    for (names, status) in [
        ("ETag", 200),
        ("ETag, ObjectSize ,Checksum", 200),
        ("ETag,", 200),
        ("etag", 400),
        ("ETag,,ObjectSize", 400),
        (",", 400),
        ("", 400),
    ] {
        let headers = [("x-amz-object-attributes", names)];
        let reply = server.get("/memory/key?attributes", &headers).await;
        assert_eq!(reply.status, status, "{names:?}: {}", reply.text());
    }
    for (name, value) in [("x-amz-max-parts", "x"), ("x-amz-part-number-marker", "-1")] {
        let headers = [("x-amz-object-attributes", "ObjectParts"), (name, value)];
        let reply = server.get("/memory/key?attributes", &headers).await;
        reply.expect_error(400, "InvalidArgument");
    }
}

#[tokio::test]
async fn metadata_is_text_and_headers_sent_twice_are_one() {
    let server = Server::anonymous().await;
    // Words that are no encoded ones are metadata as others.
    let words = [
        "=?UTF-8?B?!?=",
        "=?x?Q?=",
        "=?UTF-8?Q?caf=C3=A9?=",
        "50% =?",
    ];
    for word in words {
        server
            .put("/memory/key", &[("x-amz-meta-a", word)], b"x")
            .await
            .expect(200);
        let reply = server.get("/memory/key", &[]).await;
        assert_eq!(reply.header("x-amz-meta-a"), Some(word));
    }
    // Headers that were sent several times are one.
    let twice = [
        ("x-amz-meta-a", "1"),
        ("x-amz-meta-a", "2"),
        ("Cache-Control", "no-cache"),
        ("Cache-Control", "private"),
    ];
    server.put("/memory/key", &twice, b"x").await.expect(200);
    let reply = server.get("/memory/key", &[]).await;
    assert_eq!(reply.header("x-amz-meta-a"), Some("1,2"));
    assert_eq!(reply.header("cache-control"), Some("no-cache,private"));
}

#[tokio::test]
async fn locks_and_ownership_of_new_buckets_are_read_as_s3_reads_them() {
    let server = Server::anonymous().await;
    for (name, value) in [
        ("x-amz-bucket-object-lock-enabled", "TRUE"),
        ("x-amz-bucket-object-lock-enabled", "yes"),
    ] {
        let reply = server.put("/new-bucket", &[(name, value)], b"").await;
        reply.expect_error(501, "NotImplemented");
    }
    let owner = [("x-amz-object-ownership", "Somebody")];
    server
        .put("/new-bucket", &owner, b"")
        .await
        .expect_error(400, "InvalidArgument");
    let off = [
        ("x-amz-bucket-object-lock-enabled", "False"),
        ("x-amz-object-ownership", "ObjectWriter"),
    ];
    server.put("/new-bucket", &off, b"").await.expect(200);
}

#[tokio::test]
async fn text_that_is_no_utf_8_is_refused_and_not_dropped() {
    let server = Server::anonymous().await;
    for name in [
        "Content-Disposition",
        "Expires",
        "x-amz-meta-a",
        "Content-Type",
    ] {
        let mut request = head("PUT", "/memory/raw", &[("Content-Length", "0")]).into_bytes();
        request.truncate(request.len() - 2);
        request.extend(name.as_bytes());
        request.extend(b": caf\xe9\r\n\r\n");
        let reply = raw(server.address, &request).await;
        let reply = reply.expect_error(400, "InvalidArgument");
        let named = reply.tag("ArgumentName").unwrap();
        assert!(named.eq_ignore_ascii_case(name), "{named}");
    }
}

#[tokio::test]
async fn checksums_that_nothing_would_compare_are_refused() {
    let server = Server::anonymous().await;
    for (name, value) in [
        ("x-amz-checksum-md5", "XUFAKrxLKna5cZ2REBfFkg=="),
        ("x-amz-checksum-xxhash64", "AAAAAAAAAAA="),
        ("x-amz-trailer", "x-amz-checksum-sha512"),
    ] {
        let reply = server.put("/memory/key", &[(name, value)], b"hello").await;
        reply.expect_error(501, "NotImplemented");
    }
    server.get("/memory/key", &[]).await.expect(404);
}

#[tokio::test]
async fn tags_of_a_header_are_utf_8_or_refused() {
    let server = Server::anonymous().await;
    let put = async |tags: &[u8]| {
        let mut request = head("PUT", "/memory/raw", &[("Content-Length", "0")]).into_bytes();
        request.truncate(request.len() - 2);
        request.extend(b"x-amz-tagging: ");
        request.extend(tags);
        request.extend(b"\r\n\r\n");
        raw(server.address, &request).await
    };
    for wrong in [&b"k=caf\xe9"[..], b"k=caf%E9", b"aws:k=1", b"a=1&aws%3Ak=1"] {
        put(wrong).await.expect_error(400, "InvalidTag");
    }
    server.get("/memory/raw", &[]).await.expect(404);
    put("k=\u{fc}&\u{fc}=1".as_bytes()).await.expect(200);
    let tags = server.get("/memory/raw?tagging", &[]).await.expect(200);
    assert_eq!(tags.tags("Key"), ["k", "\u{fc}"]);
    assert_eq!(tags.tags("Value"), ["\u{fc}", "1"]);
    let xml = b"<Tagging><TagSet><Tag><Key>aws:k</Key><Value>v</Value></Tag></TagSet></Tagging>";
    let refused = server.put("/memory/raw?tagging", &[], xml).await;
    refused.expect_error(400, "InvalidTag");
}

/// Sends a request with raw bytes in a header.
async fn with_bytes(
    server: &Server,
    method: &str,
    target: &str,
    name: &str,
    value: &[u8],
) -> crate::http::HttpResponse {
    let begin = format!(
        "{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: 1\r\n{name}: "
    );
    let request = [begin.as_bytes(), value, b"\r\n\r\nx"].concat();
    raw(server.address, &request).await
}

#[tokio::test]
async fn deciding_header_that_is_not_ascii_is_refused_by_name() {
    let server = Server::anonymous().await;
    for value in ["public-read\u{e9}".as_bytes(), b"private\xff"] {
        for name in [
            "x-amz-acl",
            "x-amz-storage-class",
            "x-amz-object-lock-mode",
            "x-amz-website-redirect-location",
            "x-amz-tagging-directive",
            "x-amz-checksum-crc32",
            "content-md5",
        ] {
            let refused = with_bytes(&server, "PUT", "/memory/key", name, value).await;
            let refused = refused.expect_error(400, "InvalidArgument");
            assert!(refused.tag("Message").unwrap().contains(name), "{name}");
            assert_eq!(refused.tag("ArgumentName").as_deref(), Some(name));
        }
    }
    assert_eq!(server.get("/memory/key", &[]).await.status, 404);
    // An ETag of no version.
    for (value, status) in [(&b"\"a\xff\""[..], 404), ("\"\u{fc}\"".as_bytes(), 404)] {
        let refused = with_bytes(&server, "PUT", "/memory/key", "if-match", value).await;
        refused.expect_error(status, "NoSuchKey");
    }
    server.put("/memory/key", &[], b"x").await.expect(200);
    for (method, name, status) in [
        ("PUT", "if-match", 412),
        ("GET", "if-match", 412),
        ("GET", "if-none-match", 200),
        ("PUT", "if-none-match", 200),
    ] {
        let read = with_bytes(&server, method, "/memory/key", name, b"\"a\xff\"").await;
        assert_eq!(read.status, status, "{method} {name}: {}", read.text());
    }
    // Text, or nothing that decides.
    for name in [
        "x-amz-meta-a",
        "content-disposition",
        "x-amz-user-agent",
        "x-other",
    ] {
        let value = "\u{e9}".as_bytes();
        let put = with_bytes(&server, "PUT", "/memory/key", name, value).await;
        put.expect(200);
    }
}

#[tokio::test]
async fn write_without_a_length_is_refused() {
    let server = Server::anonymous().await;
    for target in ["/memory/key", "/memory/key?partNumber=1&uploadId=u"] {
        for version in ["1.1", "1.0"] {
            let request = format!(
                "PUT {target} HTTP/{version}\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
            );
            let refused = raw(server.address, request.as_bytes()).await;
            refused.expect_error(411, "MissingContentLength");
        }
    }
    assert_eq!(server.get("/memory/key", &[]).await.status, 404);
    let chunked = [("Transfer-Encoding", "chunked")];
    let put = server.put("/memory/key", &chunked, b"1\r\nx\r\n0\r\n\r\n");
    put.await.expect(200);
    // A copy has no body.
    let copy = head(
        "PUT",
        "/memory/copy",
        &[("x-amz-copy-source", "/memory/key")],
    );
    raw(server.address, copy.as_bytes()).await.expect(200);
}
