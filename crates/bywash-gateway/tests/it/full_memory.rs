//! Tests of requests that find no memory: each gets a response.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bywash::origin::memory::MemoryStore;
use bywash::{Consistency, Engine, Reservation, Share};
use bywash_gateway::{GcsConfig, S3Config};
use bywash_sim::advance_clock_by_ticks;
use bywash_support::pattern::mix;
use bywash_support::settings::seeds;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::gcs_server::GcsServer;
use crate::http::{http_chunks, read_to_close};
use crate::server::Server;

const MEMORY: u64 = 16 << 20;

/// Takes all memory of an engine.
fn fill(engine: &Engine) -> Vec<Reservation> {
    let mut held = Vec::new();
    for size in [1 << 20, 1 << 14, 1 << 10, 1] {
        for share in [Share::Upload, Share::Download] {
            held.extend(std::iter::from_fn(|| engine.try_reserve(share, size)));
        }
    }
    held
}

/// An engine in which requests wait for memory only shortly.
fn engine(root: &tempfile::TempDir) -> Engine {
    advance_clock_by_ticks();
    let engine = Engine::builder()
        .memory(MEMORY)
        .admission_deadline(Duration::from_secs(1))
        .root(root.path())
        .build()
        .unwrap();
    let store = Arc::new(MemoryStore::new());
    engine
        .mount("memory", store, Consistency::default())
        .unwrap();
    engine
}

/// A request as it is sent: in pieces, each by a write of its own.
struct Sent {
    method: &'static str,
    target: &'static str,
    pieces: Vec<Vec<u8>>,
}

impl Sent {
    /// Draws the method, the length of the head, the length of the body with its framing, and where
    /// the bytes are cut.
    fn draw(seed: u64, targets: &[(&'static str, &'static str)]) -> Self {
        let draw = |salt: u64, count: usize| (mix(seed ^ salt << 32) % count as u64) as usize;
        let (method, target) = targets[draw(1, targets.len())];
        let padding = [0, 3 << 10, 6 << 10, 9 << 10, 20 << 10, 55 << 10][draw(2, 6)];
        let body = vec![b'x'; [0, 1, 1 << 10, 15_000, 200_000][draw(3, 5)]];
        let (framing, body) = match (method, draw(4, 2)) {
            ("GET" | "HEAD" | "DELETE", _) => (String::new(), Vec::new()),
            (_, 0) => (format!("Content-Length: {}\r\n", body.len()), body),
            _ => (
                "Transfer-Encoding: chunked\r\n".to_owned(),
                http_chunks(&body, 4096),
            ),
        };
        let padding = "h".repeat(padding);
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nx-other: {padding}\r\n{framing}\r\n"
        );
        let mut rest = [head.into_bytes(), body].concat();
        let mut pieces = Vec::new();
        for salt in 0..draw(5, 4) as u64 {
            let cut = draw(6 + salt, rest.len() + 1);
            let after = rest.split_off(cut);
            pieces.push(std::mem::replace(&mut rest, after));
        }
        pieces.push(rest);
        Self {
            method,
            target,
            pieces,
        }
    }

    /// Sends it, and returns the status of the response, which is complete.
    async fn status(&self, address: SocketAddr) -> u16 {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.set_nodelay(true).unwrap();
        for piece in &self.pieces {
            // A server may respond before it has read all.
            let _ = socket.write_all(piece).await;
            tokio::task::yield_now().await;
        }
        let response = String::from_utf8(read_to_close(&mut socket).await).unwrap();
        let sizes: Vec<_> = self.pieces.iter().map(Vec::len).collect();
        let (method, target) = (self.method, self.target);
        let Some((head, body)) = response.split_once("\r\n\r\n") else {
            panic!("{method} {target} in pieces of {sizes:?} bytes: no response: {response:?}");
        };
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.parse::<usize>().unwrap())
        });
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let expected = match (method, status) {
            ("HEAD", _) | (_, 204) => Some(0),
            _ => length,
        };
        assert_eq!(Some(body.len()), expected, "{method} {target}: {response}");
        status
    }
}

/// Sends requests of all kinds while no memory is free. Returns how many were to be sent again.
async fn refused(engine: &Engine, address: SocketAddr, targets: &'static [(&str, &str)]) -> usize {
    let held = fill(engine);
    let mut requests = JoinSet::new();
    for seed in seeds(0..150) {
        requests.spawn(async move { Sent::draw(seed, targets).status(address).await });
    }
    let statuses = requests.join_all().await;
    drop(held);
    let few: Vec<_> = statuses.iter().filter(|status| **status >= 500).collect();
    assert!(few.iter().all(|status| **status == 503), "{statuses:?}");
    few.len()
}

#[tokio::test]
async fn each_s3_request_in_full_memory_gets_a_response() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start_with(engine(&root), root, S3Config::anonymous()).await;
    server.put("/memory/key", &[], b"hello").await.expect(200);
    let targets = &[
        ("GET", "/memory/key"),
        ("GET", "/memory"),
        ("HEAD", "/memory/key"),
        ("PUT", "/memory/key"),
        ("PUT", "/memory/key?partNumber=1&uploadId=x"),
        ("POST", "/memory?delete"),
        ("POST", "/memory/key?uploads"),
        ("DELETE", "/memory/other"),
    ];
    let refused = refused(&server.engine, server.address, targets).await;
    assert!(refused > 40, "{refused}");
    server.put("/memory/key", &[], b"hello").await.expect(200);
}

#[tokio::test]
async fn each_gcs_request_in_full_memory_gets_a_response() {
    let root = tempfile::tempdir().unwrap();
    let server = GcsServer::start_over(engine(&root), root, GcsConfig::anonymous("")).await;
    let targets = &[
        ("GET", "/storage/v1/b/memory/o"),
        ("GET", "/storage/v1/b/memory/o/key"),
        ("GET", "/memory/key"),
        ("HEAD", "/memory/key"),
        ("PUT", "/memory/key"),
        (
            "POST",
            "/upload/storage/v1/b/memory/o?uploadType=media&name=key",
        ),
        (
            "POST",
            "/upload/storage/v1/b/memory/o?uploadType=resumable&name=key",
        ),
        ("POST", "/upload/storage/v1/b/memory/o?uploadType=multipart"),
        ("POST", "/storage/v1/b/memory/o/key/compose"),
        ("POST", "/batch/storage/v1"),
        ("PATCH", "/storage/v1/b/memory/o/key"),
        ("DELETE", "/storage/v1/b/memory/o/other"),
    ];
    let refused = refused(&server.engine, server.address, targets).await;
    assert!(refused > 20, "{refused}");
}
