//! The JSON API of Google's storage: objects that are stored as gzip, for clients that take it and others; and requests that the client
//! compressed.

use std::io::Write;

use bywash_gateway::GcsConfig;
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::gcs::refused;
use crate::gcs_server::GcsServer;
use crate::http::{head, pattern};
use crate::server::BUCKETS;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Writes an object with this metadata.
async fn put(server: &GcsServer, bucket: &str, key: &str, body: &[u8], metadata: &str) {
    server.put_object(bucket, key, body).await;
    let object = format!("/storage/v1/b/{bucket}/o/{key}");
    let set = server.send_owned("PATCH", object, metadata.as_bytes());
    set.await.expect(200);
}

#[tokio::test]
async fn gzip_is_decompressed_for_clients_that_do_not_take_it() {
    let server = GcsServer::start().await;
    let text = pattern(5 << 20);
    let file = gzip(&text);
    for bucket in BUCKETS {
        put(
            &server,
            bucket,
            "key",
            &file,
            r#"{"contentEncoding":"gzip"}"#,
        )
        .await;
        let target = format!("/storage/v1/b/{bucket}/o/key?alt=media");
        for headers in [&[][..], &[("Range", "bytes=5-9")]] {
            let read = server.send("GET", &target, headers, b"").await.expect(200);
            assert!(read.body == text, "{bucket}");
            let length = file.len().to_string();
            for (name, value) in [
                ("content-encoding", None),
                ("content-length", None),
                ("x-goog-hash", None),
                ("x-goog-stored-content-encoding", Some("gzip")),
                ("x-goog-stored-content-length", Some(&*length)),
                ("warning", Some("214 Bywash gunzipped")),
                ("accept-ranges", Some("none")),
                ("vary", Some("Accept-Encoding")),
            ] {
                assert_eq!(read.header(name), value, "{name}");
            }
        }
        for header in [
            ("Accept-Encoding", "gzip, deflate"),
            ("Cache-Control", "no-transform"),
        ] {
            let read = server
                .send("GET", &target, &[header], b"")
                .await
                .expect(200);
            assert!(read.body == file, "{bucket}");
            assert_eq!(read.header("content-encoding"), Some("gzip"));
            assert!(read.header("warning").is_none() && read.header("x-goog-hash").is_some());
            let part = [header, ("Range", "bytes=0-1")];
            let read = server.send("GET", &target, &part, b"").await.expect(206);
            assert_eq!(read.body, [0x1f, 0x8b]);
        }
    }
}

