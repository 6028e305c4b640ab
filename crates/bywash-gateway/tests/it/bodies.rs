//! Tests of bodies that are chunked, truncated or signed.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::http::{head, http_chunks, pattern, raw, read_response};
use crate::server::{BUCKETS, Server};
use crate::sign::{Signer, borrow, sha256_hex};

const SIGNED_CHUNKS: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
const SIGNED_TRAILER: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER";

/// A body in signed chunks. `spoil` selects a chunk whose data is changed after signing.
fn signed_chunks(
    signer: &Signer,
    seed: &str,
    body: &[u8],
    size: usize,
    spoil: Option<usize>,
) -> (Vec<u8>, String) {
    let (mut framed, mut previous) = (Vec::new(), seed.to_owned());
    for (at, piece) in body
        .chunks(size)
        .chain(std::iter::once(&b""[..]))
        .enumerate()
    {
        let (mut chunk, signature) = signer.chunk(&previous, piece);
        if spoil == Some(at) {
            let last = chunk.len() - 3;
            // Another digit.
            chunk[last] = if chunk[last] == b'0' { b'1' } else { b'0' };
        }
        framed.extend_from_slice(&chunk);
        previous = signature;
    }
    (framed, previous)
}

#[tokio::test]
async fn signed_chunks_are_verified() {
    let server = Server::signed().await;
    let signer = Signer::default();
    let body = pattern(200_001);
    let extra = [
        ("content-encoding", "aws-chunked"),
        ("x-amz-decoded-content-length", "200001"),
    ];
    let (headers, seed) = signer.headers("PUT", "/folder/key", "", SIGNED_CHUNKS, &extra);
    let (mut framed, _) = signed_chunks(&signer, &seed, &body, 65_536, None);
    framed.extend_from_slice(b"\r\n");
    server
        .put("/folder/key", &borrow(&headers), &framed)
        .await
        .expect(200);
    let reply = server
        .get(&signer.presign("GET", "/folder/key", 60), &[])
        .await
        .expect(200);
    assert!(reply.body == body);
    let files = server.files();
    let (mut framed, _) = signed_chunks(&signer, &seed, &body, 65_536, Some(2));
    framed.extend_from_slice(b"\r\n");
    server
        .put("/folder/key", &borrow(&headers), &framed)
        .await
        .expect_error(403, "SignatureDoesNotMatch");
    // Cut between two chunks, where the framing alone does not show it.
    let (framed, _) = signed_chunks(&signer, &seed, &body[..65_536], 65_536, None);
    let cut = framed.len() - "0;chunk-signature=".len() - 64 - 2;
    server
        .put("/folder/key", &borrow(&headers), &framed[..cut])
        .await
        .expect_error(400, "IncompleteBody");
    assert_eq!(server.files(), files);
    let reply = server
        .get(&signer.presign("GET", "/folder/key", 60), &[])
        .await
        .expect(200);
    assert!(reply.body == body);
}

#[tokio::test]
async fn signed_trailers_are_verified() {
    let server = Server::signed().await;
    let signer = Signer::default();
    let extra = [
        ("x-amz-decoded-content-length", "5"),
        ("x-amz-trailer", "x-amz-checksum-crc32"),
    ];
    let (headers, seed) = signer.headers("PUT", "/memory/key", "", SIGNED_TRAILER, &extra);
    let (framed, last) = signed_chunks(&signer, &seed, b"hello", 5, None);
    let trailer = "x-amz-checksum-crc32:NhCmhg==\n";
    for (signature, good) in [
        (signer.trailers(&last, trailer), true),
        ("0".repeat(64), false),
    ] {
        let mut framed = framed.clone();
        framed.extend_from_slice(trailer.trim_end().as_bytes());
        framed.extend_from_slice(
            format!("\r\nx-amz-trailer-signature:{signature}\r\n\r\n").as_bytes(),
        );
        let reply = server.put("/memory/key", &borrow(&headers), &framed).await;
        if good {
            assert_eq!(
                reply.expect(200).header("x-amz-checksum-crc32"),
                Some("NhCmhg==")
            );
        } else {
            reply.expect_error(403, "SignatureDoesNotMatch");
        }
    }
}

