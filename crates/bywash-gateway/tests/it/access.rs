//! Tests of authentication and authorisation.

use bywash_gateway::{Credential, Scope};

use crate::http::HttpResponse;
use crate::server::{KEY, SECRET, Server, signed};
use crate::sign::{Signer, borrow, presign_v2, sha256_hex};

#[tokio::test]
async fn unsigned_requests_are_rejected() {
    let server = Server::signed().await;
    for target in ["/", "/memory", "/memory/key", "/no-such-bucket/key"] {
        server
            .get(target, &[])
            .await
            .expect_error(403, "AccessDenied");
    }
    server
        .put("/memory/key", &[], b"data")
        .await
        .expect_error(403, "AccessDenied");
}

#[tokio::test]
async fn signed_headers_are_checked() {
    let server = Server::signed().await;
    let signer = Signer::default();
    let body = b"signed body";
    let (headers, _) = signer.headers(
        "PUT",
        "/memory/key",
        "",
        &sha256_hex(body),
        &[("x-amz-meta-a", "b")],
    );
    server
        .put("/memory/key", &borrow(&headers), body)
        .await
        .expect(200);

    let (headers, _) = signer.headers("GET", "/memory/key", "", &sha256_hex(b""), &[]);
    let reply = server
        .get("/memory/key", &borrow(&headers))
        .await
        .expect(200);
    assert_eq!(reply.body, body);
    assert_eq!(reply.header("x-amz-meta-a"), Some("b"));
    // The same signature with another key.
    server
        .get("/memory/other", &borrow(&headers))
        .await
        .expect_error(403, "SignatureDoesNotMatch");

    let wrong = Signer {
        secret_key: "another".to_owned(),
        ..Signer::default()
    };
    let (headers, _) = wrong.headers("GET", "/memory/key", "", &sha256_hex(b""), &[]);
    server
        .get("/memory/key", &borrow(&headers))
        .await
        .expect_error(403, "SignatureDoesNotMatch");

    let stranger = Signer {
        access_key: "stranger".to_owned(),
        ..Signer::default()
    };
    let (headers, _) = stranger.headers("GET", "/memory/key", "", &sha256_hex(b""), &[]);
    server
        .get("/memory/key", &borrow(&headers))
        .await
        .expect_error(403, "InvalidAccessKeyId");

    let old = Signer {
        date: "20200101T000000Z".to_owned(),
        ..Signer::default()
    };
    let (headers, _) = old.headers("GET", "/memory/key", "", &sha256_hex(b""), &[]);
    server
        .get("/memory/key", &borrow(&headers))
        .await
        .expect_error(403, "RequestTimeTooSkewed");
}

#[tokio::test]
async fn presigned_urls_are_checked() {
    let server = Server::signed().await;
    let signer = Signer::default();
    server
        .put(&signer.presign("PUT", "/memory/pre", 60), &[], b"presigned")
        .await
        .expect(200);
    let target = signer.presign("GET", "/memory/pre", 60);
    assert_eq!(
        server.get(&target, &[]).await.expect(200).body,
        b"presigned"
    );
    let tampered = target.replace("/memory/pre", "/memory/other");
    server
        .get(&tampered, &[])
        .await
        .expect_error(403, "SignatureDoesNotMatch");
    server
        .send("DELETE", &target, &[], b"")
        .await
        .expect_error(403, "SignatureDoesNotMatch");

    let past = chrono::Utc::now() - chrono::Duration::minutes(10);
    let expired = Signer {
        date: past.format("%Y%m%dT%H%M%SZ").to_string(),
        ..Signer::default()
    };
    let target = expired.presign("GET", "/memory/pre", 60);
    server
        .get(&target, &[])
        .await
        .expect_error(403, "AccessDenied");
}

#[tokio::test]
async fn presigned_sig_v2_urls_are_checked() {
    let server = Server::signed().await;
    let target = presign_v2(SECRET, "PUT", "/memory/v2");
    server.put(&target, &[], b"two").await.expect(200);
    let target = presign_v2(SECRET, "GET", "/memory/v2");
    assert_eq!(server.get(&target, &[]).await.expect(200).body, b"two");
    let target = presign_v2("another", "GET", "/memory/v2");
    server
        .get(&target, &[])
        .await
        .expect_error(403, "SignatureDoesNotMatch");
}

