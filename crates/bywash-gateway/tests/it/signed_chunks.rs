//! Tests of concurrent uploads in signed chunks: stalled clients, and full speed with little memory.

use std::time::Duration;

use bywash::origin::memory::MemoryStore;
use bywash::{Consistency, Engine, Share};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::http::{head, pattern, read_response, send};
use crate::server::{BUCKETS, Server, signed};
use crate::sign::{Signer, borrow};

const SIGNED_CHUNKS: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
const MIB: usize = 1 << 20;
const MEMORY: u64 = 64 << 20;
const UPLOADS: usize = 40;

/// The head of a signed PUT of `length` bytes in signed chunks, with its signature.
fn chunked_head(signer: &Signer, path: &str, length: usize) -> (String, String) {
    let length = length.to_string();
    let extra = [("x-amz-decoded-content-length", length.as_str())];
    let (headers, seed) = signer.headers("PUT", path, "", SIGNED_CHUNKS, &extra);
    let mut headers = borrow(&headers);
    headers.push(("transfer-encoding", "chunked"));
    (head("PUT", path, &headers), seed)
}

/// An HTTP chunk.
fn http_chunk(bytes: &[u8]) -> Vec<u8> {
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    chunk
}

async fn small_server() -> Server {
    let root = tempfile::tempdir().unwrap();
    let engine = Engine::builder()
        .memory(MEMORY)
        .admission_deadline(Duration::from_secs(2))
        .root(root.path())
        .build()
        .unwrap();
    let store = std::sync::Arc::new(MemoryStore::new());
    engine
        .mount("memory", store, Consistency::default())
        .unwrap();
    engine.create_bucket("folder").unwrap();
    let mut config = signed();
    config.limits.silent_body = Duration::from_secs(3600);
    Server::start_with(engine, root, config).await
}

/// Begins a signed chunk of 1 MiB and sends only the beginning.
async fn stall(server: &Server, number: usize) -> TcpStream {
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let signer = Signer::default();
    let (head, _) = chunked_head(&signer, &format!("/folder/stalled-{number}"), MIB);
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut begun = format!("100000;chunk-signature={}\r\n", "0".repeat(64)).into_bytes();
    begun.extend_from_slice(&pattern(1000));
    socket.write_all(&http_chunk(&begun)).await.unwrap();
    socket
}

async fn list(server: &Server) -> u16 {
    let (headers, _) =
        Signer::default().headers("GET", "/folder", "list-type=2", "UNSIGNED-PAYLOAD", &[]);
    let target = "/folder?list-type=2";
    let reply = send(server.address, "GET", target, &borrow(&headers), b"").await;
    reply.status
}

#[tokio::test]
async fn stalled_signed_chunks_hold_no_memory_and_delay_no_request() {
    let server = small_server().await;
    let mut stalled = Vec::new();
    for number in 0..UPLOADS {
        stalled.push(stall(&server, number).await);
    }
    // All uploads are read.
    while server.engine.traffic().stats().in_flight < UPLOADS as u64 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(list(&server).await, 200);
    let (headers, _) = Signer::default().headers("PUT", "/folder/a", "", "UNSIGNED-PAYLOAD", &[]);
    server
        .put("/folder/a", &borrow(&headers), &pattern(MIB))
        .await
        .expect(200);
    upload(server.address, "/folder/b").await;
    // A chunk is passed on as it arrives: the memory held is buffers of parts, less than a quarter
    // of the chunks.
    let held = server.engine.budget().held(Share::Upload);
    assert!(held < (UPLOADS * MIB) as u64 / 4, "{held}");
}

/// Uploads 3 MiB in signed chunks of 512 KiB.
async fn upload(address: std::net::SocketAddr, path: &str) {
    let signer = Signer::default();
    let body = pattern(3 * MIB);
    let (head, mut previous) = chunked_head(&signer, path, body.len());
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(head.as_bytes()).await.unwrap();
    for piece in body.chunks(MIB / 2).chain([&b""[..]]) {
        let (mut chunk, signature) = signer.chunk(&previous, piece);
        if piece.is_empty() {
            chunk.extend_from_slice(b"\r\n");
        }
        previous = signature;
        socket.write_all(&http_chunk(&chunk)).await.unwrap();
    }
    socket.write_all(b"0\r\n\r\n").await.unwrap();
    read_response(&mut socket).await.expect(200);
}

#[tokio::test]
async fn forty_concurrent_signed_chunk_uploads_succeed_with_little_memory() {
    let server = Server::start_in(MEMORY, signed()).await;
    let address = server.address;
    let mut uploads = tokio::task::JoinSet::new();
    for number in 0..UPLOADS {
        let path = format!("/{}/{number}", BUCKETS[1]);
        uploads.spawn(async move { upload(address, &path).await });
    }
    while let Some(upload) = uploads.join_next().await {
        upload.unwrap();
    }
    assert_eq!(server.files().len(), UPLOADS);
}