#[tokio::test]
async fn signed_payloads_are_verified() {
    let server = Server::signed().await;
    let signer = Signer::default();
    let (headers, _) = signer.headers(
        "PUT",
        "/folder/key",
        "",
        &sha256_hex(b"what was signed"),
        &[],
    );
    let files = server.files();
    server
        .put("/folder/key", &borrow(&headers), b"something other")
        .await
        .expect_error(400, "XAmzContentSHA256Mismatch");
    let body = pattern((16 << 20) + 1);
    server
        .put("/folder/key", &borrow(&headers), &body)
        .await
        .expect_error(400, "XAmzContentSHA256Mismatch");
    server.settled(&files).await;
    // Also for operations whose body is buffered first.
    let xml = b"<Delete><Object><Key>a</Key></Object></Delete>";
    let (headers, _) = signer.headers("POST", "/folder", "delete=", &sha256_hex(b"another"), &[]);
    let reply = server
        .send("POST", "/folder?delete", &borrow(&headers), xml)
        .await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    let (headers, _) = signer.headers("POST", "/folder", "delete=", &sha256_hex(xml), &[]);
    server
        .send("POST", "/folder?delete", &borrow(&headers), xml)
        .await
        .expect(200);
}

#[tokio::test]
async fn signed_chunk_of_any_size_is_verified_as_it_passes() {
    let server = Server::signed().await;
    let signer = Signer::default();
    let body = pattern((20 << 20) + 1);
    let length = body.len().to_string();
    let extra = [("x-amz-decoded-content-length", length.as_str())];
    let (headers, seed) = signer.headers("PUT", "/folder/key", "", SIGNED_CHUNKS, &extra);
    // A byte of the body, and a digit of the last chunk's signature.
    for spoil in [None, Some(0), Some(1)] {
        let (mut framed, _) = signed_chunks(&signer, &seed, &body, body.len(), spoil);
        framed.extend_from_slice(b"\r\n");
        let reply = server.put("/folder/key", &borrow(&headers), &framed).await;
        match spoil {
            None => drop(reply.expect(200)),
            Some(_) => drop(reply.expect_error(403, "SignatureDoesNotMatch")),
        }
    }
    // Without a signature of the chunk.
    let framed = [b"1400001\r\n", &body[..], b"\r\n0\r\n\r\n"].concat();
    let reply = server.put("/folder/key", &borrow(&headers), &framed).await;
    reply.expect_error(400, "InvalidRequest");
    let target = signer.presign("GET", "/folder/key", 60);
    assert!(server.get(&target, &[]).await.expect(200).body == body);
}

/// A PUT, with a payload header, codings, an announced length, trailers, and a body in frames or without.
struct Coded {
    payload: &'static str,
    coding: &'static str,
    decoded: &'static str,
    trailer: bool,
    framed: bool,
}

impl Coded {
    fn headers(&self) -> Vec<(&'static str, &'static str)> {
        let mut headers = Vec::new();
        for (name, value) in [
            ("x-amz-content-sha256", self.payload),
            ("content-encoding", self.coding),
            ("x-amz-decoded-content-length", self.decoded),
        ] {
            headers.extend((!value.is_empty()).then_some((name, value)));
        }
        headers.extend(
            self.trailer
                .then_some(("x-amz-trailer", "x-amz-checksum-crc32")),
        );
        headers
    }

    fn body(&self) -> &'static [u8] {
        match (self.framed, self.trailer) {
            (false, _) => b"hello",
            (true, true) => b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n",
            (true, false) => b"5\r\nhello\r\n0\r\n\r\n",
        }
    }
}