#[tokio::test]
async fn signed_range_of_another_form_is_ignored() {
    let server = Server::signed().await;
    let signer = Signer::default();
    server
        .put(
            &signer.presign("PUT", "/memory/key", 60),
            &[],
            b"0123456789",
        )
        .await
        .expect(200);
    for range in ["bytes=0-1,4-5", "lines=1-2", "bytes=5-2", "bytes=x"] {
        let (headers, _) = signer.headers(
            "GET",
            "/memory/key",
            "",
            &sha256_hex(b""),
            &[("range", range)],
        );
        let reply = server
            .get("/memory/key", &borrow(&headers))
            .await
            .expect(200);
        assert_eq!(reply.body, b"0123456789", "{range}");
        // An ignored range does not disable the signature.
        server
            .get("/memory/key", &[("Range", range)])
            .await
            .expect_error(403, "AccessDenied");
        let wrong = Signer {
            secret_key: "another".to_owned(),
            ..Signer::default()
        };
        let (headers, _) = wrong.headers(
            "GET",
            "/memory/key",
            "",
            &sha256_hex(b""),
            &[("range", range)],
        );
        server
            .get("/memory/key", &borrow(&headers))
            .await
            .expect_error(403, "SignatureDoesNotMatch");
    }
}

#[tokio::test]
async fn anonymous_endpoint_accepts_any_signature() {
    let server = Server::anonymous().await;
    server.put("/memory/key", &[], b"data").await.expect(200);
    let stranger = Signer {
        access_key: "stranger".to_owned(),
        secret_key: "x".to_owned(),
        ..Signer::default()
    };
    let (headers, _) = stranger.headers("GET", "/memory/key", "", &sha256_hex(b""), &[]);
    assert_eq!(
        server
            .get("/memory/key", &borrow(&headers))
            .await
            .expect(200)
            .body,
        b"data"
    );
    let target = stranger.presign("GET", "/memory/key", 60);
    assert_eq!(server.get(&target, &[]).await.expect(200).body, b"data");
    let target = presign_v2("x", "GET", "/memory/key");
    assert_eq!(server.get(&target, &[]).await.expect(200).body, b"data");
    let target = format!(
        "{}&response-content-type=text%2Fx",
        stranger.presign("GET", "/memory/key", 60)
    );
    assert_eq!(
        server
            .get(&target, &[])
            .await
            .expect(200)
            .header("content-type"),
        Some("text/x")
    );
}

#[tokio::test]
async fn configurations_without_or_with_ignored_credentials_are_rejected() {
    use bywash_gateway::{Credential, S3Config, ServeError, serve_s3};
    let engine = bywash::Engine::builder().memory(64 << 20).build().unwrap();
    let refused = async |config: S3Config| {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        Box::pin(serve_s3(engine.clone(), listener, config, async {}))
            .await
            .unwrap_err()
    };
    let no_keys = S3Config {
        credentials: Vec::new(),
        ..signed()
    };
    assert!(matches!(refused(no_keys).await, ServeError::NoCredentials));
    assert!(matches!(
        refused(S3Config {
            anonymous: true,
            ..signed()
        })
        .await,
        ServeError::AnonymousWithCredentials
    ));
    let empty = S3Config::signed(Credential::new("a", ""));
    assert!(matches!(refused(empty).await, ServeError::EmptyCredential));
}

#[tokio::test]
async fn forms_are_refused_unread() {
    let server = Server::signed().await;
    let headers = [
        ("Content-Type", "multipart/form-data; boundary=x"),
        ("Content-Length", "1000000000"),
    ];
    server
        .send("POST", "/memory", &headers, b"--x")
        .await
        .expect_error(501, "NotImplemented");
}