#[tokio::test]
async fn other_objects_pass_as_they_are_stored() {
    let server = GcsServer::start().await;
    let file = gzip(b"text");
    let fixed = r#"{"contentEncoding":"gzip","cacheControl":"no-transform"}"#;
    for (body, metadata) in [
        (&file[..], fixed),
        (b"no gzip file", r#"{"contentEncoding":"gzip"}"#),
        (b"", r#"{"contentEncoding":"gzip"}"#),
        (&file, r#"{"contentEncoding":"br"}"#),
    ] {
        put(&server, "folder", "key", body, metadata).await;
        let read = server.get("/storage/v1/b/folder/o/key?alt=media").await;
        let read = read.expect(200);
        assert_eq!(read.body, body, "{metadata}");
        assert!(read.header("content-encoding").is_some() && read.header("warning").is_none());
    }
    refused(
        server.get("/storage/v1/b/folder/o/absent?alt=media").await,
        404,
        "notFound",
    );
}

#[tokio::test]
async fn small_file_that_is_damaged_is_an_error_and_no_cut() {
    let server = GcsServer::start().await;
    let whole = gzip(&b"text ".repeat(1000));
    let mut flipped = whole.clone();
    flipped[20] ^= 0x55;
    let cut = &whole[..whole.len() - 8];
    for body in [cut, &whole[..10], &flipped] {
        put(
            &server,
            "folder",
            "key",
            body,
            r#"{"contentEncoding":"gzip"}"#,
        )
        .await;
        for target in ["/storage/v1/b/folder/o/key?alt=media", "/folder/key"] {
            let read = server.get(target).await.expect(500);
            assert!(read.text().contains("gzip file"), "{}", read.text());
            let taken = [("accept-encoding", "gzip")];
            let read = server.send("GET", target, &taken, b"").await;
            assert_eq!(read.expect(200).body, body);
        }
    }
}

/// As Google's Java client sends them: the documents of a request are compressed, the bytes of an
/// object are as the client stores them.
#[tokio::test]
async fn requests_that_are_compressed_are_read() {
    let server = GcsServer::start().await;
    let bytes = pattern(3 << 20);
    let coding = ("Content-Encoding", "gzip");
    let headers = [("Content-Type", "multipart/related; boundary=b"), coding];
    let head = "--b\r\n\r\n{\"name\":\"key\"}\r\n--b\r\nContent-Type: text/x\r\n\r\n";
    let file = gzip(&[head.as_bytes(), &bytes, b"\r\n--b--\r\n"].concat());
    for bucket in BUCKETS {
        let object = format!("/storage/v1/b/{bucket}/o/key");
        let insert = format!("/upload/storage/v1/b/{bucket}/o?uploadType=multipart");
        for cut in [1, file.len() / 2] {
            let sent = server.post(&insert, &headers, &file[..file.len() - cut]);
            let refused = sent.await.expect(400);
            assert!(refused.text().contains("no whole gzip file"));
            server.get(&object).await.expect(404);
        }
        server.post(&insert, &headers, &file).await.expect(200);
        let read = server.get(&format!("{object}?alt=media")).await.expect(200);
        assert!(read.body == bytes, "{bucket}");
        assert_eq!(read.header("content-type"), Some("text/x"));
        let patch = gzip(br#"{"metadata":{"colour":"blue"}}"#);
        let patched = server.send("PATCH", &object, &[coding], &patch).await;
        assert!(patched.expect(200).text().contains("blue"));
        // No file at all is no document.
        let copy = format!("{object}/rewriteTo/b/{bucket}/o/copy");
        server.post(&copy, &[coding], b"").await.expect(200);
        let media = format!("/upload/storage/v1/b/{bucket}/o?uploadType=media&name=as-it-is");
        server.post(&media, &[coding], &patch).await.expect(200);
        let stored = format!("/storage/v1/b/{bucket}/o/as-it-is?alt=media");
        assert!(server.get(&stored).await.expect(200).body == patch);
    }
}

#[tokio::test]
async fn compressed_document_is_no_longer_than_another() {
    let server = GcsServer::start().await;
    let bomb = gzip(&vec![b' '; 64 << 20]);
    let coding = [("Content-Encoding", "gzip")];
    let sent = server.send("PATCH", "/storage/v1/b/folder/o/key", &coding, &bomb);
    refused(sent.await, 400, "invalid");
}

/// Asks for an object, and reads no more than the status.
async fn begin(server: &GcsServer, target: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    let mut socket = socket.connect(server.address).await.unwrap();
    let request = head("GET", target, &[]);
    socket.write_all(request.as_bytes()).await.unwrap();
    socket
}

async fn status(socket: &mut TcpStream) -> u16 {
    let mut first = [0; 12];
    socket.read_exact(&mut first).await.unwrap();
    std::str::from_utf8(&first[9..]).unwrap().parse().unwrap()
}

#[tokio::test]
async fn decompressions_beyond_their_memory_wait_and_hold_nothing() {
    // A sixteenth of it has room for four.
    let server = GcsServer::start_in(16 << 20, GcsConfig::anonymous("")).await;
    let text = pattern(8 << 20);
    let set = r#"{"contentEncoding":"gzip"}"#;
    put(&server, "memory", "key", &gzip(&text), set).await;
    server.put_object("memory", "plain", &text[..1 << 20]).await;
    let target = "/storage/v1/b/memory/o/key?alt=media";
    let mut reading = Vec::new();
    for _ in 0..4 {
        let mut socket = begin(&server, target).await;
        assert_eq!(status(&mut socket).await, 200);
        reading.push(socket);
    }
    let mut waiting = begin(&server, target).await;
    let plain = "/storage/v1/b/memory/o/plain?alt=media";
    let plain = server.get(plain).await.expect(200);
    assert!(plain.body == text[..1 << 20]);
    let unanswered = waiting.try_read(&mut [0; 1]);
    assert!(unanswered.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    drop(reading.pop());
    assert_eq!(status(&mut waiting).await, 200);
}