#[tokio::test]
async fn coded_body_is_stored_decoded_or_not_at_all() {
    let server = Server::anonymous().await;
    let (mut stored, mut refused) = (0, 0);
    for payload in [
        "",
        "UNSIGNED-PAYLOAD",
        "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
        "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
        "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD",
    ] {
        for coding in [
            "",
            "gzip",
            "aws-chunked",
            "gzip,aws-chunked",
            "aws-chunked, br",
        ] {
            for decoded in ["", "5", "4", "6", "x"] {
                for (trailer, framed) in
                    [(false, false), (false, true), (true, false), (true, true)]
                {
                    let coded = Coded {
                        payload,
                        coding,
                        decoded,
                        trailer,
                        framed,
                    };
                    let headers = coded.headers();
                    server
                        .send("DELETE", "/memory/key", &[], b"")
                        .await
                        .expect(204);
                    let reply = server.put("/memory/key", &headers, coded.body()).await;
                    let found = server.get("/memory/key", &[]).await;
                    let text = format!("{headers:?} {:?}: {}", coded.body(), reply.text());
                    if reply.status != 200 {
                        assert!(matches!(reply.status, 400 | 411 | 501), "{text}");
                        assert_eq!(found.status, 404, "{text}");
                        refused += 1;
                        continue;
                    }
                    stored += 1;
                    // Without a word about frames, a body that looks framed is one that is not.
                    let is_coded = coding.contains("aws-chunked") || payload.contains("STREAMING");
                    let expected = if is_coded { b"hello" } else { coded.body() };
                    assert_eq!(found.body, expected, "{text}");
                    assert!(decoded.is_empty() || decoded == expected.len().to_string());
                    let codings: String = coding.replace("aws-chunked", "").replace([',', ' '], "");
                    let kept = found.header("content-encoding").unwrap_or_default();
                    assert_eq!(kept, codings, "{text}");
                }
            }
        }
    }
    assert!(stored >= 30 && refused >= 400, "{stored} {refused}");
}

#[tokio::test]
async fn coded_part_and_document_are_decoded_or_refused() {
    let server = Server::anonymous().await;
    server.put("/memory/key", &[], b"x").await.expect(200);
    let xml = b"<Delete><Object><Key>key</Key></Object></Delete>";
    let coding = [("Content-Encoding", "aws-chunked")];
    let reply = server.send("POST", "/memory?delete", &coding, xml).await;
    reply.expect_error(400, "InvalidArgument");
    server.get("/memory/key", &[]).await.expect(200);
    let length = xml.len().to_string();
    let framed = [
        format!("{:x}\r\n", xml.len()).as_bytes(),
        xml,
        b"\r\n0\r\n\r\n",
    ]
    .concat();
    let headers = [
        ("x-amz-content-sha256", SIGNED_CHUNKS),
        ("x-amz-decoded-content-length", length.as_str()),
    ];
    let reply = server
        .send("POST", "/memory?delete", &headers, &framed)
        .await;
    reply.expect(200);
    server.get("/memory/key", &[]).await.expect(404);
    let reply = server
        .send("POST", "/memory/parts?uploads", &coding, b"")
        .await;
    let id = reply.expect(200).tag("UploadId").unwrap();
    let target = format!("/memory/parts?partNumber=1&uploadId={id}");
    let reply = server
        .put(&target, &coding, b"5\r\nhello\r\n0\r\n\r\n")
        .await;
    reply.expect_error(400, "InvalidArgument");
    for (decoded, status) in [("5", 200), ("6", 400)] {
        let headers = [("x-amz-decoded-content-length", decoded)];
        server.put(&target, &headers, b"hello").await.expect(status);
    }
}

#[tokio::test]
async fn malformed_framing_is_rejected() {
    for server in [Server::anonymous().await, Server::signed().await] {
        let signer = Signer::default();
        let extra = [
            ("x-amz-decoded-content-length", "5"),
            ("x-amz-trailer", "x-amz-checksum-crc32"),
        ];
        let (headers, _) = signer.headers(
            "PUT",
            "/memory/key",
            "",
            "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
            &extra,
        );
        let good = "x-amz-checksum-crc32:NhCmhg==\r\n\r\n";
        for (framed, code) in [
            ("hello".to_owned(), "IncompleteBody"),
            ("zz\r\nhello\r\n0\r\n".to_owned(), "InvalidRequest"),
            (format!("4\r\nhello\r\n0\r\n{good}"), "InvalidRequest"),
            ("5\r\nhel".to_owned(), "IncompleteBody"),
            ("5\r\nhello\r\n".to_owned(), "IncompleteBody"),
            (format!("{}\r\n", "5".repeat(2000)), "InvalidRequest"),
            (format!("4\r\nhell\r\n0\r\n{good}"), "IncompleteBody"),
            (format!("6\r\nhello!\r\n0\r\n{good}"), "IncompleteBody"),
            (
                "5\r\nhello\r\n0\r\nno colon\r\n\r\n".to_owned(),
                "InvalidRequest",
            ),
        ] {
            let reply = server
                .put("/memory/key", &borrow(&headers), framed.as_bytes())
                .await;
            assert_eq!(
                (reply.status, reply.code().as_str()),
                (400, code),
                "{framed:?} {}",
                reply.text()
            );
        }
        let listed = signer
            .headers("GET", "/memory", "", &sha256_hex(b""), &[])
            .0;
        assert!(
            server
                .get("/memory", &borrow(&listed))
                .await
                .expect(200)
                .tags("Key")
                .is_empty()
        );
    }
}

