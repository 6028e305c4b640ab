//! Tests of unsigned requests to public buckets and objects, and of pages of other sites.

use bywash_gateway::{PublicAccess, S3Config};

use crate::http::HttpResponse;
use crate::server::{BUCKETS, Server, signed};
use crate::sign::{Signer, borrow, sha256_hex};

const ALL_USERS: &str = "http://acs.amazonaws.com/groups/global/AllUsers";

/// Sends a signed request.
async fn sign(
    server: &Server,
    method: &str,
    (path, query): (&str, &str),
    extra: &[(&str, &str)],
    body: &[u8],
) -> HttpResponse {
    let hash = sha256_hex(body);
    let (headers, _) = Signer::default().headers(method, path, query, &hash, extra);
    let target = match query {
        "" => path.to_owned(),
        query => format!("{path}?{query}"),
    };
    server.send(method, &target, &borrow(&headers), body).await
}

async fn put(server: &Server, path: &str, extra: &[(&str, &str)]) {
    sign(server, "PUT", (path, ""), extra, b"data")
        .await
        .expect(200);
}

#[tokio::test]
async fn unsigned_requests_read_and_list_public_buckets_only() {
    let config = S3Config {
        public: [
            ("folder", PublicAccess::Read),
            ("memory", PublicAccess::ReadList),
        ]
        .map(|(name, access)| (name.to_owned(), access))
        .into(),
        ..signed()
    };
    let server = Server::start(config).await;
    sign(&server, "PUT", ("/closed", ""), &[], b"")
        .await
        .expect(200);
    for bucket in ["folder", "memory", "closed"] {
        put(&server, &format!("/{bucket}/key"), &[]).await;
        let (object, list) = match bucket {
            "folder" => (200, 403),
            "memory" => (200, 200),
            _ => (403, 403),
        };
        let key = format!("/{bucket}/key");
        let read = server.get(&key, &[("Range", "bytes=1-2")]).await;
        assert_eq!(
            read.status,
            if object == 200 { 206 } else { object },
            "{bucket}"
        );
        // Of another form: it passes by another way.
        let read = server.get(&key, &[("Range", "lines=1-2")]).await;
        assert_eq!(read.status, object, "{bucket}");
        let head = server.send("HEAD", &key, &[], b"").await;
        assert_eq!(head.status, object, "{bucket}");
        for query in ["list-type=2", ""] {
            let listed = server.get(&format!("/{bucket}?{query}"), &[]).await;
            assert_eq!(listed.status, list, "{bucket} {query}");
        }
        for (method, target) in [
            ("PUT", key.clone()),
            ("DELETE", key.clone()),
            ("POST", format!("{key}?uploads")),
            ("GET", format!("{key}?acl")),
            ("GET", format!("/{bucket}?uploads")),
            ("PUT", format!("/{bucket}?acl")),
            ("DELETE", format!("/{bucket}")),
        ] {
            let reply = server.send(method, &target, &[], b"").await;
            assert_eq!(reply.status, 403, "{method} {target}: {}", reply.text());
        }
    }
    server.get("/", &[]).await.expect_error(403, "AccessDenied");
    server
        .get("/absent/key", &[])
        .await
        .expect_error(403, "AccessDenied");
}

#[tokio::test]
async fn unsigned_reads_override_no_headers() {
    let config = S3Config {
        public: [("folder".to_owned(), PublicAccess::Read)].into(),
        ..signed()
    };
    let server = Server::start(config).await;
    let text = [("Content-Type", "text/plain")];
    put(&server, "/folder/key", &text).await;
    let acl = [("x-amz-acl", "public-read")];
    put(&server, "/memory/key", &acl).await;
    for bucket in ["folder", "memory"] {
        let key = format!("/{bucket}/key");
        for (name, value, encoded) in [
            ("cache-control", "text/html", "text%2Fhtml"),
            ("content-disposition", "text/html", "text%2Fhtml"),
            ("content-encoding", "text/html", "text%2Fhtml"),
            ("content-language", "text/html", "text%2Fhtml"),
            ("content-type", "text/html", "text%2Fhtml"),
            (
                "expires",
                "Thu, 01 Jan 2032 00:00:00 GMT",
                "Thu%2C%2001%20Jan%202032%2000%3A00%3A00%20GMT",
            ),
        ] {
            let query = format!("response-{name}={encoded}");
            let target = format!("{key}?{query}");
            let refused = server.get(&target, &[]).await;
            refused.expect_error(400, "InvalidRequest");
            // It passes by another way.
            let odd = [("Range", "lines=1-2")];
            let refused = server.get(&target, &odd).await;
            refused.expect_error(400, "InvalidRequest");
            let head = server.send("HEAD", &target, &[], b"").await;
            assert_eq!(head.status, 400, "{target}");
            let served = sign(&server, "GET", (&key, &query), &[], b"").await;
            assert_eq!(served.expect(200).header(name), Some(value));
        }
        server.get(&key, &[]).await.expect(200);
        server
            .get(&format!("{key}?x=response-expires"), &[])
            .await
            .expect(200);
    }
}