/// An endpoint with an unrestricted key, `reader` limited to reads of bucket `memory`, and `writer` limited to bucket
/// `folder`.
async fn scoped() -> Server {
    let key = |name: &str, bucket: &str, read_only| Credential {
        scope: Scope {
            buckets: Some(vec![bucket.to_owned()]),
            read_only,
        },
        ..Credential::new(name, SECRET)
    };
    let mut config = signed();
    config.credentials.push(key("reader", "memory", true));
    config.credentials.push(key("writer", "folder", false));
    let server = Server::start(config).await;
    for target in ["/memory/key", "/folder/key"] {
        send_as(&server, KEY, "PUT", target, &[], b"data")
            .await
            .expect(200);
    }
    server
}

/// Sends a request signed with one of these keys.
async fn send_as(
    server: &Server,
    key: &str,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> HttpResponse {
    let signer = Signer {
        access_key: key.to_owned(),
        ..Signer::default()
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (headers, _) = signer.headers(method, path, query, &sha256_hex(body), headers);
    server.send(method, target, &borrow(&headers), body).await
}

#[tokio::test]
async fn access_key_sees_only_its_buckets() {
    let server = scoped().await;
    send_as(&server, "reader", "GET", "/memory/key", &[], b"")
        .await
        .expect(200);
    for target in [
        "/folder/key",
        "/folder",
        "/folder?list-type=2",
        "/folder?location=",
        "/none/key",
    ] {
        send_as(&server, "reader", "GET", target, &[], b"")
            .await
            .expect_error(403, "AccessDenied");
        // Routed differently from other requests.
        let odd = [("range", "bytes=0-1,3-4")];
        send_as(&server, "reader", "GET", target, &odd, b"")
            .await
            .expect_error(403, "AccessDenied");
    }
    send_as(&server, "reader", "HEAD", "/folder/key", &[], b"")
        .await
        .expect(403);
    for odd in [&[][..], &[("range", "rows=1")]] {
        for (key, names) in [("reader", vec!["memory"]), ("writer", vec!["folder"])] {
            let reply = send_as(&server, key, "GET", "/", odd, b"")
                .await
                .expect(200);
            assert_eq!(reply.tags("Name"), names, "{key} {odd:?}");
        }
    }
    assert_eq!(
        send_as(&server, KEY, "GET", "/", &[], b"")
            .await
            .tags("Name")
            .len(),
        2
    );
    let reader = Signer {
        access_key: "reader".to_owned(),
        ..Signer::default()
    };
    server
        .get(&reader.presign("GET", "/memory/key", 60), &[])
        .await
        .expect(200);
    let other = reader.presign("GET", "/folder/key", 60);
    server
        .get(&other, &[])
        .await
        .expect_error(403, "AccessDenied");
}

#[tokio::test]
async fn copy_requires_access_to_its_source() {
    let server = scoped().await;
    let copy = async |key: &str, source: &str| {
        let headers = [("x-amz-copy-source", source)];
        send_as(&server, key, "PUT", "/folder/copy", &headers, b"").await
    };
    copy("writer", "/folder/key").await.expect(200);
    for source in [
        "/memory/key",
        "memory/key",
        "%2Fmemory%2Fkey",
        "memory/key?versionId=null",
    ] {
        copy("writer", source)
            .await
            .expect_error(403, "AccessDenied");
    }
    copy(KEY, "/memory/key").await.expect(200);
}

#[tokio::test]
async fn read_only_key_cannot_write() {
    let server = scoped().await;
    let delete = b"<Delete><Object><Key>key</Key></Object></Delete>";
    for (method, target, body) in [
        ("PUT", "/memory/key", &b"other"[..]),
        ("PUT", "/memory", b""),
        ("DELETE", "/memory/key", b""),
        ("DELETE", "/memory", b""),
        ("POST", "/memory?delete=", delete),
        ("POST", "/memory/key?uploads=", b""),
    ] {
        let reply = send_as(&server, "reader", method, target, &[], body).await;
        reply.expect_error(403, "AccessDenied");
    }
    let reader = Signer {
        access_key: "reader".to_owned(),
        ..Signer::default()
    };
    let put = reader.presign("PUT", "/memory/key", 60);
    server
        .put(&put, &[], b"other")
        .await
        .expect_error(403, "AccessDenied");
    let reply = send_as(&server, "reader", "GET", "/memory/key", &[], b"")
        .await
        .expect(200);
    assert_eq!(reply.body, b"data");
}