#[tokio::test]
async fn body_without_length_is_stored() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        for length in [0, 10, (16 << 20) + 3] {
            let body = pattern(length);
            let headers = [("Transfer-Encoding", "chunked")];
            server
                .put(
                    &format!("/{bucket}/key"),
                    &headers,
                    &http_chunks(&body, 50_000),
                )
                .await
                .expect(200);
            assert!(
                server
                    .get(&format!("/{bucket}/key"), &[])
                    .await
                    .expect(200)
                    .body
                    == body
            );
        }
    }
}

#[tokio::test]
async fn truncated_body_stores_nothing() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        server.put(&target, &[], b"old").await.expect(200);
        let files = server.files();
        for (framing, value, sent) in [
            ("Content-Length", "10", pattern(3)),
            ("Content-Length", "41943040", pattern(20 << 20)),
            ("Content-Length", "41943040", pattern(1)),
            // Ends within a chunk.
            ("Transfer-Encoding", "chunked", b"a\r\nhalf".to_vec()),
        ] {
            let mut request = head("PUT", &target, &[(framing, value)]).into_bytes();
            request.extend_from_slice(&sent);
            let mut socket = tokio::net::TcpStream::connect(server.address)
                .await
                .unwrap();
            socket.write_all(&request).await.unwrap();
            // Half-closes the connection; the response can still arrive.
            socket.shutdown().await.unwrap();
            read_response(&mut socket)
                .await
                .expect_error(400, "IncompleteBody");
        }
        assert_eq!(server.get(&target, &[]).await.expect(200).text(), "old");
        server.settled(&files).await;
    }
}

#[tokio::test]
async fn client_that_expects_100_continue_gets_it() {
    let server = Server::anonymous().await;
    let request = head(
        "PUT",
        "/memory/key",
        &[("Content-Length", "5"), ("Expect", "100-continue")],
    );
    let mut socket = tokio::net::TcpStream::connect(server.address)
        .await
        .unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut line = [0; 25];
    socket.read_exact(&mut line).await.unwrap();
    assert_eq!(&line, b"HTTP/1.1 100 Continue\r\n\r\n");
    socket.write_all(b"hello").await.unwrap();
    crate::http::read_response(&mut socket).await.expect(200);
    // A rejected request gets no `100 Continue`.
    let request = head(
        "PUT",
        "/absent/key",
        &[("Content-Length", "5"), ("Expect", "100-continue")],
    );
    raw(server.address, request.as_bytes())
        .await
        .expect_error(404, "NoSuchBucket");
}

#[tokio::test]
async fn early_response_arrives_and_ends_the_connection() {
    let server = Server::signed().await;
    let body = pattern(24 << 20);
    for _ in 0..5 {
        let reply = server
            .put("/memory/key", &[], &body)
            .await
            .expect_error(403, "AccessDenied");
        assert_eq!(reply.header("connection"), Some("close"));
        assert!(reply.complete);
    }
    // Clients that reuse connections must see it, or their next request would go to a closed one.
    let mut socket = tokio::net::TcpStream::connect(server.address)
        .await
        .unwrap();
    let head =
        "PUT /memory/key HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
    socket.write_all(head.as_bytes()).await.unwrap();
    let reply = crate::http::read_response(&mut socket)
        .await
        .expect_error(403, "AccessDenied");
    assert_eq!(reply.header("connection"), Some("close"));
    // A fully read request keeps its connection.
    let mut socket = tokio::net::TcpStream::connect(server.address)
        .await
        .unwrap();
    for _ in 0..2 {
        socket
            .write_all(b"GET /memory/key HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        let mut response = vec![0; 4096];
        let length = socket.read(&mut response).await.unwrap();
        let text = String::from_utf8_lossy(&response[..length]).to_ascii_lowercase();
        assert!(
            text.starts_with("http/1.1 403") && !text.contains("connection: close"),
            "{text}"
        );
    }
}
