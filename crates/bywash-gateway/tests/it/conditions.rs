//! Tests of conditional reads and writes.

use crate::server::{BUCKETS, Server};

pub async fn e_tag_of(server: &Server, target: &str) -> (String, String) {
    let reply = server.send("HEAD", target, &[], b"").await.expect(200);
    (
        reply.header("etag").unwrap().to_owned(),
        reply.header("last-modified").unwrap().to_owned(),
    )
}

#[tokio::test]
async fn conditional_reads_follow_their_conditions() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        server.put(&target, &[], b"data").await.expect(200);
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
                let reply = server.send(method, &target, headers, b"").await;
                assert_eq!(reply.status, *status, "{method} {bucket} {headers:?}");
                if *status == 304 {
                    assert_eq!(reply.header("etag"), Some(e_tag.as_str()));
                    assert!(reply.body.is_empty());
                }
            }
        }
        server
            .get(&target, &[("If-Match", "\"other\"")])
            .await
            .expect_error(412, "PreconditionFailed");
        server
            .get(&format!("/{bucket}/absent"), &[("If-Match", "*")])
            .await
            .expect_error(404, "NoSuchKey");
    }
}

#[tokio::test]
async fn conditional_writes_follow_their_conditions() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        server
            .put(&target, &[("If-Match", "\"x\"")], b"a")
            .await
            .expect_error(404, "NoSuchKey");
        server
            .put(&target, &[("If-None-Match", "*")], b"first")
            .await
            .expect(200);
        server
            .put(&target, &[("If-None-Match", "*")], b"second")
            .await
            .expect_error(412, "PreconditionFailed");
        server
            .put(&target, &[("If-Match", "\"other\"")], b"third")
            .await
            .expect_error(412, "PreconditionFailed");
        let (e_tag, _) = e_tag_of(&server, &target).await;
        server
            .put(&target, &[("If-Match", &e_tag)], b"fourth")
            .await
            .expect(200);
        server
            .put(&target, &[("If-Match", &e_tag)], b"fifth")
            .await
            .expect_error(412, "PreconditionFailed");
        assert_eq!(server.get(&target, &[]).await.text(), "fourth");
    }
}

#[tokio::test]
async fn writes_follow_every_combination_of_conditions() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        let absent: &[(&[(&str, &str)], u16)] = &[
            (&[("If-Match", "*")], 404),
            (&[("If-Match", "x")], 404),
            (&[("If-Match", "*"), ("If-None-Match", "x")], 404),
            (&[("If-None-Match", "x")], 200),
        ];
        for (headers, status) in absent {
            let reply = server.put(&target, headers, b"a").await;
            assert_eq!(reply.status, *status, "{headers:?}: {}", reply.text());
        }
        let (quoted, _) = e_tag_of(&server, &target).await;
        let e_tag = quoted.trim_matches('"').to_owned();
        let list = format!("\"other\", {quoted}");
        let present: &[(&[(&str, &str)], u16)] = &[
            (&[("If-Match", "*")], 200),
            (&[("If-Match", &quoted)], 200),
            (&[("If-Match", &e_tag)], 200),
            (&[("If-Match", &list)], 200),
            (&[("If-Match", "other")], 412),
            (&[("If-None-Match", &quoted)], 412),
            (&[("If-None-Match", &e_tag)], 412),
            (&[("If-None-Match", &list)], 412),
            (&[("If-None-Match", "other")], 200),
            (&[("If-Match", &e_tag), ("If-None-Match", "other")], 200),
            (&[("If-Match", "other"), ("If-None-Match", "other")], 412),
            (&[("If-Match", &e_tag), ("If-None-Match", &e_tag)], 412),
            (&[("If-Match", "*"), ("If-None-Match", "*")], 412),
        ];
        for (headers, status) in present {
            // The same bytes: the ETag stays.
            let reply = server.put(&target, headers, b"a").await;
            assert_eq!(reply.status, *status, "{headers:?}: {}", reply.text());
        }
    }
}

