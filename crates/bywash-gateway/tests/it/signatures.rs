//! Tests of signed headers and the lifetime of signatures.

use chrono::{Duration, Utc};

use crate::http::{head, raw};
use crate::server::{SECRET, Server};
use crate::sign::{Signer, borrow, presign_v2_until, sha256_hex};

async fn with_secret() -> Server {
    let server = Server::signed().await;
    let target = Signer::default().presign("PUT", "/folder/secret", 60);
    server.put(&target, &[], b"secret").await.expect(200);
    server
}

#[tokio::test]
async fn signature_for_any_region_is_accepted_in_header_query_and_chunks() {
    let server = with_secret().await;
    for region in [
        "eu-central-1",
        "US",
        "EU",
        "auto",
        "Mars_1",
        "a.b",
        "a b",
        "\u{fc}",
        "",
    ] {
        let signer = Signer {
            region: region.to_owned(),
            ..Signer::default()
        };
        let target = "/folder/secret";
        // Twice: the second read may go the fast path.
        for _ in 0..2 {
            for method in ["GET", "HEAD"] {
                let payload = sha256_hex(b"");
                let (headers, _) = signer.headers(method, target, "", &payload, &[]);
                let reply = server.send(method, target, &borrow(&headers), b"").await;
                reply.expect(200);
            }
        }
        let body = [&b"chunk "[..], region.as_bytes()].concat();
        let length = body.len().to_string();
        let extra = [("x-amz-decoded-content-length", length.as_str())];
        let payload = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
        let (headers, seed) = signer.headers("PUT", "/memory/chunks", "", payload, &extra);
        let (mut framed, first) = signer.chunk(&seed, &body);
        framed.extend(signer.chunk(&first, b"").0);
        framed.extend(b"\r\n");
        let headers = borrow(&headers);
        let put = server.put("/memory/chunks", &headers, &framed);
        put.await.expect(200);
        let ascii = region.bytes().all(|byte| byte.is_ascii_graphic());
        if ascii {
            let target = signer.presign("GET", "/memory/chunks", 60);
            assert_eq!(server.get(&target, &[]).await.expect(200).body, body);
        }
        // The secret key is decisive.
        let wrong = Signer {
            secret_key: "another".to_owned(),
            region: region.to_owned(),
            ..Signer::default()
        };
        let (headers, _) = wrong.headers("GET", target, "", &sha256_hex(b""), &[]);
        let reply = server.get(target, &borrow(&headers)).await;
        reply.expect_error(403, "SignatureDoesNotMatch");
        // Nor does a signature count in another region.
        let (headers, _) = signer.headers("GET", target, "", &sha256_hex(b""), &[]);
        let mut headers = headers;
        for (name, value) in &mut headers {
            if name == "authorization" {
                *value = value.replace(&format!("/{region}/s3/"), "/other/s3/");
            }
        }
        let reply = server.get(target, &borrow(&headers)).await;
        reply.expect_error(403, "SignatureDoesNotMatch");
    }
}

#[tokio::test]
async fn date_header_stands_for_the_one_of_amazon() {
    let server = with_secret().await;
    let signer = Signer::default();
    let now = Utc::now();
    let day = now.format("%Y%m%d").to_string();
    for date in [
        now.format("%a, %d %b %Y %H:%M:%S GMT").to_string(),
        now.format("%A, %d-%b-%y %H:%M:%S GMT").to_string(),
        now.format("%a %b %e %H:%M:%S %Y").to_string(),
        now.format("%Y%m%dT%H%M%SZ").to_string(),
    ] {
        let signer = Signer {
            date: now.format("%Y%m%dT%H%M%SZ").to_string(),
            ..Signer::default()
        };
        let payload = sha256_hex(b"");
        let one_space = date.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines = format!("date:{one_space}\nhost:127.0.0.1\nx-amz-content-sha256:{payload}\n");
        let names = "date;host;x-amz-content-sha256";
        let signature = signer.sign_request(&format!(
            "GET\n/folder/secret\n\n{lines}\n{names}\n{payload}"
        ));
        let credential = format!("{}/{}", signer.access_key, signer.scope());
        // The fields in any order.
        let authorization = format!(
            "AWS4-HMAC-SHA256 SignedHeaders={names}, Signature={signature},Credential={credential}"
        );
        let headers = [
            ("date", date.as_str()),
            ("x-amz-content-sha256", &payload),
            ("authorization", &authorization),
        ];
        server.get("/folder/secret", &headers).await.expect(200);
    }
    // Without any date.
    let (headers, _) = signer.headers("GET", "/folder/secret", "", &sha256_hex(b""), &[]);
    let mut headers = borrow(&headers);
    headers.retain(|(name, _)| *name != "x-amz-date");
    let reply = server.get("/folder/secret", &headers).await;
    reply.expect_error(403, "AccessDenied");
    // Of another day than the credential.
    let (mut headers, _) = signer.headers("GET", "/folder/secret", "", &sha256_hex(b""), &[]);
    for (_, value) in &mut headers {
        *value = value.replace(&format!("/{day}/"), "/20200101/");
    }
    let reply = server.get("/folder/secret", &borrow(&headers)).await;
    reply.expect_error(400, "AuthorizationHeaderMalformed");
}

