//! Tests of request heads: hosts, `Expect`, ranges and characters.

use std::time::Duration;

use bywash_gateway::{S3Config, ServeError, serve_s3};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::http::{HttpResponse, raw};
use crate::server::{BUCKETS, Server, signed};
use crate::sign::{Signer, borrow, sha256_hex};

/// Sends a request to this host name.
async fn to(server: &Server, host: &str, method: &str, target: &str, body: &str) -> HttpResponse {
    let length = body.len();
    let request = format!(
        "{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    raw(server.address, request.as_bytes()).await
}

async fn with_domains() -> Server {
    Server::start(S3Config {
        domains: vec!["s3.example.com".to_owned()],
        ..S3Config::anonymous()
    })
    .await
}

#[tokio::test]
async fn host_below_a_domain_names_the_bucket() {
    let server = with_domains().await;
    for host in [
        "folder.localhost",
        "folder.localhost:80",
        "Folder.S3.example.com",
    ] {
        // An empty body: path-style, this would create a bucket of that name.
        to(&server, host, "PUT", "/xyz", "").await.expect(200);
        assert!(server.engine.bucket("xyz").is_none(), "{host}");
        to(&server, host, "PUT", "/a/b", "data").await.expect(200);
        let by_path = server.get("/folder/a/b", &[]).await.expect(200);
        assert_eq!(by_path.body, b"data");
        let listed = to(&server, host, "GET", "/?list-type=2", "").await;
        assert_eq!(listed.expect(200).tags("Key"), ["a/b", "xyz"]);
        to(&server, host, "DELETE", "/xyz", "").await.expect(204);
        to(&server, host, "DELETE", "/a/b", "").await.expect(204);
        assert!(server.engine.bucket("folder").is_some());
    }
    // The error names the bucket of the host.
    let absent = to(&server, "folder.localhost", "GET", "/absent", "").await;
    let absent = absent.expect_error(404, "NoSuchKey");
    assert_eq!(absent.tag("Resource").as_deref(), Some("/folder/absent"));
}

#[tokio::test]
async fn domains_addresses_and_unknown_hosts_are_path_style() {
    let server = with_domains().await;
    server.put("/folder/key", &[], b"data").await.expect(200);
    for host in [
        "localhost",
        "s3.example.com:8420",
        "127.0.0.1:1",
        "[::1]",
        "[::1]:8420",
        "some.other.host",
        "folder",
    ] {
        let reply = to(&server, host, "GET", "/folder/key", "").await;
        assert_eq!(reply.expect(200).body, b"data", "{host}");
    }
}

#[tokio::test]
async fn unknown_host_below_a_bucket_name_is_rejected_with_a_hint() {
    let server = Server::anonymous().await;
    for (method, target) in [
        ("PUT", "/xyz"),
        ("GET", "/folder/key"),
        ("DELETE", "/memory"),
    ] {
        let reply = to(&server, "folder.example.com", method, target, "").await;
        let message = reply.expect_error(400, "InvalidRequest").tag("Message");
        assert!(message.unwrap().contains("--domain example.com"));
    }
    assert!(server.engine.bucket("xyz").is_none());
    // Unauthorised clients do not learn bucket names.
    let server = Server::signed().await;
    let reply = to(&server, "folder.example.com", "GET", "/xyz", "").await;
    reply.expect_error(403, "AccessDenied");
}

#[tokio::test]
async fn signed_request_to_the_host_of_a_bucket_is_served() {
    let server = Server::signed().await;
    let signer = Signer {
        host: "folder.localhost".to_owned(),
        ..Signer::default()
    };
    for (method, body, range) in [("PUT", "data", "bytes=0-"), ("GET", "", "bytes=0-1,2-3")] {
        let digest = sha256_hex(body.as_bytes());
        let (headers, _) = signer.headers(method, "/key", "", &digest, &[("range", range)]);
        let lines: String = borrow(&headers)
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let request = format!(
            "{method} /key HTTP/1.1\r\nHost: folder.localhost\r\nConnection: close\r\n{lines}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let reply = raw(server.address, request.as_bytes()).await.expect(200);
        if method == "GET" {
            assert_eq!(reply.body, b"data");
        }
    }
}

#[tokio::test]
async fn request_without_a_host_or_with_two_is_rejected() {
    let server = Server::anonymous().await;
    server.put("/memory/key", &[], b"data").await.expect(200);
    let end = "Connection: close\r\n\r\n";
    for head in [
        format!("GET /memory/key HTTP/1.1\r\n{end}"),
        format!("GET /memory/key HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n{end}"),
        format!("GET /memory/key HTTP/1.1\r\nHost: \r\n{end}"),
        format!("GET /memory/key HTTP/1.1\r\nHost: a b\r\n{end}"),
        format!(
            "GET /memory/key HTTP/1.1\r\nHost: {}\r\n{end}",
            "a".repeat(300)
        ),
        format!("GET http://one.org/memory/key HTTP/1.1\r\nHost: two.org\r\n{end}"),
    ] {
        let reply = raw(server.address, head.as_bytes()).await;
        reply.expect_error(400, "InvalidRequest");
    }
    // HTTP/1.0 has no such rule.
    let reply = raw(server.address, b"GET /memory/key HTTP/1.0\r\n\r\n").await;
    assert_eq!(reply.expect(200).body, b"data");
}

#[tokio::test]
async fn invalid_domains_are_rejected() {
    let engine = bywash::Engine::builder().memory(64 << 20).build().unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = S3Config {
        domains: vec!["http://s3.example.com".to_owned()],
        ..signed()
    };
    let refused = Box::pin(serve_s3(engine, listener, config, async {})).await;
    assert!(matches!(refused, Err(ServeError::Domain(_))));
}

/// Returns the status lines until the server closes the connection.
async fn status_lines(server: &Server, request: &str) -> Vec<String> {
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    // Shorter than the idle timeout, which would also end the wait.
    let closed = tokio::time::timeout(
        Duration::from_secs(40),
        socket.read_to_string(&mut response),
    );
    closed.await.expect("the connection is closed").unwrap();
    let lines = response.lines().filter(|line| line.starts_with("HTTP/1.1"));
    lines.map(str::to_owned).collect()
}

#[tokio::test]
async fn expect_continue_with_an_empty_body_ends_the_connection() {
    let server = Server::anonymous().await;
    for (target, status) in [
        ("/memory/empty", "200 OK"),
        ("/absent/empty", "404 Not Found"),
    ] {
        let request = format!(
            "PUT {target} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n"
        );
        let lines = status_lines(&server, &request).await;
        assert_eq!(lines, [format!("HTTP/1.1 {status}")], "{target}");
    }
    assert!(
        server
            .get("/memory/empty", &[])
            .await
            .expect(200)
            .body
            .is_empty()
    );
    // `100 Continue` is sent, and the connection serves the next request.
    let request = "PUT /memory/full HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab\
                   GET /memory/full HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let lines = status_lines(&server, request).await;
    assert_eq!(lines.last().unwrap(), "HTTP/1.1 200 OK");
    assert!(
        lines
            .iter()
            .filter(|line| *line == "HTTP/1.1 200 OK")
            .count()
            == 2
    );
}

#[tokio::test]
async fn range_beyond_all_numbers_is_not_satisfiable() {
    for server in [Server::anonymous().await, Server::signed().await] {
        let signer = Signer::default();
        let target = signer.presign("PUT", "/memory/key", 60);
        server.put(&target, &[], b"0123456789").await.expect(200);
        for method in ["GET", "HEAD"] {
            let target = signer.presign(method, "/memory/key", 60);
            for first in [
                "18446744073709551615",
                "9223372036854775808",
                "99999999999999999999999",
            ] {
                let range = format!("bytes={first}-");
                let reply = server
                    .send(method, &target, &[("Range", &range)], b"")
                    .await;
                let reply = reply.expect(416);
                assert_eq!(reply.header("content-range"), Some("bytes */10"), "{range}");
            }
        }
        let target = signer.presign("GET", "/memory/key", 60);
        for (range, expected) in [
            ("bytes=7-18446744073709551615", &b"789"[..]),
            ("bytes=-99999999999999999999999", b"0123456789"),
        ] {
            let reply = server.get(&target, &[("Range", range)]).await;
            assert_eq!(reply.expect(206).body, expected, "{range}");
        }
    }
}

#[tokio::test]
async fn characters_invalid_in_xml_reach_no_response() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        server
            .put(&format!("/{bucket}/key"), &[], b"x")
            .await
            .expect(200);
        let path = |rest: &str| format!("/{bucket}{rest}");
        for (method, target) in [
            ("GET", path("/a%00")),
            ("HEAD", path("/a%00")),
            ("DELETE", path("/a%00")),
            ("GET", path("?prefix=%00&encoding-type=url")),
            ("GET", path("?marker=%00")),
            ("GET", path("?list-type=2&start-after=a%00")),
            ("GET", path("?versions&key-marker=%00")),
            ("GET", path("?uploads&prefix=%00")),
        ] {
            let reply = server.send(method, &target, &[], b"").await.expect(400);
            assert!(
                method == "HEAD" || reply.code() == "InvalidArgument",
                "{target}"
            );
        }
        let copy = [("x-amz-copy-source", format!("/{bucket}/a%00"))];
        let copy = [(copy[0].0, copy[0].1.as_str())];
        let reply = server.put(&path("/copy"), &copy, b"").await;
        reply.expect_error(400, "InvalidArgument");
        // Characters other than NUL are valid where the response is encoded.
        for character in ["%01", "%0D", "%1F", "%EF%BF%BE", "%EF%BF%BF"] {
            let query = format!("?list-type=2&prefix={character}");
            let reply = server.get(&path(&query), &[]).await;
            reply.expect_error(400, "InvalidArgument");
            let reply = server
                .get(&path(&format!("{query}&encoding-type=url")), &[])
                .await;
            assert_eq!(reply.expect(200).tag("Prefix").as_deref(), Some(character));
            let reply = server
                .get(&path(&format!("/key?uploadId={character}")), &[])
                .await;
            let reply = reply.expect_error(404, "NoSuchUpload");
            assert!(
                !reply
                    .text()
                    .contains(['\u{1}', '\r', '\u{1f}', '\u{fffe}', '\u{ffff}'])
            );
            let tags = [("x-amz-tagging", format!("tag={character}"))];
            let tags = [(tags[0].0, tags[0].1.as_str())];
            let reply = server.put(&path("/tagged"), &tags, b"").await;
            reply.expect_error(400, "InvalidTag");
        }
        for written in ["a\0", "a\u{1}", "a&#1;", "a\u{ffff}"] {
            let body = format!(
                "<Delete><Object><Key>key</Key></Object><Object><Key>{written}</Key></Object></Delete>"
            );
            let reply = server
                .send("POST", &path("?delete"), &[], body.as_bytes())
                .await;
            reply.expect_error(400, "MalformedXML");
        }
        server.get(&path("/key"), &[]).await.expect(200);
    }
}