#[tokio::test]
async fn identity_of_an_object_written_before_md5s_still_meets_conditions() {
    let server = Server::anonymous().await;
    server.put("/folder/key", &[], b"a").await.expect(200);
    let read = server.get("/folder/key", &[]).await.expect(200);
    let identity = read.header("x-bywash-version").unwrap().to_owned();
    let identity = identity.split('+').next().unwrap();
    let same = [("If-Match", identity)];
    server.get("/folder/key", &same).await.expect(200);
    let other = [("If-None-Match", identity)];
    assert_eq!(server.get("/folder/key", &other).await.status, 304);
    server.put("/folder/key", &same, b"a").await.expect(200);
    server
        .put("/folder/key", &same, b"a")
        .await
        .expect_error(412, "PreconditionFailed");
}

#[tokio::test]
async fn date_with_a_wrong_weekday_is_ignored() {
    let server = Server::anonymous().await;
    server.put("/memory/key", &[], b"data").await.expect(200);
    for (name, right, wrong) in [
        (
            "If-Modified-Since",
            "Fri, 01 Jan 2100 00:00:00 GMT",
            "Mon, 01 Jan 2100 00:00:00 GMT",
        ),
        (
            "If-Unmodified-Since",
            "Mon, 01 Jan 2001 00:00:00 GMT",
            "Fri, 01 Jan 2001 00:00:00 GMT",
        ),
    ] {
        let status = server.get("/memory/key", &[(name, right)]).await.status;
        assert!(matches!(status, 304 | 412), "{name}: {status}");
        server
            .get("/memory/key", &[(name, wrong)])
            .await
            .expect(200);
    }
}

#[tokio::test]
async fn not_modified_has_the_validators_and_the_freshness_of_the_object() {
    let server = Server::anonymous().await;
    let sent = [
        ("cache-control", "max-age=5"),
        ("expires", "Thu, 01 Dec 1994 16:00:00 GMT"),
        ("content-language", "de"),
    ];
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        server.put(&target, &sent, b"x").await.expect(200);
        let known = server.get(&target, &[]).await.expect(200);
        let e_tag = known.header("etag").unwrap();
        for method in ["GET", "HEAD"] {
            let condition = [("if-none-match", e_tag)];
            let unchanged = server.send(method, &target, &condition, b"").await;
            let unchanged = unchanged.expect(304);
            for name in ["etag", "last-modified", "cache-control", "expires"] {
                assert_eq!(unchanged.header(name), known.header(name), "{name}");
            }
            assert_eq!(unchanged.header("content-language"), None);
            let other = format!("{target}?response-cache-control=no-store");
            let unchanged = server.send(method, &other, &condition, b"").await;
            assert_eq!(unchanged.header("cache-control"), Some("no-store"));
        }
    }
}

#[tokio::test]
async fn condition_that_an_operation_does_not_have_is_refused_by_name() {
    let server = Server::anonymous().await;
    let past = "Mon, 01 Jan 2001 00:00:00 GMT";
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        server.put(&target, &[], b"x").await.expect(200);
        for (method, query, name, value) in [
            ("PUT", "", "If-Unmodified-Since", past),
            ("PUT", "", "If-Modified-Since", past),
            ("PUT", "?tagging", "If-Unmodified-Since", past),
            ("POST", "?uploads", "If-Unmodified-Since", past),
            ("DELETE", "", "If-Unmodified-Since", past),
            ("DELETE", "", "If-Modified-Since", past),
            ("DELETE", "", "If-None-Match", "*"),
        ] {
            let target = format!("{target}{query}");
            let refused = server.send(method, &target, &[(name, value)], b"").await;
            let refused = refused.expect_error(501, "NotImplemented");
            assert_eq!(refused.tag("Header").as_deref(), Some(name), "{method}");
        }
        let kept = server.get(&target, &[]).await.expect(200);
        assert_eq!(kept.body, b"x");
    }
}

#[tokio::test]
async fn range_of_another_version_is_ignored_by_get_and_head() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        server.put(&target, &[], b"data").await.expect(200);
        let (e_tag, modified) = e_tag_of(&server, &target).await;
        for method in ["GET", "HEAD"] {
            for (version, status, length) in [
                (&*e_tag, 206, "2"),
                (&*modified, 206, "2"),
                ("\"other\"", 200, "4"),
                ("Mon, 01 Jan 2001 00:00:00 GMT", 200, "4"),
            ] {
                let headers = [("Range", "bytes=1-2"), ("If-Range", version)];
                let read = server.send(method, &target, &headers, b"").await;
                let read = read.expect(status);
                assert_eq!(read.header("content-length"), Some(length), "{version}");
            }
        }
    }
}