#[tokio::test]
async fn acl_of_an_object_is_kept_answered_and_enforced() {
    let server = Server::signed().await;
    for bucket in BUCKETS {
        let public = format!("/{bucket}/public");
        let private = format!("/{bucket}/private");
        put(&server, &public, &[("x-amz-acl", "public-read")]).await;
        put(&server, &private, &[]).await;
        assert_eq!(server.get(&public, &[]).await.expect(200).text(), "data");
        server.send("HEAD", &public, &[], b"").await.expect(200);
        for closed in [&private, &format!("/{bucket}/absent")] {
            server
                .get(closed, &[])
                .await
                .expect_error(403, "AccessDenied");
        }
        let acl = sign(&server, "GET", (&public, "acl="), &[], b"")
            .await
            .expect(200);
        assert_eq!(acl.tag("URI").as_deref(), Some(ALL_USERS), "{}", acl.text());
        // A copy and an overwrite are private again, as in S3.
        let source = [("x-amz-copy-source", &*public)];
        let copy = format!("/{bucket}/copy");
        sign(&server, "PUT", (&copy, ""), &source, b"")
            .await
            .expect(200);
        server
            .get(&copy, &[])
            .await
            .expect_error(403, "AccessDenied");
        // By PutObjectAcl, by name and by grants.
        let open = [("x-amz-acl", "public-read")];
        sign(&server, "PUT", (&private, "acl="), &open, b"")
            .await
            .expect(200);
        server.get(&private, &[]).await.expect(200);
        let grants = "<AccessControlPolicy><Owner><ID>bywash</ID></Owner><AccessControlList><Grant><Grantee \
            xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:type=\"CanonicalUser\"><ID>bywash</ID></Grantee>\
            <Permission>FULL_CONTROL</Permission></Grant></AccessControlList></AccessControlPolicy>";
        sign(&server, "PUT", (&private, "acl="), &[], grants.as_bytes())
            .await
            .expect(200);
        server
            .get(&private, &[])
            .await
            .expect_error(403, "AccessDenied");
        for other in ["public-read-write", "authenticated-read"] {
            let other = [("x-amz-acl", other)];
            let reply = sign(&server, "PUT", (&private, "acl="), &other, b"").await;
            reply.expect_error(400, "AccessControlListNotSupported");
        }
        put(&server, &public, &[]).await;
        server
            .get(&public, &[])
            .await
            .expect_error(403, "AccessDenied");
    }
}

#[tokio::test]
async fn acl_of_a_bucket_survives_a_restart_and_lets_others_list() {
    let home = tempfile::tempdir().unwrap();
    let config = || S3Config {
        bucket_rules: Some(home.path().join("rules")),
        ..signed()
    };
    let server = Server::start(config()).await;
    let open = [("x-amz-acl", "public-read")];
    sign(&server, "PUT", ("/folder", "acl="), &open, b"")
        .await
        .expect(200);
    put(&server, "/folder/key", &[]).await;
    let server = server.restarted(config()).await;
    let listed = server.get("/folder?list-type=2", &[]).await.expect(200);
    assert_eq!(listed.tags("Key"), ["key"]);
    server
        .get("/folder/key", &[])
        .await
        .expect_error(403, "AccessDenied");
    let acl = sign(&server, "GET", ("/folder", "acl="), &[], b"")
        .await
        .expect(200);
    assert_eq!(acl.tag("URI").as_deref(), Some(ALL_USERS));
    let close = [("x-amz-acl", "private")];
    sign(&server, "PUT", ("/folder", "acl="), &close, b"")
        .await
        .expect(200);
    server
        .get("/folder", &[])
        .await
        .expect_error(403, "AccessDenied");
    // A bucket of the same name begins without rules.
    sign(&server, "PUT", ("/made", ""), &open, b"")
        .await
        .expect(200);
    server.get("/made", &[]).await.expect(200);
    sign(&server, "DELETE", ("/made", ""), &[], b"")
        .await
        .expect(204);
    sign(&server, "PUT", ("/made", ""), &[], b"")
        .await
        .expect(200);
    server
        .get("/made", &[])
        .await
        .expect_error(403, "AccessDenied");
}

const CORS: &str = "<CORSConfiguration><CORSRule><ID>one</ID><AllowedOrigin>https://*.example.com</AllowedOrigin>\
    <AllowedMethod>PUT</AllowedMethod><AllowedMethod>GET</AllowedMethod><AllowedHeader>content-*</AllowedHeader>\
    <ExposeHeader>ETag</ExposeHeader><MaxAgeSeconds>60</MaxAgeSeconds></CORSRule></CORSConfiguration>";