/// A gRPC client begins with HTTP/2. It takes a server that closes or sends HTTP/1.1 for one that
/// starts, and retries for minutes.
#[tokio::test]
async fn calls_of_grpc_are_refused_at_once_in_their_protocol() {
    let gcs = crate::gcs_server::GcsServer::start().await;
    let s3 = Server::anonymous().await;
    for address in [gcs.address, s3.address] {
        let mut socket = TcpStream::connect(address).await.unwrap();
        // Settings, and the head of a call on the stream 1.
        let sent =
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x01\x01\x04\0\0\0\x01\x83";
        socket.write_all(sent).await.unwrap();
        let mut got = Vec::new();
        while !got.windows(11).any(|bytes| bytes == b"grpc-status") {
            assert_ne!(socket.read_buf(&mut got).await.unwrap(), 0);
        }
        // The first frame has the settings.
        assert_eq!(got[..9], [0, 0, 0, 4, 0, 0, 0, 0, 0]);
        // The client leaves, and the server closes.
        let goodbye = b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\0";
        socket.write_all(goodbye).await.unwrap();
        while socket.read_buf(&mut got).await.unwrap() > 0 {}
    }
    // A request whose head only begins so is one of HTTP/1.1.
    let pri = gcs.send("PRI", "*", &[], b"").await;
    assert!(pri.status >= 400);
}
