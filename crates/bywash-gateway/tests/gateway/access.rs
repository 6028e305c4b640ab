//! Who gets in.

use crate::server::{SECRET, Server, signed};
use crate::sign::{Signer, borrow, presign_v2, sha256_hex};

#[tokio::test]
async fn unsigned_requests_are_refused() {
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
    // The same signature on another key.
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
async fn a_signed_range_of_another_form_is_ignored() {
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
        // Ignoring the range does not ignore the signature.
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
async fn an_anonymous_endpoint_takes_any_signature() {
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
async fn configurations_that_let_nobody_or_everybody_in_are_refused() {
    use bywash_gateway::{Credential, S3Config, ServeError, serve_s3};
    let engine = bywash::Engine::builder().memory(64 << 20).build().unwrap();
    let refused = async |config: S3Config| {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        Box::pin(serve_s3(engine.clone(), listener, config, async {}))
            .await
            .unwrap_err()
    };
    let nobody = S3Config {
        credentials: Vec::new(),
        ..signed()
    };
    assert!(matches!(refused(nobody).await, ServeError::NoCredentials));
    assert!(matches!(
        refused(S3Config {
            anonymous: true,
            ..signed()
        })
        .await,
        ServeError::AnonymousWithCredentials
    ));
    let empty = S3Config::signed(Credential {
        access_key: "a".to_owned(),
        secret_key: String::new(),
    });
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