#[tokio::test]
async fn presigned_url_rejects_unsigned_headers() {
    let server = with_secret().await;
    let signer = Signer::default();
    for (key, target) in [
        ("/memory/4", signer.presign("PUT", "/memory/4", 60)),
        (
            "/memory/2",
            presign_v2_until(SECRET, "PUT", "/memory/2", 600),
        ),
    ] {
        for (name, value) in [
            ("x-amz-copy-source", "/folder/secret"),
            ("X-Amz-Copy-Source", "/folder/secret"),
            ("x-amz-meta-a", "b"),
            ("x-amz-tagging", "a=b"),
            ("x-amz-acl", "private"),
            ("x-amz-storage-class", "STANDARD"),
            ("x-amz-date", "20200101T000000Z"),
        ] {
            let reply = server.put(&target, &[(name, value)], b"").await.expect(403);
            // Version 2 signs all these headers, so the signature differs.
            let code = reply.code();
            assert!(
                code == "AccessDenied" || code == "SignatureDoesNotMatch",
                "{name}"
            );
            if code == "AccessDenied" {
                let message = reply.tag("Message").unwrap();
                assert!(message.contains(&name.to_ascii_lowercase()), "{message}");
            }
        }
        let get = signer.presign("GET", key, 60);
        server.get(&get, &[]).await.expect(404);
        // Headers of other names have no effect.
        server
            .put(
                &target,
                &[("X-Amzn-Trace-Id", "1"), ("Content-Type", "text/x")],
                b"x",
            )
            .await
            .expect(if target.contains("X-Amz") { 200 } else { 403 });
    }
    // The body's digest may be unsigned; the body is compared with it.
    let target = signer.presign("PUT", "/memory/digest", 60);
    let digest = [("x-amz-content-sha256", sha256_hex(b"right"))];
    let digest = [(digest[0].0, digest[0].1.as_str())];
    server.put(&target, &digest, b"right").await.expect(200);
    let wrong = server.put(&target, &digest, b"wrong").await;
    assert!(wrong.status >= 400);
}

#[tokio::test]
async fn signed_request_rejects_unsigned_headers() {
    let server = with_secret().await;
    let digest = sha256_hex(b"");
    let (headers, _) = Signer::default().headers("PUT", "/memory/drop", "", &digest, &[]);
    let mut headers = borrow(&headers);
    headers.push(("x-amz-copy-source", "/folder/secret"));
    let reply = server.put("/memory/drop", &headers, b"").await;
    let message = reply.expect_error(403, "AccessDenied").tag("Message");
    assert!(message.unwrap().contains("x-amz-copy-source"));
    // Another name of the algorithm does not bypass the check.
    let authorization = headers
        .iter()
        .position(|(name, _)| *name == "authorization")
        .unwrap();
    let other = headers[authorization].1.replace("AWS4-HMAC-SHA256", "AWS");
    headers[authorization].1 = &other;
    let reply = server.put("/memory/drop", &headers, b"").await;
    reply.expect_error(400, "AuthorizationHeaderMalformed");
    // If signed, it is a copy.
    let source = [("x-amz-copy-source", "/folder/secret")];
    let (headers, _) = Signer::default().headers("PUT", "/memory/copy", "", &digest, &source);
    let reply = server.put("/memory/copy", &borrow(&headers), b"").await;
    reply.expect(200);
}