#[tokio::test]
async fn pages_of_allowed_sites_may_send_requests() {
    let home = tempfile::tempdir().unwrap();
    let config = || S3Config {
        bucket_rules: Some(home.path().join("rules")),
        ..signed()
    };
    let server = Server::start(config()).await;
    let absent = sign(&server, "GET", ("/folder", "cors="), &[], b"").await;
    absent.expect_error(404, "NoSuchCORSConfiguration");
    let asked = [
        ("Origin", "https://a.example.com"),
        ("Access-Control-Request-Method", "PUT"),
        ("Access-Control-Request-Headers", "content-type"),
    ];
    let refused = server.send("OPTIONS", "/folder/key", &asked, b"").await;
    refused.expect_error(403, "AccessForbidden");
    sign(&server, "PUT", ("/folder", "cors="), &[], CORS.as_bytes())
        .await
        .expect(200);
    let server = server.restarted(config()).await;
    let kept = sign(&server, "GET", ("/folder", "cors="), &[], b"")
        .await
        .expect(200);
    assert_eq!(
        kept.tag("AllowedOrigin").as_deref(),
        Some("https://*.example.com")
    );
    let allowed = server
        .send("OPTIONS", "/folder/key", &asked, b"")
        .await
        .expect(200);
    for (name, value) in [
        ("access-control-allow-origin", "https://a.example.com"),
        ("access-control-allow-methods", "PUT, GET"),
        ("access-control-allow-headers", "content-type"),
        ("access-control-max-age", "60"),
    ] {
        assert_eq!(allowed.header(name), Some(value), "{name}");
    }
    server
        .send("OPTIONS", "/folder/key", &[], b"")
        .await
        .expect_error(400, "BadRequest");
    // The request itself, and an error of it.
    let page = [("Origin", "https://a.example.com")];
    let put = Signer::default().presign("PUT", "/folder/key", 60);
    let reply = server.put(&put, &page, b"from a page").await.expect(200);
    assert_eq!(
        reply.header("access-control-allow-origin"),
        Some("https://a.example.com")
    );
    assert_eq!(reply.header("access-control-expose-headers"), Some("ETag"));
    let denied = server.get("/folder/key", &page).await;
    assert_eq!(denied.status, 403);
    assert!(denied.header("access-control-allow-origin").is_some());
    let other = server
        .get("/folder/key", &[("Origin", "https://example.org")])
        .await;
    assert_eq!(other.header("access-control-allow-origin"), None);
    sign(&server, "DELETE", ("/folder", "cors="), &[], b"")
        .await
        .expect(204);
    let absent = sign(&server, "GET", ("/folder", "cors="), &[], b"").await;
    absent.expect_error(404, "NoSuchCORSConfiguration");
}

#[tokio::test]
async fn pages_of_other_sites_change_nothing_on_a_server_without_keys() {
    let server = Server::anonymous().await;
    server.put("/folder/key", &[], b"data").await.expect(200);
    let page = [("Origin", "https://a.example.com")];
    let hidden = [("Sec-Fetch-Site", "cross-site")];
    let listed = b"<Delete><Object><Key>key</Key></Object></Delete>";
    for of_page in [&page, &hidden] {
        for (method, target, body) in [
            ("POST", "/folder?delete", &listed[..]),
            ("PUT", "/folder/key", b"other"),
            ("DELETE", "/folder/key", b""),
        ] {
            let refused = server.send(method, target, of_page, body).await;
            refused.expect_error(403, "AccessForbidden");
        }
    }
    let kept = server.get("/folder/key", &page).await.expect(200);
    assert_eq!(kept.body, b"data");
    // A rule of the bucket lets its pages write.
    server
        .put("/folder?cors", &[], CORS.as_bytes())
        .await
        .expect(200);
    server.put("/folder/key", &page, b"new").await.expect(200);
    let deleted = server.send("DELETE", "/folder/key", &page, b"").await;
    deleted.expect_error(403, "AccessForbidden");
    let other = [("Origin", "https://example.org")];
    server
        .put("/folder/key", &other, b"other")
        .await
        .expect_error(403, "AccessForbidden");
}

#[tokio::test]
async fn rules_past_their_limit_are_refused() {
    let server = Server::signed().await;
    let many = CORS
        .replace("</CORSConfiguration>", "")
        .replace("<CORSConfiguration>", "");
    let many = format!(
        "<CORSConfiguration>{}</CORSConfiguration>",
        many.repeat(101)
    );
    let refused = sign(&server, "PUT", ("/folder", "cors="), &[], many.as_bytes()).await;
    refused.expect_error(400, "MalformedXML");
}