#[tokio::test]
async fn signature_must_cover_the_host_and_be_for_s3() {
    let server = with_secret().await;
    let digest = sha256_hex(b"");
    let get = async |signer: &Signer| {
        let (headers, _) = signer.headers("GET", "/folder/secret", "", &digest, &[]);
        server.get("/folder/secret", &borrow(&headers)).await
    };
    let hostless = Signer {
        host: String::new(),
        ..Signer::default()
    };
    get(&hostless).await.expect_error(403, "AccessDenied");
    let target = hostless.presign("GET", "/folder/secret", 60);
    server
        .get(&target, &[])
        .await
        .expect_error(403, "AccessDenied");
    for service in ["sts", "s3express", "iam"] {
        let signer = Signer {
            service: service.to_owned(),
            ..Signer::default()
        };
        get(&signer)
            .await
            .expect_error(400, "AuthorizationHeaderMalformed");
        let target = signer.presign("GET", "/folder/secret", 60);
        server
            .get(&target, &[])
            .await
            .expect_error(400, "AuthorizationQueryParametersError");
    }
    get(&Signer::default()).await.expect(200);
}

#[tokio::test]
async fn presigned_url_is_valid_for_a_week_and_not_before_its_date() {
    let server = with_secret().await;
    let signer = Signer::default();
    let week = 7 * 24 * 3600;
    let target = signer.presign("GET", "/folder/secret", week);
    server.get(&target, &[]).await.expect(200);
    for seconds in [
        "604801",
        "4294967295",
        "99999999999999999999",
        "-1",
        "",
        "1e3",
    ] {
        let target = signer.presign("GET", "/folder/secret", seconds);
        server
            .get(&target, &[])
            .await
            .expect_error(400, "AuthorizationQueryParametersError");
    }
    let target = presign_v2_until(SECRET, "GET", "/folder/secret", week as i64 - 60);
    server.get(&target, &[]).await.expect(200);
    let target = presign_v2_until(SECRET, "GET", "/folder/secret", week as i64 + 3600);
    server
        .get(&target, &[])
        .await
        .expect_error(403, "AccessDenied");
    let future = Signer {
        date: (Utc::now() + Duration::hours(1))
            .format("%Y%m%dT%H%M%SZ")
            .to_string(),
        ..Signer::default()
    };
    let target = future.presign("GET", "/folder/secret", 60);
    server
        .get(&target, &[])
        .await
        .expect_error(403, "RequestTimeTooSkewed");
}

#[tokio::test]
async fn two_signatures_and_an_old_version_2_date_are_rejected() {
    let server = with_secret().await;
    let signer = Signer::default();
    let (headers, _) = signer.headers("GET", "/folder/secret", "", &sha256_hex(b""), &[]);
    let target = signer.presign("GET", "/folder/secret", 60);
    server
        .get(&target, &borrow(&headers))
        .await
        .expect_error(400, "InvalidArgument");
    let now = Utc::now();
    for (date, status) in [
        (now, 200),
        (now - Duration::hours(1), 403),
        (now + Duration::hours(1), 403),
    ] {
        let date = date.format("%a, %d %b %Y %H:%M:%S GMT").to_string();
        let authorization = crate::sign::authorize_v2(SECRET, "GET", "/folder/secret", &date);
        let headers = [("Date", date.as_str()), ("Authorization", &authorization)];
        server.get("/folder/secret", &headers).await.expect(status);
    }
}

/// git-annex signs so.
#[tokio::test]
async fn signature_for_the_host_without_its_port_is_accepted() {
    let server = Server::signed().await;
    let signer = Signer::default();
    let (headers, _) = signer.headers("GET", "/folder", "", &sha256_hex(b""), &[]);
    let presigned = signer.presign("GET", "/folder", 60);
    for (host, is_good) in [
        ("127.0.0.1", true),
        ("127.0.0.1:9000", true),
        ("127.0.0.1:", false),
        ("127.0.0.1:x", false),
        ("127.0.0.2:9000", false),
        ("other.127.0.0.1:9000", false),
    ] {
        for request in [
            head("GET", "/folder", &borrow(&headers)),
            head("GET", &presigned, &[]),
        ] {
            let request = request.replace("Host: 127.0.0.1\r\n", &format!("Host: {host}\r\n"));
            let reply = raw(server.address, request.as_bytes()).await;
            assert_eq!(reply.status == 200, is_good, "{host}: {}", reply.text());
        }
    }
}
